"""Scoring of fitted methods, which uses only their ``predict``, so it cannot favour a method.

Shapes: P = problems, B = base classes of the phase, N = novel classes, C = B + N, Q = queries.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cpaan.protocol.tasks import LowShotTask, Queries

TOP_KS = (1, 5)
PRIORS = tuple(percent / 100 for percent in range(5, 100, 5))

_QUERIES_PER_BLOCK = 1024


class NonFiniteScoresError(ValueError):
    """A method's scores contain NaN or infinity, so they cannot be ranked."""


def score(
    predict: Callable[[Tensor], Mapping[str, Tensor]],
    task: LowShotTask,
    queries: Queries,
    priors: Sequence[float] = PRIORS,
) -> Iterator[dict[str, Any]]:
    """Score a fitted method in every column, for every head and problem of its task.

    An answer is correct for top-k if fewer than k other classes score at least as high as the
    true class. Ties count as errors; otherwise equal scores for all would always be correct.
    ``priors`` are assumed shares of novel queries for the column all_prior.

    Yields:
        Rows with head, column, shots, draw, prior (None for columns without one), and the
        accuracies top1 and top5 in percent. Rows of LSL at the fewest shots also have by_class:
        top-5 of each novel class.
    """
    num_problems, num_base = len(task.problems), task.num_base
    is_novel = queries.labels >= num_base
    ranks: dict[str, dict[tuple[str, float | None], list[Tensor]]] = {}
    every_query = torch.arange(len(queries.labels), device=is_novel.device)
    for block in every_query.split(_QUERIES_PER_BLOCK):
        labels = queries.labels[block]
        for head, scores in predict(queries.features[block]).items():
            expected = (num_problems, len(block), num_base + task.num_novel)
            assert tuple(scores.shape) == expected, f"{head}: {tuple(scores.shape)} != {expected}"
            if not scores.isfinite().all():
                bad = int((~scores.isfinite().flatten(1).all(dim=1)).nonzero()[0])
                raise NonFiniteScoresError(
                    f"head {head}: NaN or infinite scores at {task.problems[bad]}"
                )
            columns = ranks.setdefault(head, {})
            for key, rank in _ranks(scores, labels, num_base, priors).items():
                columns.setdefault(key, []).append(rank)

    queries_of = {"novel": is_novel, "novel_joint": is_novel, "base": ~is_novel}
    everything = torch.ones_like(is_novel)
    fewest = min((problem.num_shots for problem in task.problems), default=0)
    # (Q of novel classes, N), so that a product with it is the mean over queries of a class.
    membership = torch.eye(task.num_novel, device=is_novel.device, dtype=torch.double)
    membership = membership[queries.labels[is_novel] - num_base]
    membership = membership / membership.sum(dim=0)
    for head, columns in ranks.items():
        for (column, prior), blocks in columns.items():
            asked = queries_of.get(column, everything)
            rank = torch.cat(blocks, dim=1)[:, asked]
            # Whole lists, because reading single numbers would wait for the GPU thousands of times.
            top1, top5 = ((100 * (rank < k).double().mean(dim=1)).tolist() for k in TOP_KS)
            is_lsl = column == "novel"
            by_class = (100 * (rank < 5).double() @ membership).tolist() if is_lsl else []
            for number, problem in enumerate(task.problems):
                is_kept = is_lsl and problem.num_shots == fewest
                yield {
                    "head": head,
                    "column": column,
                    "shots": problem.num_shots,
                    "draw": problem.draw,
                    "prior": prior,
                    "top1": top1[number],
                    "top5": top5[number],
                    "by_class": by_class[number] if is_kept else None,
                }


def _ranks(
    scores: Tensor, labels: Tensor, num_base: int, priors: Sequence[float]
) -> dict[tuple[str, float | None], Tensor]:
    """Count the other classes that score at least as high as the true class, by column: (P, Q).

    Ranks of queries outside a column are undefined. Ranks with a prior are exact only below the
    largest k of top-k.
    """
    is_novel = labels >= num_base
    truth = labels.expand(len(scores), -1).unsqueeze(-1)  # (P, Q, 1)
    rival = scores >= scores.gather(-1, truth)
    base_rivals, novel_rivals = rival[..., :num_base].sum(-1), rival[..., num_base:].sum(-1)
    own = torch.where(is_novel, novel_rivals, base_rivals) - 1  # without the true class itself
    joint = base_rivals + novel_rivals - 1
    ranks: dict[tuple[str, float | None], Tensor] = {
        ("novel", None): own,
        ("base", None): own,
        ("all", None): joint,
        ("novel_joint", None): joint,
    }

    # With a prior: apply a softmax within each group, then weight the groups by the prior. The
    # order within a group does not change; of the other group, only the best few classes matter.
    groups = [part.log_softmax(dim=-1) for part in scores.tensor_split([num_base], dim=-1)]
    own_score = torch.cat(groups, dim=-1).gather(-1, truth)
    best_base, best_novel = (_best(group, max(TOP_KS)) for group in groups)
    lead = torch.where(is_novel.unsqueeze(-1), best_base, best_novel) - own_score
    sign = torch.where(is_novel, 1.0, -1.0).unsqueeze(-1)  # a larger prior favours novel classes
    for prior in priors:
        log_odds = math.log(prior / (1 - prior))
        ranks["all_prior", prior] = own + (lead >= sign * log_odds).sum(-1)
    return ranks


def _best(scores: Tensor, count: int) -> Tensor:
    """Return the largest scores, shape (..., count), padded with -inf if there are fewer."""
    best = scores.topk(min(count, scores.shape[-1]), dim=-1).values
    return pad(best, (0, count - best.shape[-1]), value=-math.inf)
