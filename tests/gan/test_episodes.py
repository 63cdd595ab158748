"""Test the content of episodes, the weights of pairs, and checks against the base classes."""

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episode, MetaEpisodes, TrainingData, check_training
from cpaan.protocol.config import NeighbourSettings
from cpaan.protocol.neighbours import similarity
from cpaan.protocol.tasks import BaseSet

COUNTS = [4, 6, 5, 7, 4, 5]  # numbers of examples of the base classes
NUM_DIMS = 3
SMALL = {
    "num_ways": 2,
    "episode_shots": (1, 3),
    "batch_size": 2 * 3 + 40,
    "perplexity": 2.0,
    "num_neighbours": 2,
    "ky_fan_order": 2,
}
SAMPLINGS = pytest.mark.parametrize("sampling", ["shared", "uniform"])


def base_set(scale: float = 1.0) -> BaseSet:
    """Return classes with means near (0, 0, 0), (3, 3, 3), ... and without equal examples."""
    rng = torch.Generator().manual_seed(0)
    means = 3 * torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS)).unsqueeze(1)
    features = means + 2 * torch.randn(sum(COUNTS), NUM_DIMS, generator=rng, dtype=torch.float64)
    return BaseSet(scale * features, torch.tensor(COUNTS))


def config_of(**settings) -> TrainConfig:
    return TrainConfig(**{**SMALL, **settings})


def data_of(config: TrainConfig, base: BaseSet | None = None, **options) -> TrainingData:
    options = {"with_covariances": False, "dtype": torch.float64, **options}
    return TrainingData.prepare(base or base_set(), config, **options)


def draw(seed: int = 0, **settings) -> tuple[Episode, TrainingData]:
    config = config_of(**settings)
    data = data_of(config)
    return MetaEpisodes(data, config).draw(new_rng(seed)), data


def rows_of(examples: Tensor, base: BaseSet) -> Tensor:
    """Return the rows of examples, shape (..., D)."""
    is_equal = (examples.unsqueeze(-2) == base.features).all(dim=-1)
    assert (is_equal.sum(dim=-1) == 1).all()
    return is_equal.long().argmax(dim=-1)


def classes_of(examples: Tensor, base: BaseSet) -> Tensor:
    return torch.arange(len(COUNTS)).repeat_interleave(base.counts)[rows_of(examples, base)]


@SAMPLINGS
def test_an_episode_has_meta_novel_classes_with_shots_and_meta_base_classes_with_examples(sampling):
    config = config_of(episode_shots=(1, 4, 2), batch_size=2 * 4 + 40, sampling=sampling)
    data, rng = data_of(config), new_rng(0)
    base, episodes = data.base, MetaEpisodes(data, config)
    drawn = [episodes.draw(rng) for _ in range(200)]

    for episode in drawn:
        novel = classes_of(episode.shots, base)
        together = torch.cat([novel[:, 0], episode.base_classes])
        assert sorted(together.tolist()) == list(range(len(COUNTS)))
        assert torch.equal(novel, novel[:, :1].expand(2, 4))
        assert torch.equal(classes_of(episode.real, base), novel)
        assert all(len(rows.unique()) == 4 for rows in rows_of(episode.shots, base))
        assert episode.partners.shape == (2, 40)
        num_shots = int((episode.shot_weights > 0).sum())  # the first ones have weight
        assert set(episode.partners.flatten().tolist()) == set(range(num_shots))
        means = episode.shots[:, :num_shots].mean(dim=1)
        torch.testing.assert_close(episode.novel_prototypes, means)
        torch.testing.assert_close(episode.class_means, base.prototypes[novel[:, 0]])
        sources = episode.base_classes[episode.sources]
        assert torch.equal(classes_of(episode.base_examples, base), sources)
    # All classes, all examples and all numbers of shots are drawn.
    for part in ("shots", "real", "base_examples"):
        rows = torch.cat([rows_of(getattr(episode, part), base).flatten() for episode in drawn])
        assert len(rows.unique()) == sum(COUNTS)
    expected = {(1.0, 0.0, 0.0, 0.0), (0.5, 0.5, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)}
    assert {tuple(episode.shot_weights.tolist()) for episode in drawn} == expected
    assert {tuple(episode.real_weights.tolist()) for episode in drawn} == {(0.25,) * 4}


