"""Test the pictures of searches, with trials that are made by hand."""

import json
import math
from typing import Any

import optuna
import pandas as pd
import pytest
from matplotlib.axes import Axes
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import draw_search

RANGES = {
    "cycle_weight": FloatDistribution(0.05, 50, log=True),
    "neighbours": CategoricalDistribution(["soft", "hard"]),
    "num_neighbours": IntDistribution(1, 50, log=True),
    "num_clusters": CategoricalDistribution([5, 10]),
}


def trial(number: int, state: str, score: float = math.nan, **parameters: Any) -> dict[str, Any]:
    ranges = {name: distribution_to_json(RANGES[name]) for name in parameters}
    return {
        "trial": number,
        "state": state,
        "score": score,
        **parameters,
        "distributions": json.dumps(ranges),
    }


def some_trials(*more: dict[str, Any]) -> pd.DataFrame:
    trials = [
        trial(0, "complete", 60, cycle_weight=5.0, neighbours="soft", num_clusters=5),
        trial(1, "stopped early", 51, cycle_weight=0.5, neighbours="hard", num_neighbours=7),
        trial(2, "failed", cycle_weight=1.0, neighbours="soft"),
        trial(3, "stopped early", 52, cycle_weight=9.0, neighbours="soft", num_clusters=10),
        trial(4, "unfinished", 53, cycle_weight=20.0, neighbours="soft"),
        trial(5, "complete", 58, cycle_weight=2.0, neighbours="hard", num_neighbours=20),
    ]
    return pd.DataFrame([*trials, *more])


def draw(trials: pd.DataFrame) -> Picture | None:
    return draw_search(trials, "cCov-GAN", winner=5)


def panels_of(picture: Picture) -> dict[str, Axes]:
    return {axes.get_xlabel(): axes for axes in picture.figure.axes}


def test_slices_have_a_panel_for_each_parameter_by_importance_and_ring_the_winner():
    verbosity = optuna.logging.get_verbosity()

    picture, again = draw(some_trials()), draw(some_trials())

    assert optuna.logging.get_verbosity() == verbosity
    assert again.svg() == picture.svg()
    panels = panels_of(picture)
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]

    assert set(panels) == set(RANGES)
    importances = [float(title.removeprefix("importance ")) for title in titles]
    assert importances == sorted(importances, reverse=True)
    assert sum(importances) == pytest.approx(1, abs=0.02)
    (ring,) = panels["cycle_weight"].lines
    assert ring.get_xydata().tolist() == [[2, 58]], "not the best of the search"
    assert panels["num_clusters"].lines[:] == []
    names = [label.get_text() for label in panels["neighbours"].get_xticklabels()]
    assert sorted(names) == ["hard", "soft"]
    assert "winner, trial 5, with 58.00 %, complete: cycle_weight 2" in picture.alt


def test_a_trial_far_below_the_others_is_left_out_and_said_so():
    picture = draw(some_trials(trial(6, "complete", 7, cycle_weight=30.0, neighbours="hard")))

    assert len(panels_of(picture)["cycle_weight"].collections[0].get_offsets()) == 4
    assert "trial 6 (7.0 %)." in picture.caption


def test_what_the_trials_cannot_tell_is_not_drawn():
    trials = some_trials()
    only = json.dumps({"cycle_weight": distribution_to_json(RANGES["cycle_weight"])})
    assert list(panels_of(draw(trials.assign(distributions=only)))) == ["cycle_weight"]
    assert draw(trials.head(4)) is None, "too few for parameters"
    assert draw(pd.DataFrame([trial(0, "failed")])) is None
