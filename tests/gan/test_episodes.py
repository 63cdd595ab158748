"""What an episode holds, how its pairs are weighed, and which settings suit the base classes."""

import math

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import (
    Episode,
    MetaEpisodes,
    TrainingData,
    check_training,
    draw_shares,
    importance,
)
from cpaan.protocol.config import NeighbourSettings
from cpaan.protocol.neighbours import similarity
from cpaan.protocol.tasks import BaseSet

COUNTS = [4, 6, 5, 7, 4, 5]  # examples of the base classes
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
SEEDS = pytest.mark.parametrize("seed", range(5))


def base_set() -> BaseSet:
    """Classes about (0, 0, 0), (3, 3, 3), (6, 6, 6), ...; no example is there twice."""
    rng = torch.Generator().manual_seed(0)
    means = 3 * torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS)).unsqueeze(1)
    features = means + 2 * torch.randn(sum(COUNTS), NUM_DIMS, generator=rng, dtype=torch.float64)
    return BaseSet(features, torch.tensor(COUNTS))


def config_of(**settings) -> TrainConfig:
    return TrainConfig(**{**SMALL, **settings})


def data_of(config: TrainConfig, *, with_covariances: bool = False) -> TrainingData:
    return TrainingData.prepare(
        base_set(), config, with_covariances=with_covariances, dtype=torch.float64
    )


def draw_many(count: int, **settings) -> tuple[list[Episode], TrainingData]:
    config = config_of(**settings)
    data, rng = data_of(config), new_rng(0)
    episodes = MetaEpisodes(data, config)
    return [episodes.draw(rng) for _ in range(count)], data


def draw(seed: int = 0, **settings) -> tuple[Episode, TrainingData]:
    config = config_of(**settings)
    data = data_of(config)
    return MetaEpisodes(data, config).draw(new_rng(seed)), data


def rows_of(examples: Tensor, base: BaseSet) -> Tensor:
    """The row that each example, shape (..., D), is equal to."""
    is_equal = (examples.unsqueeze(-2) == base.features).all(dim=-1)
    assert (is_equal.sum(dim=-1) == 1).all()
    return is_equal.long().argmax(dim=-1)


def classes_of(examples: Tensor, base: BaseSet) -> Tensor:
    return torch.arange(len(COUNTS)).repeat_interleave(base.counts)[rows_of(examples, base)]


@SEEDS
def test_shots_are_different_examples_of_meta_novel_classes_and_the_others_are_meta_base(seed):
    episode, data = draw(seed, episode_shots=(1, 4))  # all examples of the smallest classes

    assert episode.shots.shape == (2, 4, NUM_DIMS)
    together = torch.cat([episode.novel_classes, episode.base_classes])
    assert sorted(together.tolist()) == list(range(len(COUNTS)))
    own = episode.novel_classes.unsqueeze(1).expand(2, 4)
    assert torch.equal(classes_of(episode.shots, data.base), own)
    for rows in rows_of(episode.shots, data.base):
        assert len(rows.unique()) == 4


def test_every_class_and_every_example_has_its_turn():
    drawn, data = draw_many(200)

    novel = torch.cat([episode.novel_classes for episode in drawn])
    shots, real = (
        torch.cat([rows_of(getattr(each, part), data.base).flatten() for each in drawn])
        for part in ("shots", "real")
    )
    assert set(novel.tolist()) == set(range(len(COUNTS)))
    assert len(shots.unique()) == len(real.unique()) == sum(COUNTS)
    assert (real != shots).any()


