"""Fixture: the contents of a small report."""

import pytest

from cpaan.report.page.contents import Contents, read_contents
from helpers.report_folders import write_report


@pytest.fixture
def contents(tmp_path) -> Contents:
    return read_contents(write_report(tmp_path / "hand"))
