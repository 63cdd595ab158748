"""Make the page of a report: one HTML file that loads nothing else, and its words as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from math import isnan
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.ticker import MaxNLocator

from cpaan.evaluation.illustration import REAL
from cpaan.methods.registry import METHODS, ROWS
from cpaan.methods.table_row import NO_GENERATION, RESNET
from cpaan.protocol.config import COLUMNS
from cpaan.report.ablations import IDEAS, NEIGHBOURS, TERMS
from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.verdict import LEVEL, MARGIN, RATIO_MARGIN, Judgement
from cpaan.report.figures.accuracy import gain_of_variants, gains_against_shots, gains_by_row
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import draw_search
from cpaan.report.figures.synthetic import draw_spiral, projections, spectra
from cpaan.report.page.contents import REPORT, Contents, read_contents
from cpaan.report.page.facts import make_commands, make_cost, make_hardware
from cpaan.report.page.headline import Headline, make_headline
from cpaan.report.page.templates import fill, plus_minus
from cpaan.report.page.views import RULES, TableViews, make_views
from cpaan.report.published import NUM_BASE_CLASSES, printed_elsewhere
from cpaan.report.table_one import Cells
from cpaan.report.tables import TITLES, Cell, Table, diversity_cells

INDEX, FINDINGS, FIGURES = (f"{REPORT}/{name}" for name in ("index.html", "findings.md", "figures"))
_SHOTS = (1, 5, 20)  # of the table of diversity
_MOST_LINES = 7  # that one can tell apart
# Rows that the pictures single out, from the most important to the least: with coloured lines, with
# their synthetic examples, and beside the synthetic examples of a study of one row.
_LINES = ("cCov-GAN-PN", "copy-PN", "CP-AAN+-PN", "copy", "CP-AAN+", "cCov-GAN", "FH")
_EXAMPLES = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
_BESIDE = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")
_MARGINS = (MARGIN, RATIO_MARGIN)
_VARIANTS = {
    NEIGHBOURS: (
        "gain-by-neighbours",
        "Gain by the choice of base classes",
        "base classes weighted by their similarity (NBS-S), the k nearest ones (NBS-H), or all "
        "alike",
    ),
    IDEAS: (
        "gain-by-idea",
        "{}, with one idea at a time taken away",
        "left of zero, the idea helps",
    ),
}
"""Name, title and meaning of the picture of a family of ablations."""


@dataclass(frozen=True, eq=False)
class Page:
    """A report summarised and drawn."""

    contents: Contents
    table: TableViews
    headline: Headline
    lead: Picture | None
    """The picture beside the headline."""
    judgements: Sequence[Judgement]
    pictures: Sequence[Picture]
    searches: Mapping[str, Picture | None]
    """The picture of every search, by name."""

    @cached_property
    def sentences(self) -> list[str]:
        """Return the finding, and what stands beside it."""
        values = {"headline": self.headline, "contents": self.contents, "table": self.table}
        return fill("headline.jinja", **values, margins=_MARGINS).splitlines()


class Axis(NamedTuple):
    """The axis that all claims share, in points."""

    low: float
    high: float
    ticks: Sequence[float]

    def at(self, value: float) -> float:
        """Return the place of a value in percent of the axis."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def axis_of(judgements: Sequence[Judgement]) -> Axis:
    """Return an axis on which every printed and every measured number has room."""
    values = [0.0, 1.0]
    for mark in chain.from_iterable(x.extremes for x in judgements if not x.claim.is_ratio):
        reach = 0.0 if isnan(mark.gap.interval) else mark.gap.interval
        values += [mark.gap.value - reach, mark.gap.value + reach, mark.printed or 0.0]
    room = 0.04 * (max(values) - min(values))
    low, high = min(values) - room, max(values) + room
    ticks = MaxNLocator(9, steps=[1, 2, 5, 10]).tick_values(low, high)
    return Axis(low, high, [float(tick) for tick in ticks if low <= tick <= high])


def write_page(folder: Path, write: Callable[[str, bytes], None]) -> list[str]:
    """Write the page of a study's report, its words as Markdown, and its pictures as files.

    Pictures of searches are on the page only: a table has too many of them. ``write`` is called
    with the name of a file below the study's folder, and its content.

    Returns:
        The last lines of a command: the finding, the three best rows and the path of the page.

    Raises:
        ValueError: If the report is absent or damaged.
    """
    page = compose(read_contents(folder))
    for picture in [*([page.lead] if page.lead else []), *page.pictures]:
        for kind in ("svg", "png"):
            write(f"{FIGURES}/{picture.name}.{kind}", picture.file(kind))
    write(FINDINGS, render(page, "findings.md.jinja").encode())
    write(INDEX, render(page).encode())
    return [*_summary(page), f"The page: {folder / INDEX}"]


