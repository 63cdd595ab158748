"""Make the page of a report: one HTML file that loads nothing else, and its words as Markdown."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.ticker import MaxNLocator

from cpaan.report.claims import RULE, Claim, judge_claims
from cpaan.report.figures.picture import Picture
from cpaan.report.gains import signed
from cpaan.report.page.contents import REPORT, Contents, read_contents
from cpaan.report.page.facts import make_commands, make_provenance, plus_minus
from cpaan.report.page.headline import Headline, make_headline
from cpaan.report.page.pictures import Search, draw_figures, draw_lead, draw_searches, gains_of
from cpaan.report.page.views import MEANINGS, METRICS, OURS, RULES, TableViews, make_views
from cpaan.report.published import printed_elsewhere
from cpaan.report.tables import TITLES, side_of

INDEX, FINDINGS, FIGURES = (f"{REPORT}/{name}" for name in ("index.html", "findings.md", "figures"))
SYMBOLS = {"confirmed": "✓", "not confirmed": "✗", "unclear": "?"}


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
    searches: Sequence[Search]


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


def write_page(folder: Path, write: Callable[[str, bytes], None]) -> None:
    """Write the page of a study's report, its words as Markdown, and its pictures as files.

    Pictures of searches are on the page only: a table has too many of them.

    ``write`` is called with the name of each file below the study's folder, and its content. Only
    the report's files are read: nothing is trained, and the test phase is not read again.

    Raises:
        ValueError: If the report is absent or damaged.
    """
    page = compose(read_contents(folder))
    for picture in [*([page.lead] if page.lead else []), *page.pictures]:
        for kind in ("svg", "png"):
            write(f"{FIGURES}/{picture.name}.{kind}", picture.file(kind))
    write(FINDINGS, render_findings(page).encode())
    write(INDEX, render(page).encode())


def compose(contents: Contents) -> Page:
    """Summarise and draw the files of a report."""
    table = make_views(contents)
    gains, methods = gains_of(contents, table), contents.methods
    variants = [{"name": row.name, **vars(row.ablation)} for row in contents.rows if row.ablation]
    return Page(
        contents=contents,
        table=table,
        headline=make_headline(contents, table),
        lead=draw_lead(gains, table),
        claims=judge_claims(contents.seeded, contents.diversity, methods, table.head_of, variants),
        pictures=draw_figures(contents, table, gains),
        searches=draw_searches(contents),
    )


def render(page: Page) -> str:
    """Return the page as one HTML file, with style, script, data and pictures inside."""
    table, folder = page.table, files("cpaan.report.page")
    return _fill(
        "index.html.jinja",
        page,
        axis=axis_of(page.claims),
        provenance=make_provenance(page.contents),
        elsewhere=printed_elsewhere(page.contents.methods.values()),
        column_choices={"both": "LSL and GLSL", **table.columns},
        printed_columns=[name for name in TITLES if name in table.columns],
        draw_choices={kind: f"{count} {kind}" for kind, count in table.draws.items()},
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
    )


def render_findings(page: Page) -> str:
    """Return the page's words and small tables as Markdown, to read without a browser."""
    return _fill("findings.md.jinja", page)


def _fill(template: str, page: Page, **values: Any) -> str:
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
        "side": lambda value, interval: ("", "above", "below")[side_of(value, interval)],
        "minus": lambda text: re.sub(r"(?<![\w.])-(?=\d)", "−", text),  # as people print it
        "short": lambda value: f"{value:.3g}" if isinstance(value, float) else str(value),
        "cell": lambda text: text.replace("|", r"\|"),  # of a Markdown table
    }
    environment.globals |= {
        "contents": page.contents,
        "table": page.table,
        "commands": make_commands(page.contents),
        "symbols": SYMBOLS,
        "rule_of_verdicts": RULE,
        "meanings": MEANINGS,
        "metrics": METRICS,
        "rule_titles": RULES,
        "ours": OURS,
    }
    return environment.get_template(template).render(page=page, **values)
