"""The covariance term alone: Ky Fan norms of differences of covariances, and their gradient.

Shapes: N = novel classes, L = base classes that each is compared with, D = feature dimension,
m = Ky Fan order, M = translated examples of a class.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpaan.bench.measuring import Bench, Row, Subject
from cpaan.bench.plain import ky_fan
from cpaan.bench.scales import training_data
from cpaan.core.devices import CudaGraph, quick_products
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariance_distances, covariances
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.objectives import choose_covariance_classes
from cpaan.gan.training_data import TrainingData

HELP = "the covariance term: norms of all pairs and their gradient, against a full SVD of each"

_MOST_PLAIN_PAIRS = 16
"""Pairs that the plain side decomposes where there are more; each costs the same, one after the
other, on either device, and all of them would be minutes."""
_CALLS_AT_ONCE = {"cpu": 1, "cuda": 20}
_MOST_CHECKED_COLUMNS = 4  # base classes of each novel class whose norm is compared with float64


@dataclass(frozen=True, eq=False)
class Comparison:
    """Covariances to compare."""

    base: Spectra
    classes: Tensor  # (N, L)
    scores: Tensor  # (N, L) each novel class's over N: a weighted sum is the term
    other: Tensor  # (N, D, D) covariances of translated classes
    m: int
    rank: int
    """No other covariance has a higher one."""
    base_rank: int
    """Likewise of base covariances."""
    similarity_left_out: float

    @property
    def differences(self) -> Tensor:
        """Base covariances minus the others, shape (N, L, D, D)."""
        return self.base.matrices[self.classes] - self.other.unsqueeze(1)


def compare(data: TrainingData, config: TrainConfig, seed: int, *, is_moved: bool) -> Comparison:
    """Return the comparisons of an episode.

    Args:
        data: Base classes.
        config: Sizes of the episode.
        seed: Decides the episode.
        is_moved: Whether examples were moved by the difference of the prototypes, as a trained
            generator would; otherwise they are where they were, as at the start of training, and
            the covariance of a translated class holds the spread between base classes too.
    """
    assert data.spectra is not None
    rng = new_rng(seed, device=data.base.features.device)
    episode = MetaEpisodes(data, config).draw(rng)
    examples = episode.base_examples.expand(len(episode.alpha), -1, -1)
    if is_moved:
        sources = episode.base_prototypes[episode.sources]
        examples = examples - sources + episode.novel_prototypes.unsqueeze(1)
    base, classes, scores, left_out = choose_covariance_classes(episode, data.spectra, config, rng)
    num_dims = examples.shape[-1]
    return Comparison(
        base=base,
        classes=classes,
        scores=scores / len(scores),
        other=covariances(examples, episode.sample_weights),
        m=config.ky_fan_order,
        rank=min(num_dims, config.num_base_examples - 1),
        base_rank=min(num_dims, int(data.base.counts.max()) - 1),
        similarity_left_out=float(left_out),
    )


def ours(comparison: Comparison) -> tuple[Tensor, Tensor]:
    """Return norms (N, L), and the term's gradient (N, D, D)."""
    other = comparison.other.detach().requires_grad_()
    norms = covariance_distances(comparison.base, comparison.classes, other, comparison.m)
    (gradient,) = torch.autograd.grad((comparison.scores * norms).sum(), other)
    return norms.detach(), gradient


def _discard(comparison: Comparison) -> None:
    ours(comparison)


