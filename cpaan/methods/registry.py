"""All rows of the table by name. To add a method, write a module with `ROWS` and list it here."""

from collections.abc import Collection, Sequence
from pathlib import Path

from cpaan.core.settings import Settings, suggestion
from cpaan.methods import (
    adversarial,
    controls,
    denoising_weights,
    distribution_calibration,
    hallucination,
    imagination,
    maml,
    matching,
    prototypical,
    siamese,
    weight_generator,
)
from cpaan.methods.base import LowShotMethod
from cpaan.methods.prototypical import Embedded
from cpaan.methods.table_row import TABLES, Method, TableRow
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.drive import Progress

_CLASSIFIERS = (controls, siamese, maml, prototypical, matching, weight_generator)
_GENERATORS = (hallucination, imagination, adversarial)
_LATER = (distribution_calibration, denoising_weights)
_MODULES = _CLASSIFIERS + _GENERATORS + _LATER
ROWS: dict[str, TableRow] = {row.name: row for module in _MODULES for row in module.ROWS}
"""All rows, in the order of the table."""

METHODS: dict[str, Method] = {name: row.method for name, row in ROWS.items()}
"""The methods of all rows, by name."""
SETTINGS = {name: tuple(method.config.to_dict()) for name, method in METHODS.items()}
"""Names of the settings of every row."""

TABLE_1 = "table-1"
"""Name that stands for all rows of the paper's table and our additions."""


def rows_of_table() -> list[str]:
    """Return the names of all rows of the table: the paper's and our additions."""
    return [name for name, row in ROWS.items() if row.is_printed or row.group != "CP-AAN"]


def expand_methods(names: Sequence[str], features: Collection[str] = TABLES) -> list[str]:
    """Return names with "table-1" replaced by all rows of the table that can run.

    Raises:
        ValueError: If a name is unknown (with the nearest known one), is given twice, or needs
            other features than the given ones.
    """
    of_table = [name for name in rows_of_table() if ROWS[name].features in features]
    expanded = [row for name in names for row in (of_table if name == TABLE_1 else [name])]
    for name in expanded:
        if name not in ROWS:
            hint = suggestion(name, [*METHODS, TABLE_1])
            raise ValueError(f"unknown method {name!r}{hint}; `cpaan methods` lists them")
        if ROWS[name].features not in features:
            raise ValueError(
                f"{name} needs features of a backbone that was trained with a cosine classifier "
                f"(--{ROWS[name].features})"
            )
    if not expanded:
        raise ValueError("no method is given; `cpaan methods` lists them")
    if len(set(expanded)) < len(expanded):
        raise ValueError(f"each method can be given only once, got {', '.join(names)!r}")
    return expanded


def num_episodes_of(config: Settings) -> int:
    """Return the number of training episodes of a method; zero if it is not trained."""
    return int(getattr(config, "num_episodes", 0))


def with_episodes(config: Settings, num_episodes: int) -> Settings:
    """Return settings with another number of episodes; unchanged if there is no training."""
    if not num_episodes_of(config):
        return config
    return config.with_overrides({"num_episodes": num_episodes})


def make_method(
    name: str,
    evaluation: EvaluationConfig,
    config: Settings | None = None,
    *,
    embedding: EmbeddingConfig | None = None,
    embedding_path: Path | None = None,
    progress: Progress = lambda message: None,
) -> LowShotMethod:
    """Return a new, unfitted method, by default with the recommended settings of its row.

    ``embedding_path`` is the checkpoint of its embedding, which methods with the same base
    examples, settings and seed share; ``progress`` is called with lines about its training.
    """
    row = ROWS[name]
    method = row.method.make(row.method.config if config is None else config, evaluation)
    if row.is_embedded:
        return Embedded(method, embedding or EmbeddingConfig(), embedding_path, progress)
    return method
