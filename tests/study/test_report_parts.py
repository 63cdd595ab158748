"""What a stopped report has measured: found again by all that decides it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cpaan.core.provenance import commit
from cpaan.study.report_parts import Kept, Parts, Piece, RowResult, describe_earlier
from helpers.studies import best_row

DRAWS = np.arange(12).reshape(2, 2, 3)
HEADS = ("centroid", "own")


def result_of(top5: float) -> RowResult:
    frames = {name: pd.DataFrame({"method": ["PN"], "top5": [top5]}) for name in RowResult._fields}
    return RowResult(**{**frames, "spectra": pd.DataFrame({"method": []})})


@pytest.fixture
def piece(tmp_path) -> Piece:
    row = best_row("PN")
    return Piece(replace(row, study=replace(row.study, folder=tmp_path)), 3, is_illustrated=False)


def test_what_was_kept_is_read_back_to_the_last_bit_and_gone_with_the_report(piece, tmp_path):
    result = result_of(1 / 3)
    Parts((piece,), HEADS, DRAWS).keep(piece, result)

    parts = Parts((piece,), HEADS, DRAWS)
    found = parts.read(piece)

    assert found is not None
    assert found.run["commit"] == commit()
    for one, other in zip(found.result, result, strict=True):
        assert one.to_dict("list") == other.to_dict("list")
    parts.delete()
    assert parts.read(piece) is None
    assert not list(tmp_path.rglob("*.zip"))


def test_what_was_measured_otherwise_is_not_taken(piece):
    Parts((piece,), HEADS, DRAWS).keep(piece, result_of(50))

    row = piece.row
    training = row.settled.training.with_overrides({"learning_rate": 0.123})
    others = [
        piece._replace(seed=4),
        piece._replace(is_illustrated=True),
        piece._replace(row=replace(row, settled=replace(row.settled, training=training))),
        piece._replace(row=replace(row, study=replace(row.study, num_dims=2))),
    ]

    assert Parts((piece,), HEADS, DRAWS).read(piece) is not None
    assert [Parts((piece,), HEADS, DRAWS).read(other) for other in others] == [None] * 4
    assert Parts((piece,), HEADS[:1], DRAWS).read(piece) is None
    assert Parts((piece,), HEADS, DRAWS + 1).read(piece) is None


def test_commands_are_told_apart_and_each_has_its_rows_and_seeds():
    first = {"command": "report", "commit": "a", "time": "10:00"}
    later = {"command": "report", "commit": "b", "time": "12:00"}
    result = result_of(50)

    found = describe_earlier(
        {
            ("PN", 1): Kept(result, first),
            ("MN", 1): Kept(result, later),
            ("PN", 2): Kept(result, {**first, "time": "11:00"}),
        }
    )

    assert found == [
        {**first, "time": "11:00", "pieces": {"PN": [1, 2]}},
        {**later, "pieces": {"MN": [1]}},
    ]
