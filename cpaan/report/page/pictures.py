"""Choose the pictures to draw, by what the report's files have, and the gains that they show."""

from typing import Any, NamedTuple

import pandas as pd

from cpaan.gan.spiral import from_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION, PN, RESNET
from cpaan.report.claims.mechanisms import NEIGHBOURS
from cpaan.report.figures.accuracy import (
    gain_of_variants,
    gains_against_diversity,
    gains_against_shots,
    gains_by_row,
)
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import draw_search
from cpaan.report.figures.synthetic import draw_spiral, projections, spectra
from cpaan.report.gains import PairedScores
from cpaan.report.illustration import REAL
from cpaan.report.page.contents import Contents
from cpaan.report.page.facts import duration
from cpaan.report.page.views import TableViews, is_trained
from cpaan.report.table_one import Cells
from cpaan.report.tables import TITLES, Cell

_UNAUGMENTED = {RESNET: ("none", "LR"), PN: ("none-PN", "PN")}
"""Rows without augmentation by features. The first has the same network as rows that augment."""
_SPACES = {RESNET: "ResNet-10 features", PN: "PN embedding"}
_MOST_STRONG = 7  # lines that one can tell apart
_STRONG = ("cCov-GAN-PN", "copy-PN", "CP-AAN+-PN", "copy", "CP-AAN+", "cCov-GAN", "FH")
_NEIGHBOUR_WORDS = (
    "gain-by-neighbours",
    "Gain by the choice of base classes",
    "base classes weighted by their similarity (NBS-S), the k nearest ones (NBS-H), or all alike",
)
_SHOWN = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
_OWN_SPACE = "FI-PN"
_SHOWN_BESIDE = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")


class Search(NamedTuple):
    """A search and its picture."""

    name: str
    summary: str
    picture: Picture | None


def gains_of(contents: Contents, table: TableViews) -> Cells:
    """Return top-5 of each row that augments minus no augmentation of the same features.

    Both have the head that the table shows first. A classifier of a method's own is compared with
    the head of the row without augmentation. Rows without such a row are left out.
    """
    found: dict[tuple[str, str, int], Cell] = {}
    paired = PairedScores(contents.seeded[contents.seeded["column"].isin(list(TITLES))])
    for name, head in table.head_of.items():
        row = table.rows[name]
        names = _UNAUGMENTED.get(row.representation, (row.representation,))
        wanted = [(other, of) for of in (head, "") for other in names]
        wanted = [(other, of or table.head_of.get(other, "")) for other, of in wanted]
        reference = next((each for each in wanted if each in contents.scored), None)
        if row.generation == NO_GENERATION or reference is None:
            continue
        for column in TITLES:
            for k in table.shots:
                gap = paired.compare((name, head), reference, column, k)
                found[name, column, k] = Cell(gap.difference, gap.interval)
    return found


def draw_lead(gains: Cells, table: TableViews) -> Picture | None:
    """Draw the gain of every row at the fewest shots; None if no row augments."""
    names = [name for name in table.rows if (name, "novel", table.shots[0]) in gains]
    found = {name: table.rows[name].representation for name in names}
    known = dict.fromkeys([*_SPACES, *found.values()])
    spaces = {
        name: _SPACES.get(space, f"{space} embedding")
        for space in known
        for name in names
        if found[name] == space
    }
    trained = [name for name in names if is_trained(table.rows[name])]
    return gains_by_row(gains, spaces, trained, table.shots[0]) if names else None


def draw_figures(contents: Contents, table: TableViews, gains: Cells) -> list[Picture]:
    """Draw everything but the lead and the searches.

    Intervals are over the seeded draws, by the rule for heads that the table shows first.
    """
    names, shots = list(dict.fromkeys(name for name, _, _ in gains)), table.shots[0]
    pictures = []
    if names and len(table.shots) > 1:
        strong = names if len(names) <= _MOST_STRONG else [x for x in _STRONG if x in names]
        pictures.append(gains_against_shots(gains, strong or names[:_MOST_STRONG]))
    known = contents.diversity.dropna(subset="ratio")
    if set(known.loc[known["shots"] == shots, "method"]) & set(names):
        pictures.append(gains_against_diversity(gains, known, shots))
    return [*pictures, *_ablations(contents, table), *_synthetic(contents)]


def _ablations(contents: Contents, table: TableViews) -> list[Picture]:
    """Draw the gains of neighbours and of ideas: a picture for each row that has such variants."""
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for row in contents.rows:
        if row.ablation is not None and row.ablation.of in table.head_of:
            key = row.ablation.family, row.ablation.of
            variants.setdefault(key, {})[row.ablation.label] = row.name
    scored, pictures = contents.scored, list[Picture]()
    for (family, of), labels in variants.items():
        representation = ROWS[contents.methods[of]].representation
        references: tuple[str, ...] = _UNAUGMENTED[representation]
        name, title, meaning = _NEIGHBOUR_WORDS
        if family != NEIGHBOURS:
            references, name, meaning = (of,), "gain-by-idea", "left of zero, the idea helps"
            title = f"{of}, with one idea at a time taken away"
        if same := sum(each.name.startswith(name) for each in pictures):
            name = f"{name}-{same + 1}"
        # Variants may have been scored with one head only: that of the search.
        others = sorted(head for row, head in scored if row in labels.values())
        heads = dict.fromkeys([table.head_of[of], *others])
        for head, reference in ((h, r) for h in heads for r in references if (r, h) in scored):
            if drawn := {label: row for label, row in labels.items() if (row, head) in scored}:
                words = {"name": name, "title": title, "meaning": meaning}
                pictures.append(gain_of_variants(contents.seeded, drawn, head, reference, **words))
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


def draw_searches(contents: Contents) -> list[Search]:
    """Draw every search that left its trials."""
    searches = []
    for name, trials in contents.trials.items():
        best, counts = contents.best[name], trials["state"].value_counts(sort=False)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        time = duration(trials["seconds"].sum())
        summary = f"{states}, {time}; winner {best['score']:.1f} on validation"
        searches.append(Search(name, summary, draw_search(trials, name, int(best["trial"]))))
    return searches
