import math

import pytest
import torch

from cpaan.protocol.config import NeighbourSettings
from cpaan.protocol.neighbours import check_neighbours, draw_by, similarity
from helpers.tasks import normals


def prototypes(count: int, seed: int) -> torch.Tensor:
    return normals(count, 6, seed=seed).double()


def soft(novel: torch.Tensor, base: torch.Tensor, perplexity: float = 4.0) -> torch.Tensor:
    return similarity(novel, base, NeighbourSettings(perplexity=perplexity))


def perplexities(scores: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(scores).sum(dim=-1).exp()


@pytest.mark.parametrize("perplexity", [1.01, 4.0, 19.0])
def test_the_mean_perplexity_is_the_one_asked_for(perplexity):
    scores = soft(prototypes(5, seed=0), prototypes(20, seed=1), perplexity)

    assert perplexities(scores).mean() == pytest.approx(perplexity, rel=1e-5)


def test_a_class_with_close_relatives_leans_on_fewer_of_them():
    base = prototypes(20, seed=1)

    near, far = perplexities(soft(torch.stack([base[3] + 0.01, base.mean(dim=0)]), base))

    assert near < 4 < far


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scores_do_not_depend_on_the_scale_of_the_features(scale):
    novel, base = prototypes(5, seed=0), prototypes(20, seed=1)

    torch.testing.assert_close(soft(scale * novel, scale * base), soft(novel, base))


def test_each_problem_of_a_batch_has_its_own_temperature():
    base = prototypes(20, seed=1)
    problems = torch.stack([prototypes(5, seed=2), 10 * prototypes(5, seed=3)])

    together = soft(problems, base)

    for problem, scores in zip(problems, together, strict=True):
        torch.testing.assert_close(scores, soft(problem, base))


def test_base_classes_that_are_all_equally_far_score_the_same():
    scores = soft(torch.ones(2, 3), torch.ones(4, 3), perplexity=2)

    torch.testing.assert_close(scores, torch.full((2, 4), 0.25))


TOTAL = math.exp(-1) + 1 + math.exp(-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"neighbours": "none"}, [1 / 3, 1 / 3, 1 / 3]),
        ({"neighbours": "hard", "num_neighbours": 2}, [0.5, 0.5, 0.0]),
        ({"perplexity": None}, [math.exp(-1) / TOTAL, 1 / TOTAL, math.exp(-4) / TOTAL]),
    ],
)
def test_scores_are_equal_or_shared_by_the_nearest_or_the_printed_softmax(settings, expected):
    novel, base = torch.tensor([[[1.0]], [[1.0]]]), torch.tensor([[0.0], [1.0], [3.0]])

    scores = similarity(novel, base, NeighbourSettings(**settings))

    torch.testing.assert_close(scores, torch.tensor(expected).expand(2, 1, 3))


FIRST, LAST = 0.0, 1 - 2**-53  # smallest and largest value of a uniform draw


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("scores", "of_first", "of_last"),
    [
        ([0.0, 0.25, 0.0, 0.75, 0.0], 1, 3),
        ([0.0, 0.0, 1.0], 2, 2),
        ([1.0, 0.0, 0.0], 0, 0),
        ([0.0, *[0.1] * 10, 0.0], 1, 10),  # sums to one up to rounding
        ([0.0, *[1 / 3] * 3, 0.0], 1, 3),
        ([0.0, 1e-30, 0.0], 1, 1),
    ],
)
def test_a_class_without_a_score_is_never_drawn(scores, of_first, of_last, dtype):
    scores = torch.tensor(scores, dtype=dtype)
    between = torch.linspace(0, 1, 100, dtype=torch.float64)[:-1]
    uniforms = torch.cat([torch.tensor([FIRST, LAST], dtype=torch.float64), between])

    drawn = draw_by(scores, uniforms)

    assert drawn[:2].tolist() == [of_first, of_last]
    assert (scores[drawn] > 0).all()


def test_classes_are_drawn_in_proportion_to_their_scores_by_every_novel_class_for_itself():
    scores = torch.tensor([[2.0, 0.0, 5.0, 3.0], [0.0, 1.0, 1.0, 0.0]])  # need not sum to one
    uniforms = (torch.arange(10, dtype=torch.float64) + 0.5) / 10

    drawn = draw_by(scores, uniforms.expand(2, -1).contiguous())

    assert drawn.tolist() == [[0, 0, 2, 2, 2, 2, 2, 3, 3, 3], [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("settings", "used_by", "message"),
    [
        ({"num_neighbours": 9}, "hard", "num_neighbours is 9, but there are 8 base"),
        ({"perplexity": 8.0}, "soft", "number of base classes, 8, got 8.0"),
        ({"perplexity": 1.0}, "soft", "number of base classes, 8, got 1.0"),
    ],
)
def test_what_base_classes_cannot_serve_is_refused_where_it_is_used(settings, used_by, message):
    fitting = {"num_neighbours": 8, "perplexity": 7.9, **settings}

    for kind in {"soft", "hard", "none"} - {used_by}:
        check_neighbours(NeighbourSettings(neighbours=kind, **fitting), num_base=8)
    with pytest.raises(ValueError, match=message):
        check_neighbours(NeighbourSettings(neighbours=used_by, **fitting), num_base=8)
