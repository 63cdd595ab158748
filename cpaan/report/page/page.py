"""Make the page of a report: one HTML file that loads nothing else, and its words as Markdown."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, product
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.ticker import MaxNLocator

from cpaan.gan.spiral import from_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION, PN, RESNET
from cpaan.protocol.config import COLUMNS
from cpaan.report.claims.judge import TERMS, judge_claims
from cpaan.report.claims.mechanisms import NEIGHBOURS
from cpaan.report.claims.verdict import RULE, VERDICTS, Claim
from cpaan.report.figures.accuracy import gain_of_variants, gains_against_shots, gains_by_row
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import draw_search
from cpaan.report.figures.synthetic import draw_spiral, projections, spectra
from cpaan.report.gains import signed
from cpaan.report.illustration import REAL
from cpaan.report.page.contents import PUBLISHED, REPORT, Contents, read_contents
from cpaan.report.page.facts import make_commands, make_provenance, plus_minus
from cpaan.report.page.headline import Headline, make_headline, make_setting
from cpaan.report.page.views import METRICS, OURS, RULES, TableViews, is_trained, make_views
from cpaan.report.published import printed_elsewhere
from cpaan.report.table_one import Cells
from cpaan.report.tables import TITLES, Cell, Table, diversity_cells
from cpaan.training.drive import in_words

INDEX, FINDINGS, FIGURES = (f"{REPORT}/{name}" for name in ("index.html", "findings.md", "figures"))
SYMBOLS = dict(zip(VERDICTS, "✓↘∅✗?", strict=True))
SECTIONS = {
    "control": "Positive controls: gains over PN that other papers print",
    "primary": "Primary comparisons",
    "paper": "Other claims of the paper (secondary)",
    "further": "Further questions of a reader (secondary)",
}

_UNAUGMENTED = {RESNET: ("none", "LR"), PN: ("none-PN", "PN")}
"""Rows without augmentation by features. The first has the same network as rows that augment."""
_SHOTS = (1, 5, 20)  # of the table of diversity
_MOST_STRONG = 7  # lines that one can tell apart
_STRONG = ("cCov-GAN-PN", "copy-PN", "CP-AAN+-PN", "copy", "CP-AAN+", "cCov-GAN", "FH")
_SHOWN = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
_OWN_SPACE = "FI-PN"
_SHOWN_BESIDE = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")


@dataclass(frozen=True, eq=False)
class Page:
    """A report summarised and drawn."""

    contents: Contents
    table: TableViews
    headline: Headline
    lead: Picture | None
    """The picture beside the headline."""
    claims: Sequence[Claim]
    pictures: Sequence[Picture]
    searches: Sequence[tuple[str, str, Picture | None]]
    """Name, summary and picture of each search."""


class Axis(NamedTuple):
    """The axis that all claims share, in points."""

    low: float
    high: float
    ticks: Sequence[float]

    def at(self, value: float) -> float:
        """Return the place of a value in percent of the axis."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def axis_of(claims: Sequence[Claim]) -> Axis:
    """Return an axis on which every printed and every found number has room."""
    values = [0.0, 1.0]
    for mark in chain.from_iterable(claim.marks for claim in claims):
        reach = 0.0 if isnan(mark.interval) else mark.interval
        values += [mark.found - reach, mark.found + reach, mark.printed or 0.0]
    room = 0.04 * (max(values) - min(values))
    low, high = min(values) - room, max(values) + room
    ticks = MaxNLocator(9, steps=[1, 2, 5, 10]).tick_values(low, high)
    return Axis(low, high, [float(tick) for tick in ticks if low <= tick <= high])


