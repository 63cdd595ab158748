"""What a method is (how to make it, its settings and search space), and its entry in the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cpaan.core.settings import Settings
from cpaan.gan.gans import Gan
from cpaan.methods.base import LowShotMethod, MetaLearned
from cpaan.protocol.config import HEADS, OWN, EvaluationConfig, NeighbourSettings
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.few_shot_episodes import check_rows
from cpaan.training.learning import Learner, LearningSettings

RESNET, PN, NO_GENERATION = "ResNet-10", "PN", "-"

IN_PN = "-PN"
"""Suffix of rows that run a method in the embedding of a prototypical network."""

FEATURES, COSINE_FEATURES = TABLES = ("features", "cosine-features")
"""Feature tables that rows read: of a plain backbone, or of one with a cosine classifier."""

_SIZES = ("num_ways", "episode_shots", "num_queries", "hidden_dim")
_NEIGHBOURS = {"perplexity": "soft", "num_neighbours": "hard"}
"""Kinds of neighbours for which a hyperparameter has an effect; a search leaves out the others."""


@dataclass(frozen=True)
class Range:
    """Numbers that a search may try, bounds included; integers if both bounds are."""

    low: float
    high: float
    log: bool = False


SearchSpace = Mapping[str, Range | tuple[Any, ...]]
"""Search space: ranges or choices of settings of a method and of the evaluation, by name."""

MIXING_SHOTS, NUMBERS_OF_EXAMPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (20, 100)
SWEEP = {
    "mixing_shots": MIXING_SHOTS,
    "num_synthetic": NUMBERS_OF_EXAMPLES,
    "fill_to_capacity": (False,),
}
"""Settings of the use of synthetic examples, which need no training, and the values to try."""

Make = Callable[[Any, EvaluationConfig], LowShotMethod]


@dataclass(frozen=True, kw_only=True)
class NothingToSet(Settings):
    """Settings of a method without settings of its own."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How to make a method, and its settings; subclasses check them against the data."""

    make: Make
    """Function from method settings and evaluation settings to a method."""
    gan: Gan | None = None
    config: Settings = field(default_factory=NothingToSet)
    """Recommended training settings."""
    published: Settings | None = None
    """Settings of the source, if they differ."""
    published_evaluation: Mapping[str, Any] = field(default_factory=dict)
    """Evaluation settings in which the source differs."""
    published_head: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the source's linear classifier; trials of a search have a shorter one."""
    space: SearchSpace = field(default_factory=dict)
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings that need no training, with the values that are tried after it. FI has none: its
    number of examples and their equal weights are part of its training."""
    quick: Mapping[str, Any] = field(default_factory=dict)
    """Sizes for a few minutes on two cores."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of a report at the paper's scale, if they differ from ``config``, those of a trial."""

    def at_size(self, *, is_quick: bool) -> Settings:
        """Return the recommended settings at the quick sizes, or at the paper's scale."""
        return self.config.with_overrides(self.quick if is_quick else self.full)

    def as_published(
        self, evaluation: EvaluationConfig
    ) -> tuple[Settings, EvaluationConfig] | None:
        """Return the source's settings at its own length, and its evaluation; None if unknown."""
        if self.published is None and not self.published_head:
            return None
        overrides = {**self.published_evaluation, **self.published_head}
        return self.published or self.config, evaluation.with_overrides(overrides)

    def published_for(self, training: Any) -> Settings | None:
        """Return the source's settings at the sizes that a study has chosen for its data."""
        if self.published is None:
            return None
        ours, default = training.to_dict(), self.config.to_dict()
        sizes = {*_SIZES, *self.quick} & set(ours)
        changed = {name: ours[name] for name in sizes if ours[name] != default[name]}
        if "num_episodes" in ours:
            changed["num_episodes"] = ours["num_episodes"]
        return self.published.with_overrides(changed)

    def space_for(
        self, training: Any, related: NeighbourSettings, num_dims: int, num_base: int
    ) -> SearchSpace:
        """Return the search space for data with these numbers of dimensions and base classes."""
        most = {
            "ky_fan_order": num_dims,
            "num_neighbours": num_base,
            # Half of the base classes, but at least the recommended value.
            "perplexity": max(num_base / 2, related.perplexity or 0),
        }
        return {
            name: replace(values, high=min(values.high, most[name]))
            if isinstance(values, Range) and name in most
            else values
            for name, values in self.space.items()
            if _NEIGHBOURS.get(name, related.neighbours) == related.neighbours
        }

    def check(
        self, config: Any, evaluation: EvaluationConfig, num_rows: Mapping[str, int], num_dims: int
    ) -> None:
        """Raise a ValueError if settings do not suit base classes with these numbers of rows."""


