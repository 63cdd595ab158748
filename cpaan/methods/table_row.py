"""A row of the paper's table: a method, its place there, and what may be searched of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from cpaan.core.settings import SearchSpace, Settings
from cpaan.methods.base import Keeping, LowShotMethod
from cpaan.protocol.config import HEADS, OWN, EvaluationConfig

RESNET, PN, NO_GENERATION = "ResNet-10", "PN", "-"


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class NothingToSet(Settings):
    """The settings of a method that has none of its own."""


Make = Callable[[Any, EvaluationConfig, Keeping], LowShotMethod]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method and its place in the table."""

    group: str
    """What the table's first column says."""
    representation: str = RESNET
    generation: str = NO_GENERATION
    is_printed: bool = False
    """Whether the paper has this row; the others are ours."""
    head: str
    """The final classifier by the paper's rule, or the method's own."""
    heads: tuple[str, ...] = HEADS
    """Classifiers there are to choose from."""
    config: Settings = field(default_factory=NothingToSet)
    """Recommended settings of its training."""
    published: Settings | None = None
    """Those of its source, where they are others."""
    space: SearchSpace = field(default_factory=_nothing)
    """What a search tries: settings of its training and of the evaluation, by name."""
    quick: Mapping[str, Any] = field(default_factory=_nothing)
    """Sizes for two cores and minutes."""
    make: Make
    """Makes it of its settings, those of the evaluation, and where its training is kept."""
    is_embedded: bool = False
    """Whether it works in the embedding of a prototypical network, trained first."""
    wants_cosine: bool = False
    """Whether it is given features of a backbone that was trained with a cosine classifier."""


def own_row(
    module: ModuleType,
    kind: Callable[[Any, Keeping], LowShotMethod],
    config: Settings,
    *,
    representation: str,
    group: str = "Baseline",
    is_printed: bool = True,
    wants_cosine: bool = False,
    published: Settings | None = None,
    quick: Mapping[str, Any],
) -> Row:
    """Return the row of a method that has a classifier of its own."""
    return Row(
        group=group,
        representation=representation,
        is_printed=is_printed,
        head=OWN,
        heads=(OWN,),
        config=config,
        published=published or module.PUBLISHED,
        space=module.SPACE,
        quick=quick,
        make=lambda config, evaluation, keeping: kind(config, keeping),
        wants_cosine=wants_cosine,
    )