def test_only_the_first_shots_count():
    drawn, _ = draw_many(30, episode_shots=(1, 3, 2))

    expected = {(1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (1 / 3, 1 / 3, 1 / 3)}
    assert {tuple(episode.shot_weights.tolist()) for episode in drawn} == expected


@SEEDS
def test_prototypes_and_partners_are_of_the_shots_that_count(seed):
    episode, data = draw(seed)

    num_shots = int((episode.shot_weights > 0).sum())
    torch.testing.assert_close(episode.novel_prototypes, episode.shots[:, :num_shots].mean(dim=1))
    whole = torch.stack([data.base.by_class()[each].mean(dim=0) for each in episode.novel_classes])
    torch.testing.assert_close(episode.class_means, whole)
    assert episode.partners.shape == (2, 40)
    for partners in episode.partners:
        assert set(partners.tolist()) == set(range(num_shots))


@pytest.mark.parametrize("changes", [{}, {"perplexity": None}, {"neighbours": "hard"}])
def test_similarity_is_between_shots_and_whole_meta_base_classes(changes):
    episode, data = draw(**changes)

    whole = torch.stack([data.base.by_class()[each].mean(dim=0) for each in episode.base_classes])
    settings = NeighbourSettings(**{"perplexity": 2.0, "num_neighbours": 2, **changes})
    expected = similarity(episode.novel_prototypes, whole, settings)
    torch.testing.assert_close(episode.alpha, expected)


def test_real_examples_are_of_the_meta_novel_classes_or_the_shots_that_count():
    of_class, data = draw(real_examples="class")
    of_shots, _ = draw(real_examples="shots")

    own = of_class.novel_classes.unsqueeze(1).expand(2, 3)
    assert torch.equal(classes_of(of_class.real, data.base), own)
    assert of_class.real_weights.sum().item() == pytest.approx(1)
    assert torch.equal(of_shots.real, of_shots.shots)
    assert torch.equal(of_shots.real_weights, of_shots.shot_weights)


@SAMPLINGS
def test_base_examples_are_of_their_source_class(sampling):
    episode, data = draw(sampling=sampling)

    assert episode.base_examples.shape == (1, 40, NUM_DIMS)
    sources = episode.base_classes[episode.sources]
    assert torch.equal(classes_of(episode.base_examples, data.base), sources)
    assert len(rows_of(episode.base_examples, data.base).unique()) > 5


@pytest.mark.parametrize("normalisation", ["spread", "none"])
def test_features_are_normalised_to_unit_spread_or_not_at_all(normalisation):
    data, features = data_of(config_of(normalisation=normalisation)), base_set().features

    squared = [(rows - rows.mean(dim=0)).square().sum(dim=1) for rows in data.base.by_class()]

    if normalisation == "spread":
        assert torch.cat(squared).mean().item() == pytest.approx(1)
    else:
        assert data.scale == 1
    torch.testing.assert_close(data.base.features * data.scale, features)
    torch.testing.assert_close(data.normalise(features), data.base.features)


def test_prototypes_and_covariances_are_of_normalised_examples():
    data = data_of(config_of(), with_covariances=True)

    for number, rows in enumerate(data.base.by_class()):
        torch.testing.assert_close(data.base.prototypes[number], rows.mean(dim=0))
        covariance = torch.cov(rows.T, correction=0)
        torch.testing.assert_close(data.spectra.matrices[number], covariance)
        largest_two = torch.linalg.eigvalsh(covariance)[-2:].sum()
        torch.testing.assert_close(data.spectra.norms[number], largest_two)
    assert data_of(config_of()).spectra is None


@pytest.mark.parametrize(("lowest", "is_positive"), [(0.0, True), (-0.1, False)])
def test_features_are_positive_where_none_is_negative(lowest, is_positive):
    base = BaseSet(torch.tensor([[1.0], [lowest], [2.0]]), torch.tensor([2, 1]))

    data = TrainingData.prepare(base, config_of(), with_covariances=False)

    assert data.is_positive == is_positive


@SAMPLINGS
@pytest.mark.parametrize("neighbours", ["soft", "hard", "none"])
def test_a_weight_is_similarity_over_the_chance_to_be_drawn(sampling, neighbours):
    """So the sum over base classes of chance times weight times f is that of similarity times f."""
    episode, _ = draw(sampling=sampling, neighbours=neighbours)
    alpha, (sources,) = episode.alpha, episode.sources
    is_drawable = (alpha > 0).any(dim=0)
    chances = {"shared": alpha.mean(dim=0), "uniform": is_drawable / is_drawable.sum()}[sampling]

    expected = alpha[:, sources] / chances[sources]
    torch.testing.assert_close(episode.weights, expected / expected.sum(dim=1, keepdim=True))
    torch.testing.assert_close(episode.sample_weights, episode.weights)
    # In the other direction, a base example's novel classes count by their similarity to it.
    pairs = alpha[:, sources]
    torch.testing.assert_close(episode.back_weights, pairs / pairs.sum(dim=0) / 40)


@SAMPLINGS
def test_every_sampling_with_its_weights_has_the_expectation_of_the_uniform_form(sampling):
    """Summed over all base classes: uniform draws weighted by C times similarity are the form."""
    alpha = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64)
    loss = torch.tensor([3.0, 5.0, 11.0], dtype=torch.float64)  # of an example of each class

    share = draw_shares(alpha, alpha > 0, sampling).expand_as(alpha)
    expectation = (share * importance(alpha, share) * loss).sum(dim=1)

    uniform_form = (1 / 3 * (3 * alpha) * loss).sum(dim=1)
    torch.testing.assert_close(expectation, uniform_form)


@SAMPLINGS
@pytest.mark.parametrize("neighbours", ["soft", "hard"])
def test_weighted_means_estimate_the_expectation_over_similar_classes(sampling, neighbours):
    """Whatever the sampling, a mean of translated examples is about the sum of α times f."""
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
    """Eight meta-novel classes share two examples, so most find none of their only relative."""
    features = torch.arange(20, dtype=torch.float64).unsqueeze(1)
    base = BaseSet(features, torch.ones(20, dtype=torch.long))
    config = config_of(
        num_ways=8, episode_shots=(1,), batch_size=8 + 2, neighbours="hard", num_neighbours=1
    )
    data = TrainingData.prepare(base, config, with_covariances=False, dtype=torch.float64)

    episode = MetaEpisodes(data, config).draw(new_rng(0))

    has_relatives = (episode.alpha[:, episode.sources[0]] > 0).any(dim=1)
    assert not has_relatives.all()
    lonely = episode.weights[~has_relatives]
    torch.testing.assert_close(lonely, torch.full_like(lonely, 1 / 2))