class EpisodicMethod(Method):
    """A method whose episodes need enough train rows of every base class."""

    def check(
        self, config: Any, evaluation: EvaluationConfig, num_rows: Mapping[str, int], num_dims: int
    ) -> None:
        """Refuse episodes with more shots and queries than the smallest class has rows."""
        check_rows(num_rows, config)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A method's entry in the table."""

    name: str
    summary: str
    """What the row does, and its source, in a few words."""
    group: str = "Baseline"
    """First column of the table."""
    representation: str = RESNET
    generation: str = NO_GENERATION
    is_printed: bool = False
    """Whether the paper has this row."""
    head: str = OWN
    """Final classifier by the paper's rule, or the method's own."""
    heads: tuple[str, ...] = (OWN,)
    """Classifiers to choose from."""
    quick_head: str | None = None
    """Head of a quick search, if it differs from ``head``."""
    features: str = FEATURES
    """Feature table that the method reads."""
    is_embedded: bool = False
    """Whether the method works in the embedding of a prototypical network, trained first."""
    method: Method

    def check(
        self,
        config: Settings,
        evaluation: EvaluationConfig,
        num_rows: Mapping[str, int],
        num_dims: int,
        embedding: EmbeddingConfig | None = None,
    ) -> None:
        """Raise a ValueError if settings do not suit base classes with these numbers of train rows.

        Rows that work in an embedding also check ``embedding``, by default the recommended one.
        """
        if not isinstance(config, type(self.method.config)):
            raise ValueError(
                f"{self.name} needs {type(self.method.config).__name__}, "
                f"got {type(config).__name__}"
            )
        if not self.heads_among(evaluation.heads):
            raise ValueError(
                f"{self.name} has the heads {', '.join(self.heads)}, "
                f"got {', '.join(evaluation.heads)}"
            )
        self.method.check(config, evaluation, num_rows, num_dims)
        if self.is_embedded:
            check_rows(num_rows, embedding or EmbeddingConfig())

    def heads_among(self, wanted: tuple[str, ...]) -> list[str]:
        """Return the method's own classifier, if any, and its heads that are wanted."""
        return [head for head in self.heads if head == OWN or head in wanted]


def place_of(*, is_embedded: bool) -> dict[str, Any]:
    """Return the common fields of rows that allow any head, with or without an embedding."""
    return {
        "representation": PN if is_embedded else RESNET,
        "head": "centroid" if is_embedded else "linear",
        "heads": HEADS,
        "is_embedded": is_embedded,
    }


def learned_row(
    name: str,
    summary: str,
    learner: type[Learner],
    config: LearningSettings,
    published: LearningSettings,
    space: SearchSpace,
    quick: Mapping[str, Any],
    kind: type[Method] = EpisodicMethod,
    **labels: Any,
) -> TableRow:
    """Return the row of a method that consists of a learner; by default, a row of the paper."""
    method = kind(
        make=lambda config, evaluation: MetaLearned(name, learner, config),
        config=config,
        published=published,
        space=space,
        quick=quick,
    )
    labels = {"representation": name, "is_printed": True, **labels}
    return TableRow(name=name, summary=summary, method=method, **labels)
