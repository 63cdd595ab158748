"""Rows beside the table: the best configuration with one choice made otherwise at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gan.gans import GANS
from cpaan.methods.registry import ROWS
from cpaan.report.claims.mechanisms import HARD, NEIGHBOURS, NOBODY, SOFT
from cpaan.report.claims.standing import WITHOUT_ADVERSARY
from cpaan.report.page.contents import Ablation
from cpaan.study.report_rows import Row
from cpaan.study.space import Settled

IDEAS = "ideas"
"""What CP-AAN+ adds; the other family is which base classes are related (Figure 5a)."""

_OF_TABLE = {NEIGHBOURS: ("cCov-GAN-PN", "cCov-GAN"), IDEAS: ("CP-AAN+-PN", "CP-AAN+")}
"""Whose ablations a table has: of the first of these rows that it has."""
_NUMBERS_OF_NEIGHBOURS = (1, 5, 20, 50)
_EXTENDED = "CP-AAN+"


def ablations_of_table(rows: Sequence[Row], num_seeds: int) -> list[Row]:
    """Return the ablations of the rows of a table, with so many of their seeds."""
    by_name = {row.name: row for row in rows}
    found = []
    for family, candidates in _OF_TABLE.items():
        whole = next((by_name[name] for name in candidates if name in by_name), None)
        if whole is not None:
            found += _ablations(whole, family, num_seeds)
    return found


def ablations_of_best(row: Row, num_seeds: int) -> list[Row]:
    """Return the ablations of the best row of a single study; none where it is no GAN."""
    if not isinstance(row.settled.training, TrainConfig):
        return []
    found = _ablations(row, NEIGHBOURS, num_seeds)
    if ROWS[row.method].group == _EXTENDED:
        found += _ablations(row, IDEAS, num_seeds)
    return found


def _ablations(row: Row, family: str, num_seeds: int) -> list[Row]:
    training = row.settled.training
    assert isinstance(training, TrainConfig), "of GANs only"
    changes = _neighbours(row, training) if family == NEIGHBOURS else _ideas(row, training)
    fewer = replace(row, seeds=row.seeds[:num_seeds])
    return [_changed(fewer, family, label, overrides) for label, overrides in changes.items()]


def _neighbours(row: Row, training: TrainConfig) -> dict[str, Mapping[str, Any]]:
    """Return overrides by label: every kind of neighbours, and of the hard one every number."""
    split = row.study.data.split
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


def _ideas(row: Row, training: TrainConfig) -> dict[str, Mapping[str, Any]]:
    """Return overrides by label: each takes one idea back to the paper, or one term away."""
    faithful = TrainConfig.faithful()
    share = row.study.config.workers_per_trial  # each has as many episodes as the others
    found: dict[str, Mapping[str, Any]] = {
        "without the prototype term": {"prototype_weight": 0.0},
        "shots as real examples": {"real_examples": faithful.real_examples},
        "no residual start": {"residual": faithful.residual},
        "one number of episode shots": {
            "episode_shots": (min(faithful.max_shots, training.max_shots),)
        },
        "synthetic as if real": META_TESTING_AS_PRINTED,
        "a fifth of the synthetic examples": {
            "num_synthetic": max(1, row.settled.evaluation.num_synthetic // 5)
        },
        "half of the training": {
            "num_episodes": max(1, training.num_episodes // 2 // share) * share
        },
        WITHOUT_ADVERSARY: {"adversarial_weight": 0.0},
    }
    gan = GANS[ROWS[row.method].generation]
    if gan.has_cycle:
        found["without the cycle term"] = {"cycle_weight": 0.0}
    if gan.has_covariance:
        found["without the covariance term"] = {"covariance_weight": 0.0}
    return found


def _changed(row: Row, family: str, label: str, overrides: Mapping[str, Any]) -> Row:
    known = row.settled.training.to_dict()
    of_training = {name: value for name, value in overrides.items() if name in known}
    others = {name: value for name, value in overrides.items() if name not in known}
    settled = Settled(
        row.settled.training.with_overrides(of_training),
        row.settled.evaluation.with_overrides(others),
    )
    return replace(
        row,
        name=f"{row.name}: {label}",
        settled=settled,
        ablation=Ablation(row.name, family, label),
        # What changes nothing needs no training of its own.
        same_as=row.name if settled == row.settled else None,
    )
