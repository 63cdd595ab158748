"""What the paper does not claim, but a reader asks: controls, and what goes past the paper."""

from cpaan.methods.table_row import PN
from cpaan.report.claims.accuracy import better_claim
from cpaan.report.claims.scored_table import NOVEL, ScoredTable, name_of
from cpaan.report.claims.verdict import Claim, all_of, show, verdict_of

_SUBJECTS = ("cCov-GAN", "CP-AAN+")
_CONTROLS = {
    "": ("none", "mean-shift", "half-mean-shift", "copy"),
    f"-{PN}": (PN, f"none-{PN}", f"mean-shift-{PN}", f"half-mean-shift-{PN}", f"copy-{PN}"),
}
"""By space: no augmentation, and augmentation that trains nothing."""


def judge_beyond(table: ScoredTable) -> list[Claim]:
    """Return the verdict on each question whose rows there are."""
    first = name_of(NOVEL, table.shots[0])
    claims = []
    for suffix in reversed(_CONTROLS):
        claims += [_over_controls(table, name, suffix) for name in _SUBJECTS]
        faithful, further = (f"{name}{suffix}" for name in _SUBJECTS)
        claims.append(
            better_claim(
                table,
                f"{further} over {faithful}",
                f"What goes past the paper pays: {further} does better than {faithful} ({first}).",
                further,
                faithful,
                is_paper=False,
            )
        )
    return [claim for claim in claims if claim is not None]


def _over_controls(table: ScoredTable, name: str, suffix: str) -> Claim | None:
    """Return whether a trained row does better than every control, under its own head."""
    subject = table.scored(f"{name}{suffix}")
    if subject is None:
        return None
    row, own_head = subject
    known = {label for label, _ in table.paired.frames}
    controls = [label for label in _CONTROLS[suffix] if label in known]
    heads = table.heads([row, *controls], without=set()) if controls else []
    if own_head not in heads:
        return None
    by_head = {
        head: [
            table.paired.compare((row, head), (control, head), NOVEL, table.shots[0])
            for control in controls
        ]
        for head in heads
    }
    own = by_head.pop(own_head)
    found = f"under {own_head}: " + ", ".join(f"{step.start[0]} {show(step)}" for step in own)
    lowest = [
        f"{head} {show(step)} ({step.start[0]})"
        for head, steps in by_head.items()
        for step in [min(steps, key=lambda each: each.difference)]
    ]
    if lowest:
        found += f". Under other heads, over the best of these: {', '.join(lowest)}"
    return Claim(
        f"{row} over the controls",
        f"{row} does better than no augmentation, and than controls that train no generator, under "
        f"the same head ({name_of(NOVEL, table.shots[0])}).",
        "",
        found,
        all_of(map(verdict_of, own)),
        is_paper=False,
    )
