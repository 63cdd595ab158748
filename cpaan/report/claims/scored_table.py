"""The rows of a report as claims speak of them: by method, with the head of the paper's rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpaan.report.gains import PairedScores, Scored
from cpaan.report.published import TABLE_1
from cpaan.report.tables import TITLES

NOVEL, ALL = TITLES


def label_of(methods: Mapping[str, str], method: str) -> str | None:
    """Return the name of a method's row: its own name, or else the last that is of it.

    Args:
        methods: Of whom each row is, in the order of the report: in a study of one method the last
            row is the best.
        method: Whose row it should be.
    """
    if method in methods:
        return method
    labels = [label for label, of in methods.items() if of == method]
    return labels[-1] if labels else None


@dataclass(frozen=True, eq=False)
class ScoredTable:
    """Scores of all rows, laid out for comparisons."""

    paired: PairedScores
    methods: Mapping[str, str]
    """Of whom each row is; rows of ablations are not among them."""
    head_of: Mapping[str, str]
    """The head of each row."""
    shots: tuple[int, ...]
    """In ascending order."""

    def find(self, *methods: str) -> list[Scored] | None:
        """Return the rows of these methods with their heads; None if one has no such scores."""
        found = [self.scored(method) for method in methods]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else None

    def scored(self, method: str) -> Scored | None:
        """Return the row of a method with its head; None if it has no scores."""
        label = label_of(self.methods, method)
        if label is None or label not in self.head_of:
            return None
        scored = (label, self.head_of[label])
        return scored if scored in self.paired.frames else None

    def heads(self, rows: Sequence[str], without: set[Scored]) -> list[str]:
        """Return the heads that all of these rows have, less those that all have already."""
        known = [{head for name, head in self.paired.frames if name == row} for row in rows]
        common = set.intersection(*known)
        return sorted(head for head in common if not without.issuperset((r, head) for r in rows))

    def cells(self) -> list[tuple[str, int]]:
        """Return every column of the paper's table: LSL, then GLSL, each by shots."""
        return [(column, k) for column in TITLES for k in self.shots]

    def mean(self, scored: Scored) -> float:
        """Return a row's mean over all columns of the paper's table."""
        return sum(self.paired.mean(scored, *cell) for cell in self.cells()) / len(self.cells())


def name_of(column: str, shots: int) -> str:
    """Return a column of the paper's table in words."""
    return f"{TITLES[column]} K = {shots}"


def printed_gain(better: str, worse: str, column: str, shots: int) -> float | None:
    """Return the difference of two rows of the paper's table; None if it lacks one of them."""
    if better not in TABLE_1 or worse not in TABLE_1:
        return None
    ours, theirs = (TABLE_1[method].at(column, shots) for method in (better, worse))
    return None if ours is None or theirs is None else ours - theirs
