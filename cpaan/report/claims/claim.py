"""The claims that every report judges: the lines of `claims.csv`.

A row is named by its method or, if it is an ablation, by method and key, such as
"cCov-GAN-PN/without-covariance"; "real" are the real examples, and "*" stands for every GAN.
Several better rows are compared with as many worse ones, or all with the same. Printed differences
are those of `cpaan.report.published`.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from typing import Any, Literal, NamedTuple

from cpaan.methods.registry import ROWS

Kind = Literal["control", "primary", "paper", "further"]
"""Another paper's claim, which is a positive control of the setting; a primary comparison; another
claim of the paper; or a further question of a reader. Each kind is a family of its own."""

REAL, RATIO, LOG_RATIO, GLSL = "real", "ratio", "log-ratio", "glsl"
"""The real examples; the columns of diversity: the mean distance of synthetic examples over that of
real ones, and the absolute value of its logarithm; and the column of calibrated GLSL or, in scores
without it, plain GLSL."""


class Pick(NamedTuple):
    """A row that is picked among several by its mean score. Intervals allow for the choice."""

    place: Literal["first", "second", "last"]
    among: tuple[str, ...]


class Contrast(NamedTuple):
    """One row minus another."""

    better: str | Pick
    worse: str | Pick
    column: str
    shots: str
    """The fewest shots, every number of them, their mean, or five (without five, the fewest); or
    fewest-most: how much larger the difference is at the fewest than at the most."""
    printed: str = ""
    """The two rows whose printed difference counts, if they are not the compared ones."""


@dataclass(frozen=True)
class Claim:
    """A claim, which says that all of its differences are positive."""

    name: str
    kind: Kind
    contrasts: tuple[Contrast, ...]
    text: str = ""
    """What the name does not say."""
    flag: str = ""
    """Partial: it is judged by the rows that a report has, while other claims need all of theirs.
    Headline: the page begins with it."""

    @property
    def is_ratio(self) -> bool:
        """Whether its differences are of diversity, not points of accuracy."""
        return self.contrasts[0].column in (RATIO, LOG_RATIO)


def read_claims() -> Iterator[Claim]:
    """Yield the claims of the table; those about other rows than the paper's are a reader's."""
    gans = [row for row in ROWS.values() if row.method.gan]
    table = files("cpaan.report.claims").joinpath("claims.csv").read_text(encoding="utf-8")
    for template in csv.DictReader(table.splitlines()):
        for gan in gans if "*" in template["name"] else gans[:1]:
            line: Any = {key: text.replace("*", gan.name) for key, text in template.items()}
            rows = [_rows(line["better"]), _rows(line["worse"])]
            num_pairs = max(map(len, rows))
            better, worse = (names * (num_pairs // len(names)) for names in rows)
            columns = line["columns"].split() or ["novel"]
            shots = line["shots"].split() or ["fewest"]
            yield Claim(
                line["name"],
                line["kind"] if gan.group == "CP-AAN" else "further",
                tuple(
                    Contrast(*pair, column, number, line["printed"])
                    for pair in zip(better, worse, strict=True)
                    for column, number in product(columns, shots)
                ),
                line["text"],
                line["flag"],
            )


def _rows(text: str) -> list[str | Pick]:
    names: Any = text.split()
    return [Pick(names[0], tuple(names[2:]))] if names[1:2] == ["of"] else names


CLAIMS = tuple(read_claims())
