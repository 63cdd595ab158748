"""A report's tables, from scores that one can add up by hand."""

import math

import pandas as pd
import pytest

from cpaan.report.study_tables import Tables, make_tables


def scores_of(rows: dict[str, list[float]]) -> pd.DataFrame:
    """One head, two numbers of shots: top-5 of a draw is the given value plus the shots."""
    records = [
        (method, "cosine", column, shots, draw, 0, value / 2, value + shots)
        for method, values in rows.items()
        for column in ("novel", "all", "novel_joint", "base", "all_prior")
        for shots in (1, 2)
        for draw, value in enumerate(values)
    ]
    names = ["method", "head", "column", "shots", "draw", "seed", "top1", "top5"]
    return pd.DataFrame(records, columns=names)


@pytest.fixture
def tables() -> Tables:
    """Two fixed draws, then three seeded ones."""
    rows = {
        "none": [10, 20, 30, 31, 32],
        "GAN, trial 0": [11, 21, 31, 32, 33],
        "GAN, best": [14, 24, 33, 33, 36],
    }
    return make_tables(scores_of(rows), num_fixed=2, best="GAN, best", paper="GAN, trial 0")


def cell(tables: Tables, method: str) -> pd.Series:
    return tables.cells.set_index(["method", "column", "shots"]).loc[(method, "novel", 1)]


def test_the_table_is_of_the_fixed_draws_and_its_intervals_of_the_seeded_ones(tables):
    none = cell(tables, "none")

    assert none["top5_fixed"] == (10 + 20) / 2 + 1
    assert none["top5_mean"] == 31 + 1
    # Of 30, 31 and 32: 4.303 standard errors of 1 / √3.
    assert none["top5_interval"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)


def test_differences_are_paired_by_draw(tables):
    best = cell(tables, "GAN, best")

    assert best["top5_minus_none"] == pytest.approx((3 + 2 + 4) / 3)
    assert best["top5_minus_paper"] == pytest.approx((2 + 1 + 3) / 3)
    assert best["top5_minus_paper_interval"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    paper = cell(tables, "GAN, trial 0")
    assert (paper["top5_minus_none"], paper["top5_minus_none_interval"]) == (1, 0)
    assert math.isnan(cell(tables, "none")["top5_minus_none"])


def test_the_headline_is_what_the_search_gained_whatever_its_sign(tables):
    gain = tables.gains["cosine"]

    assert gain["difference"] == pytest.approx(2)
    assert gain["interval"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert gain["by_seed"] == pytest.approx([2])
    assert "+2.00 ± 2.48 (cosine head; by seed +2.00)" in tables.headline()
    rows = {"none": [1, 1, 1, 1], "GAN, trial 0": [5, 5, 5, 6], "GAN, best": [3, 3, 3, 4]}
    worse = make_tables(scores_of(rows), num_fixed=2, best="GAN, best", paper="GAN, trial 0")
    assert "-2.00 ± 0.00" in worse.headline()


def test_a_best_that_is_trial_0_has_no_difference_to_it():
    rows = {"none": [1, 2, 3, 4], "GAN, best": [3, 3, 3, 4]}

    tables = make_tables(
        scores_of(rows), num_fixed=2, best="GAN, best", paper=None, is_best_paper=True
    )
    without = make_tables(scores_of(rows), num_fixed=2, best="GAN, best", paper=None)

    assert "is zero: trial 0 is the best" in tables.headline()
    assert "Trial 0 could not be trained anew" in without.headline()
    assert "top5_minus_paper" not in tables.cells


def test_the_page_says_where_its_numbers_come_from(tables):
    about = {
        "best": {
            "method": "GAN",
            "trial": 3,
            "parameters": {"cycle_weight": 2.5},
            "num_draws": 20,
            "score_by_seed": {"0": 1.0},
            "finalists": [{"trial": 3, "score_in_search": 60.0, "score": 59.0}],
        },
        "run": {"command": "python tune/report.py", "commit": "abc"},
        "study": {"data": {"fingerprint": "f00d"}},
        "rows": [{"seeds": [3, 4]}],
        "test_reads": 2,
    }

    page = tables.markdown(about)

    for text in ("python tune/report.py", "`abc`", "`f00d`", "3, 4", "read 2 times", "2.5"):
        assert text in page
    assert "| 3 | 60.00 | 59.00 |" in page
    assert "| none | cosine | 16.0±2.5 | 17.0±2.5 |" in page
    assert "none & cosine & 16.0\\,{\\scriptsize$\\pm$2.5} & 17.0" in tables.latex()
