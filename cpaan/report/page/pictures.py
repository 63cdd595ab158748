"""Which pictures a report gives: those that its files have the numbers for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from cpaan.gan.spiral import from_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import PN
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
from cpaan.report.gains import GainSplit
from cpaan.report.illustration import REAL
from cpaan.report.page.contents import Contents
from cpaan.report.page.render import Search
from cpaan.report.page.table_data import OURS, TableData

_MOST_STRONG = 7  # lines that one can tell apart
_BESIDE = ("PN", "FI-PMN", "FI-PN", "FH", "LR", "AWG", "none")
_SHOTS_OF_DIFFERENCES = (1, 5)
_NONE_IN_PN = ("none-PN", "PN")
_SHOWN = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
_OWN_SPACE = ("FI-PN",)
_SHOWN_BESIDE = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")


def draw_sections(
    contents: Contents, table: TableData, subject: str, splits: Sequence[GainSplit]
) -> dict[str, list[Picture]]:
    """Draw everything but the searches, by section of the page.

    Intervals are over the seeded draws, by the rule for heads that the table shows first.
    """
    head_of = table.default.head_of
    scores = contents.seeded[contents.seeded["method"].isin(head_of)]
    others = [name for name in head_of if name != subject]
    sections: dict[str, list[Picture]] = {"accuracy": [], "differences": []}
    if subject in head_of:
        strong = _strong_rows(contents, head_of, subject)
        sections["accuracy"].append(accuracy_against_shots(scores, head_of, strong))
        shots = [k for k in _SHOTS_OF_DIFFERENCES if k in table.shots] or list(table.shots[:1])
        if others:
            sections["differences"].append(differences(scores, subject, head_of, others, shots))
    sections["gains"] = [gain_steps(splits)] if splits else []
    sections["ablations"] = [*_ablations(contents, head_of), *_diversity(contents, table, scores)]
    sections["synthetic"] = _synthetic(contents, subject)
    with_trials = {name: table for name, table in contents.trials.items() if len(table)}
    sections["searches"] = [cost_of_trials(with_trials)] if with_trials else []
    return sections


def _strong_rows(contents: Contents, head_of: Mapping[str, str], subject: str) -> list[str]:
    methods = contents.methods
    ours = [name for name in reversed(methods) if ROWS[methods[name]].group in OURS]
    wanted = dict.fromkeys([subject, *ours[:3], *_BESIDE, *methods])
    return [name for name in wanted if name in head_of][:_MOST_STRONG]


def _ablations(contents: Contents, head_of: Mapping[str, str]) -> list[Picture]:
    """Return what neighbours and ideas give: a picture for each row that has such variants."""
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for row in contents.rows:
        if row.ablation is not None:
            key = row.ablation.family, row.ablation.of
            variants.setdefault(key, {})[row.ablation.label] = row.name
    seeded, methods = contents.seeded, contents.methods
    pictures: list[Picture] = []
    known = set(seeded[["method", "head"]].itertuples(index=False, name=None))
    for (family, of), labels in variants.items():
        if of not in head_of:
            continue
        draw, references = gain_by_idea, [of]
        if family == NEIGHBOURS:
            draw, references = gain_by_neighbours, ["none"]
            if ROWS[methods[of]].representation == PN:
                references = list(_NONE_IN_PN)
        # Variants may have been scored with one head only: that of the search.
        others = sorted(head for name, head in known if name in labels.values())
        heads = dict.fromkeys([head_of[of], *others])
        ways = [(h, r) for h in heads for r in references if (r, h) in known]
        scored = {
            way: {label: name for label, name in labels.items() if (name, way[0]) in known}
            for way in ways
        }
        if way := next((way for way in ways if scored[way]), None):
            picture = draw(seeded, scored[way], *way)
            same = sum(each.name.startswith(picture.name) for each in pictures)
            pictures.append(
                replace(picture, name=f"{picture.name}-{same + 1}") if same else picture
            )
    return pictures


def _diversity(contents: Contents, table: TableData, scores: pd.DataFrame) -> list[Picture]:
    if contents.diversity is None:
        return []
    shots = table.shots[0]
    known = contents.diversity[contents.diversity["ratio"].notna()]
    there = set(known.loc[known["shots"] == shots, "method"])
    head_of = {name: head for name, head in table.default.head_of.items() if name in there}
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
        together = [real.assign(method=REAL), _only(contents.spectra, shown)]
        if len(real):
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
        has_files = name == subject or not contents.is_table
        summary = _summary(trials, contents.best[name])
        searches.append(Search(name, summary, pictures, has_files))
    return searches


def _rungs(trials: pd.DataFrame, config: Mapping[str, Any]) -> list[int]:
    """Return where trials could be stopped: they are evaluated at the rungs, and at their end."""
    if not config.get("early_stopping", False) or "curve" not in trials:
        return []
    marks = {int(entry["episode"]) for curve in trials["curve"] for entry in curve}
    return sorted(marks)[:-1]


def _summary(trials: pd.DataFrame, best: Mapping[str, Any]) -> str:
    counts = trials["state"].value_counts(sort=False)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{states}; best {best['score']:.1f} on validation"
