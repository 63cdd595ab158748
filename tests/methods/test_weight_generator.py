"""The attentive weight generator: what weights are made of, and that training helps new classes."""

import math

import torch
from torch.nn.functional import normalize

from cpaan.core.randomness import new_rng
from cpaan.methods.weight_generator import (
    PUBLISHED,
    AttentiveWeights,
    WeightGenerator,
    WeightGeneratorConfig,
)
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import CosineCentroid
from cpaan.protocol.tasks import BaseSet, read_phase
from cpaan.training.learning import EpisodeRngs
from cpaan.training.workers import ALONE
from helpers.tasks import shots_of

CPU = torch.device("cpu")
SMALL = WeightGeneratorConfig(num_episodes=20, episode_shots=(1, 2), num_queries=3)


def axes(num_classes: int = 3, **settings: object) -> AttentiveWeights:
    """Base class i lies on axis i; queries are just the supports."""
    rows = torch.eye(num_classes).repeat_interleave(5, dim=0)
    base = BaseSet(rows, torch.full((num_classes,), 5))
    learner = AttentiveWeights(
        base, SMALL.with_overrides({"centred": False, **settings}), new_rng(0)
    )
    learner.query.weight.data = torch.eye(num_classes)
    return learner


def test_a_generated_weight_by_hand():
    """exp(log 3 · 1) to exp(0): three quarters of the first base class, a quarter of the other."""
    learner = axes(2, attention_scale=math.log(3), attention_start=2.0)

    weights = learner.weights(torch.arange(2), torch.tensor([[[1.0, 0.0]]]))

    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1 + 2 * 0.75, 2 * 0.25]])
    torch.testing.assert_close(weights, expected)


def test_average_and_attention_are_weighed_in_each_dimension():
    learner = axes(2, attention_scale=math.log(3))
    learner.of_average.data = torch.tensor([2.0, 10.0])
    learner.of_attention.data = torch.tensor([4.0, 8.0])

    *_, novel = learner.weights(torch.arange(2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))

    # Both shots together attend to both classes alike; their mean is (1/2, 1/2).
    torch.testing.assert_close(novel, torch.tensor([2 / 2 + 4 / 2, 10 / 2 + 8 / 2]))


def test_attention_sums_to_one_and_goes_to_the_class_whose_key_is_met():
    learner = axes()
    learner.keys.data = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    supports = torch.eye(3).unsqueeze(1)

    attention = learner.attention(torch.arange(3), supports)

    torch.testing.assert_close(attention.sum(dim=-1), torch.ones(3, 1))
    assert attention.argmax(dim=-1).flatten().tolist() == [2, 0, 1]


def test_a_large_scale_attends_to_one_base_class_and_a_small_one_to_all_alike():
    supports = normalize(torch.tensor([[[3.0, 2.0, 1.0]]]), dim=-1)

    sharp = axes(attention_scale=1e4).attention(torch.arange(3), supports)
    flat = axes(attention_scale=1e-6).attention(torch.arange(3), supports)

    torch.testing.assert_close(sharp, torch.tensor([[[1.0, 0.0, 0.0]]]))
    torch.testing.assert_close(flat, torch.full((1, 1, 3), 1 / 3))


def test_attention_is_over_the_base_classes_at_hand():
    """A class that is taken for novel must not find its own weight."""
    learner = axes()
    supports = torch.tensor([[[0.0, 1.0, 0.0]]])

    learner.weights(torch.tensor([0, 2]), supports)[-1].sum().backward()

    assert torch.equal(learner.base_weights.grad[1], torch.zeros(3))
    assert torch.equal(learner.keys.grad[1], torch.zeros(3))
    assert learner.base_weights.grad[0].abs().sum() > 0


def test_without_attention_and_training_it_is_the_nearest_cosine_centroid(gaussians):
    rows = shots_of(gaussians.table, gaussians.split)
    task, queries = read_phase(gaussians.table, gaussians.split, "validation", rows, (1,), CPU)
    method = WeightGenerator(SMALL.with_overrides({"attention_start": 0.0}))
    run = method.new_run(task.base, new_rng(0), ALONE)
    method.adapt(run, task, new_rng(0))
    scores = method.predict(queries.features)[OWN]

    head = CosineCentroid(EvaluationConfig(cosine_scale=10.0))
    head.fit(task, None, new_rng(0))
    expected = head.scores(queries.features)

    torch.testing.assert_close(scores[..., 12:], expected[..., 12:], rtol=1e-4, atol=1e-4)
    # Base classes have the mean of directions, not the direction of the mean.
    directions = normalize(task.base.features - task.base.prototypes.mean(dim=0), dim=-1)
    means = normalize(directions.view(24, 25, 8).mean(dim=1), dim=-1)
    by_hand = 10 * normalize(queries.features - task.base.prototypes.mean(dim=0), dim=-1) @ means.T
    torch.testing.assert_close(scores[0, :, :12], by_hand[:, :12], rtol=1e-4, atol=1e-4)


def test_a_support_at_the_centre_has_finite_gradients():
    learner = axes(centred=True)
    supports = learner.directions(learner.centre.expand(1, 1, 3))

    weights = learner.weights(torch.arange(3), supports)
    learner.scores(torch.eye(3), weights).sum().backward()

    assert torch.equal(supports, torch.zeros(1, 1, 3))
    for parameter in learner.parameters():
        assert parameter.grad.isfinite().all()


def test_the_source_s_keys_start_anywhere_but_the_same_for_a_seed():
    rows = torch.randn(60, 4, generator=new_rng(0))
    base = BaseSet(rows, torch.full((6,), 10))
    config = SMALL.with_overrides({"keys": "random"})

    first, second, other = (AttentiveWeights(base, config, new_rng(seed)) for seed in (0, 0, 1))

    assert torch.equal(first.keys, second.keys)
    assert not torch.equal(first.keys, other.keys)
    assert not torch.equal(first.keys, first.base_weights)


def test_an_episode_of_the_published_settings_is_finite():
    rows = torch.randn(120, 4, generator=new_rng(0)).relu() + 0.1
    base = BaseSet(rows, torch.full((4,), 30))

    (loss,) = AttentiveWeights(base, PUBLISHED, new_rng(0)).episode_terms(
        EpisodeRngs(new_rng(1), new_rng(2))
    )

    assert 0 < float(loss.detach()) < 20
