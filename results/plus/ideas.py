"""Compare ideas for better synthetic examples with copies, on the validation classes.

    python results/plus/ideas.py [FEATURES]

It prints the tables of README.md, by default for the built-in features. Settings are chosen on 20
draws of seed 2, for every row, head and K; the scores are of other draws, of seed 1.

Shapes: P = problems (draws), N = novel classes, D = feature dimension.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from cpaan.core.randomness import new_rng
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.splits import VALIDATION_PHASE, draw_shots
from cpaan.data.table import TRAIN
from cpaan.protocol.accuracy import score
from cpaan.protocol.calibration import CALIBRATED, calibrate
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES
from cpaan.protocol.neighbours import soft_similarity
from cpaan.protocol.statistics import Crossed
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase

SHOTS = (1, 2, 5)
DRAWS, DRAWS_TO_CHOOSE = 50, 20
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)  # weight of copies in a centroid
PERPLEXITIES = (10.0, 25.0)
TABLE, SPLIT = builtin_features()
if len(sys.argv) > 1:
    TABLE = open_features(Path(sys.argv[1]))
PHASE = SPLIT.phase(VALIDATION_PHASE)


@cache
def read(seed: int, num_draws: int, shots: tuple[int, ...] = SHOTS) -> tuple[LowShotTask, Queries]:
    """Read problems of the validation phase."""
    rows = draw_shots(TABLE, PHASE, num_draws=num_draws, max_shots=max(shots), seed=seed)
    return read_phase(TABLE, SPLIT, VALIDATION_PHASE, rows, shots, torch.device("cpu"))


TASK, QUERIES = read(1, DRAWS)
PROTOTYPES = TASK.base.prototypes
CENTRE = PROTOTYPES.mean(dim=0)
RADIUS = (PROTOTYPES - CENTRE).norm(dim=1).mean()


def unit(rows: Tensor) -> Tensor:
    """Centre examples and scale them to length one, as the cosine head does."""
    return normalize(rows - CENTRE, dim=-1)


UNIT_BASE = torch.stack([unit(rows.float()) for rows in TASK.base.by_class()])
WITHIN = (UNIT_BASE - UNIT_BASE.mean(dim=1, keepdim=True)).flatten(0, 1)
BETWEEN = UNIT_BASE.mean(dim=1) - UNIT_BASE.mean(dim=(0, 1))


@cache
def covariance(rows: Tensor, shrinkage: float) -> Tensor:
    """Compute the second moment of rows, shrunk towards a multiple of the identity."""
    found = rows.T @ rows / len(rows)
    return found.lerp(found.diagonal().mean() * torch.eye(len(found)), shrinkage)


@cache
def bayes(
    num_shots: int, within: float, between: float, scale: float = 1.0, classes: Tensor = BETWEEN
) -> tuple[Tensor, Tensor]:
    """Return the Gaussian model's map from shots to posterior mean, and predictive precision.

    ``within`` and ``between`` are shrinkages; ``classes`` are the class means of the prior.
    """
    inside, prior = covariance(WITHIN, within), scale * covariance(classes, between)
    gain = torch.linalg.solve(prior + inside / num_shots, prior).T
    return gain, torch.linalg.inv(inside + prior - gain @ prior)


@cache
def related(means: Tensor, perplexity: float, within: float | None = None) -> Tensor:
    """Return means of related base classes, by distance or by cosine after whitening."""
    base = PROTOTYPES - CENTRE
    spaces = [means, base]
    if within is not None:
        values, vectors = torch.linalg.eigh(covariance(WITHIN, within))
        spaces = [normalize(each @ (vectors / values.sqrt()), dim=-1) for each in spaces]
    return soft_similarity(spaces[0], spaces[1], perplexity) @ base


# Ideas for the class mean. Each is a function of centred shot means (P, N, D) and K.


def copies(means: Tensor, _: int, share: float, **neighbours: float) -> Tensor:
    """Mix the shots with copies; half-mean-shift is the same with half of the share."""
    return (1 - share) * means + share * related(means, **neighbours)


def on_sphere(means: Tensor, num_shots: int, **mixing: float) -> Tensor:
    """Move mixed means to the mean distance of base classes from the centre."""
    return RADIUS * normalize(copies(means, num_shots, **mixing), dim=-1)


def discriminant(means: Tensor, num_shots: int, within: float, **mixing: float) -> Tensor:
    """Multiply mixed means by the model's map and precision: an LDA classifier as a centroid."""
    gain, precision = bayes(num_shots, within, 0.6)
    mixed = copies(means, num_shots, **mixing) if mixing else means
    return RADIUS * normalize(mixed @ (precision @ gain).T, dim=-1)


