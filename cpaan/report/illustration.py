"""Spectra of covariances and a map of synthetic examples beside real ones.

Both are of one problem, in the space in which heads see the examples.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.methods.base import LowShotMethod
from cpaan.protocol.tasks import LowShotTask, Problem, Queries

REAL, SHOT, SYNTHETIC = "real", "shot", "synthetic"

_SPECTRUM_COLUMNS = ["method", "class", "index", "share"]
_MAP_COLUMNS = ["method", "class", "kind", "x", "y"]
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

    @classmethod
    def empty(cls) -> Self:
        """Return tables without rows."""
        return cls(pd.DataFrame(columns=_SPECTRUM_COLUMNS), pd.DataFrame(columns=_MAP_COLUMNS))


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
    problem = min(task.problems, key=lambda each: (each.draw, abs(each.num_shots - _NUM_SHOTS)))
    part = replace(task, problems=(problem,))
    method.keeps_synthetic = True
    method.fit(part, new_rng(seed))
    kept, method.keeps_synthetic, method.synthetic = method.synthetic, False, None
    if kept is None or kept[0].shape[1] < 2:
        return Illustration.empty()
    (synthetic,) = kept
    of_class = [queries.labels == task.num_base + number for number in range(task.num_novel)]
    real = [method.represent(queries.features[mask]) for mask in of_class]
    return Illustration(
        _spectra(name, real, synthetic, novel_names),
        _map(name, method, task, problem, real, synthetic, novel_names, seed),
    )


def _spectra(
    name: str, real: Sequence[Tensor], synthetic: Tensor, class_names: Sequence[str]
) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for class_name, of_real, of_synthetic in zip(class_names, real, synthetic, strict=True):
        trace = float(eigenvalues(of_real).sum())
        if not trace:  # a class of one example, or of equal ones
            continue
        for label, examples in ((f"{name}, {REAL}", of_real), (name, of_synthetic)):
            shares = eigenvalues(examples)[:_NUM_EIGENVALUES] / trace
            rows += [
                {"method": label, "class": class_name, "index": index, "share": share}
                for index, share in enumerate(shares.tolist(), start=1)
            ]
    return pd.DataFrame(rows, columns=_SPECTRUM_COLUMNS)


def eigenvalues(examples: Tensor) -> Tensor:
    """Return those of the covariance of (n, D) examples, largest first, shape (min(n, D),).

    Divided by n - 1: the traces of few examples and of many are then the same on average. Of few,
    the first eigenvalues are too large all the same, and those beyond their number are missing.
    """
    wide = examples.double().cpu()
    centred = wide - wide.mean(dim=0)
    return torch.linalg.svdvals(centred).square() / max(1, len(wide) - 1)


def _map(
    name: str,
    method: LowShotMethod,
    task: LowShotTask,
    problem: Problem,
    real: Sequence[Tensor],
    synthetic: Tensor,
    class_names: Sequence[str],
    seed: int,
) -> pd.DataFrame:
    shots = method.represent(task.support(problem))
    labels, points = [], []
    # From all over: neighbours in the order of names are often relatives.
    chosen = np.linspace(0, task.num_novel - 1, _NUM_CLASSES_OF_MAP).round().astype(int)
    for number in dict.fromkeys(chosen.tolist()):
        kinds = {REAL: real[number], SHOT: shots[number], SYNTHETIC: synthetic[number]}
        for kind, examples in kinds.items():
            few = examples[:_MOST_POINTS].double().cpu()
            points.append(few)
            labels += [(name, class_names[number], kind)] * len(few)
    everything = torch.cat(points).numpy()
    if len(everything) < 5:  # no neighbours to speak of
        return Illustration.empty().projections
    perplexity = min(_PERPLEXITY, (len(everything) - 1) / 3)
    # From the two main directions, so that the same points give the same map.
    # Imported here, because every process of a report imports this module and few draw the map.
    from sklearn.manifold import TSNE

    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    places = tsne.fit_transform(everything.astype(np.float32))
    frame = pd.DataFrame(labels, columns=_MAP_COLUMNS[:3])
    return frame.assign(x=places[:, 0].astype(float), y=places[:, 1].astype(float))
