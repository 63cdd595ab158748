"""Searches of our own making: which trials there are, and what Optuna's plots then show."""

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
from cpaan.report.figures.search import cost_of_trials, search_pictures

RANGES = {
    "cycle_weight": FloatDistribution(0.05, 50, log=True),
    "neighbours": CategoricalDistribution(["soft", "hard"]),
    "num_neighbours": IntDistribution(1, 50, log=True),
    "num_clusters": CategoricalDistribution([5, 10]),
}


def trial(number: int, state: str, *scores: float, **parameters: Any) -> dict[str, Any]:
    """A trial with a score after 25, 50 and 100 episodes, LSL above it and GLSL below it."""
    curve = [
        {
            "episode": episode,
            "novel_top5": score + 10,
            "all_top5": score - 30,
            "seconds": 0.1 * episode,
        }
        for episode, score in zip((25, 50, 100), scores, strict=False)
    ]
    last = curve[-1] if curve else {"novel_top5": math.nan, "all_top5": math.nan, "seconds": 0.0}
    return {
        "trial": number,
        "state": state,
        "score": scores[-1] if scores else math.nan,
        "novel_top5": last["novel_top5"],
        "all_top5": last["all_top5"],
        "seconds": last["seconds"],
        "gpu_seconds": 0.0,
        **parameters,
        "distributions": json.dumps(
            {name: distribution_to_json(RANGES[name]) for name in parameters}
        ),
        "curve": curve,
    }


def table(*trials: dict[str, Any]) -> pd.DataFrame:
    columns = dict.fromkeys(name for each in trials for name in each)
    last = ["distributions", "curve"]
    return pd.DataFrame(list(trials), columns=[*(c for c in columns if c not in last), *last])


def some_trials() -> pd.DataFrame:
    return table(
        trial(0, "complete", 50, 55, 60, cycle_weight=5.0, neighbours="soft", num_clusters=5),
        trial(1, "stopped early", 48, 51, cycle_weight=0.5, neighbours="hard", num_neighbours=7),
        trial(2, "failed", cycle_weight=1.0, neighbours="soft"),
        trial(3, "stopped early", 52, cycle_weight=9.0, neighbours="soft", num_clusters=10),
        trial(4, "unfinished", 53, cycle_weight=20.0, neighbours="soft"),
        trial(5, "complete", 51, 56, 58, cycle_weight=2.0, neighbours="hard", num_neighbours=20),
    )


@pytest.fixture
def trials() -> pd.DataFrame:
    return some_trials()


def by_kind(pictures: list[Picture]) -> dict[str, Picture]:
    return {picture.name.removeprefix("cCov-GAN-"): picture for picture in pictures}


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return by_kind(search_pictures(some_trials(), "cCov-GAN", (25, 50)))


def test_a_search_has_five_pictures(pictures):
    assert list(pictures) == ["history", "importances", "slices", "coordinates", "curves"]


def test_the_history_has_every_score_and_the_best_so_far(pictures):
    (axes,) = pictures["history"].figure.axes

    points = axes.collections[0]
    assert points.get_offsets().tolist() == [[0, 60], [1, 51], [3, 52], [5, 58]]
    assert [colour[3] for colour in points.get_facecolors()] == [1, 0, 0, 1]
    assert set(axes.lines[0].get_ydata()) == {60}
    assert (
        "The best of 4 scored trials is trial 0 with 60.00 %, complete" in pictures["history"].alt
    )


def test_slices_have_a_panel_for_each_parameter_and_ring_the_best(pictures):
    panels = {axes.get_xlabel(): axes for axes in pictures["slices"].figure.axes}

    assert set(panels) == set(RANGES)
    (ring,) = panels["cycle_weight"].lines
    assert ring.get_xydata().tolist() == [[5, 60]]
    assert panels["num_neighbours"].lines[:] == []
    names = [label.get_text() for label in panels["neighbours"].get_xticklabels()]
    assert sorted(names) == ["hard", "soft"]
    assert "Parameters of the best trial, 0, with 60.00 %: cycle_weight 5" in pictures["slices"].alt


