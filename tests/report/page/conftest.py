"""Fixtures: the contents of a small report, and more rows for it."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.page.contents import Contents, read_contents
from helpers.report_folders import write_report


@pytest.fixture
def contents(tmp_path) -> Contents:
    return read_contents(write_report(tmp_path / "hand"))


@pytest.fixture
def add_row() -> Callable[..., Contents]:
    """Return a function that adds a row with the scores of another, and some points in draws."""

    def add(contents, name, points=0.0, draws=range(99), like="cCov-GAN-PN") -> Contents:
        scores = contents.scores[contents.scores["method"] == like].assign(method=name)
        scores.loc[scores["draw"].isin(draws), "top5"] += points
        (row,) = [row for row in contents.rows if row.name == like]
        method, _, settings = name.partition(", ")
        rows = (*contents.rows, replace(row, name=name, method=method, settings=settings))
        scores = pd.concat([contents.scores, scores], ignore_index=True)
        return replace(contents, rows=rows, scores=scores)

    return add
