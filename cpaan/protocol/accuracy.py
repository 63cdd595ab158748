"""Scoring of fitted methods, which uses only their ``predict``, so it cannot favour a method.

Shapes: P = problems, B = base classes of the phase, N = novel classes, C = B + N, Q = queries,
K = numbers k of top-k.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cpaan.protocol.tasks import LowShotTask, Queries

TOP_KS = (1, 5)
_SIZES = tuple(0.01 * 2 ** (step / 2) for step in range(25))  # up to 41, by factors of √2
BIASES = (0.0, *(sign * size for size in _SIZES for sign in (-1, 1)))
"""Candidate biases of novel classes. The grid covers the scales of all heads and classifiers."""

_QUERIES_PER_BLOCK = 1024


def score(
    predict: Callable[[Tensor], Mapping[str, Tensor]],
    task: LowShotTask,
    queries: Queries,
    biases: Sequence[float] = BIASES,
) -> Iterator[dict[str, Any]]:
    """Score a fitted method in every column, for every head and problem of its task.

    An answer is correct for top-k if fewer than k other classes score at least as high as the
    true class. Ties count as errors; otherwise equal scores for all would always be correct.
    ``biases`` are added to the scores of novel classes in the column all_calibrated.

    Yields:
        Rows with head, column, shots, draw, bias (None for columns without one), and the
        accuracies top1 and top5 in percent. Rows of LSL at the fewest shots also have by_class:
        top-5 of each novel class.
    """
    num_problems, num_base = len(task.problems), task.num_base
    is_novel = queries.labels >= num_base
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    every_query = torch.arange(len(queries.labels), device=is_novel.device)
    for block in every_query.split(_QUERIES_PER_BLOCK):
        labels = queries.labels[block]
        for head, scores in predict(queries.features[block]).items():
            expected = (num_problems, len(block), num_base + task.num_novel)
            assert tuple(scores.shape) == expected, f"{head}: {tuple(scores.shape)} != {expected}"
            if not scores.isfinite().all():
                bad = int((~scores.isfinite().flatten(1).all(dim=1)).nonzero()[0])
                raise ValueError(f"head {head}: NaN or infinite scores at {task.problems[bad]}")
            found.setdefault(head, []).append(_ranks_and_leads(scores, labels, num_base))

    ks = torch.tensor(TOP_KS, device=is_novel.device).view(-1, 1, 1)
    fewest = min((problem.num_shots for problem in task.problems), default=0)
    # (Q of novel classes, N), so that a product with it is the mean over queries of a class.
    membership = torch.eye(task.num_novel, device=is_novel.device, dtype=torch.double)
    membership = membership[queries.labels[is_novel] - num_base]
    membership = membership / membership.sum(dim=0)
    for head, blocks in found.items():
        rank, lead = (torch.cat(each, dim=-1) for each in zip(*blocks, strict=True))
        for column, bias, right in _columns(rank < ks, lead, is_novel, biases):
            # Whole lists, because reading single numbers would wait for the GPU thousands of times.
            top1, top5 = (100 * right.double().mean(dim=-1)).tolist()
            is_lsl = column == "novel"
            by_class = (100 * right[-1].double() @ membership).tolist() if is_lsl else []
            for number, problem in enumerate(task.problems):
                is_kept = is_lsl and problem.num_shots == fewest
                yield {
                    "head": head,
                    "column": column,
                    "shots": problem.num_shots,
                    "draw": problem.draw,
                    "bias": bias,
                    "top1": top1[number],
                    "top5": top5[number],
                    "by_class": by_class[number] if is_kept else None,
                }


def _columns(
    is_best: Tensor, lead: Tensor, is_novel: Tensor, biases: Sequence[float]
) -> Iterator[tuple[str, float | None, Tensor]]:
    """Yield each column, its bias, and which of its queries are right, shape (K, P, queries).

    ``is_best`` tells which queries are right among the classes of their own group, (K, P, Q).
    """

    def right(bias: float) -> Tensor:
        return torch.where(is_novel, lead < bias, lead < -bias)

    yield "novel", None, is_best[..., is_novel]
    yield "base", None, is_best[..., ~is_novel]
    joint = right(0.0)
    yield "all", None, joint
    yield "novel_joint", None, joint[..., is_novel]
    for bias in biases:
        yield "all_calibrated", bias, right(bias)


def _ranks_and_leads(scores: Tensor, labels: Tensor, num_base: int) -> tuple[Tensor, Tensor]:
    """Compare the true class of queries with the other classes: of its own group and of the other.

    Returns:
        The number of other classes of the own group that score at least as high, shape (P, Q).
        For each k, the lead of the other group: the answer is right if the true class gains more
        than this on the other group, shape (K, P, Q).
    """
    is_novel = labels >= num_base
    truth = labels.expand(len(scores), -1).unsqueeze(-1)  # (P, Q, 1)
    own_score = scores.gather(-1, truth)
    groups = scores.tensor_split([num_base], dim=-1)
    base_rivals, novel_rivals = ((group >= own_score).sum(-1) for group in groups)
    rank = torch.where(is_novel, novel_rivals, base_rivals) - 1  # without the true class itself

    # With m places left in the top k, the m-th best class of the other group must score lower.
    best_base, best_novel = (_best(group, max(TOP_KS)) for group in groups)
    leads = torch.where(is_novel.unsqueeze(-1), best_base, best_novel) - own_score
    of_k = []
    for k in TOP_KS:
        lead = leads.gather(-1, (k - 1 - rank).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        of_k.append(lead.masked_fill(rank >= k, math.inf))
    return rank, torch.stack(of_k)


def _best(scores: Tensor, count: int) -> Tensor:
    """Return the largest scores, shape (..., count), padded with -inf if there are fewer."""
    best = scores.topk(min(count, scores.shape[-1]), dim=-1).values
    return pad(best, (0, count - best.shape[-1]), value=-math.inf)
