"""From a study's folder to the files of its page."""

from pathlib import Path

import pytest

from cpaan.report.page.page import write_page
from helpers.report_folders import write_report


def files_of(folder: Path) -> dict[str, bytes]:
    written: dict[str, bytes] = {}
    write_page(folder, written.__setitem__)
    return written


@pytest.mark.slow
def test_a_page_and_its_pictures_are_written_below_the_report(tmp_path):
    """Of a study of one row. The browser opens that of a table."""
    folder = write_report(tmp_path / "hand", is_table=False)

    written = files_of(folder)

    assert files_of(folder) == written, "to the last byte"
    findings = written.pop("report/findings.md").decode()
    assert findings.startswith("# hand: what was found\n")
    page = written.pop("report/index.html").decode()
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert written
    for name, content in written.items():
        assert f'href="{name.removeprefix("report/")}"' in page
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_a_folder_without_a_report_has_no_page(tmp_path):
    written: dict[str, bytes] = {}

    with pytest.raises(ValueError, match="there is no report to draw"):
        write_page(tmp_path, written.__setitem__)
    assert written == {}
