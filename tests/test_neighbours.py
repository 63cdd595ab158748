import pytest
import torch

from cpaan.neighbours import soft_similarity


def prototypes(count: int, seed: int, num_dims: int = 6) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, num_dims, generator=rng, dtype=torch.float64)


def perplexities(scores: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(scores).sum(dim=-1).exp()


def test_scores_of_a_novel_class_sum_to_one():
    scores = soft_similarity(prototypes(5, seed=0), prototypes(20, seed=1), perplexity=4)

    torch.testing.assert_close(scores.sum(dim=-1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("perplexity", [1.01, 4.0, 19.0])
def test_the_mean_perplexity_is_the_one_asked_for(perplexity):
    scores = soft_similarity(prototypes(5, seed=0), prototypes(20, seed=1), perplexity)

    assert perplexities(scores).mean() == pytest.approx(perplexity, rel=1e-6)


def test_a_class_with_close_relatives_leans_on_fewer_of_them():
    base = prototypes(20, seed=1)
    novel = torch.stack([base[3] + 0.01, base.mean(dim=0)])

    near, far = perplexities(soft_similarity(novel, base, perplexity=5))

    assert near < 5 < far


def test_nearer_classes_score_higher():
    base = torch.tensor([[0.0], [1.0], [3.0]])

    (scores,) = soft_similarity(torch.tensor([[0.2]]), base, perplexity=2)

    assert scores[0] > scores[1] > scores[2]


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scores_do_not_depend_on_the_scale_of_the_features(scale):
    novel, base = prototypes(5, seed=0), prototypes(20, seed=1)

    torch.testing.assert_close(
        soft_similarity(scale * novel, scale * base, perplexity=4),
        soft_similarity(novel, base, perplexity=4),
    )


def test_each_problem_of_a_batch_has_its_own_temperature():
    base = prototypes(20, seed=1)
    problems = torch.stack([prototypes(5, seed=2), 10 * prototypes(5, seed=3)])

    together = soft_similarity(problems, base, perplexity=4)

    for problem, scores in zip(problems, together, strict=True):
        torch.testing.assert_close(scores, soft_similarity(problem, base, perplexity=4))


def test_base_classes_that_are_all_equally_far_are_refused():
    with pytest.raises(ValueError, match="equally far"):
        soft_similarity(torch.ones(2, 3), torch.ones(4, 3), perplexity=2)


@pytest.mark.parametrize("perplexity", [1.0, 20.0, 50.0])
def test_a_perplexity_that_no_scores_can_have_is_refused(perplexity):
    with pytest.raises(ValueError, match=f"number of base classes, 20, got {perplexity}"):
        soft_similarity(prototypes(5, seed=0), prototypes(20, seed=1), perplexity)