def plain(comparison: Comparison, pairs: Tensor) -> Tensor:
    """Return the gradient (N, D, D) of some pairs' part of the term, by SVD and autograd.

    Args:
        comparison: The matrices.
        pairs: Positions of the pairs among all N * L.
    """
    other = comparison.other.detach().requires_grad_()
    num_base = comparison.classes.shape[1]
    matrices = comparison.base.matrices[comparison.classes.flatten()[pairs]]
    norms = ky_fan(matrices - other[pairs // num_base], comparison.m)
    (gradient,) = torch.autograd.grad((comparison.scores.flatten()[pairs] * norms).sum(), other)
    return gradient


def choose_pairs(comparison: Comparison) -> Tensor:
    """Return positions of the pairs that the plain side decomposes, evenly spaced."""
    num_pairs = comparison.classes.numel()
    count = min(num_pairs, _MOST_PLAIN_PAIRS)
    return torch.arange(count, device=comparison.other.device) * num_pairs // count


def errors(comparison: Comparison) -> dict[str, Any]:
    """Return how far norms and subgradients are from those in float64, relative to the norms.

    For some base classes of every novel class. A subgradient G of the norm at X has the norm as its
    product with X; where it has not, it belongs to another matrix.
    """
    num_base = comparison.classes.shape[1]
    count = min(num_base, _MOST_CHECKED_COLUMNS)
    columns = [number * num_base // count for number in range(count)]
    other = comparison.other.detach().requires_grad_()
    norms = covariance_distances(comparison.base, comparison.classes, other, comparison.m)
    relative, pairing = [], []
    for column in columns:
        (gradient,) = torch.autograd.grad(norms[:, column].sum(), other, retain_graph=True)
        matrices = comparison.base.matrices[comparison.classes[:, column]].double()
        difference = matrices - comparison.other.double()
        # Symmetric: singular values are the sizes of eigenvalues.
        sizes = torch.linalg.eigvalsh(difference).abs()
        exact = sizes.topk(comparison.m, dim=-1).values.sum(dim=-1)
        relative.append((norms[:, column].detach().double() - exact).abs() / exact)
        product = -(gradient.double() * difference).sum(dim=(-2, -1))
        pairing.append((product - exact).abs() / exact)
    return {
        "relative_error": float(torch.cat(relative).mean()),
        "largest_relative_error": float(torch.cat(relative).max()),
        "pairing_error": float(torch.cat(pairing).mean()),
        "checked_pairs": len(torch.cat(relative)),
    }


def count_work(comparison: Comparison) -> tuple[float, float]:
    """Return the least arithmetic and traffic of the term: FLOP and bytes.

    As if the m leading vectors of every difference were known, and had only to be confirmed: one
    product of m vectors with the base covariance, one with the other, and one of the vectors with
    themselves for the gradient. A covariance of few examples is a product of two narrow matrices,
    and cheaper to multiply with as such. Traffic: every covariance that takes part is read once, in
    the cheaper form, and a gradient of every novel class written.
    """
    num_novel, num_base = comparison.classes.shape
    num_dims = comparison.other.shape[-1]
    width = min(num_dims, 2 * comparison.rank)
    base_width = min(num_dims, 2 * comparison.base_rank)
    num_vectors = num_novel * num_base * comparison.m
    flop = 2.0 * num_dims * num_vectors * (base_width + width + num_dims)
    num_read = len(comparison.classes.unique()) * min(num_dims, comparison.base_rank)
    num_read += num_novel * min(num_dims, comparison.rank)
    num_bytes = comparison.other.element_size() * num_dims * (num_read + num_novel * num_dims)
    return flop, float(num_bytes)


def measure(bench: Bench) -> list[Row]:
    """Measure at the scale, at the start of training, and at other sizes one by one."""
    scale = bench.scale
    rows = []
    # Each varies one size; the others are the scale's. Those of one order share their data.
    cases: list[tuple[str, dict[str, Any], list[str]]] = [
        ("kyfan", {}, ["num_covariance_classes", "num_dims", "batch_size", "ky_fan_order"]),
        ("kyfan at the start of training", {"is_moved": False}, []),
    ]
    for key, values, usual in (
        ("num_covariance_classes", scale.covariance_classes, scale.num_covariance_classes),
        ("batch_size", scale.batch_sizes, scale.batch_size),
        ("num_dims", scale.dims, scale.num_dims),
        ("ky_fan_order", scale.orders, scale.ky_fan_order),
    ):
        cases += [
            (f"kyfan {key}={value}", {key: value}, [key]) for value in values if value != usual
        ]
    for name, changes, varied in cases:
        if bench.wants(name):
            bench.say(f"{name} ...")
            rows.append(_measure_case(bench, name, changes, varied))
    return rows


def _measure_case(bench: Bench, name: str, changes: dict[str, Any], varied: list[str]) -> Row:
    scale = bench.scale
    is_moved = changes.get("is_moved", True)
    num_dims = changes.get("num_dims", scale.num_dims)
    settings = {key: changes[key] for key in changes if key not in ("is_moved", "num_dims")}
    config = scale.training(**settings)
    data = training_data(scale, num_dims, config.ky_fan_order, str(bench.device))
    comparison = compare(data, config, bench.seed, is_moved=is_moved)
    pairs = choose_pairs(comparison)
    # As in training, where it is a part of a captured step.
    graph = CudaGraph(partial(_discard, comparison), bench.device)
    count = _CALLS_AT_ONCE[bench.device.type]

    def ours_again() -> None:
        for _ in range(count):
            graph()

    with quick_products(bench.device):
        times = bench.time(
            {
                "ours": Subject(ours_again, count, is_warm=False),
                "plain": Subject(lambda: plain(comparison, pairs)),
            }
        )
        found = errors(comparison)
    num_pairs = comparison.classes.numel()
    return bench.row(
        name,
        times["ours"],
        times["plain"].times(num_pairs / len(pairs)),
        floor_ms=bench.peaks.floor_ms(*count_work(comparison)),
        **found,
        similarity_left_out=comparison.similarity_left_out,
        num_pairs=num_pairs,
        plain_pairs=len(pairs),  # timed; where fewer than all, plain_ms is in proportion
        num_classes=scale.num_classes,
        num_ways=config.num_ways,
        num_covariance_classes=comparison.classes.shape[1],
        num_dims=num_dims,
        batch_size=config.batch_size,
        ky_fan_order=config.ky_fan_order,
        family="kyfan",
        varied=varied,
    )