def learnt(rank: int) -> Callable[[Tensor, int], Tensor]:
    """Learn share and temperature of copies, and a query projection, by cross-entropy.

    Episodes have 20 base classes as novel ones; the others are the base classes.
    """

    def mix(means: Tensor, keys: Tensor, share: Tensor, heat: Tensor, factors: Tensor) -> Tensor:
        queries = means + means @ factors[0] @ factors[1].T
        related = (-torch.cdist(queries, keys).square() * heat.exp()).softmax(dim=-1) @ keys
        return torch.lerp(means, related, share.sigmoid())

    @cache
    def idea(means: Tensor, num_shots: int) -> Tensor:
        rng = new_rng(0, num_shots)
        rows = TASK.base.features.float().view(len(PROTOTYPES), -1, means.shape[-1]) - CENTRE
        rows, keys = rows / RADIUS, (PROTOTYPES - CENTRE) / RADIUS
        share, heat = torch.zeros((), requires_grad=True), torch.ones((), requires_grad=True)
        factors = 0.05 * torch.randn(2, means.shape[-1], rank, generator=rng)
        factors[1] = 0
        factors.requires_grad_()
        groups = [{"params": [share, heat], "lr": 0.02}]
        groups.append({"params": [factors], "lr": 0.002, "weight_decay": 1.0})
        optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
        labels = torch.arange(20).repeat_interleave(10)
        for _ in range(400):
            order = torch.randperm(len(rows), generator=rng)
            chosen = torch.randperm(rows.shape[1], generator=rng)[: num_shots + 10]
            examples = rows[order[:20]][:, chosen]
            shots, queries = examples[:, :num_shots].mean(dim=1), examples[:, num_shots:]
            centroids = mix(shots, keys[order[20:]], share, heat, factors)
            cosines = normalize(queries.flatten(0, 1), dim=-1) @ normalize(centroids, dim=-1).T
            optimiser.zero_grad()
            cross_entropy(10 * cosines, labels).backward()
            optimiser.step()
        with torch.no_grad():
            return RADIUS * mix(means / RADIUS, keys, share, heat, factors)

    return idea


def grid(**values: tuple[float, ...]) -> list[dict[str, float]]:
    """Return all combinations."""
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


MIXING = {"share": SHARES, "perplexity": PERPLEXITIES}
COPY = "copy"
IDEAS: dict[str, tuple[Callable[..., Tensor], list[dict[str, float]]]] = {
    "none, mean-shift": (lambda means, num_shots: means, [{}]),
    COPY: (copies, grid(**MIXING)),
    "posterior mean": (
        lambda means, num_shots, **model: means @ bayes(num_shots, **model)[0].T,
        grid(within=(0.3, 0.9), between=(0.1, 0.6), scale=(0.3, 1)),
    ),
    "copy, related after whitening": (copies, grid(**MIXING, within=(0.3, 0.9))),
    "copy, learnt mixing": (learnt(0), [{}]),
    "copy, learnt mixing and relatedness": (learnt(8), [{}]),
    "copy, on the sphere": (on_sphere, grid(**MIXING)),
    "shots, LDA": (discriminant, grid(within=(0.8, 0.9, 0.95))),
    "copy, LDA": (discriminant, grid(**MIXING, within=(0.9, 0.95))),
}


def top5(scores: Tensor, labels: Tensor) -> Tensor:
    """Return top-5 accuracy in percent, shape (P,), of scores (P, queries, N)."""
    own = scores.gather(2, labels.expand(len(scores), -1).unsqueeze(2))
    return 100 * ((scores >= own).sum(dim=2) <= 5).double().mean(dim=1)


def lsl(centroids: Tensor, queries: Queries, head: str) -> Tensor:
    """Return LSL top-5 of centred centroids, shape (P,)."""
    if head == "cosine":
        return top5(unit(queries.features) @ normalize(centroids, dim=-1).mT, queries.labels)
    bias = centroids.square().sum(dim=-1).unsqueeze(1) / 2
    return top5((queries.features - CENTRE) @ centroids.mT - bias, queries.labels)


def novel_only(task: LowShotTask, queries: Queries) -> Queries:
    """Return the queries of novel classes, with labels from zero."""
    chosen = queries.labels >= task.num_base
    return Queries(queries.features[chosen], queries.labels[chosen] - task.num_base)


@cache
def means_of(task: LowShotTask, num_shots: int) -> Tensor:
    """Return centred means of the shots, shape (P, N, D)."""
    return task.shots[:, :, :num_shots].mean(dim=2) - CENTRE


