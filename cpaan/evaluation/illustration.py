"""Spectra of covariances and a map of synthetic examples beside real ones.

Both are of one problem, in the space in which heads see the examples.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.methods.base import LowShotMethod
from cpaan.protocol.tasks import LowShotTask, Queries

REAL, SHOT, SYNTHETIC = "real", "shot", "synthetic"

_NUM_SHOTS = 5
_NUM_EIGENVALUES = 20
_NUM_CLASSES_OF_MAP = 5
_MOST_POINTS = 50  # of a kind and class in the map
_PERPLEXITY = 30.0


class Illustration(NamedTuple):
    """Two tables; both are empty if a method has no synthetic examples."""

    spectra: pd.DataFrame
    """Columns method, class, index (from 1) and share: an eigenvalue of a class's covariance over
    the trace of the real class's. The real ones have the name "<method>, real" in place of the
    method's: every space has its own."""
    projections: pd.DataFrame
    """Columns method, class, kind (real, shot or synthetic), x and y, by t-SNE."""


def illustrate(
    name: str,
    method: LowShotMethod,
    seed: int,
    task: LowShotTask,
    queries: Queries,
    novel_names: Sequence[str],
) -> Illustration:
    """Fit a method to the first draw of the problem nearest to five shots, and describe it.

    The queries, of the same phase, are the real examples.
    """
    problem = min(
        task.problems, key=lambda problem: (problem.draw, abs(problem.num_shots - _NUM_SHOTS))
    )
    fitted = method.fit(replace(task, problems=(problem,)), new_rng(seed), keep=0)
    examples: dict[str, dict[str, Tensor]] = {}  # by class and kind
    if fitted.synthetic is not None and fitted.synthetic[0].shape[1] > 1:
        shots, (synthetic,) = fitted.represent(task.support(problem)), fitted.synthetic
        for number, class_name in enumerate(novel_names):
            real = fitted.represent(queries.features[queries.labels == task.num_base + number])
            kinds = {REAL: real, SHOT: shots[number], SYNTHETIC: synthetic[number]}
            examples[class_name] = {kind: rows.double().cpu() for kind, rows in kinds.items()}
    return Illustration(_spectra(name, examples), _map(name, examples, seed))


def _spectra(name: str, examples: dict[str, dict[str, Tensor]]) -> pd.DataFrame:
    rows = []
    for class_name, kinds in examples.items():
        trace = eigenvalues(kinds[REAL]).sum()
        if not trace:  # a class of one example, or of equal ones
            continue
        for label, kind in ((f"{name}, {REAL}", REAL), (name, SYNTHETIC)):
            shares = (eigenvalues(kinds[kind])[:_NUM_EIGENVALUES] / trace).tolist()
            rows += [(label, class_name, index, x) for index, x in enumerate(shares, start=1)]
    return pd.DataFrame(rows, columns=["method", "class", "index", "share"])


def eigenvalues(examples: Tensor) -> Tensor:
    """Return those of the covariance of (n, D) examples, largest first, shape (min(n, D),).

    Divided by n - 1: the traces of few examples and of many are then the same on average. Of few,
    the first eigenvalues are too large all the same, and those beyond their number are missing.
    """
    centred = examples.double() - examples.double().mean(dim=0)
    return torch.linalg.svdvals(centred).square() / max(1, len(examples) - 1)


def _map(name: str, examples: dict[str, dict[str, Tensor]], seed: int) -> pd.DataFrame:
    # From all over: neighbours in the order of names are often relatives.
    chosen = np.linspace(0, len(examples) - 1, _NUM_CLASSES_OF_MAP).round().astype(int)
    names = [list(examples)[number] for number in np.unique(chosen)] if examples else []
    kept = {(of, kind): x[:_MOST_POINTS] for of in names for kind, x in examples[of].items()}
    rows = [(name, *key) for key, points in kept.items() for _ in points]
    frame = pd.DataFrame(rows, columns=["method", "class", "kind"])
    if len(frame) < 5:  # no neighbours to speak of
        return frame.head(0).assign(x=0.0, y=0.0)
    # Imported here, because every process of a report imports this module and few draw the map.
    from sklearn.manifold import TSNE

    # From the two main directions, so that the same points give the same map.
    perplexity = min(_PERPLEXITY, (len(frame) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    places = tsne.fit_transform(torch.cat(list(kept.values())).numpy().astype(np.float32))
    return frame.assign(x=places[:, 0].astype(float), y=places[:, 1].astype(float))
