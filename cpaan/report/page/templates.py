"""Fill the templates of the page, of its words as Markdown, and of `report.md`."""

from math import isnan
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cpaan.report.tables import signed
from cpaan.training.drive import in_words

_FILTERS = {
    "signed": signed,
    "in_words": in_words,
    "thousands": lambda numbers: " to ".join(f"{number:,}" for number in numbers),
    "hours": lambda seconds: f"{seconds / 3600:.2f}",
    "p": lambda value: "p < 0.001" if value < 0.001 else f"p = {value:.3f}",
    "short": lambda value: f"{value:.3g}" if isinstance(value, float) else str(value),
    "cell": lambda text: text.replace("|", r"\|"),  # of a Markdown table
    "commit": lambda text: text[:10] + text[40:],  # "-dirty" stays
}


def plus_minus(interval: float, digits: int = 1) -> str:
    """Return half the width of an interval; nothing if it is NaN."""
    return "" if isnan(interval) else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{interval:.{digits}f}"


def fill(template: str, **values: Any) -> str:
    """Return a template with values; HTML is escaped.

    Raises:
        jinja2.UndefinedError: If a value is missing.
    """
    environment = Environment(
        loader=PackageLoader("cpaan.report.page", "."),
        autoescape="html" in template,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**_FILTERS, "plus_minus": plus_minus}
    return environment.get_template(template).render(values)
