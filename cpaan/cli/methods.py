"""``methods``: the rows of the table, one per line."""

import argparse
from collections.abc import Sequence

from cpaan.methods.registry import ROWS


def run(_: argparse.Namespace, __: Sequence[str]) -> int:
    """Print all rows; return the exit status."""
    titles = ("row", "features", "generation", "method")
    lines = [titles] + [
        (name, row.representation, row.generation, row.summary) for name, row in ROWS.items()
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles) - 1)]
    for *cells, last in lines:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join([*padded, last]))
    return 0
