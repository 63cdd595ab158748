"""Test terms by hand, their sums, and the networks that their gradients reach."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariances
from cpaan.gan.episodes import Direction, Episode, MetaEpisodes
from cpaan.gan.gans import GANS, Networks, Translations
from cpaan.gan.objectives import (
    Terms,
    adversarial_loss,
    choose_covariance_classes,
    covariance_terms,
    cycle_loss,
    discriminator_loss,
    discriminator_terms,
    generator_terms,
    generator_weights,
    objective,
    prototype_loss,
)
from helpers.gan_runs import tiny_config, tiny_data
from helpers.tasks import normals

NUM_DIMS = 4


def play(name: str = "cCov-GAN", **settings) -> tuple[Networks, Episode, Translations, Terms]:
    """Draw and translate one episode, and compute the generators' terms."""
    config = tiny_config(**settings)
    data, gan, rng = tiny_data(config), GANS[name], new_rng(1)
    networks = Networks(gan, data, config, new_rng(0))
    episode = MetaEpisodes(data, config).draw(rng)
    pairs = networks.translate(episode, rng)
    spectra = Spectra.prepare(data.covariances, config.ky_fan_order)
    terms = generator_terms(networks, episode, pairs, spectra, config, rng)
    return networks, episode, pairs, terms


def test_objectives_are_the_papers_sums():
    names = ["novel_adversarial", "base_adversarial", "novel_cycle", "base_cycle", "covariance"]
    terms = dict(zip([*names, "prototype"], torch.tensor([1, 10, 100, 20, 1000, 7]), strict=True))

    assert (
        objective(terms, generator_weights(TrainConfig.as_printed())) == 11 + 5 * 120 + 0.5 * 1000
    )
    assert objective(terms, generator_weights(TrainConfig())) == 11 + 5 * 120 + 0.5 * 1000 + 10 * 7


@pytest.mark.parametrize(
    ("name", "settings", "others"),
    [
        ("c-GAN", {}, set()),
        ("cCyc-GAN", {}, {"base_adversarial", "novel_cycle", "base_cycle"}),
        ("cCyc-GAN", {"cycle_weight": 0.0}, {"base_adversarial"}),
        ("cCov-GAN", {"adversarial_weight": 0.0}, {"novel_cycle", "base_cycle", "covariance"}),
        ("cCov-GAN", {"covariance_weight": 0.0}, {"base_adversarial", "novel_cycle", "base_cycle"}),
    ],
)
def test_each_gan_has_the_terms_of_the_paper(name, settings, others):
    *_, terms = play(name, prototype_weight=0.0, **settings)

    wanted = others if "adversarial_weight" in settings else {"novel_adversarial", *others}
    assert terms.keys() - {"similarity_left_out"} == wanted


PROBABILITIES = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.1, 0.7]])
"""Answers of a discriminator to three rows: two classes, and last "fake"."""


def direction_of_two_pairs() -> Direction:
    """Return one novel class, the second of two, and two examples that are translated to it."""
    rows = torch.zeros(1, 2, 1)
    return Direction(
        examples=rows,
        source=rows,
        target=rows[:, :1],
        labels=torch.tensor([[1]]),
        weights=torch.tensor([[0.25, 0.75]]),
        real=torch.zeros(1, 1),
        real_labels=torch.tensor([0]),
        real_weights=torch.tensor([1.0]),
        prototypes=torch.zeros(2, 1),
        is_present=torch.ones(2, dtype=torch.bool),
    )


def answer(rows: Tensor, prototypes: Tensor, is_present: Tensor) -> Tensor:
    """Return the last of the known answers: those to translations follow that to a real example."""
    return PROBABILITIES[-len(rows) :].log()


def test_a_discriminator_learns_classes_of_real_examples_and_that_translations_are_fake():
    loss = discriminator_loss(answer, direction_of_two_pairs(), torch.zeros(1, 2, 1))

    expected = torch.tensor([0.5, 0.3**0.25, 0.7**0.75]).log().sum()
    torch.testing.assert_close(loss, -expected)


@pytest.mark.parametrize(
    ("generator_loss", "factors"),
    [("class-directed", [1 / 0.6**0.25, 1 / 0.1**0.75]), ("minimax", [0.3**0.25, 0.7**0.75])],
)
def test_a_generator_wants_its_class_as_the_answer_or_in_the_formula_not_fake(
    generator_loss, factors
):
    config = TrainConfig(generator_loss=generator_loss)

    loss = adversarial_loss(answer, direction_of_two_pairs(), torch.zeros(1, 2, 1), config)

    torch.testing.assert_close(loss, torch.tensor(factors).log().sum())


