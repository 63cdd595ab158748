"""Numbers that the papers print, for columns of their own: top-5, %, on ImageNet.

All are of ResNet-10 and the benchmark's test phase: LSL among 311 novel classes, GLSL among 507.
None of them was measured here.
"""

from collections.abc import Iterable, Mapping

SHOTS = (1, 2, 5, 10, 20)
NUM_BASE_CLASSES = 389
"""Base classes of the benchmark, on which all printed methods are trained."""
CELLS = [(column, k) for column in ("novel", "all") for k in SHOTS]
"""Columns of the tables, LSL first, and their numbers of shots."""
PrintedRow = Mapping[tuple[str, int], float]
"""Top-5 by cell, without cells where nothing is printed."""


def _row(novel: Iterable[float | None], everything: Iterable[float | None]) -> PrintedRow:
    """Return one row of a paper's table, which has None where the paper has a dash."""
    values = zip(CELLS, (*novel, *everything), strict=True)
    return {cell: value for cell, value in values if value is not None}


TABLE_1 = {
    "LR": _row((38.5, 51.2, 64.7, 71.6, 76.3), (40.6, 49.8, 64.3, 72.1, 76.7)),
    "SN": _row((38.9, None, 64.6, None, 76.4), (48.7, None, 68.3, None, 73.8)),
    "MAML": _row((39.2, None, 64.2, None, 76.8), (49.5, None, 69.6, None, 74.2)),
    "PN": _row((39.4, 52.2, 66.6, 72.0, 76.5), (49.3, 61.0, 69.6, 72.8, 74.7)),
    "MN": _row((43.6, 54.0, 66.0, 72.5, 76.9), (54.4, 61.0, 69.0, 73.7, 76.5)),
    "PMN": _row((43.3, 55.7, 68.4, 74.0, 77.0), (55.8, 63.1, 71.1, 75.0, 77.1)),
    "AWG": _row((46.0, 57.5, 69.2, 74.8, 78.1), (58.2, 65.2, 72.7, 76.5, 78.7)),
    "FH": _row((40.7, 50.8, 62.0, 69.3, 76.4), (52.2, 59.7, 68.6, 73.3, 76.9)),
    "P-FH": _row((41.5, 52.2, 63.5, 71.8, 76.4), (53.6, 61.7, 69.0, 73.5, 75.9)),
    "FI-PN": _row((45.0, 55.9, 67.3, 73.0, 76.5), (56.9, 63.2, 70.6, 74.5, 76.5)),
    "FI-PMN": _row((45.8, 57.8, 69.0, 74.3, 77.4), (57.6, 64.7, 71.9, 75.2, 77.5)),
    "cCov-GAN": _row((47.1, 57.9, 68.9, 76.0, 79.3), (52.1, 60.3, 69.2, 72.4, 76.8)),
    "c-GAN-PN": _row((38.6, 51.8, 64.9, 71.9, 76.2), (49.4, 61.5, 69.7, 73.0, 75.1)),
    "cCyc-GAN-PN": _row((42.5, 54.6, 66.7, 74.3, 76.8), (57.6, 65.1, 72.2, 73.9, 76.0)),
    "cDeLi-GAN-PN": _row((46.0, 58.1, 68.8, 74.6, 77.4), (58.0, 65.1, 72.4, 74.8, 76.9)),
    "cCov-GAN-PN": _row((48.4, 59.3, 70.2, 76.5, 79.3), (58.5, 65.8, 73.5, 76.0, 78.1)),
}
"""Table 1 of Gao et al. (2018). AWG there is on features of a cosine-trained ResNet-10."""

ELSEWHERE = {
    # Wang et al. (2018), as the README of Gidaris & Komodakis' code quotes them. Gao et al. print
    # other numbers for the same rows.
    "LR": _row((38.4, 51.1, 64.8, 71.6, 76.6), (40.8, 49.9, 64.2, 71.9, 76.9)),
    "PN": _row((39.3, 54.4, 66.3, 71.2, 73.9), (49.5, 61.0, 69.7, 72.9, 74.6)),
    "FH": _row((40.7, 50.8, 62.0, 69.3, 76.5), (52.2, 59.4, 67.6, 72.8, 76.9)),
    # READMEs of Gidaris & Komodakis (2018 and 2019), which repeat their runs over 100 draws.
    "AWG-cosine": _row((46.26, 57.46, 69.27, 74.84, 78.11), (58.29, 65.11, 72.70, 76.51, 78.74)),
    "wDAE": _row((47.99, 59.54, 70.23, 74.95, 77.77), (59.02, 66.22, 73.20, 76.09, 77.54)),
}
"""Rows that other sources print with other numbers, or that the paper does not have."""


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
