"""Test the tables of a report, with scores that can be added by hand."""

import math

import pandas as pd
import pytest

from cpaan.report.study_tables import make_cells, report_page
from cpaan.report.table_one import TableOne
from helpers.frames import frame_of
from helpers.report_folders import RUN

ROWS = {"none": [10, 20, 30, 31, 32], "GAN": [14, 24, 33, 33, 36]}


def cells_of(rows: dict[str, list[float]]) -> pd.DataFrame:
    """Return the cells of two fixed and three seeded draws; top-5 is the value plus the shots."""
    cells = [(column, shots) for column in ("novel", "all") for shots in (1, 2)]
    scores = frame_of(
        {
            (method, "cosine"): {cell: [value + cell[1] for value in values] for cell in cells}
            for method, values in rows.items()
        }
    )
    return make_cells(scores, num_fixed=2).set_index(["method", "column", "shots"])


def test_cells_have_the_fixed_draws_and_intervals_of_the_seeded_ones_paired_by_draw():
    cells = cells_of(ROWS)
    none, best = (cells.loc[(name, "novel", 1)] for name in ROWS)
    half = pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)

    assert (none["top5_fixed"], none["top5_mean"]) == ((10 + 20) / 2 + 1, 31 + 1)
    # The draws 30, 31 and 32 have the standard error 1 / √3; t is 4.303.
    assert none["top5_interval"] == half
    assert best["top5_minus_none"] == pytest.approx((3 + 2 + 4) / 3)
    assert best["top5_minus_none_interval"] == half
    assert math.isnan(none["top5_minus_none"])
    assert "top5_minus_none" not in cells_of({"GAN": ROWS["GAN"]})


def test_the_report_says_where_its_numbers_come_from():
    finalists = [{"trial": 3, "score": 59.0}, {"trial": 0, "score": 58.5}]
    best = {"trial": 3, "num_trials": 12, "score": 59.0, "finalists": finalists}
    about = {
        "best": {
            "GAN": {**best, "parameters": {"cycle_weight": 2.5}, "swept": {"mixing_shots": 0.5}}
        },
        "run": RUN,
        "settings": {"num_seeded_draws": 50},
        "studies": {"GAN": {"data": {"fingerprint": "f00d"}}},
        "rows": [{"seeds": [3, 4]}],
        "failed": {"SN": "SN failed with seed 3: it diverged"},
        "num_fixed": 5,
        "test_reads": 2,
    }

    page = report_page("mine", [TableOne("", "the table", "")], about)

    assert page.startswith("# mine ")
    assert "| 12 | 59.00 | 3: 59.00, 0: 58.50 | cycle_weight 2.5, mixing_shots 0.5 |" in page
    for text in ("the table", "- SN failed", RUN["command"], RUN["commit"], "`f00d`", "3, 4"):
        assert text in page