def test_a_cycle_weights_squared_distances_to_the_examples():
    direction = direction_of_two_pairs()._replace(examples=torch.tensor([[[1.0], [2.0]]]))

    def back(translated, source, target, noise):
        return translated + 1

    loss = cycle_loss(back, direction, torch.tensor([[[2.0], [5.0]]]), None, direction.weights)

    assert loss.item() == 0.25 * (2 + 1 - 1) ** 2 + 0.75 * (5 + 1 - 2) ** 2


def test_directions_pair_every_base_example_with_every_novel_class():
    _, episode, _, _ = play()
    novel, base = episode.to_novel(), episode.to_base()
    (num_novel, num_examples), sources = episode.weights.shape, episode.sources.squeeze(0)

    for n in range(num_novel):
        for m in range(num_examples):
            shot = episode.shots[n, episode.partners[n, m]]
            assert torch.equal(base.examples[n, m], shot)
            assert torch.equal(novel.examples[0, m], episode.base_examples[0, m])
            assert torch.equal(novel.target[n, 0], episode.novel_prototypes[n])
            assert torch.equal(base.target[0, m], episode.base_prototypes[sources[m]])
    assert torch.equal(novel.source, base.target)
    assert torch.equal(base.source, novel.target)
    assert novel.labels.flatten().tolist() == list(range(num_novel))
    assert base.labels.tolist() == [sources.tolist()]
    assert base.is_present.nonzero().flatten().tolist() == sources.unique().tolist()
    for side in (novel, base):
        assert len(side.real) == len(side.real_labels) == len(side.real_weights)
        assert side.real_weights.sum().item() == pytest.approx(1)
        assert side.weights.sum().item() == pytest.approx(1)
    assert torch.equal(base.real[3], episode.base_examples[0, 3])
    assert base.real_labels[3] == sources[3]
    assert torch.equal(novel.real[-1], episode.real[-1, -1])
    assert novel.real_labels[-1] == num_novel - 1


def test_discriminators_send_no_gradient_to_generators():
    networks, _, pairs, _ = play()

    sum(discriminator_terms(networks, pairs).values()).backward()

    assert all(parameter.grad is None for parameter in networks.generator_parameters())
    assert all(parameter.grad is not None for parameter in networks.discriminator_parameters())


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_cycle_ends_at_the_example_that_it_began_with(residual):
    """If G_b is off by a constant vector, both cycle terms are its squared norm."""
    networks, episode, _, terms = play(residual=residual, covariance_weight=0.0)
    assert terms["novel_cycle"].item() == pytest.approx(0, abs=1e-20)
    assert terms["base_cycle"].item() == pytest.approx(0, abs=1e-20)
    gap = torch.tensor([0.1, -0.2, 0.3, 0.0, 0.0], dtype=torch.float64)
    networks.novel_to_base.last.bias.data = gap

    rng, config = new_rng(2), tiny_config(residual=residual, covariance_weight=0.0)
    pairs = networks.translate(episode, rng)
    terms = generator_terms(networks, episode, pairs, None, config, rng)

    for term in ("novel_cycle", "base_cycle"):  # weights sum to one; mean over classes
        assert terms[term].item() == pytest.approx(gap.square().sum().item())


def test_the_covariance_term_is_a_mean_over_novel_classes_weighted_by_similarity():
    base, other = (covariances(normals(3, 30, NUM_DIMS, seed=seed).double()) for seed in (1, 2))
    alpha = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    episode = SimpleNamespace(alpha=alpha, base_classes=torch.arange(3))
    config = tiny_config(covariance_classes="all", ky_fan_order=2)

    terms = covariance_terms(other[:2], episode, Spectra.prepare(base, 2), config)

    expected = sum(
        alpha[n, b] * torch.linalg.svdvals(base[b] - other[n])[:2].sum() / 2
        for n in range(2)
        for b in range(3)
    )
    torch.testing.assert_close(terms["covariance"], expected)


def test_the_prototype_term_compares_weighted_means_with_whole_classes():
    translated = torch.tensor([[[0.0], [4.0]], [[1.0], [3.0]]])
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    episode = SimpleNamespace(sample_weights=weights, class_means=torch.tensor([[1.0], [5.0]]))

    assert prototype_loss(translated, episode).item() == ((3 - 1) ** 2 + (2 - 5) ** 2) / 2


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

    nearest, weights, ignored = choose_covariance_classes(episode, tiny_config(**settings))

    assert classes is None or nearest.tolist() == classes  # any of equal ones
    torch.testing.assert_close(weights, torch.as_tensor(scores, dtype=torch.float64))
    assert ignored.item() == pytest.approx(left_out)