def centroid_rows(name: str) -> Iterator[dict[str, Any]]:
    """Choose the settings of an idea, then score it with the centroid and the cosine head."""
    make, settings = IDEAS[name]
    chooser, every_query = read(2, DRAWS_TO_CHOOSE)
    queries = novel_only(chooser, every_query)
    config = EvaluationConfig(mixing_weight=0.0)  # the idea already mixes shots and copies
    for num_shots, head_name in product(SHOTS, ("centroid", "cosine")):
        best = settings[0]
        if len(settings) > 1:
            means = means_of(chooser, num_shots)
            found = [lsl(make(means, num_shots, **s), queries, head_name).mean() for s in settings]
            best = settings[int(torch.stack(found).argmax())]
        problems = tuple(p for p in TASK.problems if p.num_shots == num_shots)
        part, head = replace(TASK, problems=problems), HEAD_CLASSES[head_name](config)
        centroids = make(means_of(TASK, num_shots), num_shots, **best) + CENTRE
        head.fit(part, centroids.unsqueeze(2), new_rng(0))
        sys.stderr.write(f"{name}, {head_name}, K = {num_shots}: {best}\n")
        for row in score(
            lambda x, name=head_name, head=head: {name: head.scores(x)}, part, QUERIES
        ):
            yield {"method": name, "seed": 0, **row}


def bound() -> Iterator[str]:
    """Compare the Gaussian model's Bayes classifier with copies: base and held-out classes."""
    task, every_query = read(1, DRAWS, (1, 2, 5, 10, 20))
    queries = novel_only(task, every_query)
    rows = [TABLE.gather(TABLE.rows_of(name, TRAIN)).float() for name in PHASE.novel]
    novel = torch.stack([unit(each).mean(dim=0) for each in rows])
    everything = torch.arange(task.num_novel)
    for num_shots in (1, 2, 5, 10, 20):
        shots = unit(task.shots[:, :, :num_shots]).mean(dim=2)
        mixed = [copies(means_of(task, num_shots), num_shots, **each) for each in grid(**MIXING)]
        gains = []
        for classes in (everything, everything[::2].clone(), everything[1::2].clone()):
            others = BETWEEN
            if len(classes) < len(everything):
                rest = novel[~torch.isin(everything, classes)]
                others = torch.cat([BETWEEN, rest - rest.mean(dim=0)])
            chosen = torch.isin(queries.labels, classes)
            labels = torch.searchsorted(classes, queries.labels[chosen])
            part = Queries(queries.features[chosen], labels)
            of_copies = [lsl(each[:, classes], part, "cosine") for each in mixed]
            of_model = []
            for within, between in product((0.6, 0.9), (0.3, 0.6)):
                gain, precision = bayes(num_shots, within, between, classes=others)
                root = torch.linalg.cholesky(precision)
                centroids = shots[:, classes] @ gain.T @ root
                bias = centroids.square().sum(dim=-1).unsqueeze(1) / 2
                of_model.append(top5(unit(part.features) @ root @ centroids.mT - bias, labels))
            best_copies, best_model = (
                max(each, key=lambda values: float(values.mean())) for each in (of_copies, of_model)
            )
            gains.append((best_model - best_copies).numpy())
        line = [interval(gains[0]), interval((gains[1] + gains[2]) / 2)]
        yield f"| {num_shots} | {' | '.join(line)} |"


def interval(differences: "np.ndarray[Any, Any]") -> str:
    """Return the mean of paired differences over draws and its 95 % interval."""
    draws = tuple(range(len(differences)))
    estimate = Crossed(draws, (0,), differences.reshape(-1, 1)).estimate()
    return f"{estimate.mean:+.2f} ± {estimate.interval():.2f}"


def lines_of(scores: pd.DataFrame, reference: str) -> Iterator[str]:
    """Return a line for each row: LSL and calibrated GLSL, and differences to the reference."""
    yield "| head | row | " + " | ".join(f"{c} {k}" for c, k in product(("LSL", "GLSL"), SHOTS))
    wide = calibrate(scores).pivot_table("top5", ["column", "shots", "draw"], ["head", "method"])
    for head, method in wide.columns:
        cells = []
        for column, k in product(("novel", CALIBRATED), SHOTS):
            found = wide.loc[column, k][head]
            differences = (found[method] - found[reference]).to_numpy()
            cells.append(f"{found[method].mean():.1f}, {interval(differences)}")
        yield f"| {head} | {method} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table of centroids, and the bound."""
    scores = pd.DataFrame([row for name in IDEAS for row in centroid_rows(name)])
    for line in chain(lines_of(scores, COPY), ["", "| K | base | held-out |"], bound()):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