def test_a_subclass_chooses_the_meta_novel_classes_by_their_order():
    class LastClassesFirst(MetaEpisodes):
        def order_classes(self, rng):
            return torch.arange(len(COUNTS)).flip(0)

    config = config_of()
    episode = LastClassesFirst(data := data_of(config), config).draw(new_rng(0))

    assert classes_of(episode.shots, data.base)[:, 0].tolist() == [5, 4]
    assert episode.base_classes.tolist() == [3, 2, 1, 0]


def test_real_examples_may_be_the_shots_that_count():
    episode, _ = draw(real_examples="shots")

    assert torch.equal(episode.real, episode.shots)
    assert torch.equal(episode.real_weights, episode.shot_weights)


@pytest.mark.parametrize("changes", [{}, {"perplexity": None}, {"neighbours": "hard"}])
def test_similarity_is_between_shots_and_whole_meta_base_classes(changes):
    episode, data = draw(**changes)

    rows = data.base.by_class()
    whole = torch.stack([rows[label].mean(dim=0) for label in episode.base_classes])
    settings = NeighbourSettings(**{"perplexity": 2.0, "num_neighbours": 2, **changes})
    expected = similarity(episode.novel_prototypes, whole, settings)
    torch.testing.assert_close(episode.alpha, expected)


@pytest.mark.parametrize("normalisation", ["spread", "none"])
def test_features_are_normalised_to_unit_spread_or_not_at_all(normalisation):
    config, features = config_of(normalisation=normalisation), base_set().features
    data = data_of(config, with_covariances=True)

    squared = [(rows - rows.mean(dim=0)).square().sum(dim=1) for rows in data.base.by_class()]

    if normalisation == "spread":
        assert torch.cat(squared).mean().item() == pytest.approx(1)
    else:
        assert data.scale == 1
    torch.testing.assert_close(data.base.features * data.scale, features)
    torch.testing.assert_close(data.normalise(features), data.base.features)
    assert not data.is_positive
    assert data_of(config, BaseSet(features.abs(), torch.tensor(COUNTS))).is_positive
    for number, rows in enumerate(data.base.by_class()):
        covariance = torch.cov(rows.T, correction=0)
        torch.testing.assert_close(data.covariances[number], covariance)


@SAMPLINGS
@pytest.mark.parametrize("neighbours", ["soft", "hard", "none"])
def test_a_weight_is_similarity_over_the_chance_to_be_drawn(sampling, neighbours):
    """Then Σ chance · weight · f over base classes equals Σ similarity · f."""
    episode, _ = draw(sampling=sampling, neighbours=neighbours)
    alpha, (sources,) = episode.alpha, episode.sources
    is_drawable = (alpha > 0).any(dim=0)
    chances = {"shared": alpha.mean(dim=0), "uniform": is_drawable / is_drawable.sum()}[sampling]

    assert is_drawable[sources].all()
    expected = alpha[:, sources] / chances[sources]
    torch.testing.assert_close(episode.weights, expected / expected.sum(dim=1, keepdim=True))
    torch.testing.assert_close(episode.sample_weights, episode.weights)
    # In the other direction, the weights of novel classes are their similarities to the example.
    pairs = alpha[:, sources]
    torch.testing.assert_close(episode.back_weights, pairs / pairs.sum(dim=0) / 40)


@SAMPLINGS
@pytest.mark.parametrize("neighbours", ["soft", "hard"])
def test_weighted_means_estimate_the_expectation_over_similar_classes(sampling, neighbours):
    """With any sampling, the mean over translated examples is about Σ α · f."""
    num_examples = 50_000
    episode, data = draw(sampling=sampling, neighbours=neighbours, batch_size=6 + num_examples)

    examples = episode.base_examples.expand(2, -1, -1)
    weights = episode.sample_weights.unsqueeze(-1)
    estimates = (weights * examples).sum(dim=1)

    expected = episode.alpha @ data.base.prototypes[episode.base_classes]
    deviations = examples - expected.unsqueeze(1)
    standard_errors = (weights * deviations).square().sum(dim=1).sqrt()
    assert (standard_errors < 0.05).all()
    assert ((estimates - expected).abs() < 5 * standard_errors).all()


