"""The protocol's columns on scores that one can count by hand."""

import pytest
import torch

from cpaan.protocol.accuracy import NonFiniteScoresError, score
from cpaan.protocol.tasks import Queries
from helpers.tasks import small_task

NUM_BASE, NUM_NOVEL = 3, 6


class FixedScores:
    """A method that gives the scores it is told, whatever the task."""

    def __init__(self, scores: torch.Tensor) -> None:
        self._scores = scores

    def fit(self, task, rng):
        raise AssertionError("the evaluation of a fitted method does not fit it")

    def predict(self, queries):
        # Queries are numbered by their only feature.
        return {"own": self._scores[:, queries[:, 0].long()]}


def accuracies(scores: torch.Tensor, labels: list[int], priors=(0.5,)) -> dict[str, tuple]:
    """Return column -> (top1, top5); one problem, scores of shape (queries, classes)."""
    task = small_task(base=[[[0.0]]] * NUM_BASE, shots=[[[0.0]]] * NUM_NOVEL)
    queries = Queries(torch.arange(float(len(labels))).unsqueeze(1), torch.tensor(labels))
    found = score(FixedScores(scores.unsqueeze(0)), task, queries, priors)
    return {entry.column: (entry.top1, entry.top5) for entry in found}


def random_scores(num_queries: int, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_BASE + NUM_NOVEL, (num_queries,), generator=rng).tolist()
    return torch.randn(num_queries, NUM_BASE + NUM_NOVEL, generator=rng), labels


def test_each_column_asks_its_own_question():
    #                   base             novel
    scores = torch.tensor(
        [
            [9.0, 5.0, 4.0, 8.0, 7.0, 6.0, 3.0, 2.0, 1.0],  # a base query of class 0: first
            [5.0, 9.0, 8.0, 7.0, 6.0, 4.0, 3.0, 2.0, 1.0],  # of class 0: third base, fifth of all
            [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0],  # novel class 3: first novel, fourth
            [9.0, 8.0, 7.0, 5.0, 6.0, 4.0, 3.0, 2.0, 1.0],  # novel class 5: third novel, sixth
            [1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0],  # novel class 8: sixth novel and of all
        ]
    )

    found = accuracies(scores, labels=[0, 0, 3, 5, 8])

    assert found["base"] == (50.0, 100.0)
    assert found["novel"] == pytest.approx((100 / 3, 200 / 3))
    assert found["novel_joint"] == pytest.approx((0.0, 100 / 3))
    assert found["all"] == pytest.approx((20.0, 60.0))


def test_restricted_novel_accuracy_is_never_below_the_joint_one():
    for seed in range(20):
        found = accuracies(*random_scores(50, seed))

        assert found["novel"][0] >= found["novel_joint"][0]
        assert found["novel"][1] >= found["novel_joint"][1]


def test_the_true_share_as_prior_recovers_the_joint_order():
    """Softmax within a group times the group's mass is the softmax over all."""
    novel_mass = 0.7
    within_base = torch.softmax(random_scores(200, seed=1)[0][:, :NUM_BASE], dim=-1)
    within_novel = torch.softmax(random_scores(200, seed=2)[0][:, NUM_BASE:], dim=-1)
    joint = torch.cat([(1 - novel_mass) * within_base, novel_mass * within_novel], dim=-1)
    labels = random_scores(200, seed=3)[1]

    found = accuracies(joint.log(), labels, priors=(novel_mass,))

    assert found["all_prior"] == found["all"]
    assert accuracies(joint.log(), labels, priors=(0.05,))["all_prior"] != found["all"]


@pytest.mark.parametrize("prior", [0.1, 0.5, 0.9])
def test_the_prior_weighs_the_groups_as_defined(prior):
    """Against the plain definition: weigh two softmaxes, sort all classes."""
    scores, labels = random_scores(300)
    weighted = torch.cat(
        [
            (1 - prior) * scores[:, :NUM_BASE].softmax(dim=-1),
            prior * scores[:, NUM_BASE:].softmax(dim=-1),
        ],
        dim=-1,
    )
    hit = weighted.topk(5, dim=-1).indices == torch.tensor(labels).unsqueeze(-1)

    top1, top5 = accuracies(scores, labels, priors=(prior,))["all_prior"]

    assert top1 == pytest.approx(100 * hit[:, 0].double().mean().item())
    assert top5 == pytest.approx(100 * hit.any(dim=-1).double().mean().item())


def test_a_prior_near_one_puts_novel_classes_first():
    # Every novel class scores far below every base class.
    scores = torch.tensor([[9.0, 8.0, 7.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]])

    assert accuracies(scores, [3], priors=(0.5,))["all"] == (0.0, 100.0)
    assert accuracies(scores, [3], priors=(0.999,))["all_prior"] == (100.0, 100.0)


def test_the_same_score_for_all_classes_is_never_right():
    found = accuracies(torch.zeros(4, 9), [0, 3, 4, 8])

    assert found["all"] == found["novel"] == (0.0, 0.0)
    assert found["base"] == (0.0, 100.0)  # there are three base classes: all are among the five
    # Six novel classes and a prior of 2/3 make all nine classes equally likely.
    assert accuracies(torch.zeros(4, 9), [0, 3, 4, 8], (2 / 3,))["all_prior"] == (0.0, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_an_error(bad):
    """Comparisons with NaN are false: a diverged model would be always right."""
    scores, labels = random_scores(4)
    scores[2, 1] = bad

    with pytest.raises(NonFiniteScoresError, match="head own: NaN or infinite scores at Problem"):
        accuracies(scores, labels)


def test_blocks_of_queries_make_no_difference():
    scores, labels = random_scores(3000)

    found = accuracies(scores, labels)

    truth = torch.tensor(labels)
    top5 = (scores.topk(5, dim=-1).indices == truth.unsqueeze(-1)).any(dim=-1)
    assert found["all"][1] == pytest.approx(100 * top5.double().mean().item())
