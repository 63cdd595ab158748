"""Benchmark of the covariance term: Ky Fan norms of covariance differences and their gradient.

Shapes: N = novel classes, L = base classes to compare one with, D = feature dimension,
m = Ky Fan order.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpaan.bench.measuring import Bench, Case, Subject
from cpaan.core.devices import CudaGraph, quick_products
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariance_distances, covariances
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.objectives import choose_covariance_classes

HELP = "the covariance term: norms of all pairs and their gradient, against a full SVD of each"

_MOST_PLAIN_PAIRS = 16
"""Largest number of pairs that the plain side decomposes. All would take minutes, at equal cost."""
_START = " at the start of training"
_CALLS_AT_ONCE = {"cpu": 1, "cuda": 20}
_MOST_CHECKED_COLUMNS = 4  # base classes per novel class whose norm is compared with float64


@dataclass(frozen=True, eq=False)
class Comparison:
    """Covariances to compare."""

    base: Spectra
    classes: Tensor  # (N, L)
    scores: Tensor  # (N, L) weights of the pairs in the term
    other: Tensor  # (N, D, D) covariances of translated classes
    m: int
    similarity_left_out: float


def compare(data: TrainingData, config: TrainConfig, seed: int, *, is_shifted: bool) -> Comparison:
    """Return the comparisons of an episode.

    If ``is_shifted``, examples are shifted by the difference of the prototypes, as by a trained
    generator. Otherwise they stay, as at the start of training. The covariance of a translated
    class then includes the spread between base classes.
    """
    assert data.covariances is not None
    kind: type[Spectra] = Spectra
    if data.covariances.is_cuda:
        from cpaan.gan.fast.covariances import FastSpectra  # needs Triton

        kind = FastSpectra
    episode = MetaEpisodes(data, config).draw(new_rng(seed, device=data.base.features.device))
    examples = episode.base_examples.expand(len(episode.alpha), -1, -1)
    if is_shifted:
        sources = episode.base_prototypes[episode.sources]
        examples = examples - sources + episode.novel_prototypes.unsqueeze(1)
    classes, scores, left_out = choose_covariance_classes(episode, config)
    return Comparison(
        base=kind.prepare(data.covariances, config.ky_fan_order),
        classes=classes,
        scores=scores / len(scores),
        other=covariances(examples, episode.sample_weights),
        m=config.ky_fan_order,
        similarity_left_out=float(left_out),
    )


def ours(comparison: Comparison) -> tuple[Tensor, Tensor]:
    """Return norms (N, L), and the term's gradient (N, D, D)."""
    other = comparison.other.detach().requires_grad_()
    norms = covariance_distances(comparison.base, comparison.classes, other, comparison.m)
    (gradient,) = torch.autograd.grad((comparison.scores * norms).sum(), other)
    return norms.detach(), gradient


def plain(comparison: Comparison, pairs: Tensor) -> Tensor:
    """Return the gradient (N, D, D) of some of the N * L pairs, by SVD and autograd."""
    other = comparison.other.detach().requires_grad_()
    num_base = comparison.classes.shape[1]
    matrices = comparison.base.matrices[comparison.classes.flatten()[pairs]]
    values = torch.linalg.svd(matrices - other[pairs // num_base]).S
    norms = values[..., : comparison.m].sum(dim=-1)
    (gradient,) = torch.autograd.grad((comparison.scores.flatten()[pairs] * norms).sum(), other)
    return gradient


def choose_pairs(comparison: Comparison) -> Tensor:
    """Return the pairs that the plain side decomposes, evenly spaced."""
    num_pairs = comparison.classes.numel()
    count = min(num_pairs, _MOST_PLAIN_PAIRS)
    return torch.arange(count, device=comparison.other.device) * num_pairs // count


def errors(comparison: Comparison) -> dict[str, Any]:
    """Return the relative errors of norms and subgradients against float64, for some pairs.

    A subgradient G of the norm at X satisfies <G, X> = norm; the pairing error is the gap.
    """
    num_base = comparison.classes.shape[1]
    count = min(num_base, _MOST_CHECKED_COLUMNS)
    other = comparison.other.detach().requires_grad_()
    norms = covariance_distances(comparison.base, comparison.classes, other, comparison.m)
    relative, pairing = [], []
    for column in (number * num_base // count for number in range(count)):
        (gradient,) = torch.autograd.grad(norms[:, column].sum(), other, retain_graph=True)
        matrices = comparison.base.matrices[comparison.classes[:, column]].double()
        difference = matrices - comparison.other.double()
        sizes = torch.linalg.eigvalsh(difference).abs()  # singular values of a symmetric matrix
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


def measure(bench: Bench) -> None:
    """Measure at the scale, at the start of training, then with one size changed at a time."""
    for case in bench.cases("kyfan", *bench.scale.varied, endings=("", _START)):
        _measure_case(bench, case)


def _measure_case(bench: Bench, case: Case) -> None:
    device, is_shifted = bench.device, not case.name.endswith(_START)
    comparison = compare(case.data, case.config, bench.seed, is_shifted=is_shifted)
    pairs = choose_pairs(comparison)
    graph = CudaGraph(lambda: ours(comparison) and None, device)  # as in training
    count = _CALLS_AT_ONCE[device.type]

    def ours_again() -> None:
        for _ in range(count):
            graph()

    with quick_products(device):
        ours_again()
        times = bench.time(
            ours=Subject(ours_again, count),
            plain=Subject(lambda: plain(comparison, pairs)),
        )
        precision = errors(comparison)
    num_pairs = comparison.classes.numel()
    bench.row(
        case.name,
        times["ours"],
        times["plain"].times(num_pairs / len(pairs)),
        **precision,
        similarity_left_out=comparison.similarity_left_out,
        num_pairs=num_pairs,
        plain_pairs=len(pairs),  # timed; if fewer than all, plain_ms is extrapolated
        **case.sizes,
    )