def _summary(page: Page) -> list[str]:
    """Return the finding, and the three rows with the highest LSL at the fewest shots."""
    table, shots = page.table, page.table.shots[0]
    best, lines = table.ranked[:3], page.sentences[:1]
    for name in best:
        cells = {title: table.cells[name, column, shots] for column, title in TITLES.items()}
        numbers = (f"{title} {x.value:.1f}{plus_minus(x.interval)}" for title, x in cells.items())
        where = f"K = {shots}, {table.head_of[name]} head"
        lines.append(f"  {name:<{max(map(len, best))}}  {', '.join(numbers)} ({where})")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def compose(contents: Contents) -> Page:
    """Summarise and draw the files of a report."""
    table = make_views(contents)
    gains, judgements = gains_of(contents, table), judge(contents, table)
    headline = make_headline(contents, table, gains, judgements)
    lead, pictures = draw_lead(contents, table, gains), draw_figures(contents, table, gains)
    return Page(contents, table, headline, lead, judgements, pictures, draw_searches(contents))


def judge(contents: Contents, table: TableViews) -> list[Judgement]:
    """Judge the claims about all rows except those as published."""
    ablations = {row.name: row.ablation for row in contents.rows if row.ablation}
    diversity, searched = contents.diversity, contents.searched
    return judge_claims(contents.seeded, diversity, searched, table.head_of, ablations)


def render(page: Page, template: str = "index.html.jinja") -> str:
    """Return the page as one HTML file that loads nothing, or with another template as Markdown."""
    contents, table = page.contents, page.table
    return fill(
        template,
        page=page,
        contents=contents,
        table=table,
        axis=axis_of(page.judgements),
        cost=make_cost(contents),
        hardware=make_hardware(contents.about["nodes"]),
        commands=make_commands(contents),
        diversity=make_diversity(contents),
        elsewhere=printed_elsewhere(contents.methods.values()),
        draw_choices={kind: f"{count} {kind}" for kind, count in table.draws.items()},
        single_seed=[row for row in contents.rows if not row.ablation and len(row.seeds) == 1],
        num_base_in_papers=NUM_BASE_CLASSES,
        margins=_MARGINS,
        level=LEVEL,
        meanings=COLUMNS,
        rule_titles=RULES,
    )


def gains_of(contents: Contents, table: TableViews) -> Cells:
    """Return top-5 of the rows that augment minus no augmentation of the same features.

    GLSL is calibrated if the scores have it. Both rows have the head that the table shows first. A
    classifier of a method's own is compared with the head of the row without augmentation. Rows
    without such a row are left out. So are rows as published, whose large losses would hide all
    differences between the others.
    """
    gains: dict[tuple[str, str, int], Cell] = {}
    for name, head in table.head_of.items():
        row = table.rows[name]
        if name not in contents.searched or row.generation == NO_GENERATION:
            continue
        plain = unaugmented(contents, row.representation)
        wanted = [(other, head) for other in plain]
        wanted += [(other, table.head_of.get(other, "")) for other in plain]
        for reference in [x for x in wanted if x in contents.paired.rows][:1]:
            for cell in product(contents.paired.titles, table.shots):
                gains[name, *cell] = contents.compare((name, head), reference, *cell)
    return gains


def unaugmented(contents: Contents, representation: str) -> list[str]:
    """Return the rows without augmentation of some features.

    Controls come first, because they have the same network as rows that augment.
    """
    rows = {name: ROWS[method] for name, method in contents.searched.items()}
    wanted = representation, NO_GENERATION
    names = [x for x, row in rows.items() if (row.representation, row.generation) == wanted]
    return sorted(names, key=lambda name: rows[name].group != "Control")


def make_diversity(contents: Contents) -> Table:
    """Return the diversity of GANs, of those with and without a term, and of copies."""
    shown = {
        row.name: row.ablation.title if row.ablation else row.name
        for row in contents.rows
        if (row.ablation is None or row.ablation.family == TERMS)
        and (METHODS[row.method].gan or ROWS[row.method].generation == "copy")
    }
    is_shown = contents.diversity["method"].isin(shown) & contents.diversity["shots"].isin(_SHOTS)
    diversity = contents.diversity[is_shown]
    known, names = diversity_cells(diversity), set(diversity["method"])
    rows = {(name,): [title] for name, title in shown.items() if name in names}
    return Table(["row"], rows, sorted({key[1:] for key in known}), {"": known}, digits=2)


