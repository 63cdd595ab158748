"""Make the page of a report: one HTML file that loads nothing else, and its words as Markdown."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from cpaan.methods.table_row import IN_PN
from cpaan.report.claims import RULE, Claim, Standing, judge_claims, reasons_behind, standing
from cpaan.report.figures.picture import Picture
from cpaan.report.gains import GainSplit
from cpaan.report.page.contents import REPORT, Contents, read_contents
from cpaan.report.page.facts import (
    Headline,
    make_commands,
    make_facts,
    make_headline,
    make_provenance,
    plus_minus,
    signed,
    subject_of,
)
from cpaan.report.page.pictures import Search, draw_searches, draw_sections, make_splits
from cpaan.report.page.views import MEANINGS, METRICS, OURS, RULES, TableViews, make_views
from cpaan.report.published import printed_elsewhere
from cpaan.report.tables import TITLES, side_of

INDEX, FINDINGS, FIGURES = (f"{REPORT}/{name}" for name in ("index.html", "findings.md", "figures"))
SYMBOLS = {"confirmed": "✓", "not confirmed": "✗", "unclear": "?"}
_BEST_OF_OURS = ("cCov-GAN", "CP-AAN+")
_SECTIONS = {
    "table-1": ("Table 1", "Table 1"),
    "standing": ("Where ours stand", "Standing"),
    "claims": ("The paper’s claims", "Claims"),
    "accuracy": ("Accuracy against K", "Accuracy"),
    "differences": ("Paired differences", "Differences"),
    "gains": ("Where the gain comes from", "Gains"),
    "ablations": ("Ablations", "Ablations"),
    "synthetic": ("Synthetic examples", "Synthetic examples"),
    "searches": ("The searches", "Searches"),
    "chosen": ("What the searches chose", "Settings"),
    "provenance": ("Provenance", "Provenance"),
}
"""Titles by id, and short ones for the navigation."""


@dataclass(frozen=True, eq=False)
class Page:
    """A report summarised and drawn; empty sections are left out."""

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
    """By section: accuracy, differences, gains, ablations, synthetic, searches."""
    searches: Sequence[Search]

    @property
    def sections(self) -> dict[str, str]:
        """Return the titles of the sections that have anything to show, by their ids."""
        shown: dict[str, Any] = {
            **self.pictures,
            "standing": self.standing,
            "claims": self.claims,
            "differences": len(self.table.rows) > 1,
            "gains": self.splits,
            "searches": self.searches,
            "chosen": self.contents.best,
        }
        always = ("table-1", "provenance")
        return {name: _SECTIONS[name][0] for name in _SECTIONS if name in always or shown.get(name)}


def write_page(folder: Path, write: Callable[[str, bytes], None]) -> None:
    """Write the page of a study's report, its words as Markdown, and its pictures as files.

    ``write`` is called with the name of each file below the study's folder, and its content. Only
    the report's files are read: nothing is trained, and the test phase is not read again.

    Raises:
        ValueError: If the report is absent or damaged.
    """
    page = compose(read_contents(folder))
    searches = [search.pictures for search in page.searches if search.has_files]
    for picture in chain(*page.pictures.values(), *searches):
        write(f"{FIGURES}/{picture.name}.svg", picture.svg_file().encode())
        write(f"{FIGURES}/{picture.name}.png", picture.png())
    write(FINDINGS, render_findings(page).encode())
    write(INDEX, render(page).encode())


def compose(contents: Contents) -> Page:
    """Summarise and draw the files of a report."""
    table, subject = make_views(contents), subject_of(contents)
    splits = make_splits(contents, table, subject)
    seeded, methods, head_of = contents.seeded, contents.methods, table.head_of
    variants = [{"name": row.name, **vars(row.ablation)} for row in contents.rows if row.ablation]
    diversity = pd.DataFrame() if contents.diversity is None else contents.diversity
    places = _standing(contents, table)
    return Page(
        contents=contents,
        table=table,
        subject=subject,
        headline=make_headline(contents, table, subject, splits),
        standing=places,
        reasons=reasons_behind(seeded, places, methods, head_of, variants),
        claims=judge_claims(seeded, diversity, methods, head_of, variants),
        splits=splits,
        pictures=draw_sections(contents, table, subject, splits),
        searches=draw_searches(contents, subject),
    )


def _standing(contents: Contents, table: TableViews) -> list[Standing]:
    """Return the places of the best of ours, by the rule that the table shows first."""
    head_of, differences = table.head_of, table.differences[table.default_rule]
    methods = {name: method for name, method in contents.methods.items() if name in head_of}
    wanted = {f"{name}{suffix}" for name in _BEST_OF_OURS for suffix in ("", IN_PN)}
    ours = [name for name, method in methods.items() if method in wanted]
    if not contents.is_table:
        ours = ours[-1:]
    if not ours or len(methods) < 3:
        return []
    return standing(table.cells, differences, head_of, methods, ours)


def render(page: Page) -> str:
    """Return the page as one HTML file, with style, script, data and pictures inside."""
    table, contents, folder = page.table, page.contents, files("cpaan.report.page")
    return _fill(
        "index.html.jinja",
        page,
        facts=make_facts(contents),
        provenance=make_provenance(contents),
        elsewhere=printed_elsewhere(contents.methods.values()),
        rules={rule: RULES[rule] for rule in table.rules},
        pair_rules={rule: RULES[rule] for rule in table.differences},
        column_choices={"both": "LSL and GLSL", **table.columns},
        printed_columns=[name for name in TITLES if name in table.columns],
        meanings=MEANINGS,
        metrics=METRICS,
        draw_choices={kind: f"{count} {kind}" for kind, count in table.draws.items()},
        short_titles={name: short for name, (_, short) in _SECTIONS.items()},
        ours=OURS,
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
        data=table.for_page(),
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
        "slim": _slim,
        "cell": lambda text: text.replace("|", r"\|"),  # of a Markdown table
    }
    shared = {
        "table": page.table,
        "contents": page.contents,
        "commands": make_commands(page.contents),
        "symbols": SYMBOLS,
        "rule_of_verdicts": RULE,
    }
    return environment.get_template(template).render(page=page, **shared, **values)


def _slim(svg: str) -> str:
    """Return SVG without spaces between elements and without unused ids: a third less."""
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    dense = re.sub(r">\s+<", "><", svg)
    return re.sub(r' id="([^"]+)"', lambda each: each[0] if each[1] in used else "", dense)
