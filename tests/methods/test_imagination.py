"""Feature Imagination on PN: where it starts, and what heads learn from."""

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.data.synthetic import GaussianClasses
from cpaan.methods.imagination import Imagination, ImaginationConfig
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, prototype_scores
from helpers.tasks import shots_of, small_task

EPISODES = {"num_episodes": 20, "episode_shots": (1, 2, 5), "num_queries": 3}
SMALL = ImaginationConfig(**EPISODES, hidden_dim=16, num_augmented=10)
HEADS = EvaluationConfig(heads=("centroid", "cosine", "linear"), linear_num_steps=20)


@pytest.fixture(scope="module")
def data(gaussians: GaussianClasses) -> tuple[LowShotTask, Queries]:
    rows = shots_of(gaussians.table, gaussians.split)
    return read_phase(
        gaussians.table, gaussians.split, "validation", rows, (1, 5), torch.device("cpu")
    )


def test_before_training_imagination_is_a_prototypical_network_with_the_same_seed(data):
    task, queries = data
    imagination = Imagination(SMALL, HEADS)
    run = imagination.begin(task.base, new_rng(0))
    imagination.fit(task, new_rng(0))

    scores = imagination.predict(queries.features)[OWN]

    plain = EmbeddingRun(run.base, EmbeddingConfig(**EPISODES, hidden_dim=16), run.seed).network
    assert torch.equal(plain.log_scale, run.learner.network.log_scale)
    with torch.no_grad():
        base = [plain(rows).mean(dim=0) for rows in task.base.by_class()[: task.num_base]]
        for number, problem in enumerate(task.problems):
            novel = plain(task.support(problem)).mean(dim=1)
            prototypes = torch.cat([torch.stack(base), novel]).unsqueeze(1)
            expected = plain.log_scale.exp() * prototype_scores(prototypes, plain(queries.features))
            torch.testing.assert_close(scores[number], expected, rtol=1e-4, atol=1e-4)


def test_heads_weigh_every_example_alike():
    """Base classes around 0 and 8; a shot at 2 and hallucinated ones three further: mean 4.25."""
    task = small_task([[[-1.0], [1.0]] * 9, [[7.0], [9.0]] * 9], [[[2.0]]])
    config = ImaginationConfig(
        num_episodes=1, episode_shots=(1,), num_augmented=4, output="linear", normalisation="none"
    )
    imagination = Imagination(config, EvaluationConfig(heads=("centroid",)))
    run = imagination.begin(task.base, new_rng(0))
    run.learner.hallucinator.last.bias.data.fill_(3.0)  # the unit, the deviation of a class, is one

    imagination.fit(task, new_rng(0))
    queries = torch.tensor([[4.25], [4.3], [0.0]])
    scores = imagination.predict(queries)

    distances = -(queries - torch.tensor([0.0, 8.0, 4.25])).square()
    torch.testing.assert_close(scores["centroid"][0], distances)
    scale = run.learner.network.log_scale.detach().exp()
    torch.testing.assert_close(scores[OWN][0], scale * distances)
    assert imagination.diversity.tolist() == [[0.0]]


def test_base_rows_are_embedded_anew_by_who_has_learnt_more(data):
    task, queries = data
    driven, fresh = Imagination(SMALL, HEADS), Imagination(SMALL, HEADS)
    for each, num_before in ((driven, 3), (fresh, 6)):
        run = each.begin(task.base, new_rng(0))
        run.advance(num_before)
        each.fit(task, new_rng(0))
        run.advance(6 - num_before) if num_before < 6 else None
    driven.fit(task, new_rng(0))

    scores, expected = (each.predict(queries.features) for each in (driven, fresh))

    for name in expected:
        torch.testing.assert_close(scores[name], expected[name])


def test_its_own_classifier_may_be_named_among_the_heads(data):
    task, queries = data
    imagination = Imagination(SMALL, HEADS.with_overrides({"heads": ("centroid", OWN)}))
    imagination.begin(task.base, new_rng(0))

    imagination.fit(task, new_rng(0))

    assert set(imagination.predict(queries.features)) == {OWN, "centroid"}
