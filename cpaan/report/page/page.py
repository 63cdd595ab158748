"""The page of a report: read, summarised, drawn and written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cpaan.methods.registry import IN_PN
from cpaan.report.claims import Claim, Standing, judge_claims, reasons_behind, standing
from cpaan.report.figures.picture import Picture
from cpaan.report.page.comparisons import compare_rows
from cpaan.report.page.contents import REPORT, Contents, read_contents
from cpaan.report.page.facts import make_facts, make_headline, subject_of
from cpaan.report.page.gain_splits import make_splits
from cpaan.report.page.origin import make_chosen, make_commands, make_provenance
from cpaan.report.page.pictures import draw_searches, draw_sections
from cpaan.report.page.render import Page, render, render_findings
from cpaan.report.page.table_data import TableData, make_table_data
from cpaan.report.published import printed_elsewhere

_BEST_OF_OURS = ("cCov-GAN", "CP-AAN+")

INDEX, FINDINGS, FIGURES = (f"{REPORT}/{name}" for name in ("index.html", "findings.md", "figures"))


def write_page(folder: Path, write: Callable[[str, bytes], None]) -> None:
    """Write the page of a study's report, its words as Markdown, and its pictures as files.

    It is made of the report's files alone: nothing is trained, and the test phase is not read.

    Args:
        folder: The study's.
        write: Called with the name of each file below that folder, and its content.

    Raises:
        ValueError: If the report is absent or damaged.
    """
    page = compose(read_contents(folder))
    for picture in pictures_of(page):
        write(f"{FIGURES}/{picture.name}.svg", picture.svg_file().encode())
        write(f"{FIGURES}/{picture.name}.png", picture.png())
    write(FINDINGS, render_findings(page).encode())
    write(INDEX, render(page).encode())


def pictures_of(page: Page) -> Iterator[Picture]:
    """Return every picture of a page that has files of its own."""
    for pictures in page.pictures.values():
        yield from pictures
    for search in page.searches:
        if search.has_files:
            yield from search.pictures


def compose(contents: Contents) -> Page:
    """Summarise and draw all that a report's files hold."""
    table = make_table_data(contents)
    comparisons = compare_rows(contents, table)
    subject = subject_of(contents)
    splits = make_splits(contents, table, subject)
    searches = draw_searches(contents, subject)
    places, variants = _standing(contents, table), _variants(contents)
    return Page(
        study=contents.name,
        title=_title(contents),
        headline=make_headline(contents, table, comparisons, subject, splits),
        facts=make_facts(contents),
        table=table,
        comparisons=comparisons,
        subject=subject,
        failed=tuple(contents.about.get("failed", {}).values()),
        elsewhere=printed_elsewhere(contents.methods.values()),
        standing=places,
        reasons=reasons_behind(
            contents.seeded, places, contents.methods, table.default.head_of, variants
        ),
        claims=_claims(contents, table, variants),
        splits=splits,
        pictures=draw_sections(contents, table, subject, splits),
        searches=searches,
        search_text=_search_text(contents),
        chosen=make_chosen(contents),
        provenance=make_provenance(contents),
        commands=make_commands(contents),
    )


def _title(contents: Contents) -> str:
    if contents.is_table:
        return (
            "Low-shot learning by covariance-preserving augmentation: every row on the test phase"
        )
    return f"Low-shot learning by augmentation: {next(iter(contents.best))} on the test phase"


def _search_text(contents: Contents) -> str:
    if contents.is_table:
        text = (
            "Every row had a search of its own with the same budget, on the validation phase; one "
            "that has nothing to search has a single trial"
        )
    else:
        text = "The search, on the validation phase"
    return f"{text}. What is drawn is Optuna’s record of it."


def _standing(contents: Contents, table: TableData) -> list[Standing]:
    """Return where ours stand, by the rule that the table shows first."""
    head_of = table.default.head_of
    methods = {name: method for name, method in contents.methods.items() if name in head_of}
    wanted = {f"{name}{suffix}" for name in _BEST_OF_OURS for suffix in ("", IN_PN)}
    ours = [name for name, method in methods.items() if method in wanted]
    if not contents.is_table:
        ours = ours[-1:]
    if not ours or len(methods) < 3:
        return []
    return standing(contents.seeded, head_of, methods, ours)


def _variants(contents: Contents) -> list[dict[str, Any]]:
    return [{"name": row.name, **vars(row.ablation)} for row in contents.rows if row.ablation]


def _claims(
    contents: Contents, table: TableData, variants: Sequence[Mapping[str, Any]]
) -> list[Claim]:
    diversity = pd.DataFrame() if contents.diversity is None else contents.diversity
    head_of = table.default.head_of
    return judge_claims(contents.seeded, diversity, contents.methods, head_of, variants)
