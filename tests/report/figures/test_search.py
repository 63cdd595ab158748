"""Searches of our own making: which trials there are, and what the pictures then show."""

import json
import math
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import search_pictures

RANGES = {
    "cycle_weight": FloatDistribution(0.05, 50, log=True),
    "neighbours": CategoricalDistribution(["soft", "hard"]),
    "num_neighbours": IntDistribution(1, 50, log=True),
    "num_clusters": CategoricalDistribution([5, 10]),
}


def trial(number: int, state: str, *scores: float, **parameters: Any) -> dict[str, Any]:
    """A trial with a score after 25, 50 and 100 episodes, LSL above it and GLSL below it."""
    ranges = {name: distribution_to_json(RANGES[name]) for name in parameters}
    return {
        "trial": number,
        "state": state,
        "score": scores[-1] if scores else math.nan,
        **parameters,
        "distributions": json.dumps(ranges),
        "curve": [
            {"episode": episode, "novel_top5": score + 10, "all_top5": score - 30}
            for episode, score in zip((25, 50, 100), scores, strict=False)
        ],
    }


CONFIG = {"early_stopping": True, "novel_weight": 3.0, "all_weight": 1.0}


def some_trials(*more: dict[str, Any]) -> pd.DataFrame:
    trials = [
        trial(0, "complete", 50, 55, 60, cycle_weight=5.0, neighbours="soft", num_clusters=5),
        trial(1, "stopped early", 48, 51, cycle_weight=0.5, neighbours="hard", num_neighbours=7),
        trial(2, "failed", cycle_weight=1.0, neighbours="soft"),
        trial(3, "stopped early", 52, cycle_weight=9.0, neighbours="soft", num_clusters=10),
        trial(4, "unfinished", 53, cycle_weight=20.0, neighbours="soft"),
        trial(5, "complete", 51, 56, 58, cycle_weight=2.0, neighbours="hard", num_neighbours=20),
    ]
    return pd.DataFrame([*trials, *more])


def draw(trials: pd.DataFrame) -> dict[str, Picture]:
    found = search_pictures(trials, "cCov-GAN", CONFIG, winner=5)
    return {picture.name.removeprefix("cCov-GAN-"): picture for picture in found}


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return draw(some_trials())


def test_slices_have_a_panel_for_each_parameter_by_importance_and_ring_the_winner(pictures):
    panels = {axes.get_xlabel(): axes for axes in pictures["slices"].figure.axes}
    titles = [axes.get_title(loc="left") for axes in pictures["slices"].figure.axes]

    assert set(panels) == set(RANGES)
    importances = [float(title.removeprefix("importance ")) for title in titles]
    assert importances == sorted(importances, reverse=True)
    assert sum(importances) == pytest.approx(1, abs=0.02)
    (ring,) = panels["cycle_weight"].lines
    assert ring.get_xydata().tolist() == [[2, 58]], "not the best of the search"
    assert panels["num_clusters"].lines[:] == []
    names = [label.get_text() for label in panels["neighbours"].get_xticklabels()]
    assert sorted(names) == ["hard", "soft"]
    words = "Parameters of the winner, trial 5, with 58.00 %, complete: cycle_weight 2"
    assert words in pictures["slices"].alt


def test_curves_are_weighted_as_the_score_is_and_end_where_trials_were_stopped(pictures):
    (axes,) = pictures["curves"].figure.axes

    # Three parts of LSL, 10 above, and one of GLSL, 30 below, make the score.
    curves = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "."]
    assert curves[0] == [[25, 50], [50, 55], [100, 60]]
    assert [curve[-1][0] for curve in curves if curve] == [100, 50, 25, 25, 100]
    rungs = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert rungs == [25, 50]
    assert "2 of 6 trials are complete, 2 were stopped early" in pictures["curves"].alt


def test_a_trial_far_below_the_others_is_left_out_and_said_so():
    found = draw(some_trials(trial(6, "complete", 5, 6, 7, cycle_weight=30.0, neighbours="hard")))

    panels = {axes.get_xlabel(): axes for axes in found["slices"].figure.axes}
    assert len(panels["cycle_weight"].collections[0].get_offsets()) == 4
    assert "Left out, far below the others: trial 6 (7.0 %)." in found["slices"].caption
    assert found["curves"].figure.axes[0].get_ylim()[0] > 40
    assert "cut off" in found["curves"].caption


def test_what_the_trials_cannot_tell_is_not_drawn():
    trials = some_trials()
    only = json.dumps({"cycle_weight": distribution_to_json(RANGES["cycle_weight"])})
    panels = draw(trials.assign(distributions=only))["slices"].figure.axes
    assert [axes.get_xlabel() for axes in panels] == ["cycle_weight"]
    assert list(draw(trials.head(4))) == ["curves"], "too few for parameters"
    assert draw(pd.DataFrame([trial(0, "complete", 50)])) == {}
    assert draw(pd.DataFrame([trial(0, "failed")])) == {}


def test_the_same_trials_give_the_same_bytes_and_leave_optuna_as_it_was(pictures):
    verbosity = optuna.logging.get_verbosity()

    again = draw(some_trials())

    assert optuna.logging.get_verbosity() == verbosity
    assert [each.svg() for each in again.values()] == [each.svg() for each in pictures.values()]
