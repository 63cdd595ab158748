"""Ablations: the best configuration of a row with one design choice changed at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.methods.registry import ROWS
from cpaan.report.claims.mechanisms import HARD, NEIGHBOURS, NOBODY, SOFT
from cpaan.study.report_rows import MeasuredRow

IDEAS = "ideas"
"""Ablations of the ideas of CP-AAN+; `NEIGHBOURS` varies the related base classes (Figure 5a)."""

_ABLATED = {
    NEIGHBOURS: ("cCov-GAN-PN", "cCov-GAN", *(name for name, row in ROWS.items() if row.gan)),
    IDEAS: ("CP-AAN+-PN", "CP-AAN+"),
}
"""Methods to ablate, by family; the first of them that a study has searched is used."""
_NUMBERS_OF_NEIGHBOURS = (1, 5, 20, 50)


def ablations_of(rows: Sequence[MeasuredRow], num_seeds: int) -> list[MeasuredRow]:
    """Return the ablations of searched rows, with the first ``num_seeds`` seeds of each row."""
    by_method = {row.method: row for row in rows}
    found = []
    for family, methods in _ABLATED.items():
        if (method := next((each for each in methods if each in by_method), None)) is not None:
            found += _ablations(by_method[method], family, num_seeds)
    return found


def _ablations(row: MeasuredRow, family: str, num_seeds: int) -> list[MeasuredRow]:
    training = cast(TrainConfig, row.resolved.training)  # only GANs have ablations
    changes = _neighbours(row, training) if family == NEIGHBOURS else _ideas(row, training)
    fewer = replace(row, seeds=row.seeds[:num_seeds])
    return [fewer.changed(family, label, overrides) for label, overrides in changes.items()]


def _neighbours(row: MeasuredRow, training: TrainConfig) -> dict[str, Mapping[str, Any]]:
    """Return overrides by label: every kind of neighbours, and every number of hard neighbours."""
    split = row.source.data.split
    num_base = len(split.validation.base) + len(split.test.base)
    num_meta_base = num_base - training.num_ways
    perplexity = training.perplexity
    if training.neighbours != "soft":
        perplexity = TrainConfig().perplexity
    soft = {"neighbours": "soft", "perplexity": perplexity}
    hard = {
        f"{HARD}, k = {count}": {"neighbours": "hard", "num_neighbours": count}
        for count in _NUMBERS_OF_NEIGHBOURS
        if count <= num_meta_base
    }
    return {NOBODY: {"neighbours": "none"}, SOFT: soft, **hard}


def _ideas(row: MeasuredRow, training: TrainConfig) -> dict[str, Mapping[str, Any]]:
    """Return overrides by label: each reverts one idea to the paper or removes one term."""
    faithful = TrainConfig.faithful()
    share = row.source.config.workers_per_trial  # all workers train on equally many episodes
    found: dict[str, Mapping[str, Any]] = {
        "without the prototype term": {"prototype_weight": 0.0},
        "shots as real examples": {"real_examples": faithful.real_examples},
        "no residual start": {"residual": faithful.residual},
        "one number of episode shots": {
            "episode_shots": (min(faithful.max_shots, training.max_shots),)
        },
        "synthetic as if real": META_TESTING_AS_PRINTED,
        "a fifth of the synthetic examples": {
            "num_synthetic": max(1, row.resolved.evaluation.num_synthetic // 5)
        },
        "half of the training": {
            "num_episodes": max(1, training.num_episodes // 2 // share) * share
        },
        "without the adversary": {"adversarial_weight": 0.0},
    }
    gan = ROWS[row.method].gan
    if gan and gan.has_cycle:
        found["without the cycle term"] = {"cycle_weight": 0.0}
    if gan and gan.has_covariance:
        found["without the covariance term"] = {"covariance_weight": 0.0}
    return found