def test_coordinates_are_scaled_by_what_was_tried(pictures):
    (axes,) = pictures["coordinates"].figure.axes

    names = [label.get_text() for label in axes.get_xticklabels()]
    best = axes.collections[0].get_segments()[-1]  # drawn last, on top
    heights = dict(zip(names, (height for _, height in best), strict=False))
    assert set(names) == {"score, %", *RANGES}
    # 5 of 0.5 to 9, on a logarithmic axis.
    assert heights["cycle_weight"] == pytest.approx(math.log(5 / 0.5) / math.log(9 / 0.5))
    assert heights["score, %"] == 1
    texts = {text.get_text() for text in axes.texts}
    assert {"0.5", "9", "hard", "soft", "51", "60"} <= texts
    assert "The best trials are trial 0, 60.00 %: " in pictures["coordinates"].alt


def test_importances_are_ranked(pictures):
    (axes,) = pictures["importances"].figure.axes

    widths = [bar.get_width() for bar in axes.patches]
    assert widths == sorted(widths, reverse=True)
    assert sum(widths) == pytest.approx(1)


def test_curves_are_weighted_as_the_score_is_and_end_where_trials_were_stopped(pictures):
    (axes,) = pictures["curves"].figure.axes

    # Three parts of LSL, 10 above, and one of GLSL, 30 below, make the score.
    curves = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "."]
    assert curves[0] == [[25, 50], [50, 55], [100, 60]]
    assert [curve[-1][0] for curve in curves if curve] == [100, 50, 25, 25, 100]
    rungs = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert rungs == [25, 50]
    assert "2 of 6 trials are complete, 2 were stopped early" in pictures["curves"].alt


def test_a_trial_far_below_the_others_is_left_out_and_said_so(trials):
    far = trial(6, "complete", 5, 6, 7, cycle_weight=30.0, neighbours="hard")

    found = by_kind(search_pictures(table(*trials.to_dict("records"), far), "cCov-GAN", ()))

    assert len(found["history"].figure.axes[0].collections[0].get_offsets()) == 4
    assert "Left out, far below the others: trial 6 (7.0 %)." in found["history"].caption
    assert found["curves"].figure.axes[0].get_ylim()[0] > 40
    assert "cut off" in found["curves"].caption


def test_of_a_single_parameter_there_is_nothing_to_rank(trials):
    names = ["neighbours", "num_neighbours", "num_clusters"]
    only = json.dumps({"cycle_weight": distribution_to_json(RANGES["cycle_weight"])})
    alone = trials.drop(columns=names).assign(distributions=only)

    found = by_kind(search_pictures(alone, "cCov-GAN", ()))

    assert list(found) == ["history", "slices", "curves"]
    assert [axes.get_xlabel() for axes in found["slices"].figure.axes] == ["cycle_weight"]


def test_without_parameters_or_with_few_trials_nothing_is_said_of_parameters(trials):
    assert list(by_kind(search_pictures(table(trial(0, "complete", 50)), "LR", ()))) == [
        "LR-history"
    ]
    few = search_pictures(trials.head(4), "cCov-GAN", ())
    assert list(by_kind(few)) == ["history", "curves"]
    assert search_pictures(table(trial(0, "failed")), "LR", ()) == []


def test_the_same_trials_give_the_same_bytes_and_leave_optuna_as_it_was(trials, pictures):
    verbosity = optuna.logging.get_verbosity()

    again = by_kind(search_pictures(trials, "cCov-GAN", (25, 50)))

    assert optuna.logging.get_verbosity() == verbosity
    for name, picture in pictures.items():
        assert picture.svg() == again[name].svg()


def test_cost_is_seconds_by_row_and_state(trials):
    picture = cost_of_trials({"PN": trials.head(1), "ours": trials})

    assert picture.alt == (
        "7 trials of 2 searches took 40 s; the longest search is that of ours, with 30 s."
    )
    (axes,) = picture.figure.axes
    marks = {line.get_marker(): sorted(map(tuple, line.get_xydata())) for line in axes.lines}
    assert marks["o"] == [(10, 0), (10, 1), (10, 1)]
    assert marks["v"] == [(2.5, 1), (5, 1)]
    with pytest.raises(ValueError, match="no trials"):
        cost_of_trials({})
