"""Make the page of a report: one HTML file that loads nothing else, and its words as Markdown."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cpaan.methods.table_row import IN_PN
from cpaan.report.claims import RULE, Claim, Standing, judge_claims, reasons_behind, standing
from cpaan.report.figures.picture import Picture
from cpaan.report.gains import GainSplit, signed
from cpaan.report.page.contents import REPORT, Contents, read_contents
from cpaan.report.page.facts import (
    Headline,
    make_commands,
    make_headline,
    make_provenance,
    plus_minus,
    subject_of,
)
from cpaan.report.page.pictures import Search, draw_searches, draw_sections, make_splits
from cpaan.report.page.views import MEANINGS, METRICS, OURS, RULES, TableViews, make_views
from cpaan.report.published import printed_elsewhere
from cpaan.report.tables import TITLES, side_of

INDEX, FINDINGS, FIGURES = (f"{REPORT}/{name}" for name in ("index.html", "findings.md", "figures"))
SYMBOLS = {"confirmed": "✓", "not confirmed": "✗", "unclear": "?"}
_BEST_OF_OURS = [f"{name}{suffix}" for name in ("cCov-GAN", "CP-AAN+") for suffix in ("", IN_PN)]


@dataclass(frozen=True, eq=False)
class Page:
    """A report summarised and drawn."""

    contents: Contents
    table: TableViews
    subject: str
    """The row that is compared with the others first."""
    headline: Headline
    standing: Sequence[Standing]
    """Of the best of our rows, in every column of LSL and GLSL."""
    reasons: Sequence[str]
    """Why other rows are ahead of ours, as far as the report's own rows tell."""
    claims: Sequence[Claim]
    splits: Sequence[GainSplit]
    pictures: Mapping[str, Sequence[Picture]]
    """By section: accuracy, ablations, synthetic."""
    searches: Sequence[Search]


def write_page(folder: Path, write: Callable[[str, bytes], None]) -> None:
    """Write the page of a study's report, its words as Markdown, and its pictures as files.

    Pictures of searches are on the page only: a table has too many of them.

    ``write`` is called with the name of each file below the study's folder, and its content. Only
    the report's files are read: nothing is trained, and the test phase is not read again.

    Raises:
        ValueError: If the report is absent or damaged.
    """
    page = compose(read_contents(folder))
    for picture in chain(*page.pictures.values()):
        for kind in ("svg", "png"):
            write(f"{FIGURES}/{picture.name}.{kind}", picture.file(kind))
    write(FINDINGS, render_findings(page).encode())
    write(INDEX, render(page).encode())


def compose(contents: Contents) -> Page:
    """Summarise and draw the files of a report."""
    table, subject = make_views(contents), subject_of(contents)
    splits = make_splits(contents, table, subject)
    seeded, methods, head_of = contents.seeded, contents.methods, table.head_of
    variants = [{"name": row.name, **vars(row.ablation)} for row in contents.rows if row.ablation]
    ranked = {name: method for name, method in methods.items() if name in head_of}
    ours = [name for name, method in ranked.items() if method in _BEST_OF_OURS]
    if not contents.is_table:
        ours = ours[-1:]
    places = []
    if ours and len(ranked) > 2:
        differences = table.differences[table.default_rule]
        places = standing(table.cells, differences, head_of, ranked, ours)
    return Page(
        contents=contents,
        table=table,
        subject=subject,
        headline=make_headline(contents, table, subject, splits),
        standing=places,
        reasons=reasons_behind(seeded, places, methods, head_of, variants),
        claims=judge_claims(seeded, contents.diversity, methods, head_of, variants),
        splits=splits,
        pictures=draw_sections(contents, table, subject),
        searches=draw_searches(contents),
    )


def render(page: Page) -> str:
    """Return the page as one HTML file, with style, script, data and pictures inside."""
    table, folder = page.table, files("cpaan.report.page")
    return _fill(
        "index.html.jinja",
        page,
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
