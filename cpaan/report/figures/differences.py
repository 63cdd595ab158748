"""One row minus every other one."""

from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.report.figures.forest import count_signs, draw_forest
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.selection import differences_to, shots_in, with_heads
from cpaan.report.figures.style import PANELS, drawing


@drawing()
def differences(
    scores: pd.DataFrame,
    subject: str,
    head_of: Mapping[str, str],
    rows: Sequence[str],
    shots: Sequence[int] = (1, 5),
) -> Picture:
    """Draw the subject minus each of the rows, paired by draw, with 95 % intervals.

    Args:
        scores: A row for each method (a row of the table), head, column, shots, draw and seed.
        subject: A row.
        head_of: The head of the subject and of each of the rows.
        rows: From top to bottom; the subject itself is passed over.
        shots: Numbers of shots to draw, as far as there are scores of them.

    Raises:
        ValueError: If the subject or a row has no scores with its head, or there are no rows.
    """
    others = [row for row in rows if row != subject]
    if not others:
        raise ValueError(f"there is no row to compare {subject} with")
    chosen = with_heads(scores, head_of, [subject, *others])
    cells = differences_to(chosen[chosen["method"].isin([subject, *others])], subject)
    cells["difference"] *= -1  # the subject minus the row
    drawn = shots_in(cells, shots)
    facts = []
    for column, title in PANELS.items():
        above, below, unclear = count_signs(cells, column, drawn[0])
        facts.append(f"in {title} ahead of {above}, behind {below}, unclear for {unclear}")
    return Picture(
        name="differences",
        title=f"{subject} minus every other row",
        caption="Difference in top-5 accuracy, paired by draw, with 95 % intervals: right of zero, "
        f"{subject} is better. Filled marks are clear of zero.",
        alt=f"At K = {drawn[0]}, of {len(others)} rows, {subject} is {'; '.join(facts)}.",
        figure=draw_forest(
            cells, {row: row for row in others}, drawn, f"{subject} minus the row, points of top-5"
        ),
    )
