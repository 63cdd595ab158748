import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariances, spectra
from cpaan.gan.episodes import Episode, MetaEpisodes
from cpaan.gan.fast.pair_ops import moments
from cpaan.gan.networks import Chosen
from cpaan.gan.objectives import (
    choose_covariance_classes,
    covariance_loss,
    cycle_loss,
    prototype_loss,
)
from cpaan.gan.training_data import TrainingData
from cpaan.protocol.tasks import BaseSet

NUM_DIMS = 4
FIRST_CLASS = torch.zeros(1, 1, dtype=torch.long)
FULL_SCORE = torch.ones(1, 1, dtype=torch.float64)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed), dtype=torch.float64)


def uniform_weights(num_novel: int, num_examples: int) -> Tensor:
    return torch.full((num_novel, num_examples), 1 / num_examples, dtype=torch.float64)


def config_of(**settings) -> TrainConfig:
    small = {"num_ways": 2, "episode_shots": (2,), "batch_size": 2 * 2 + 8, "perplexity": 2.0}
    return TrainConfig(
        **{
            **small,
            "ky_fan_order": 2,
            "hidden_dim": 5,
            "noise_dim": 2,
            "num_components": 3,
            **settings,
        }
    )


def data_of(config: TrainConfig) -> TrainingData:
    """Six classes of five examples, in four dimensions."""
    features = normals(30, NUM_DIMS) + torch.arange(6).repeat_interleave(5).unsqueeze(1)
    base = BaseSet(features, torch.full((6,), 5))
    return TrainingData.prepare(base, config, with_covariances=True, dtype=torch.float64)


def loss_of_one_class(translated: Tensor, base: Spectra, ky_fan_order: int, **settings) -> Tensor:
    """Covariance loss of a single class, shape (M, D), compared with the first base class."""
    _, of_translated = moments(translated.unsqueeze(0), uniform_weights(1, len(translated)))
    config = config_of(ky_fan_order=ky_fan_order, **settings)
    return covariance_loss(of_translated, base, FIRST_CLASS, FULL_SCORE, config)


def test_a_cycle_that_restores_its_originals_costs_nothing():
    originals = normals(1, 5, NUM_DIMS)

    loss = cycle_loss(originals.expand(3, 5, NUM_DIMS), originals, uniform_weights(3, 5))

    assert loss == 0


def test_a_cycle_costs_the_weighted_squared_distance():
    restored = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]])
    originals = torch.tensor([[[0.0, 0.0], [1.0, 3.0]]])

    loss = cycle_loss(restored, originals, torch.tensor([[0.1, 0.5]]))

    assert loss.item() == pytest.approx(0.1 * 25 + 0.5 * 4)


def test_a_cycle_knows_chosen_originals_by_their_places():
    table = torch.tensor([[[0.0, 0.0], [1.0, 3.0]], [[5.0, 5.0], [6.0, 6.0]]])
    restored = torch.tensor([[[3.0, 4.0], [1.0, 1.0]], [[6.0, 6.0], [6.0, 8.0]]])
    originals = Chosen(table, torch.tensor([[0, 1], [0, 1]]))

    loss = cycle_loss(restored, originals, torch.tensor([[0.1, 0.5], [0.3, 0.2]]))

    assert loss.item() == pytest.approx(0.1 * 25 + 0.5 * 4 + 0.3 * 2 + 0.2 * 4)


def test_moving_a_base_class_leaves_its_covariance_as_it_was():
    base = normals(20, NUM_DIMS)

    loss = loss_of_one_class(base + 100.0, spectra(covariances(base).unsqueeze(0), 2), 2)

    assert loss.item() == pytest.approx(0, abs=1e-9)


def test_collapse_to_one_point_costs_the_whole_variance():
    base = normals(20, NUM_DIMS)
    collapsed = normals(1, NUM_DIMS, seed=1).expand(20, NUM_DIMS)

    of_base = spectra(covariances(base).unsqueeze(0), NUM_DIMS)
    loss = loss_of_one_class(collapsed, of_base, ky_fan_order=NUM_DIMS)

    assert loss.item() == pytest.approx(base.var(dim=0, correction=0).sum().item())


def test_a_relative_distance_is_in_units_of_the_base_covariance():
    base = normals(20, NUM_DIMS)
    collapsed = torch.zeros(20, NUM_DIMS, dtype=torch.float64)

    of_base = spectra(covariances(base).unsqueeze(0), 2)
    loss = loss_of_one_class(collapsed, of_base, ky_fan_order=2, relative_covariance=True)

    assert loss.item() == pytest.approx(1)


