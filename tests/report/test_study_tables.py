"""Test the tables of a report, with scores that can be added by hand."""

import math

import pandas as pd
import pytest

from cpaan.report.study_tables import Tables, make_tables
from helpers.frames import frame_of

COLUMNS = ("novel", "all", "novel_joint", "base", "all_prior")
ROWS = {
    "none": [10, 20, 30, 31, 32],
    "GAN, trial 0": [11, 21, 31, 32, 33],
    "GAN, best": [14, 24, 33, 33, 36],
}


def tables_of(rows: dict[str, list[float]], **options) -> Tables:
    """Return tables of two fixed draws and more seeded ones; top-5 is the value plus the shots."""
    cells = [(column, shots) for column in COLUMNS for shots in (1, 2)]
    scores = frame_of(
        {
            (method, "cosine"): {cell: [value + cell[1] for value in values] for cell in cells}
            for method, values in rows.items()
        }
    )
    paper = "GAN, trial 0" if "GAN, trial 0" in rows else None
    return make_tables(scores, num_fixed=2, best="GAN, best", paper=paper, **options)


def cell(tables: Tables, method: str) -> pd.Series:
    return tables.cells.set_index(["method", "column", "shots"]).loc[(method, "novel", 1)]


def test_the_table_is_of_the_fixed_draws_its_intervals_of_the_seeded_ones_paired_by_draw():
    tables = tables_of(ROWS)
    none, paper, best = (cell(tables, name) for name in ROWS)
    half = pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)

    assert (none["top5_fixed"], none["top5_mean"]) == ((10 + 20) / 2 + 1, 31 + 1)
    # The draws 30, 31 and 32 have the standard error 1 / √3; t is 4.303.
    assert none["top5_interval"] == half
    assert best["top5_minus_none"] == pytest.approx((3 + 2 + 4) / 3)
    assert best["top5_minus_paper"] == pytest.approx((2 + 1 + 3) / 3)
    assert best["top5_minus_paper_interval"] == half
    assert (paper["top5_minus_none"], paper["top5_minus_none_interval"]) == (1, 0)
    assert math.isnan(none["top5_minus_none"])


def test_the_headline_is_what_the_search_gained_whatever_its_sign():
    tables = tables_of(ROWS)

    assert tables.gains["cosine"]["difference"] == pytest.approx(2)
    assert tables.gains["cosine"]["by_seed"] == pytest.approx([2])
    assert "+2.00 ± 2.48 (cosine head; by seed +2.00)" in tables.headline
    worse = {"none": [1, 1, 1, 1], "GAN, trial 0": [5, 5, 5, 6], "GAN, best": [3, 3, 3, 4]}
    assert "-2.00 ± 0.00" in tables_of(worse).headline


def test_a_best_that_is_trial_0_has_no_difference_to_it():
    rows = {"none": [1, 2, 3, 4], "GAN, best": [3, 3, 3, 4]}
    tables = tables_of(rows, is_best_paper=True)

    assert "is zero: trial 0 is the best" in tables.headline
    assert "Trial 0 could not be trained anew" in tables_of(rows).headline
    assert "top5_minus_paper" not in tables.cells


def test_the_page_says_where_its_numbers_come_from():
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
    tables = tables_of(ROWS)

    page = tables.markdown(about)

    for text in ("python tune/report.py", "`abc`", "`f00d`", "3, 4", "read 2 times", "2.5"):
        assert text in page
    assert "| 3 | 60.00 | 59.00 |" in page
    assert "| none | cosine | 16.0±2.5 | 17.0±2.5 |" in page
    assert "none & cosine & 16.0\\,{\\scriptsize$\\pm$2.5} & 17.0" in tables.latex()
