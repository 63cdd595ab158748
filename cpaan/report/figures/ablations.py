"""What a choice of the method gives: by neighbours, by idea, and by diversity."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from cpaan.protocol.statistics import mean_interval, summarise
from cpaan.report.figures.forest import draw_forest, gaps_of, with_interval
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.placing import label_points
from cpaan.report.figures.selection import cells_of, differences_to, highest, shots_in, with_heads
from cpaan.report.figures.style import COLOURS, INK, PANELS, drawing, new_figure

_SHOTS = (1, 5)


@drawing()
def gain_by_neighbours(
    scores: pd.DataFrame, labels: Mapping[str, str], head: str, reference: str
) -> Picture:
    """Draw what augmentation gains, by how base classes are chosen for it (the paper's Figure 5a).

    Args:
        scores: A row for each method (a row of the report), head, column, shots, draw and seed.
        labels: Kind of neighbour selection to row, from top to bottom.
        head: Of all of them.
        reference: The row without augmentation.

    Raises:
        ValueError: If a row has no scores with the head.
    """
    cells = _gains(scores, labels, head, reference)
    drawn = shots_in(cells, _SHOTS)
    gaps = gaps_of(cells, "novel", drawn[0])
    ranked = sorted(labels, key=lambda label: -gaps[labels[label]][0])
    facts = [f"{label}: {with_interval(*gaps[labels[label]])}" for label in ranked]
    return Picture(
        name="gain-by-neighbours",
        title="Gain by the choice of base classes",
        caption=f"Top-5 accuracy minus that of {reference} with the same {head} head, paired by "
        "draw, with 95 % intervals: base classes weighted by their similarity (NBS-S), the k "
        f"nearest ones (NBS-H), or all alike. Filled marks are clear of zero; "
        f"{_seeds(scores, labels)}.",
        alt=f"Gain in LSL at K = {drawn[0]}. {'; '.join(facts)}.",
        figure=draw_forest(cells, labels, drawn, f"gain over {reference}, points of top-5"),
    )


@drawing()
def gain_by_idea(
    scores: pd.DataFrame, labels: Mapping[str, str], head: str, reference: str
) -> Picture:
    """Draw what is lost when one idea at a time is taken away.

    Args:
        scores: A row for each method (a row of the report), head, column, shots, draw and seed.
        labels: What was changed to row, from top to bottom.
        head: Of all of them.
        reference: The row with everything.

    Raises:
        ValueError: If a row has no scores with the head.
    """
    cells = _gains(scores, labels, head, reference)
    drawn = shots_in(cells, _SHOTS)
    gaps = gaps_of(cells, "novel", drawn[0])
    ranked = sorted(labels, key=lambda label: gaps[labels[label]][0])
    facts = [f"{label}: {with_interval(*gaps[labels[label]])}" for label in ranked]
    return Picture(
        name="gain-by-idea",
        title=f"{reference}, with one idea at a time taken away",
        caption=f"Top-5 accuracy minus that of {reference} with the same {head} head, paired by "
        f"draw, with 95 % intervals: left of zero, the idea helps. Filled marks are clear of zero; "
        f"{_seeds(scores, labels)}.",
        alt=f"Difference in LSL at K = {drawn[0]}. {'; '.join(facts)}.",
        figure=draw_forest(cells, labels, drawn, f"minus {reference}, points of top-5"),
    )


def _gains(
    scores: pd.DataFrame, labels: Mapping[str, str], head: str, reference: str
) -> pd.DataFrame:
    rows = [reference, *labels.values()]
    wanted = with_heads(scores, dict.fromkeys(rows, head), rows)
    # A variant may have fewer seeds. The others of the reference would add a difference between
    # seeds that is none between the two.
    is_reference = wanted["method"] == reference
    seeds = wanted.loc[~is_reference, "seed"].unique()
    is_other_seed = is_reference & ~wanted["seed"].isin(seeds)
    if not is_other_seed[is_reference].all():
        wanted = wanted[~is_other_seed]
    return differences_to(wanted, reference)


def _seeds(scores: pd.DataFrame, labels: Mapping[str, str]) -> str:
    count = scores.loc[scores["method"].isin(labels.values()), "seed"].nunique()
    return "one training seed" if count == 1 else f"{count} training seeds"


@drawing()
def accuracy_against_diversity(
    scores: pd.DataFrame, diversity: pd.DataFrame, head_of: Mapping[str, str], shots: int = 1
) -> Picture:
    """Draw accuracy against the diversity of synthetic examples (the paper's Figure 5b).

    Args:
        scores: A row for each method (a row of the table), head, column, shots, draw and seed.
        diversity: Columns method, shots, draw, seed and ratio: mean distance of two synthetic
            examples of a class over that of two real ones.
        head_of: The head of each row that is drawn.
        shots: Of a class.

    Raises:
        ValueError: If no row that has a head has a diversity at this number of shots.
    """
    if diversity.empty:
        raise ValueError("no row has a diversity")
    ratios = diversity[diversity["shots"] == shots].groupby(["method", "draw"])["ratio"].mean()
    found = ratios.groupby("method").agg(["mean", mean_interval])
    cells = summarise(with_heads(scores, head_of))
    cells = cells[(cells["shots"] == shots) & cells["method"].isin(found.index)]
    if cells.empty:
        raise ValueError(f"no row has scores and a diversity at K = {shots}")
    cells = cells.join(found, on="method")
    figure = new_figure(height=7.4)
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
        _draw_diversity(axes, cells_of(cells, column))
        axes.set_title(f"{title}, K = {shots}")
        axes.set_ylabel("top-5 accuracy, %")
    panels[-1].set_xlabel("diversity of synthetic examples over that of real ones")
    for axes, column in zip(panels, PANELS, strict=True):
        of_panel = cells_of(cells, column)
        points = of_panel[["mean", "top5_mean"]].itertuples(index=False, name=None)
        label_points(axes, dict(zip(of_panel["method"], points, strict=True)), lines=[1])
    novel = cells_of(cells, "novel")
    best = highest(novel, "top5_mean")
    nearest = highest(novel.assign(nearness=-(novel["mean"] - 1).abs()), "nearness")
    return Picture(
        name="diversity",
        title="Accuracy against diversity",
        caption="Diversity is the mean distance of two synthetic examples of a class over that of "
        f"two real ones, at K = {shots} too: at one (dashed) they are as diverse as real examples. "
        "Bars are 95 % intervals over draws.",
        alt=f"At K = {shots}, of {len(novel)} generators, {best['method']} has the highest LSL, "
        f"{best['top5_mean']:.1f} %, with a diversity of {best['mean']:.2f} times the real one; "
        f"{nearest['method']} is nearest to the real diversity, with {nearest['mean']:.2f} and an "
        f"LSL of {nearest['top5_mean']:.1f} %.",
        figure=figure,
    )


def _draw_diversity(axes: Axes, cells: pd.DataFrame) -> None:
    axes.axvline(1, color=INK, lw=1, ls="--")
    axes.annotate(
        "real examples",
        xy=(1, 0),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        rotation=90,  # along the line: above it, it would meet the title where the line is far left
        size=8.5,
    )
    axes.errorbar(
        cells["mean"],
        cells["top5_mean"],
        xerr=cells["mean_interval"].fillna(0),
        yerr=cells["top5_interval"].fillna(0),
        fmt="o",
        color=COLOURS[0],
        ecolor=f"{COLOURS[0]}55",  # paler than the labels that cross them
        elinewidth=0.9,
    )
    axes.margins(x=0.12, y=0.1)
