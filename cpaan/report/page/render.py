"""From what is known to HTML, one file that asks nothing of any other; and to Markdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cpaan.report.claims import RULE, Claim, Standing
from cpaan.report.figures.picture import Picture
from cpaan.report.gains import GainSplit
from cpaan.report.page.comparisons import Comparisons
from cpaan.report.page.facts import Chosen, Command, Fact, Headline, plus_minus, signed
from cpaan.report.page.table_data import (
    COLUMNS,
    MEANINGS,
    METRICS,
    PRINTED_COLUMNS,
    TableData,
)

SYMBOLS = {"confirmed": "✓", "not confirmed": "✗", "unclear": "?"}
_TITLES = {
    "table-1": "Table 1",
    "standing": "Where ours stand",
    "claims": "The paper’s claims",
    "accuracy": "Accuracy against K",
    "differences": "Paired differences",
    "gains": "Where the gain comes from",
    "ablations": "Ablations",
    "synthetic": "Synthetic examples",
    "searches": "The searches",
    "chosen": "What the searches chose",
    "provenance": "Provenance",
}
_SHORT_TITLES = {
    **_TITLES,
    "standing": "Standing",
    "claims": "Claims",
    "accuracy": "Accuracy",
    "differences": "Differences",
    "gains": "Gains",
    "searches": "Searches",
    "chosen": "Settings",
}


@dataclass(frozen=True)
class Search:
    """A search and its pictures."""

    name: str
    summary: str
    pictures: Sequence[Picture]
    has_files: bool = True
    """Whether its pictures are files of their own too. Those of thirty searches would be many."""


@dataclass(frozen=True, eq=False)
class Page:
    """All that the page shows; what is empty is left out."""

    study: str
    title: str
    headline: Headline
    facts: Sequence[Fact]
    table: TableData
    comparisons: Comparisons
    subject: str
    """The row that is compared with the others first."""
    failed: Sequence[str]
    elsewhere: Sequence[str]
    """Lines of numbers that other sources print."""
    standing: Sequence[Standing]
    """Of the best of our rows, in every column of LSL and GLSL."""
    reasons: Sequence[str]
    """Why others are before ours, as far as the report's own rows tell."""
    claims: Sequence[Claim]
    splits: Sequence[GainSplit]
    pictures: Mapping[str, Sequence[Picture]]
    """By section: accuracy, differences, gains, ablations, synthetic, searches."""
    searches: Sequence[Search]
    search_text: str
    chosen: Sequence[Chosen]
    provenance: Sequence[Fact]
    commands: Sequence[Command]

    @property
    def has_pairs(self) -> bool:
        """Whether there is anything to compare."""
        return len(self.table.places) > 1

    @property
    def sections(self) -> dict[str, str]:
        """Titles of the sections that have anything to show, by their ids."""
        shown = {
            "table-1": True,
            "standing": self.standing,
            "claims": self.claims,
            "accuracy": self.pictures.get("accuracy"),
            "differences": self.has_pairs,
            "gains": self.splits,
            "ablations": self.pictures.get("ablations"),
            "synthetic": self.pictures.get("synthetic"),
            "searches": self.searches,
            "chosen": self.chosen,
            "provenance": True,
        }
        return {name: _TITLES[name] for name, content in shown.items() if content}

    @property
    def behind(self) -> list[Standing]:
        """Where more than one row is before the best of ours."""
        return [place for place in self.standing if not place.is_first_or_second]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many claims of the paper, or else of others, have each verdict that any has."""
        claims = [claim for claim in self.claims if claim.is_paper] or self.claims
        counts = {verdict: sum(each.verdict == verdict for each in claims) for verdict in SYMBOLS}
        return {verdict: count for verdict, count in counts.items() if count}


def render(page: Page) -> str:
    """Return the page as one HTML file, with style, script, data and pictures inside."""
    known = {name: title for name, title in COLUMNS.items() if name in page.table.columns}
    pair_rules = {rule: page.table.rules[rule] for rule in page.comparisons.of_rule}
    return _fill(
        "index.html.jinja",
        page,
        comparisons=page.comparisons,
        pair_rules=pair_rules,
        column_choices={"both": "LSL and GLSL", **known},
        printed_columns=[name for name in PRINTED_COLUMNS if name in known],
        meanings=MEANINGS,
        metrics=METRICS,
        draw_choices={kind: f"{count} {kind}" for kind, count in page.table.draws.items()},
        short_titles=_SHORT_TITLES,
        style=_file("page.css"),
        script=_file("page.js"),
        data=_data(page),
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
    environment.filters["signed"] = signed
    environment.filters["plus_minus"] = plus_minus
    environment.filters["side"] = _side
    environment.filters["minus"] = _minus
    environment.filters["slim"] = _slim
    environment.filters["cell"] = lambda text: text.replace("|", r"\|")  # of a Markdown table
    shared = {"table": page.table, "symbols": SYMBOLS, "rule_of_verdicts": RULE}
    return environment.get_template(template).render(page=page, **shared, **values)


def _data(page: Page) -> dict[str, Any]:
    return {"table": page.table.for_page(), "pairs": page.comparisons.for_page(page.table)}


def _file(name: str) -> str:
    return files("cpaan.report.page").joinpath(name).read_text(encoding="utf-8")


def _slim(svg: str) -> str:
    """Return SVG without spaces between elements and ids that it does not use: a third less."""
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    dense = re.sub(r">\s+<", "><", svg)
    return re.sub(r' id="([^"]+)"', lambda each: each[0] if each[1] in used else "", dense)


def _minus(text: str) -> str:
    """Return a text with the minus signs of its numbers as people print them."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def _side(difference: float, interval: float | None) -> str:
    """Return the class of a difference that its interval sets apart from zero."""
    if interval is None or not abs(difference) > interval:
        return ""
    return "above" if difference > 0 else "below"
