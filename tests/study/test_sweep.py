"""Test the sweep of settings that need no training, after the training of finalists."""

import json
from collections.abc import Mapping
from dataclasses import replace

import optuna
import pandas as pd
import pytest

from cpaan.evaluation.parts import Part
from cpaan.methods.registry import METHODS, ROWS
from cpaan.methods.table_row import NO_GENERATION
from cpaan.study.row import AS_PRINTED, RECOMMENDED, StudyRow
from cpaan.study.search import _describe
from helpers.jobs import part_of
from helpers.studies import row_of_preset


def test_every_generator_sweeps_the_use_of_its_examples_and_no_search_tries_it():
    generators = {name for name, row in ROWS.items() if row.generation != NO_GENERATION}
    swept = {name for name, row in ROWS.items() if row.method.sweep}

    # FI is trained with its number of examples and with equal weights.
    assert swept == generators - {"FI-PN", "FI-PMN"}
    for name in swept:
        method = METHODS[name]
        (number,) = set(method.sweep) - {"mixing_shots", "fill_to_capacity"}
        assert number in ("num_synthetic", "max_per_class", "num_samples")
        assert not set(method.sweep) & set(row_of_preset(name).searched)


def test_the_settings_of_a_finalist_come_first_and_every_combination_once():
    def sweep(row: StudyRow, whose: str = RECOMMENDED) -> list[dict]:
        sweep_of_row = row.sweep(row.settings_of(whose))
        assert len({json.dumps(settings) for settings in sweep_of_row}) == len(sweep_of_row)
        return sweep_of_row

    first, *others = sweep(row_of_preset("copy", "paper"))
    assert first == {"mixing_shots": 2.0, "num_synthetic": 100, "fill_to_capacity": False}
    assert len(others) == 6 * 2 - 1
    first, *others = sweep(row_of_preset("cCov-GAN", "paper"), AS_PRINTED)
    assert first == {"mixing_shots": None, "num_synthetic": 100, "fill_to_capacity": True}
    assert len(others) == 6 * 2
    assert not any(settings["fill_to_capacity"] for settings in others)
    weighed = row_of_preset("DC")
    weighed = replace(weighed, evaluation=weighed.evaluation.with_overrides({"mixing_weight": 0.5}))
    assert sweep(weighed) == [{"num_samples": 100}, {"num_samples": 20}]
    assert sweep(row_of_preset("PN")) == [{}]


def scored(levels: Mapping[int, float], num_variants: int, seed: int) -> Part:
    """Return scores of 40 for every variant, except for some."""
    rows = [
        (str(number), "centroid", column, 1, 0, seed, bias, 0.0, levels.get(number, 40.0))
        for number in range(num_variants)
        for column, bias in (("novel", None), ("all", None), ("all_calibrated", 0.0))
    ]
    names = ["method", "head", "column", "shots", "draw", "seed", "bias", "top1", "top5"]
    return part_of(pd.DataFrame(rows, columns=names))


@pytest.mark.parametrize(
    ("by_seed", "best", "score"),
    [
        ([{4: 50.0, 7: 56.0}, {4: 60.0, 7: 52.0}], 4, 55.0),  # the mean over seeds: 55 and 54
        ([{}, {}], 0, 40.0),  # all are equal, so the finalist keeps its own settings
    ],
)
def test_a_finalist_has_the_best_of_its_variants(by_seed, best, score):
    row = row_of_preset("copy", "paper")
    resolved = row.settings_of(RECOMMENDED)
    recorded = {name: getattr(resolved, name).to_dict() for name in ("training", "evaluation")}
    trial = optuna.trial.create_trial(value=41.0, user_attrs=recorded)
    sweep = row.sweep(resolved)
    parts = {seed: scored(levels, len(sweep), seed) for seed, levels in enumerate(by_seed)}

    finalist = _describe(row, trial, parts)

    assert finalist["score"] == finalist["novel_top5"] == score
    assert finalist["score_in_search"] == 41.0
    assert finalist["score_by_seed"] == {
        str(n): levels.get(best, 40.0) for n, levels in enumerate(by_seed)
    }
    assert finalist["swept"] == sweep[best]
    assert {name: finalist["evaluation"][name] for name in sweep[best]} == sweep[best]
    scores = [sum(levels.get(n, 40.0) for levels in by_seed) / 2 for n in range(len(sweep))]
    assert finalist["sweep"] == [{**s, "score": x} for s, x in zip(sweep, scores, strict=True)]
    json.dumps(finalist, allow_nan=False)