def test_examples_count_by_their_weights_in_a_covariance():
    """Half of the examples have no weight: what they are is of no consequence."""
    base, others = normals(20, NUM_DIMS), 50 * normals(20, NUM_DIMS, seed=1)
    weights = torch.cat([torch.full((1, 20), 1 / 20), torch.zeros(1, 20)], dim=1).double()

    _, of_translated = moments(torch.cat([base, others]).unsqueeze(0), weights)
    loss = covariance_loss(
        of_translated,
        spectra(covariances(base).unsqueeze(0), 2),
        FIRST_CLASS,
        FULL_SCORE,
        config_of(),
    )

    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_covariance_losses_are_weighted_by_scores_and_averaged_over_classes():
    base = spectra(torch.stack([torch.eye(2), 3 * torch.eye(2)]).double(), m=1)
    collapsed = torch.zeros(2, 2, 2, dtype=torch.float64)  # no covariance at all
    classes = torch.tensor([[0, 1], [1, 0]])
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.25]], dtype=torch.float64)

    loss = covariance_loss(collapsed, base, classes, scores, config_of(ky_fan_order=1))

    first, second = 0.9 * 1 + 0.1 * 3, 0.5 * 3 + 0.25 * 1
    assert loss.item() == pytest.approx((first + second) / 2)


def test_no_gradient_of_the_covariance_loss_reaches_the_base_examples():
    base = normals(20, NUM_DIMS).requires_grad_()
    translated = normals(20, NUM_DIMS, seed=1).requires_grad_()

    loss_of_one_class(translated, spectra(covariances(base).unsqueeze(0), 2), 2).backward()

    assert base.grad is None
    assert translated.grad.any()


def test_following_the_gradient_restores_the_spread():
    base, translated = normals(20, NUM_DIMS), 0.1 * normals(20, NUM_DIMS, seed=1)
    of_base = spectra(covariances(base).unsqueeze(0), 2)
    translated.requires_grad_()
    before = loss_of_one_class(translated, of_base, 2)
    before.backward()

    after = loss_of_one_class(translated.detach() - translated.grad, of_base, 2)

    assert after < before


def test_the_prototype_loss_vanishes_where_the_translated_mean_is_the_class_mean():
    class_means = normals(2, NUM_DIMS)
    deviations = normals(2, 1, NUM_DIMS, seed=1)
    around = class_means.unsqueeze(1) + torch.cat([deviations, -deviations], dim=1)

    for spread in (around, 10 * around - 9 * class_means.unsqueeze(1)):
        means, _ = moments(spread, uniform_weights(2, 2), with_covariances=False)
        loss = prototype_loss(means, class_means)
        assert loss.item() == pytest.approx(0, abs=1e-20)


def test_the_prototype_loss_is_the_squared_distance_of_means():
    translated = torch.tensor([[[0.0, 0.0], [4.0, 8.0]], [[1.0, 1.0], [1.0, 1.0]]])
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]])  # means (3, 6) and (1, 1)
    class_means = torch.tensor([[0.0, 2.0], [1.0, 2.0]])

    means, _ = moments(translated, weights, with_covariances=False)
    loss = prototype_loss(means, class_means)

    assert loss.item() == pytest.approx(((9 + 16) + 1) / 2)


ALPHA = torch.tensor([[0.15, 0.5, 0.05, 0.3], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
BASE_CLASSES = torch.tensor([5, 0, 3, 2])


def episode_of(data: TrainingData, config: TrainConfig, alpha: Tensor = ALPHA) -> Episode:
    """An episode whose similarity is known."""
    episode = MetaEpisodes(data, config).draw(new_rng(0))
    return episode._replace(
        alpha=alpha, novel_classes=torch.tensor([1, 4]), base_classes=BASE_CLASSES
    )


def chosen_classes(alpha: Tensor = ALPHA, **settings) -> tuple[Spectra, Tensor, Tensor, Tensor]:
    config = config_of(**settings)
    data = data_of(config)
    return choose_covariance_classes(
        episode_of(data, config, alpha), data.spectra, config, new_rng(1)
    )


def test_the_nearest_classes_are_those_of_most_similarity():
    _, classes, scores, left_out = chosen_classes(
        covariance_classes="nearest", num_covariance_classes=2
    )

    assert classes.tolist() == [[0, 2], [2, 3]]
    expected = torch.tensor([[0.5 / 0.8, 0.3 / 0.8], [0.4 / 0.7, 0.3 / 0.7]])
    torch.testing.assert_close(scores, expected.double())
    assert left_out.item() == pytest.approx((0.2 + 0.3) / 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"covariance_classes": "all", "num_covariance_classes": 1},
        {"covariance_classes": "nearest", "num_covariance_classes": 99},
    ],
)
def test_all_classes_count_by_their_similarity(settings):
    _, classes, scores, left_out = chosen_classes(**settings)

    assert classes.tolist() == [[0, 2, 5, 3], [2, 3, 0, 5]]
    torch.testing.assert_close(scores, ALPHA.sort(dim=1, descending=True).values)
    assert left_out.item() == pytest.approx(0)


