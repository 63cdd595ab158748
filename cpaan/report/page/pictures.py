"""Choose the gains to take apart and the pictures to draw, by what the report's files have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from cpaan.gan.spiral import from_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION, PN
from cpaan.report.claims.mechanisms import NEIGHBOURS
from cpaan.report.figures.accuracy import accuracy_against_diversity, accuracy_against_shots
from cpaan.report.figures.differences import (
    differences,
    gain_by_idea,
    gain_by_neighbours,
    gain_steps,
)
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.search import cost_of_trials, search_pictures
from cpaan.report.figures.synthetic import draw_spiral, projections, spectra
from cpaan.report.gains import GainSplit, split_gain
from cpaan.report.illustration import REAL
from cpaan.report.page.contents import Contents
from cpaan.report.page.views import OURS, VALIDATION, TableViews

_NONE, _NONE_IN_PN = "none", ("none-PN", "PN")
"""Rows without augmentation. In the embedding, the first one has the same network as our rows."""
_TAKEN_APART = ("CP-AAN+-PN", "CP-AAN+", "cCov-GAN-PN", "cCov-GAN")
_MOST_STRONG = 7  # lines that one can tell apart
_BESIDE = ("PN", "FI-PMN", "FI-PN", "FH", "LR", "AWG", "none")
_SHOTS_OF_DIFFERENCES = (1, 5)
_SHOWN = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
_OWN_SPACE = ("FI-PN",)
_SHOWN_BESIDE = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")


@dataclass(frozen=True)
class Search:
    """A search and its pictures."""

    name: str
    summary: str
    pictures: Sequence[Picture]
    has_files: bool = True
    """Whether its pictures are files of their own too; a table has too many searches for that."""


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


def _split(contents: Contents, table: TableViews, name: str) -> GainSplit | None:
    methods, scored = contents.methods, contents.scored
    head = table.rules.get(VALIDATION, {}).get(name) or table.head_of.get(name)
    row = ROWS[methods[name]]
    bases = _NONE_IN_PN if row.representation == PN else (_NONE,)
    base = next((each for each in bases if (each, head) in scored), None)
    if head is None or base is None or (name, head) not in scored:
        return None
    plain = _NONE if _NONE in methods else base
    paper_head = row.head if {(plain, row.head), (base, row.head)} <= scored else head
    if (plain, paper_head) not in scored:
        return None
    controls = [
        other
        for other, control in ((other, ROWS[method]) for other, method in methods.items())
        if control.group == "Control"
        and control.representation == row.representation
        and control.generation != NO_GENERATION
        and (other, head) in scored
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


def draw_sections(
    contents: Contents, table: TableViews, subject: str, splits: Sequence[GainSplit]
) -> dict[str, list[Picture]]:
    """Draw everything but the searches, by section of the page.

    Intervals are over the seeded draws, by the rule for heads that the table shows first.
    """
    head_of = table.head_of
    scores = contents.seeded[contents.seeded["method"].isin(head_of)]
    sections: dict[str, list[Picture]] = {"accuracy": [], "differences": []}
    if subject in head_of:
        methods = contents.methods
        ours = [name for name in reversed(methods) if ROWS[methods[name]].group in OURS]
        wanted = dict.fromkeys([subject, *ours[:3], *_BESIDE, *methods])
        strong = [name for name in wanted if name in head_of][:_MOST_STRONG]
        sections["accuracy"].append(accuracy_against_shots(scores, head_of, strong))
        shots = [k for k in _SHOTS_OF_DIFFERENCES if k in table.shots] or list(table.shots[:1])
        if others := [name for name in head_of if name != subject]:
            sections["differences"].append(differences(scores, subject, head_of, others, shots))
    sections["gains"] = [gain_steps(splits)] if splits else []
    sections["ablations"] = [*_ablations(contents, head_of), *_diversity(contents, table, scores)]
    sections["synthetic"] = _synthetic(contents, subject)
    with_trials = {name: trials for name, trials in contents.trials.items() if len(trials)}
    sections["searches"] = [cost_of_trials(with_trials)] if with_trials else []
    return sections


def _ablations(contents: Contents, head_of: Mapping[str, str]) -> list[Picture]:
    """Draw the gains of neighbours and of ideas: a picture for each row that has such variants."""
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for row in contents.rows:
        if row.ablation is not None and row.ablation.of in head_of:
            key = row.ablation.family, row.ablation.of
            variants.setdefault(key, {})[row.ablation.label] = row.name
    scored, pictures = contents.scored, list[Picture]()
    for (family, of), labels in variants.items():
        draw, references = gain_by_idea, [of]
        if family == NEIGHBOURS:
            is_embedded = ROWS[contents.methods[of]].representation == PN
            draw, references = gain_by_neighbours, [*_NONE_IN_PN] if is_embedded else [_NONE]
        # Variants may have been scored with one head only: that of the search.
        others = sorted(head for name, head in scored if name in labels.values())
        heads = dict.fromkeys([head_of[of], *others])
        ways = [(h, r) for h in heads for r in references if (r, h) in scored]
        for head, reference in ways:
            drawn = {label: name for label, name in labels.items() if (name, head) in scored}
            if drawn:
                picture = draw(contents.seeded, drawn, head, reference)
                same = sum(each.name.startswith(picture.name) for each in pictures)
                name = f"{picture.name}-{same + 1}" if same else picture.name
                pictures.append(replace(picture, name=name))
                break
    return pictures


def _diversity(contents: Contents, table: TableViews, scores: pd.DataFrame) -> list[Picture]:
    if contents.diversity is None:
        return []
    shots, known = table.shots[0], contents.diversity.dropna(subset="ratio")
    there = set(known.loc[known["shots"] == shots, "method"])
    head_of = {name: head for name, head in table.head_of.items() if name in there}
    if not head_of:
        return []
    return [accuracy_against_diversity(scores, contents.diversity, head_of, shots)]


def _synthetic(contents: Contents, subject: str) -> list[Picture]:
    """Draw the paper's generators, and ours; of a study that has none of them, its best row."""
    pictures = []
    if contents.projections is not None and len(contents.projections):
        shown = _shown(contents.projections, subject)
        pictures.append(projections(_only(contents.projections, shown)))
    if contents.spectra is not None and len(contents.spectra):
        # All in one space: FI has an embedding of its own.
        shown = [name for name in _shown(contents.spectra, subject) if name not in _OWN_SPACE]
        real = contents.spectra[contents.spectra["method"].isin(f"{x}, {REAL}" for x in shown[:1])]
        if len(real):
            together = [real.assign(method=REAL), _only(contents.spectra, shown)]
            pictures.append(spectra(pd.concat(together, ignore_index=True)))
    if contents.spiral is not None:
        pictures.append(draw_spiral(*from_plain(contents.spiral)))
    return pictures