def test_weights_to_the_letter_are_similarity_over_the_number_of_examples():
    episode, _ = draw(sampling="uniform", normalised_weights=False, perplexity=None)

    pairs = episode.alpha[:, episode.sources[0]]
    torch.testing.assert_close(episode.weights, pairs / 40)
    torch.testing.assert_close(episode.sample_weights, torch.full_like(pairs, 1 / 40))
    torch.testing.assert_close(episode.back_weights, pairs / pairs.numel())


def test_hard_weights_to_the_letter_are_over_the_examples_of_related_classes():
    episode, _ = draw(sampling="uniform", normalised_weights=False, neighbours="hard")

    is_related = episode.alpha[:, episode.sources[0]] > 0
    assert not is_related.all()
    num_related = is_related.sum(dim=1, keepdim=True)
    torch.testing.assert_close(episode.sample_weights, is_related / num_related.double())
    torch.testing.assert_close(episode.weights, 0.5 * episode.sample_weights)


@pytest.mark.parametrize(
    ("sampling", "normalised_weights"), [("shared", True), ("uniform", True), ("uniform", False)]
)
def test_hard_neighbours_are_the_only_classes_to_be_drawn(sampling, normalised_weights):
    settings = {"sampling": sampling, "normalised_weights": normalised_weights}
    episode, _ = draw(**settings, neighbours="hard", num_neighbours=1)

    is_related = (episode.alpha > 0).any(dim=0)
    assert not is_related.all()
    assert is_related[episode.sources].all()


def test_similarity_too_small_for_any_loss_is_left_out():
    """exp(-47) is less: squared distances between these classes are larger than that by far."""
    episode, _ = draw(seed=1, perplexity=None, normalisation="none")

    assert ((episode.alpha == 0) | (episode.alpha > 1e-20)).all()
    assert (episode.alpha == 0).any()
    assert ((episode.alpha > 0) & (episode.alpha < 1)).any()


@SAMPLINGS
def test_scores_that_vanish_do_no_harm(sampling):
    """Printed scores of features as large as these are 1 for the nearest class and else 0."""
    base = base_set()
    base = BaseSet(1000 * base.features, base.counts)
    config = config_of(perplexity=None, normalisation="none", sampling=sampling)
    data = TrainingData.prepare(base, config, with_covariances=False)

    episode = MetaEpisodes(data, config).draw(new_rng(0))

    assert ((episode.alpha == 0) | (episode.alpha == 1)).all()
    smallest = torch.finfo(episode.weights.dtype).tiny
    for weights in (episode.weights, episode.sample_weights, episode.back_weights):
        assert weights.isfinite().all()
        assert ((weights == 0) | (weights >= smallest)).all()  # a CPU is slow with subnormal ones
    torch.testing.assert_close(episode.weights.sum(dim=1), torch.ones(2))
    assert episode.back_weights.sum().item() == pytest.approx(1)


@SAMPLINGS
def test_equal_rng_states_give_equal_episodes(sampling):
    config = config_of(sampling=sampling)
    episodes = MetaEpisodes(data_of(config), config)
    episodes.draw(new_rng(7))  # an earlier draw leaves no trace

    first, second = episodes.draw(new_rng(3)), episodes.draw(new_rng(3))

    assert all(map(torch.equal, first, second))
    assert not torch.equal(first.base_examples, episodes.draw(new_rng(4)).base_examples)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_ways": 5}, "num_ways is 5, but of 6 base classes at least 2"),
        ({"episode_shots": (1, 5)}, "go up to 5, but the smallest base class has 4 examples"),
        ({"ky_fan_order": 4}, "ky_fan_order is 4, but features have 3 dimensions"),
        (
            {"neighbours": "hard", "num_neighbours": 5},
            "num_neighbours is 5, but there are 4 base classes",
        ),
        ({"perplexity": 4.0}, "number of base classes, 4, got 4.0"),
        # These just suit.
        ({"num_ways": 4, "perplexity": 1.9}, None),
        ({"episode_shots": (1, 4)}, None),
        ({"ky_fan_order": 3}, None),
        ({"neighbours": "hard", "num_neighbours": 4}, None),
        ({"perplexity": 3.9}, None),
        ({"perplexity": None}, None),
    ],
)
def test_settings_that_do_not_suit_the_base_classes_are_refused(settings, message):
    config = config_of(**settings)
    if message is not None:
        with pytest.raises(ValueError, match=message):
            check_training(config, torch.tensor(COUNTS), NUM_DIMS)
        return

    check_training(config, torch.tensor(COUNTS), NUM_DIMS)
    episode = MetaEpisodes(data_of(config, with_covariances=True), config).draw(new_rng(0))
    assert math.isfinite(episode.weights.sum())
