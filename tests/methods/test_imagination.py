"""Test Feature Imagination: the hallucinated examples and their seeds."""

from dataclasses import replace

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.imagination import (
    Hallucinator,
    HallucinatorSettings,
    Imagination,
    ImaginationConfig,
    ImaginingMatcher,
    MatchingImagination,
    MatchingImaginationConfig,
)
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.tasks import BaseSet
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, prototype_scores
from helpers.tasks import normals, read_problems, small_task

EPISODES = {"num_episodes": 20, "episode_shots": (1, 2, 5), "num_queries": 3}
SMALL = ImaginationConfig(**EPISODES, hidden_dim=16, num_augmented=10)
MATCHING = MatchingImaginationConfig(**EPISODES, num_augmented=10)
HEADS = EvaluationConfig(heads=("centroid", "cosine", "linear"), linear_num_steps=20)


def hallucinator(rows: torch.Tensor, **settings: object) -> Hallucinator:
    """Return a hallucinator for two classes with the same rows."""
    base = BaseSet(torch.cat([rows, rows]), torch.tensor([len(rows), len(rows)]))
    return Hallucinator(base, HallucinatorSettings(**settings), new_rng(0))


@pytest.mark.parametrize("factor", [1.0, 0.3, 700.0])
@pytest.mark.parametrize("kind", ["residual", "relu"])
def test_at_the_start_a_hallucinated_example_is_its_seed_to_the_last_bit(kind, factor):
    rows = factor * normals(9, 5)
    rows = rows.abs() if kind == "relu" else rows

    made = hallucinator(rows, hallucinator=kind)(rows, normals(9, 5, seed=1))

    assert torch.equal(made, rows)


def test_a_hallucinator_that_ends_in_a_relu_refuses_negative_features():
    with pytest.raises(ValueError, match=r"not negative, but one is -2.0; use .*=residual"):
        hallucinator(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), hallucinator="relu")


@pytest.mark.parametrize("kind", ["residual", "relu"])
def test_noise_makes_examples_of_one_seed_differ_once_weights_have_moved(kind):
    network = hallucinator(normals(9, 5).abs(), hallucinator=kind, num_augmented=20)
    for parameter in network.parameters():
        parameter.data += 0.1 * normals(*parameter.shape)
    supports = normals(1, 1, 5).abs()

    filled = network.fill(supports, new_rng(0)).detach()

    assert filled.shape == (1, 20, 5)
    assert torch.equal(filled[:, :1], supports)
    assert len(filled[0].unique(dim=0)) == 20
    silent = hallucinator(normals(9, 5).abs(), hallucinator=kind, noise=0.0, num_augmented=20)
    silent.load_state_dict(network.state_dict())
    assert len(silent.fill(supports, new_rng(0)).detach()[0].unique(dim=0)) == 2


def test_seeds_in_turn_weigh_the_same_and_random_ones_are_of_their_class():
    """Fill 4 classes of 3 supports up to 9 rows, and count each support."""
    supports, counts = torch.arange(12.0).view(4, 3, 1), {}
    for seeds in ("in-turn", "random"):
        network = hallucinator(torch.rand(5, 1, generator=new_rng(0)), seeds=seeds, num_augmented=9)
        filled = network.fill(supports, new_rng(0)).detach()
        assert torch.equal(filled[:, :3], supports)
        counts[seeds] = (filled.view(4, 9, 1) == supports.view(4, 1, 3)).sum(dim=1)

    assert torch.equal(counts["in-turn"], torch.full((4, 3), 3))
    assert (counts["random"].sum(dim=1) == 9).all()
    assert (counts["random"] >= 1).all()  # the real examples
    assert len(counts["random"].unique(dim=0)) > 1  # every class draws separately, with replacement


def test_before_training_imagination_is_a_prototypical_network_with_the_same_seed(gaussians):
    task, queries = read_problems(gaussians)
    imagination = Imagination(SMALL, HEADS)
    run = imagination.begin(task.base, new_rng(0))

    scores = imagination.fit(task, new_rng(0)).predict(queries.features)[OWN]

    plain = EmbeddingRun(run.base, EmbeddingConfig(**EPISODES, hidden_dim=16), run.seed).network
    assert torch.equal(plain.log_scale, run.learner.log_scale)
    with torch.no_grad():
        base = [plain(rows).mean(dim=0) for rows in task.base.by_class()[: task.num_base]]
        for number, problem in enumerate(task.problems):
            novel = plain(task.support(problem)).mean(dim=1)
            prototypes = torch.cat([torch.stack(base), novel]).unsqueeze(1)
            expected = plain.log_scale.exp() * prototype_scores(prototypes, plain(queries.features))
            torch.testing.assert_close(scores[number], expected, rtol=1e-4, atol=1e-4)


def test_heads_weigh_every_example_alike():
    """Base classes are at 0 and 8. A shot at 2 and hallucinated examples at 5 have mean 4.25."""
    task = small_task([[[-1.0], [1.0]] * 9, [[7.0], [9.0]] * 9], [[[2.0]]])
    config = ImaginationConfig(
        num_episodes=1, episode_shots=(1,), num_augmented=4, output="linear", normalisation="none"
    )
    imagination = Imagination(config, EvaluationConfig(heads=("centroid",)))
    run = imagination.begin(task.base, new_rng(0))
    run.learner.hallucinator.last.bias.data.fill_(3.0)  # in units of the class deviation, 1

    fitted = imagination.fit(task, new_rng(0), keep=0)
    queries = torch.tensor([[4.25], [4.3], [0.0]])
    scores = fitted.predict(queries)

    distances = -(queries - torch.tensor([0.0, 8.0, 4.25])).square()
    torch.testing.assert_close(scores["centroid"][0], distances)
    scale = run.learner.log_scale.detach().exp()
    torch.testing.assert_close(scores[OWN][0], scale * distances)
    assert fitted.synthetic[0].tolist() == [[[5.0]] * 3]


def test_before_training_imagination_is_a_matcher_of_repeated_shots(gaussians):
    task, queries = read_problems(gaussians)
    imagination, nothing = (  # the second one only repeats shots
        MatchingImagination("FI-PMN", ImaginingMatcher, replace(MATCHING, num_augmented=count))
        for count in (10, 1)
    )
    run, _ = (method.begin(task.base, new_rng(0)) for method in (imagination, nothing))

    def scores_of(method: MatchingImagination) -> torch.Tensor:
        return method.fit(task, new_rng(0)).predict(queries.features)[OWN]

    scores = scores_of(imagination)
    torch.testing.assert_close(scores, scores_of(nothing))
    for parameter in run.learner.hallucinator.parameters():
        parameter.data += 0.1
    assert not torch.allclose(scores_of(imagination), scores, rtol=0.01)