def draw_lead(contents: Contents, table: TableViews, gains: Cells) -> Picture | None:
    """Draw the gain and diversity of rows at the fewest shots; None if no row augments."""
    few = table.shots[0]
    rows = {name: row for name, row in table.rows.items() if (name, "novel", few) in gains}
    if not rows:
        return None
    spaces = {
        name: RESNET if row.representation == RESNET else f"{row.representation} embedding"
        for name, row in rows.items()
    }
    trained = [name for name, row in rows.items() if hasattr(row.method.config, "num_episodes")]
    return gains_by_row(gains, contents.diversity, spaces, trained, few)


def draw_figures(contents: Contents, table: TableViews, gains: Cells) -> list[Picture]:
    """Draw everything but the lead and the searches.

    Intervals are of the seeded draws, by the rule for heads that the table shows first.
    """
    names, pictures = list(dict.fromkeys(name for name, _, _ in gains)), list[Picture]()
    if names and len(table.shots) > 1:
        lines = names if len(names) <= _MOST_LINES else [x for x in _LINES if x in names]
        pictures.append(gains_against_shots(gains, lines or names[:_MOST_LINES]))
    return [*pictures, *_ablations(contents, table), *_synthetic(contents)]


def _ablations(contents: Contents, table: TableViews) -> list[Picture]:
    """Draw the gains of neighbours and of ideas, under the head of their row if they have it."""
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for row in contents.rows:
        ablation = row.ablation
        if ablation and ablation.family in _VARIANTS and ablation.of in table.head_of:
            variants.setdefault((ablation.family, ablation.of), {})[ablation.label] = row.name
    scores, pictures = contents.paired, list[Picture]()
    for (family, whole), labels in variants.items():
        plain = unaugmented(contents, table.rows[whole].representation)
        references = plain if family == NEIGHBOURS else [whole]
        heads = scores.heads(labels.values(), first=table.head_of[whole])
        for reference, head in [x for x in product(references, heads) if x in scores.rows][:1]:
            name, title, meaning = _VARIANTS[family]
            words = {"name": name, "title": title.format(whole), "meaning": meaning}
            pictures.append(gain_of_variants(scores, labels, head, reference, **words))
    return pictures


def _synthetic(contents: Contents) -> list[Picture]:
    """Draw the paper's generators, and ours; of a study that has none of them, its last row."""
    pictures = []
    if contents.projections is not None and len(contents.projections):
        shown = _rows_of(contents.projections, _featured(contents, contents.projections))
        pictures.append(projections(shown.replace({"class": dict(contents.words)})))
    if contents.spectra is not None and len(contents.spectra):
        names = _featured(contents, contents.spectra)
        # All in one space: FI trains an embedding of its own.
        rows = {name: ROWS[contents.methods[name]] for name in names}
        spaces = {name: (row.representation, row.is_embedded) for name, row in rows.items()}
        together = [name for name in names if spaces[name] == spaces[names[0]]]
        real = _rows_of(contents.spectra, [f"{names[0]}, {REAL}"]).assign(method=REAL)
        if len(real):
            shown = _rows_of(contents.spectra, together)
            pictures.append(spectra(pd.concat([real, shown], ignore_index=True)))
    if contents.spiral is not None:
        pictures.append(draw_spiral(contents.spiral))
    return pictures


def _featured(contents: Contents, frame: pd.DataFrame) -> list[str]:
    """Return the rows of a table to show."""
    known = [name for name in frame["method"].unique() if name in contents.methods]
    shown = [name for name in _EXAMPLES if name in known]
    beside = [name for name in (list(contents.methods)[-1], *_BESIDE) if name in known]
    return shown if len(shown) > 1 else beside or known[:1]


def _rows_of(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    return pd.concat([frame[frame["method"] == name] for name in names], ignore_index=True)


def draw_searches(contents: Contents) -> dict[str, Picture | None]:
    """Draw every search that left its trials; None if there are too few of them."""
    return {
        name: draw_search(trials, name, int(contents.best[name]["trial"]))
        for name, trials in contents.trials.items()
    }
