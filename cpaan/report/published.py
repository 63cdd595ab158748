"""Numbers that the papers print, for columns of their own: top-5, %, on ImageNet.

All are of ResNet-10 and the benchmark's test phase: LSL among 311 novel classes, GLSL among 507.
None of them was measured here. The lines of `claims/printed.csv` are rows of tables; nothing stands
where a paper has a dash.
"""

import csv
from collections.abc import Iterable, Mapping
from importlib.resources import files

SHOTS = (1, 2, 5, 10, 20)
NUM_BASE_CLASSES = 389
"""Base classes of the benchmark, on which all printed methods are trained."""
CELLS = [(column, k) for column in ("novel", "all") for k in SHOTS]
"""Columns of the tables, LSL first, and their numbers of shots."""
PrintedRow = Mapping[tuple[str, int], float]
"""Top-5 by cell, without cells where nothing is printed."""


def _read(table: str) -> dict[str, PrintedRow]:
    """Return the rows of a table by method."""
    text = files("cpaan.report.claims").joinpath("printed.csv").read_text(encoding="utf-8")
    rows = dict[str, PrintedRow]()
    for line in csv.DictReader(text.splitlines()):
        if line["table"] == table:
            texts = {(column, k): line[f"{column} {k}"] for column, k in CELLS}
            rows[line["method"]] = {cell: float(text) for cell, text in texts.items() if text}
    return rows


TABLE_1 = _read("1")
"""Table 1 of Gao et al. (2018). AWG there is on features of a cosine-trained ResNet-10."""
ELSEWHERE = _read("elsewhere")
"""Rows that other sources print with other numbers, or that the paper does not have.

LR, PN and FH: Wang et al. (2018), as the README of Gidaris & Komodakis' code quotes them.
AWG-cosine and wDAE: READMEs of Gidaris & Komodakis (2018 and 2019): their runs over 100 draws.
"""


def printed_elsewhere(methods: Iterable[str]) -> list[str]:
    """Return a sentence on the methods for which other sources print other numbers, if any."""
    rows = []
    for method in [name for name in methods if name in TABLE_1.keys() & ELSEWHERE]:
        texts = [f"{ELSEWHERE[method][cell]:.1f}" for cell in CELLS]
        rows.append(f"{method}: LSL {' '.join(texts[:5])}, GLSL {' '.join(texts[5:])}")
    shots = ", ".join(map(str, SHOTS))
    words = f"Other sources print other numbers for some rows (K = {shots}): {'; '.join(rows)}."
    return [words] if rows else []


def printed_of(method: str) -> PrintedRow:
    """Return the row of a method: of the paper's table, or else of another; empty without one."""
    return TABLE_1.get(method) or ELSEWHERE.get(method, {})
