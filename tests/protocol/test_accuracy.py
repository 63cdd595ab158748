"""Test the columns of the protocol on scores that can be counted by hand."""

from itertools import pairwise

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.protocol.accuracy import BIASES, score
from cpaan.protocol.tasks import Queries
from helpers.tasks import small_task

NUM_BASE, NUM_NOVEL = 3, 6


def rows_of(scores: torch.Tensor, labels: list[int], num_base: int, biases) -> list[dict]:
    """Return the rows of one problem with scores of shape (queries, classes)."""
    num_novel = scores.shape[1] - num_base
    task = small_task(base=[[[0.0]]] * num_base, shots=[[[0.0]]] * num_novel)
    queries = Queries(torch.arange(float(len(labels))).unsqueeze(1), torch.tensor(labels))

    def predict(features: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"knn": scores[None, features[:, 0].long()]}  # the feature of a query is its number

    return list(score(predict, task, queries, biases))


def accuracies(scores: torch.Tensor, labels: list[int], bias=0.0) -> dict[str, tuple]:
    """Return column -> (top1, top5); three base and six novel classes."""
    rows = rows_of(scores, labels, NUM_BASE, (bias,))
    return {row["column"]: (row["top1"], row["top5"]) for row in rows}


def random_scores(num_queries: int) -> tuple[torch.Tensor, list[int]]:
    rng = new_rng(0)
    labels = torch.randint(NUM_BASE + NUM_NOVEL, (num_queries,), generator=rng).tolist()
    return torch.randn(num_queries, NUM_BASE + NUM_NOVEL, generator=rng), labels


def test_each_column_asks_its_own_question():
    #                   base             novel
    scores = torch.tensor(
        [
            [9.0, 5.0, 4.0, 8.0, 7.0, 6.0, 3.0, 2.0, 1.0],  # base class 0: first
            [5.0, 9.0, 8.0, 7.0, 6.0, 4.0, 3.0, 2.0, 1.0],  # base class 0: third base, fifth of all
            [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0],  # novel class 3: first novel, fourth
            [9.0, 8.0, 7.0, 5.0, 6.0, 4.0, 3.0, 2.0, 1.0],  # novel class 5: third novel, sixth
            [1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0],  # novel class 8: sixth novel and of all
        ]
    )

    columns = accuracies(scores, labels=[0, 0, 3, 5, 8])

    assert columns["base"] == (50.0, 100.0)
    assert columns["novel"] == pytest.approx((100 / 3, 200 / 3))
    assert columns["novel_joint"] == pytest.approx((0.0, 100 / 3))
    assert columns["all"] == pytest.approx((20.0, 60.0))


def test_top_5_of_each_novel_class_is_kept_for_the_fewest_shots():
    # Two queries of class 3, ranked first and last among six novel classes, and one of class 4.
    scores = torch.tensor([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 6.0, 5.0, 4.0, 3.0, 2.0]])
    scores = torch.cat([torch.zeros(3, NUM_BASE), scores[[0, 1, 1]]], dim=1)
    task = small_task(base=[[[0.0]]] * NUM_BASE, shots=[[[0.0]]] * NUM_NOVEL)
    queries = Queries(torch.zeros(3, 1), torch.tensor([3, 3, 4]))

    rows = list(score(lambda _: {"knn": scores[None]}, task, queries))

    (by_class,) = (row["by_class"] for row in rows if row["by_class"] is not None)
    assert by_class[:2] == [50.0, 100.0]
    assert {row["column"] for row in rows if row["by_class"] is not None} == {"novel"}


@pytest.mark.parametrize("bias", [-2.5, 0.0, 0.375, 40.0])
def test_accuracies_are_those_of_sorted_classes_and_a_bias_is_added_to_novel_ones(bias):
    """Compare with the plain definition, on more queries than fit in a block."""
    scores, labels = random_scores(3000)
    shifted = scores.double()
    shifted[:, NUM_BASE:] += bias

    columns = accuracies(scores, labels, bias)

    for column, of_classes in (("all", scores), ("all_calibrated", shifted)):
        hit = of_classes.topk(5, dim=-1).indices == torch.tensor(labels).unsqueeze(-1)
        top1, top5 = (
            100 * is_hit.double().mean().item() for is_hit in (hit[:, 0], hit.any(dim=-1))
        )
        assert columns[column] == pytest.approx((top1, top5))


def test_a_bias_moves_answers_from_base_to_novel_classes():
    #                        base      novel
    scores = torch.tensor(
        [
            [4.0, 1.0, 2.0, 3.0],  # base class 0: ahead of the best novel class by 1
            [1.0, 4.0, 0.0, 0.5],  # base class 1: ahead by 3.5
            [5.0, 0.0, 3.0, 1.0],  # novel class 2: behind the best base class by 2
            [3.0, 0.0, 2.0, 1.0],  # novel class 3: never, because of novel class 2
        ]
    )
    by_bias = {-9.0: 50, 0.0: 50, 0.5: 50, 1.0: 25, 2.0: 25, 2.5: 50, 3.5: 25, 9.0: 25}

    rows = rows_of(scores, [0, 1, 2, 3], num_base=2, biases=tuple(by_bias))

    calibrated = [row for row in rows if row["column"] == "all_calibrated"]
    assert {row["bias"]: row["top1"] for row in calibrated} == by_bias
    assert {row["top5"] for row in calibrated} == {100.0}, "there are four classes"
    assert [row["bias"] for row in rows if row["column"] == "all"] == [None]


def test_the_candidates_are_zero_and_both_signs_of_every_size():
    sizes = [bias for bias in BIASES if bias > 0]

    assert BIASES[0] == 0
    assert sorted(BIASES) == [*(-size for size in reversed(sizes)), 0, *sizes]
    assert (sizes[0], sizes[-1]) == pytest.approx((0.01, 40.96))
    ratios = [after / before for before, after in pairwise(sizes)]
    assert ratios == pytest.approx([2**0.5] * 24)


def test_the_same_score_for_all_classes_is_never_right():
    columns = accuracies(torch.zeros(4, 9), [0, 3, 4, 8])

    assert columns["all"] == columns["novel"] == columns["all_calibrated"] == (0.0, 0.0)
    assert columns["base"] == (0.0, 100.0)  # all three base classes are in the top five


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_an_error(bad):
    """Comparisons with NaN are false, so a diverged model would be always right."""
    scores, labels = random_scores(4)
    scores[2, 1] = bad

    with pytest.raises(ValueError, match="head knn: NaN or infinite scores at Problem"):
        accuracies(scores, labels)
