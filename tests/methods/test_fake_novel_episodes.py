"""Methods that learn by fake-novel episodes: what an episode holds, what all have in common."""

import dataclasses

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.data.synthetic import GaussianClasses
from cpaan.methods.denoising_weights import DenoisingWeights, DenoisingWeightsConfig
from cpaan.methods.parts.fake_novel_episodes import (
    FakeNovelSettings,
    GeneratedWeights,
    WeightLearner,
)
from cpaan.methods.weight_generator import WeightGenerator, WeightGeneratorConfig
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import BaseSet, LowShotTask, Queries, read_phase
from cpaan.training.learning import EpisodeRngs
from cpaan.training.workers import ALONE
from helpers.runs import assert_goes_on, flat
from helpers.tasks import reordered, shots_of

CPU = torch.device("cpu")
SMALL = {"num_episodes": 6, "episode_shots": (1, 2, 5), "num_queries": 3}
LEARNING = {"num_episodes": 150, "episode_shots": (1, 2), "num_queries": 3}
METHODS = {
    "AWG": WeightGenerator(WeightGeneratorConfig(**SMALL)),
    "wDAE": DenoisingWeights(DenoisingWeightsConfig(**SMALL, hidden_dim=16)),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def read(data: GaussianClasses) -> tuple[LowShotTask, Queries]:
    rows = shots_of(data.table, data.split)
    return read_phase(data.table, data.split, "validation", rows, (1, 5), CPU)


def read_other_phase(data: GaussianClasses) -> tuple[LowShotTask, Queries]:
    swapped = dataclasses.replace(
        data.split, validation=data.split.test, test=data.split.validation
    )
    return read(dataclasses.replace(data, split=swapped))


def rngs(seed: int = 0) -> EpisodeRngs:
    return EpisodeRngs(new_rng(seed, 0), new_rng(seed, 1))


class Nothing(WeightLearner):
    """A learner whose episodes alone are of interest."""

    def episode_terms(self, rngs):
        raise AssertionError("nothing is trained here")

    def weights(self, base, supports, rng=None):
        raise AssertionError("nothing is classified here")


def numbered_classes(num_classes: int) -> BaseSet:
    """Every row points to its class's own dimension; its length is its own number."""
    rows = [
        float(length) * torch.eye(num_classes)[label]
        for label in range(num_classes)
        for length in range(1, 11)
    ]
    return BaseSet(torch.stack(rows), torch.full((num_classes,), 10))


@pytest.mark.parametrize(
    ("novel_share", "num_novel"), [(0.5, 3), (250 / 389, 4), (0.01, 1), (0.99, 5)]
)
def test_an_episode_splits_the_classes_and_labels_base_ones_first(novel_share, num_novel):
    config = FakeNovelSettings(
        novel_share=novel_share, episode_shots=(2,), num_queries=3, centred=False, num_episodes=1
    )
    learner = Nothing(numbered_classes(6), config)
    met = set()
    for seed in range(20):
        episode = learner.draw(rngs(seed))

        assert sorted([*episode.base.tolist(), *episode.novel.tolist()]) == list(range(6))
        assert episode.supports.shape == (num_novel, 2, 6)
        assert episode.queries.shape == (6 * 3, 6)
        outputs = torch.cat([episode.base, episode.novel])
        assert torch.equal(episode.queries.argmax(dim=1), outputs[episode.labels])
        assert torch.equal(episode.supports.argmax(dim=2), episode.novel.unsqueeze(1).expand(-1, 2))
        assert episode.labels.bincount().tolist() == [3] * 6
        met |= set(episode.novel.tolist())
    assert met == set(range(6))


@every_method
def test_scores_are_finite_logits_of_the_phase_s_own_classes(gaussians, method):
    task, queries = read(gaussians)

    method.fit(task, new_rng(0))
    (scores,) = method.predict(queries.features).values()

    assert scores.shape == (4, len(queries.labels), 24)
    assert scores.isfinite().all()
    # Base classes are known well: among all classes, most of their queries find them.
    is_base = queries.labels < 12
    top5 = scores.topk(5).indices == queries.labels.unsqueeze(1)
    assert top5.any(dim=-1)[:, is_base].float().mean() > 0.6


@every_method
def test_the_seed_decides_all(gaussians, method):
    task, queries = read(gaussians)
    state = torch.get_rng_state()
    scores = []
    for seed in (0, 0, 1):
        fresh = type(method)(method._config)
        fresh.fit(task, new_rng(seed))
        scores.append(fresh.predict(queries.features)[OWN])

    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@every_method
def test_both_phases_train_the_same(gaussians, method):
    runs = []
    for task, _ in (read(gaussians), read_other_phase(gaussians)):
        run = method.begin(task.base, new_rng(0))
        run.advance(3)
        runs.append(run)

    assert read(gaussians)[0].base.names != read_other_phase(gaussians)[0].base.names
    assert torch.equal(flat(runs[0]), flat(runs[1]))


@every_method
def test_classes_in_another_order_have_the_same_scores(gaussians, method):
    """One trained run serves both phases, whatever their order of base classes."""
    task, queries = read(gaussians)
    order = torch.randperm(24, generator=new_rng(1))
    moved = reordered(task.base, order)
    whole = dataclasses.replace(task, num_base=24)
    run = method.new_run(task.base, new_rng(0), workers=ALONE)
    run.advance(6)

    method.adapt(run, whole, new_rng(0))
    scores = method.predict(queries.features)[OWN]
    method.adapt(run, dataclasses.replace(whole, base=moved), new_rng(0))
    again = method.predict(queries.features)[OWN]

    torch.testing.assert_close(again[..., :24], scores[..., order])
    torch.testing.assert_close(again[..., 24:], scores[..., 24:])


@every_method
def test_a_run_that_stopped_and_went_on_is_the_unbroken_one(gaussians, method):
    base = read(gaussians)[0].base

    assert_goes_on(lambda: method.begin(base, new_rng(0)))


def hidden_signal(num_classes: int, seed: int) -> torch.Tensor:
    """Classes that differ in six dimensions, beside a seventh of much noise; (classes, 20, 7)."""
    means = 2 * torch.randn(num_classes, 1, 7, generator=new_rng(seed))
    means[..., 6] = 0
    noise = torch.randn(num_classes, 20, 7, generator=new_rng(seed, 1))
    noise[..., 6] *= 10
    return means + noise


@pytest.mark.parametrize(
    "method",
    [
        WeightGenerator(
            WeightGeneratorConfig(**LEARNING, learning_rate=1e-2, attention_start=0.0, dropout=0.0)
        ),
        DenoisingWeights(
            DenoisingWeightsConfig(
                **LEARNING,
                learning_rate=5e-3,
                hidden_dim=32,
                num_neighbours=3,
                message_dropout=0.3,
            )
        ),
    ],
    ids=METHODS,
)
def test_training_helps_classes_that_it_has_never_seen(method):
    base, new = hidden_signal(32, seed=1), hidden_signal(16, seed=2)
    run = method.begin(BaseSet(base.flatten(0, 1), torch.full((32,), 20)), new_rng(0))
    learner = run.learner

    def accuracy() -> float:
        directions = learner.directions(new)
        right = []
        for shot in range(10):
            weights = learner.weights(torch.arange(32), directions[:, shot : shot + 1])[32:]
            answers = learner.scores(directions[:, 10:], weights).argmax(dim=-1)
            right.append((answers == torch.arange(16).unsqueeze(1)).float().mean())
        return 100 * float(torch.stack(right).mean())

    before = accuracy()
    first = run.advance(10)
    run.advance(130)
    last = run.advance(10)

    assert all(last[name] < 0.9 * first[name] for name in first)
    assert accuracy() > before + 15


@every_method
def test_half_precision_features_start_at_nearly_the_same_weights(gaussians, method):
    base = read(gaussians)[0].base
    half = BaseSet(base.features.half(), base.counts, base.names)

    runs = [method.begin(each, new_rng(0)) for each in (base, half)]
    runs[1].advance(2)  # no step minds the type of the rows

    torch.testing.assert_close(runs[0].learner.centre, runs[1].learner.centre, rtol=1e-2, atol=1e-3)
    assert runs[1].learner.base_weights.dtype == torch.float32


def test_features_that_are_not_finite_are_an_error():
    base = numbered_classes(3)
    base.features[3, 1] = torch.inf
    method: GeneratedWeights = WeightGenerator(
        WeightGeneratorConfig(episode_shots=(1,), num_queries=1)
    )

    with pytest.raises(ValueError, match="features are not finite"):
        method.begin(BaseSet(base.features, base.counts), new_rng(0))