def write_page(folder: Path, write: Callable[[str, bytes], None]) -> list[str]:
    """Write the page of a study's report, its words as Markdown, and its pictures as files.

    Pictures of searches are on the page only: a table has too many of them. ``write`` is called
    with the name of each file below the study's folder, and its content.

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
    best = table.ranked[:3]
    lines = [page.headline.finding]
    for name in best:
        lsl, glsl = (table.cells[name, column, shots] for column in TITLES)
        numbers = f"LSL {lsl.value:.1f}{plus_minus(lsl.interval)}"
        numbers += f", GLSL {glsl.value:.1f}{plus_minus(glsl.interval)}"
        where = f"K = {shots}, {table.head_of[name]} head"
        lines.append(f"  {name:<{max(map(len, best))}}  {numbers} ({where})")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def compose(contents: Contents) -> Page:
    """Summarise and draw the files of a report."""
    table = make_views(contents)
    gains, claims = gains_of(contents, table), claims_of(contents, table)
    return Page(
        contents=contents,
        table=table,
        headline=make_headline(contents, table, claims),
        lead=draw_lead(contents, table, gains),
        claims=claims,
        pictures=draw_figures(contents, table, gains),
        searches=draw_searches(contents),
    )


def claims_of(contents: Contents, table: TableViews) -> list[Claim]:
    """Judge the claims about all rows except those as published."""
    methods = {x: of for x, of in contents.methods.items() if not x.endswith(PUBLISHED)}
    variants = [{"name": row.name, **vars(row.ablation)} for row in contents.rows if row.ablation]
    return judge_claims(contents.seeded, contents.diversity, methods, table.head_of, variants)


def render(page: Page, template: str = "index.html.jinja") -> str:
    """Return the page as one HTML file that loads nothing, or with another template as Markdown."""
    contents, table, folder = page.contents, page.table, files("cpaan.report.page")
    environment = Environment(
        loader=PackageLoader("cpaan.report.page", "."),
        autoescape="html" in template,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "signed": signed,
        "plus_minus": plus_minus,
        "minus": lambda text: re.sub(r"(?<![\w.])-(?=\d)", "−", text),  # as people print it
        "verdicts": _count_verdicts,
        "p": lambda value: "p < 0.001" if value < 0.001 else f"p = {value:.3f}",
        "short": lambda value: f"{value:.3g}" if isinstance(value, float) else str(value),
        "cell": lambda text: text.replace("|", r"\|"),  # of a Markdown table
        "commit": lambda text: text[:10] + text[40:],  # "-dirty" stays
    }
    environment.globals |= {
        "page": page,
        "contents": contents,
        "table": table,
        "axis": axis_of(page.claims),
        "provenance": make_provenance(contents),
        "commands": make_commands(contents),
        "diversity": make_diversity(contents),
        "elsewhere": printed_elsewhere(contents.methods.values()),
        "column_choices": {"both": "LSL and GLSL", **table.columns},
        "printed_columns": [name for name in TITLES if name in table.columns],
        "draw_choices": {kind: f"{count} {kind}" for kind, count in table.draws.items()},
        "symbols": SYMBOLS,
        "is_swept": any(best.get("swept") for best in contents.best.values()),
        "single_seed": _of_single_seed(contents),
        "claim_sections": SECTIONS,
        "setting": make_setting(contents, page.claims),
        "rule_of_verdicts": RULE,
        "meanings": COLUMNS,
        "metrics": METRICS,
        "rule_titles": RULES,
        "ours": OURS,
        "style": folder.joinpath("page.css").read_text(encoding="utf-8"),
        "script": folder.joinpath("page.js").read_text(encoding="utf-8"),
    }
    return environment.get_template(template).render()


def _of_single_seed(contents: Contents) -> list[str]:
    """Return the rows of the table with one training seed. Those as published have equally many."""
    once = [row.name for row in contents.rows if not row.ablation and len(row.seeds) == 1]
    others = [name for name in once if not name.endswith(PUBLISHED)]
    return [*others, f"all rows {PUBLISHED}"] if len(once) > len(others) + 1 else once


def _count_verdicts(claims: Sequence[Claim]) -> str:
    """Return how many claims have each verdict, such as "1 confirmed, 2 undecided"."""
    counts = {verdict: sum(each.verdict == verdict for each in claims) for verdict in VERDICTS}
    return "; ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def gains_of(contents: Contents, table: TableViews) -> Cells:
    """Return top-5 of each row that augments minus no augmentation of the same features.

    GLSL is calibrated if the scores have it. Both rows have the head that the table shows first. A
    classifier of a method's own is compared with the head of the row without augmentation. Rows
    without such a row are left out. So are rows as published, whose large losses would hide all
    differences between the others.
    """
    found: dict[tuple[str, str, int], Cell] = {}
    for name, head in table.head_of.items():
        row = table.rows[name]
        names = _UNAUGMENTED.get(row.representation, (row.representation,))
        wanted = [(other, of) for of in (head, "") for other in names]
        wanted = [(other, of or table.head_of.get(other, "")) for other, of in wanted]
        reference = next((each for each in wanted if each in contents.paired.rows), None)
        if row.generation == NO_GENERATION or reference is None or name.endswith(PUBLISHED):
            continue
        for cell in product(contents.paired.titles, table.shots):
            found[name, *cell] = contents.compare((name, head), reference, *cell).cell
    return found


def make_diversity(contents: Contents) -> Table:
    """Return the diversity of GANs, of those with and without a term, and of copies."""
    shown = [
        row.name
        for row in contents.rows
        if (row.ablation is None or row.ablation.family == TERMS)
        and (ROWS[row.method].gan or ROWS[row.method].generation == "copy")
    ]
    found = contents.diversity.query("method in @shown and shots in @_SHOTS")
    known = diversity_cells(found)
    rows = {(name,): [name] for name in shown if name in set(found["method"])}
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
    trained = [name for name, row in rows.items() if is_trained(row)]
    return gains_by_row(gains, contents.diversity, spaces, trained, few)


def draw_figures(contents: Contents, table: TableViews, gains: Cells) -> list[Picture]:
    """Draw everything but the lead and the searches.

    Intervals are of the seeded draws, by the rule for heads that the table shows first.
    """
    names, pictures = list(dict.fromkeys(name for name, _, _ in gains)), list[Picture]()
    if names and len(table.shots) > 1:
        strong = names if len(names) <= _MOST_STRONG else [x for x in _STRONG if x in names]
        pictures.append(gains_against_shots(gains, strong or names[:_MOST_STRONG]))
    return [*pictures, *_ablations(contents, table), *_synthetic(contents)]


def _ablations(contents: Contents, table: TableViews) -> list[Picture]:
    """Draw the gains of neighbours and of ideas: a picture for each row that has such variants."""
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for row in contents.rows:
        # A variant without one term is a claim of its own.
        ablation = row.ablation
        if ablation and ablation.family != TERMS and ablation.of in table.head_of:
            variants.setdefault((ablation.family, ablation.of), {})[ablation.label] = row.name
    scored, pictures = contents.paired.rows, list[Picture]()
    for (family, of), labels in variants.items():
        references: tuple[str, ...] = (of,)
        name, title = "gain-by-idea", f"{of}, with one idea at a time taken away"
        meaning = "left of zero, the idea helps"
        if family == NEIGHBOURS:
            references = _UNAUGMENTED[table.rows[of].representation]
            name, title = "gain-by-neighbours", "Gain by the choice of base classes"
            meaning = (
                "base classes weighted by their similarity (NBS-S), the k nearest ones (NBS-H), or "
                "all alike"
            )
        if same := sum(each.name.startswith(name) for each in pictures):
            name = f"{name}-{same + 1}"
        # Variants may have been scored with one head only: that of the search.
        others = sorted(head for row, head in scored if row in labels.values())
        heads = dict.fromkeys([table.head_of[of], *others])
        for head, reference in ((h, r) for h in heads for r in references if (r, h) in scored):
            if drawn := {label: row for label, row in labels.items() if (row, head) in scored}:
                words = {"name": name, "title": title, "meaning": meaning}
                pictures.append(gain_of_variants(contents.paired, drawn, head, reference, **words))
                break
    return pictures


def _synthetic(contents: Contents) -> list[Picture]:
    """Draw the paper's generators, and ours; of a study that has none of them, its last row."""
    pictures, last = [], list(contents.methods)[-1]
    if contents.projections is not None and len(contents.projections):
        shown = _only_shown(contents.projections, last)
        pictures.append(projections(shown.replace({"class": dict(contents.words)})))
    if contents.spectra is not None and len(contents.spectra):
        # All in one space: FI has an embedding of its own.
        together = _only_shown(contents.spectra[contents.spectra["method"] != _OWN_SPACE], last)
        first = f"{together['method'].iloc[0]}, {REAL}"
        real = contents.spectra[contents.spectra["method"] == first].assign(method=REAL)
        if len(real):
            pictures.append(spectra(pd.concat([real, together], ignore_index=True)))
    if contents.spiral is not None:
        pictures.append(draw_spiral(*from_plain(contents.spiral)))
    return pictures


def _only_shown(frame: pd.DataFrame, last: str) -> pd.DataFrame:
    by_name: dict[Any, pd.DataFrame] = dict(iter(frame.groupby("method", sort=False)))
    shown = [name for name in _SHOWN if name in by_name]
    if len(shown) < 2:
        shown = [x for x in (last, *_SHOWN_BESIDE) if x in by_name] or list(by_name)[:1]
    return pd.concat([by_name[name] for name in shown], ignore_index=True)


def draw_searches(contents: Contents) -> list[tuple[str, str, Picture | None]]:
    """Draw every search that left its trials."""
    searches = []
    for name, trials in contents.trials.items():
        best, counts = contents.best[name], trials["state"].value_counts(sort=False)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        time = in_words(trials["seconds"].sum())
        summary = f"{states}, {time}; winner {best['score']:.1f} on validation"
        searches.append((name, summary, draw_search(trials, name, int(best["trial"]))))
    return searches
