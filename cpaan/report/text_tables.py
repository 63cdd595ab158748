"""Results as text."""

import pandas as pd

from cpaan.protocol.statistics import paired_differences, summarise


def accuracy_table(scores: pd.DataFrame) -> str:
    """Return means and intervals of top-5, LSL and GLSL side by side, and the other columns."""
    summary = summarise(scores)
    main = _grid(summary, ["novel", "all"], "top5_mean", "top5_interval")
    rest = _grid(summary, ["novel_joint", "base", "all_prior"], "top5_mean", None)
    return f"Top-5 accuracy, %, ± 95 % interval over draws\n{main}\n\n{rest}"


def difference_table(scores: pd.DataFrame, against: str) -> str:
    """Return what every row gains over a named one; see `paired_differences`."""
    differences = paired_differences(scores, against)
    grid = _grid(differences, ["novel", "all"], "top5_difference", "top5_interval", sign="+")
    row = against if "/" in against else f"{against}, same head"
    return f"Top-5 minus {row}, paired by draw, ± 95 % interval\n{grid}"


def diversity_table(diversity: pd.DataFrame) -> str:
    """Return how far apart synthetic examples of a class are, beside real ones."""
    ratios = diversity.groupby(["method", "shots"], sort=False)["ratio"].mean().unstack("shots")
    distances = diversity.groupby("method", sort=False)["distance"].mean().to_dict()
    lines = [f"{'method':<16}{'distance':<10}" + "".join(f"{f'K={k}':<6}" for k in ratios.columns)]
    for method, row in ratios.iterrows():
        cells = "".join(f"{ratio:<6.2f}" for ratio in row)
        lines.append(f"{method:<16}{distances[method]:<10.3g}{cells}")
    title = "Diversity: mean distance of two synthetic examples of a class, and ratio to real ones"
    return "\n".join([title, *(line.rstrip() for line in lines)])


def _grid(
    cells: pd.DataFrame, columns: list[str], value: str, interval: str | None, sign: str = ""
) -> str:
    """Lay out a value for each row, column and number of shots."""
    titles = {"novel": "LSL (novel)", "all": "GLSL (all)"}
    shots = sorted(cells["shots"].unique())
    width = 6 if interval is None else 10
    width = max(width, -(-max(len(titles.get(c, c)) for c in columns) // len(shots)))
    lines = [
        " " * 26 + "  ".join(f"{titles.get(c, c):<{width * len(shots)}}" for c in columns),
        f"{'method':<16}{'head':<10}"
        + "  ".join("".join(f"{f'K={k}':<{width}}" for k in shots) for _ in columns),
    ]
    for (method, head), row in cells.groupby(["method", "head"], sort=False):
        found = row.set_index(["column", "shots"])
        parts = []
        for column in columns:
            part = ""
            for k in shots:
                cell = found.loc[(column, k)]
                text = f"{cell[value]:{sign}.1f}"
                if interval is not None and pd.notna(cell[interval]):
                    text += f"±{cell[interval]:.1f}"
                part += f"{text:<{width}}"
            parts.append(part)
        lines.append(f"{method:<16}{head:<10}" + "  ".join(parts))
    return "\n".join(line.rstrip() for line in lines)
