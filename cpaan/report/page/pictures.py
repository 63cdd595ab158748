"""Choose the gains to take apart and the pictures to draw, by what the report's files have."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from cpaan.gan.spiral import from_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION, PN
from cpaan.report.claims.mechanisms import NEIGHBOURS
from cpaan.report.figures.accuracy import (
    accuracy_against_diversity,
    accuracy_against_shots,
    gain_of_variants,
)
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import search_pictures
from cpaan.report.figures.synthetic import draw_spiral, projections, spectra
from cpaan.report.gains import GainSplit, split_gain
from cpaan.report.illustration import REAL
from cpaan.report.page.contents import Contents
from cpaan.report.page.facts import duration
from cpaan.report.page.views import OURS, VALIDATION, TableViews

_NONE, _NONE_IN_PN = "none", ("none-PN", "PN")
"""Rows without augmentation. In the embedding, the first one has the same network as our rows."""
_TAKEN_APART = ("CP-AAN+-PN", "CP-AAN+", "cCov-GAN-PN", "cCov-GAN")
_MOST_STRONG = 7  # lines that one can tell apart
_BESIDE = ("PN", "FI-PMN", "FI-PN", "FH", "LR", "AWG", "none")
_NEIGHBOUR_WORDS = (
    "gain-by-neighbours",
    "Gain by the choice of base classes",
    "base classes weighted by their similarity (NBS-S), the k nearest ones (NBS-H), or all alike",
)
_SHOWN = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
_OWN_SPACE = "FI-PN"
_SHOWN_BESIDE = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")


class Search(NamedTuple):
    """A search and its pictures."""

    name: str
    summary: str
    pictures: Sequence[Picture]


def make_splits(contents: Contents, table: TableViews, subject: str) -> list[GainSplit]:
    """Split the gains of the subject, of CP-AAN+ and of the paper's best GANs, on novel classes.

    A row has the head that validation chose for it, or else that of the table's first view. The
    first step starts at the paper's head where it was scored. Rows that lack a score of any step
    are left out.
    """
    methods = contents.methods
    ours = [name for name in methods if ROWS[methods[name]].group in OURS]
    known = [name for method in _TAKEN_APART for name in ours if methods[name] == method]
    names = [name for name in dict.fromkeys([subject, *known]) if name in ours]
    splits = [_split(contents, table, name) for name in names]
    return [split for split in splits if split is not None]


def _unaugmented(method: str) -> tuple[str, ...]:
    """Return the rows without augmentation in the space of a method, the best one first."""
    return _NONE_IN_PN if ROWS[method].representation == PN else (_NONE,)


def _split(contents: Contents, table: TableViews, name: str) -> GainSplit | None:
    methods, scored = contents.methods, contents.scored
    row = ROWS[methods[name]]
    head = table.rules.get(VALIDATION, {}).get(name) or table.head_of.get(name, "")
    base = next((each for each in _unaugmented(methods[name]) if (each, head) in scored), None)
    if base is None or (name, head) not in scored:
        return None
    plain = _NONE if _NONE in methods else base
    paper_head = row.head if {(plain, row.head), (base, row.head)} <= scored else head
    if (plain, paper_head) not in scored:
        return None
    rows = {other: ROWS[method] for other, method in methods.items() if (other, head) in scored}
    controls = [
        other
        for other, control in rows.items()
        if (control.group, control.representation) == ("Control", row.representation)
        and control.generation != NO_GENERATION
    ]
    return split_gain(
        contents.seeded,
        title=f"{name}, {head}",
        augmented=name,
        plain=plain,
        embedded=base,
        head=head,
        paper_head=paper_head,
        controls=controls,
        shots=table.shots[0],
    )


def draw_sections(contents: Contents, table: TableViews, subject: str) -> dict[str, list[Picture]]:
    """Draw everything but the searches, by section of the page.

    Intervals are over the seeded draws, by the rule for heads that the table shows first.
    """
    sections: dict[str, list[Picture]] = {"accuracy": [], "ablations": _ablations(contents, table)}
    if subject in table.head_of:
        methods = contents.methods
        ours = [name for name in reversed(methods) if ROWS[methods[name]].group in OURS]
        wanted = dict.fromkeys([subject, *ours[:3], *_BESIDE, *methods])
        strong = [name for name in wanted if name in table.head_of][:_MOST_STRONG]
        sections["accuracy"].append(accuracy_against_shots(table.cells, strong))
    shots, known = table.shots[0], contents.diversity.dropna(subset="ratio")
    if set(known.loc[known["shots"] == shots, "method"]) & set(table.head_of):
        picture = accuracy_against_diversity(table.cells, known, shots)
        sections["ablations"].append(picture)
    sections["synthetic"] = _synthetic(contents, subject)
    return sections


def _ablations(contents: Contents, table: TableViews) -> list[Picture]:
    """Draw the gains of neighbours and of ideas: a picture for each row that has such variants."""
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for row in contents.rows:
        if row.ablation is not None and row.ablation.of in table.head_of:
            key = row.ablation.family, row.ablation.of
            variants.setdefault(key, {})[row.ablation.label] = row.name
    scored, pictures = contents.scored, list[Picture]()
    for (family, of), labels in variants.items():
        references, (name, title, meaning) = _unaugmented(contents.methods[of]), _NEIGHBOUR_WORDS
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


def _synthetic(contents: Contents, subject: str) -> list[Picture]:
    """Draw the paper's generators, and ours; of a study that has none of them, its best row."""
    pictures = []
    if contents.projections is not None and len(contents.projections):
        pictures.append(projections(_only_shown(contents.projections, subject)))
    if contents.spectra is not None and len(contents.spectra):
        # All in one space: FI has an embedding of its own.
        together = _only_shown(contents.spectra[contents.spectra["method"] != _OWN_SPACE], subject)
        first = f"{together['method'].iloc[0]}, {REAL}"
        real = contents.spectra[contents.spectra["method"] == first].assign(method=REAL)
        if len(real):
            pictures.append(spectra(pd.concat([real, together], ignore_index=True)))
    if contents.spiral is not None:
        pictures.append(draw_spiral(*from_plain(contents.spiral)))
    return pictures


def _only_shown(frame: pd.DataFrame, subject: str) -> pd.DataFrame:
    by_name: dict[Any, pd.DataFrame] = dict(iter(frame.groupby("method", sort=False)))
    shown = [name for name in _SHOWN if name in by_name]
    if len(shown) < 2:
        shown = [x for x in (subject, *_SHOWN_BESIDE) if x in by_name] or list(by_name)[:1]
    return pd.concat([by_name[name] for name in shown], ignore_index=True)


def draw_searches(contents: Contents) -> list[Search]:
    """Draw every search that left its trials."""
    searches = []
    for name, trials in contents.trials.items():
        counts = trials["state"].value_counts(sort=False)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        time = duration(trials["seconds"].sum())
        summary = f"{states}, {time}; best {contents.best[name]['score']:.1f} on validation"
        pictures = search_pictures(trials, name, contents.studies[name]["config"])
        searches.append(Search(name, summary, pictures))
    return searches
