"""A row of the paper's table: a method, its place there, and what a search tries of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cpaan.core.settings import Settings
from cpaan.gan.gans import Gan
from cpaan.methods.base import Checkpointing, LowShotMethod, MetaLearned
from cpaan.protocol.config import HEADS, OWN, EvaluationConfig, NeighbourSettings
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.few_shot_episodes import check_rows
from cpaan.training.learning import EpisodeSettings, Learner, LearningSettings

RESNET, PN, NO_GENERATION = "ResNet-10", "PN", "-"

IN_PN = "-PN"
"""Suffix of a row's name that runs the same method in the embedding of a prototypical network."""

FEATURES, COSINE_FEATURES = TABLES = ("features", "cosine-features")
"""The feature tables that rows read: of a plain backbone, or of one with a cosine classifier."""

_SIZES = ("num_ways", "episode_shots", "num_queries", "hidden_dim")


@dataclass(frozen=True)
class Range:
    """Numbers that a search may try, ends included; whole numbers where both ends are."""

    low: float
    high: float
    log: bool = False
    when: tuple[str, Any] | None = None
    """Another parameter, and the value of it with which this one has an effect."""


SearchSpace = Mapping[str, Range | tuple[Any, ...]]
"""What a search tries: ranges or choices of settings of a method and of the evaluation, by name."""

Check = Callable[[Any, EvaluationConfig, Mapping[str, int], int], None]

Make = Callable[[Any, EvaluationConfig, Checkpointing], LowShotMethod]


@dataclass(frozen=True, kw_only=True)
class NothingToSet(Settings):
    """The settings of a method that has none of its own."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A method and its place in the table."""

    name: str
    group: str = "Baseline"
    """First column of the table."""
    representation: str = RESNET
    generation: str = NO_GENERATION
    is_printed: bool = False
    """Whether the paper has this row."""
    head: str = OWN
    """The final classifier by the paper's rule, or the method's own."""
    heads: tuple[str, ...] = (OWN,)
    """Classifiers to choose from."""
    make: Make
    """Makes the method from its settings, those of the evaluation, and its checkpoint."""
    check_own: Check = lambda config, evaluation, num_rows, num_dims: None
    """What `check` refuses beside what it refuses for all rows."""
    gan: Gan | None = None

    config: Settings = field(default_factory=NothingToSet)
    """Recommended settings of the training."""
    published: Settings | None = None
    """Settings of the source, where they differ."""
    published_evaluation: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the evaluation that the source has otherwise."""
    space: SearchSpace = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    """Sizes for two cores and a few minutes."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """Sizes at the paper's scale, where they are not those of ``config``."""
    quick_head: str | None = None
    """The head of a quick search, where it is not ``head``."""

    is_embedded: bool = False
    """Whether the method works in the embedding of a prototypical network, trained first."""
    features: str = FEATURES
    """Which feature table the method reads."""

    @property
    def is_trained(self) -> bool:
        """Whether the method itself is trained on base classes."""
        return hasattr(self.config, "num_episodes")

    def published_for(self, training: Settings) -> Settings | None:
        """Return the settings of the source at the sizes that a study has chosen for its data."""
        if self.published is None:
            return None
        ours, default = training.to_dict(), self.config.to_dict()
        sizes = {*_SIZES, *self.quick} & set(ours)
        changed = {name: ours[name] for name in sizes if ours[name] != default[name]}
        if "num_episodes" in ours:
            changed["num_episodes"] = ours["num_episodes"]
        return self.published.with_overrides(changed)

    def space_for(
        self, training: Settings, evaluation: EvaluationConfig, num_dims: int, num_base: int
    ) -> SearchSpace:
        """Return what a search tries on data with so many dimensions and base classes."""
        settings: NeighbourSettings = evaluation
        num_related = num_base
        if isinstance(training, NeighbourSettings):
            settings, num_related = training, num_base - getattr(training, "num_ways", 0)
        most = {
            "ky_fan_order": num_dims,
            "num_neighbours": num_related,
            # Half of the base classes, and in any case the recommended value.
            "perplexity": max(num_related / 2, settings.perplexity or 0),
        }
        space = {
            name: replace(values, high=min(values.high, most[name]))
            if isinstance(values, Range) and name in most
            else values
            for name, values in self.space.items()
        }
        if evaluation.mixing_weight is not None:  # which overrides the number of shots
            space.pop("mixing_shots", None)
        return space

    def check(
        self,
        config: Settings,
        evaluation: EvaluationConfig,
        num_rows: Mapping[str, int],
        num_dims: int,
        embedding: EmbeddingConfig | None = None,
    ) -> None:
        """Refuse settings that do not suit base classes with so many train rows by name.

        The ``embedding``, by default the recommended one, is for rows that work in one.

        Raises:
            ValueError: With the setting and both numbers.
        """
        if not isinstance(config, type(self.config)):
            raise ValueError(
                f"{self.name} has {type(self.config).__name__}, got {type(config).__name__}"
            )
        if not self.heads_among(evaluation.heads):
            raise ValueError(
                f"{self.name} has the heads {', '.join(self.heads)}, "
                f"got {', '.join(evaluation.heads)}"
            )
        if isinstance(config, EpisodeSettings):
            check_rows(num_rows, config)
        self.check_own(config, evaluation, num_rows, num_dims)
        if self.is_embedded:
            check_rows(num_rows, embedding or EmbeddingConfig())

    def heads_among(self, wanted: tuple[str, ...]) -> list[str]:
        """Return the heads that the method is scored with, where these are wanted."""
        return [head for head in self.heads if head == OWN or head in wanted]


def place_of(*, is_embedded: bool) -> dict[str, Any]:
    """Return what rows with any head have in common, in or outside of an embedding."""
    return {
        "representation": PN if is_embedded else RESNET,
        "head": "centroid" if is_embedded else "linear",
        "heads": HEADS,
        "is_embedded": is_embedded,
    }


def learned_row(
    name: str,
    learner: type[Learner],
    config: LearningSettings,
    published: LearningSettings,
    space: SearchSpace,
    quick: Mapping[str, Any],
    *,
    method: type[MetaLearned] = MetaLearned,
    **others: Any,
) -> TableRow:
    """Return the row of a method that is its learner; by default, a row of the paper."""
    fields: dict[str, Any] = {"representation": name, "is_printed": True, **others}
    return TableRow(
        name=name,
        config=config,
        published=published,
        space=space,
        quick=quick,
        make=lambda config, evaluation, checkpointing: method(name, learner, config, checkpointing),
        **fields,
    )