def test_a_class_without_relatives_in_the_batch_takes_any_example():
    """Eight meta-novel classes share two examples, so most have no example of their neighbour."""
    features = torch.arange(20, dtype=torch.float64).unsqueeze(1)
    base = BaseSet(features, torch.ones(20, dtype=torch.long))
    config = config_of(
        num_ways=8, episode_shots=(1,), batch_size=8 + 2, neighbours="hard", num_neighbours=1
    )

    episode = MetaEpisodes(data_of(config, base), config).draw(new_rng(0))

    has_relatives = (episode.alpha[:, episode.sources[0]] > 0).any(dim=1)
    assert not has_relatives.all()
    lonely = episode.weights[~has_relatives]
    torch.testing.assert_close(lonely, torch.full_like(lonely, 1 / 2))


@pytest.mark.parametrize("neighbours", ["soft", "hard"])
def test_weights_to_the_letter_are_similarity_over_the_number_of_related_examples(neighbours):
    settings = {"neighbours": neighbours, "perplexity": None}
    episode, _ = draw(sampling="uniform", normalised_weights=False, **settings)

    pairs = episode.alpha[:, episode.sources[0]]
    is_related = torch.ones_like(pairs) if neighbours == "soft" else (pairs > 0).double()
    assert is_related.all() == (neighbours == "soft")
    of_class = is_related / is_related.sum(dim=1, keepdim=True)
    torch.testing.assert_close(episode.sample_weights, of_class)
    torch.testing.assert_close(episode.weights, pairs * of_class)
    torch.testing.assert_close(episode.back_weights, pairs / pairs.numel())


def test_similarity_too_small_for_any_loss_is_left_out():
    """The squared distances here are far above 47, and exp(-47) is below 1e-20."""
    alpha = draw(seed=1, perplexity=None, normalisation="none")[0].alpha

    assert ((alpha == 0) | (alpha > 1e-20)).all()
    assert (alpha == 0).any()
    assert ((alpha > 0) & (alpha < 1)).any()


@SAMPLINGS
def test_scores_that_vanish_do_no_harm(sampling):
    """With features this large, printed scores are 1 for the nearest class and 0 for others."""
    config = config_of(perplexity=None, normalisation="none", sampling=sampling)
    data = data_of(config, base_set(scale=1000), dtype=torch.float32)

    episode = MetaEpisodes(data, config).draw(new_rng(0))

    assert ((episode.alpha == 0) | (episode.alpha == 1)).all()
    smallest = torch.finfo(episode.weights.dtype).tiny
    for weights in (episode.weights, episode.sample_weights, episode.back_weights):
        assert weights.isfinite().all()
        assert ((weights == 0) | (weights >= smallest)).all()  # subnormal numbers are slow on CPUs
    torch.testing.assert_close(episode.weights.sum(dim=1), torch.ones(2))
    assert episode.back_weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("bad", "message", "good"),
    [
        (
            {"num_ways": 5},
            "num_ways is 5, but can be at most 4: at least 2 of 6",
            {"num_ways": 4, "perplexity": 1.9},
        ),
        (
            {"episode_shots": (1, 5)},
            "episode_shots has 5, but the smallest base class has 4 examples",
            {"episode_shots": (1, 4)},
        ),
        ({"ky_fan_order": 4}, "is 4, but features have 3 dimensions", {"ky_fan_order": 3}),
        ({"perplexity": 4.0}, "number of base classes, 4, got 4.0", {"perplexity": 3.9}),
    ],
)
def test_settings_that_do_not_suit_the_base_classes_are_refused(bad, message, good):
    with pytest.raises(ValueError, match=message):
        check_training(config_of(**bad), torch.tensor(COUNTS), NUM_DIMS)

    config = config_of(**good)
    check_training(config, torch.tensor(COUNTS), NUM_DIMS)
    episode = MetaEpisodes(data_of(config, with_covariances=True), config).draw(new_rng(0))
    assert episode.weights.sum().isfinite()