TO_THE_LETTER = {"normalised_weights": False, "sampling": "uniform"}


def test_scores_to_the_letter_are_a_mean_over_related_classes():
    _, _, soft, _ = chosen_classes(covariance_classes="all", **TO_THE_LETTER)
    hard_alpha = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    _, _, hard, _ = chosen_classes(
        hard_alpha,
        covariance_classes="all",
        **TO_THE_LETTER,
        neighbours="hard",
        num_neighbours=2,
    )

    torch.testing.assert_close(soft, ALPHA.sort(dim=1, descending=True).values / 4)
    assert hard.tolist() == [[0.25, 0.25, 0, 0], [0.25, 0.25, 0, 0]]


def test_sampled_classes_are_drawn_by_their_similarity():
    one_each = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)

    _, classes, scores, left_out = chosen_classes(
        one_each, covariance_classes="sampled", num_covariance_classes=3
    )

    assert classes.tolist() == [[3, 3, 3], [0, 0, 0]]
    torch.testing.assert_close(scores, torch.full((2, 3), 1 / 3, dtype=torch.float64))
    assert left_out == 0


def test_sampled_classes_have_the_loss_of_all_classes_on_average():
    config = config_of(covariance_classes="sampled", num_covariance_classes=2)
    data = data_of(config)
    episode, rng = episode_of(data, config), new_rng(1)
    distances = torch.arange(6, dtype=torch.float64)  # of a base class, say

    draws = []
    for _ in range(1_000):
        _, classes, scores, _ = choose_covariance_classes(episode, data.spectra, config, rng)
        draws.append((scores * distances[classes]).sum(dim=1))
    sample = torch.stack(draws)

    expected = ALPHA @ distances[BASE_CLASSES]
    standard_errors = sample.std(dim=0) / len(sample) ** 0.5
    assert ((sample.mean(dim=0) - expected).abs() < 5 * standard_errors).all()


def test_a_mixture_is_the_mean_covariance_by_similarity():
    mixed, classes, scores, left_out = chosen_classes(covariance_classes="mixture")

    matrices = data_of(config_of()).spectra.matrices
    expected = sum(ALPHA[1, number] * matrices[each] for number, each in enumerate(BASE_CLASSES))
    torch.testing.assert_close(mixed.matrices[classes[1, 0]], expected)
    assert classes.shape == (2, 1)
    assert scores.tolist() == [[1], [1]]
    assert left_out == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_the_distance_to_a_mixture_is_at_most_the_mean_distance(seed, spread):
    """A norm is convex: this is another loss than the paper's, and a smaller one."""
    of_translated = covariances(spread * normals(2, 20, NUM_DIMS, seed=seed))

    losses = {}
    for kind in ("mixture", "all"):
        base, classes, scores, _ = chosen_classes(covariance_classes=kind)
        losses[kind] = covariance_loss(of_translated, base, classes, scores, config_of())

    assert 0 < losses["mixture"] <= losses["all"] + 1e-12
    assert spread == 0 or losses["mixture"] < 0.999 * losses["all"]


def test_a_relative_distance_to_a_class_without_covariance_is_a_number():
    matrices = torch.stack([torch.eye(3), torch.zeros(3, 3)]).double()

    loss = covariance_loss(
        torch.zeros(1, 3, 3, dtype=torch.float64),
        spectra(matrices, 2),
        torch.tensor([[0, 1]]),
        torch.tensor([[0.5, 0.5]], dtype=torch.float64),
        TrainConfig(ky_fan_order=2, relative_covariance=True),
    )

    # The identity's own norm, relative to itself; nothing is as far from nothing as it is from it.
    assert loss.item() == pytest.approx(0.5)
