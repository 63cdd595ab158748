"""Test terms by hand, their sums, and the networks that their gradients reach.

`tests/bench` compares all terms with the plain definition.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariance_distances, covariances, spectra
from cpaan.gan.episodes import Episode, MetaEpisodes
from cpaan.gan.fast.pair_ops import moments
from cpaan.gan.gans import GANS, Networks, Translations
from cpaan.gan.objectives import (
    Terms,
    choose_covariance_classes,
    discriminator_terms,
    generator_weights,
    moment_terms,
    objective,
    pair_terms,
)
from helpers.gan_runs import tiny_config, tiny_data
from helpers.tasks import normals

NUM_DIMS = 4
FIRST_CLASS = torch.zeros(1, 1, dtype=torch.long)


def play(name: str = "cCov-GAN", **settings) -> tuple[Networks, Episode, Translations, Terms]:
    """Draw and translate one episode, and compute the generators' terms."""
    config = tiny_config(**settings)
    data, gan, rng = tiny_data(config), GANS[name], new_rng(1)
    networks = Networks(gan, data, config, new_rng(0))
    episode = MetaEpisodes(data, config).draw(rng)
    moved = networks.translate(episode, rng)
    terms = moment_terms(gan, episode, moved, data, config)
    terms |= pair_terms(gan, networks, episode, moved, config, rng)
    return networks, episode, moved, terms


def test_objectives_are_the_papers_sums():
    names = ["novel_adversarial", "base_adversarial", "novel_cycle", "base_cycle", "covariance"]
    terms = dict(zip([*names, "prototype"], torch.tensor([1, 10, 100, 20, 1000, 7]), strict=True))

    assert (
        objective(terms, generator_weights(TrainConfig.as_printed())) == 11 + 5 * 120 + 0.5 * 1000
    )
    assert objective(terms, generator_weights(TrainConfig())) == 11 + 5 * 120 + 0.5 * 1000 + 10 * 7


def test_discriminators_send_no_gradient_to_generators():
    networks, episode, moved, _ = play()

    sum(discriminator_terms(networks, episode, moved).values()).backward()

    assert all(parameter.grad is None for parameter in networks.generator_parameters())
    assert all(parameter.grad is not None for parameter in networks.discriminator_parameters())


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_cycle_ends_at_the_example_that_it_began_with(residual):
    """If G_b is off by a constant vector, both cycle terms are its squared norm."""
    networks, episode, _, terms = play(residual=residual)
    assert terms["novel_cycle"].item() == pytest.approx(0, abs=1e-20)
    assert terms["base_cycle"].item() == pytest.approx(0, abs=1e-20)
    gap = torch.tensor([0.1, -0.2, 0.3, 0.0, 0.0], dtype=torch.float64)
    networks.novel_to_base.last.bias.data = gap

    rng, config = new_rng(2), tiny_config(residual=residual)
    moved = networks.translate(episode, rng)
    terms = pair_terms(GANS["cCov-GAN"], networks, episode, moved, config, rng)

    for term in ("novel_cycle", "base_cycle"):  # weights sum to one; mean over classes
        assert terms[term].item() == pytest.approx(gap.square().sum().item())


def distance_of_one_class(translated: Tensor, base: Spectra) -> float:
    """Return the distance of one class's covariance, shape (M, D), to that of the base class."""
    weights = torch.full((1, len(translated)), 1 / len(translated), dtype=torch.float64)
    _, of_translated = moments(translated.unsqueeze(0), weights)
    return covariance_distances(base, FIRST_CLASS, of_translated, NUM_DIMS).item()


def test_moving_a_class_costs_nothing_and_collapse_the_whole_variance():
    base = normals(20, NUM_DIMS).double()
    of_base = spectra(covariances(base).unsqueeze(0), NUM_DIMS)
    collapsed = normals(1, NUM_DIMS, seed=1).double().expand(20, NUM_DIMS)

    assert distance_of_one_class(base + 100.0, of_base) == pytest.approx(0, abs=1e-9)
    variance = base.var(dim=0, correction=0).sum().item()
    assert distance_of_one_class(collapsed, of_base) == pytest.approx(variance)


ALPHA = torch.tensor([[0.15, 0.5, 0.05, 0.3], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
HARD_ALPHA = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
BY_SCORE = ALPHA.sort(dim=1, descending=True).values
LETTER = {"covariance_classes": "all", "normalised_weights": False, "sampling": "uniform"}


@pytest.mark.parametrize(
    ("alpha", "settings", "classes", "scores", "left_out"),
    [
        (
            ALPHA,
            {"num_covariance_classes": 2},
            [[0, 2], [2, 3]],
            [[0.5 / 0.8, 0.3 / 0.8], [0.4 / 0.7, 0.3 / 0.7]],
            (0.2 + 0.3) / 2,
        ),
        (ALPHA, {"num_covariance_classes": 99}, [[0, 2, 5, 3], [2, 3, 0, 5]], BY_SCORE, 0),
        (ALPHA, {"covariance_classes": "all"}, [[0, 2, 5, 3], [2, 3, 0, 5]], BY_SCORE, 0),
        (ALPHA, LETTER, [[0, 2, 5, 3], [2, 3, 0, 5]], BY_SCORE / 4, 0),
        (
            HARD_ALPHA,
            {**LETTER, "neighbours": "hard", "num_neighbours": 2},
            None,
            [[0.25, 0.25, 0, 0], [0.25, 0.25, 0, 0]],
            0,
        ),
    ],
    ids=["nearest", "more than there are", "all", "to the letter", "hard, to the letter"],
)
def test_classes_are_compared_by_their_similarity(alpha, settings, classes, scores, left_out):
    episode = SimpleNamespace(alpha=alpha, base_classes=torch.tensor([5, 0, 3, 2]))

    chosen, found, ignored = choose_covariance_classes(episode, tiny_config(**settings))

    assert classes is None or chosen.tolist() == classes  # any of equal ones
    torch.testing.assert_close(found, torch.as_tensor(scores, dtype=torch.float64))
    assert ignored.item() == pytest.approx(left_out)