def _shown(frame: pd.DataFrame, subject: str) -> list[str]:
    known = list(frame["method"].unique())
    shown = [name for name in _SHOWN if name in known]
    beside = [name for name in (subject, *_SHOWN_BESIDE) if name in known]
    return shown if len(shown) > 1 else beside or known[:1]


def _only(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    parts = [frame[frame["method"] == name] for name in names]
    return pd.concat(parts, ignore_index=True)


def draw_searches(contents: Contents, subject: str) -> list[Search]:
    """Draw every search that left its trials; of many, the subject's alone has files."""
    searches = []
    for name, trials in contents.trials.items():
        config = contents.studies.get(name, {}).get("config", {})
        pictures = search_pictures(trials, name, _rungs(trials, config)) if len(trials) else []
        counts = trials["state"].value_counts(sort=False)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        summary = f"{states}; best {contents.best[name]['score']:.1f} on validation"
        has_files = name == subject or not contents.is_table
        searches.append(Search(name, summary, pictures, has_files))
    return searches


def _rungs(trials: pd.DataFrame, config: Mapping[str, Any]) -> list[int]:
    """Return where trials could be stopped: they are evaluated at the rungs, and at their end."""
    if not config.get("early_stopping", False) or "curve" not in trials:
        return []
    return sorted({int(entry["episode"]) for curve in trials["curve"] for entry in curve})[:-1]
