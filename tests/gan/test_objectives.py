"""Every term by hand, the sums of them, and which networks its gradients reach."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariances, spectra
from cpaan.gan.episodes import Episode, MetaEpisodes
from cpaan.gan.fast.pair_ops import moments
from cpaan.gan.gans import GANS, Networks, Translations
from cpaan.gan.networks import Answers, Chosen, Discriminator
from cpaan.gan.objectives import (
    Terms,
    adversarial_loss,
    choose_covariance_classes,
    covariance_loss,
    cycle_loss,
    discriminator_terms,
    generator_objective,
    moment_terms,
    pair_terms,
    prototype_loss,
)
from helpers.gan_runs import tiny_config, tiny_data

NUM_DIMS = 4
FIRST_CLASS = torch.zeros(1, 1, dtype=torch.long)
FULL_SCORE = torch.ones(1, 1, dtype=torch.float64)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed), dtype=torch.float64)


def play(name: str = "cCov-GAN", **settings) -> tuple[Networks, Episode, Translations, Terms]:
    """Draw one episode and translate it; return also the generators' terms."""
    config = tiny_config(**settings)
    data, gan, rng = tiny_data(config), GANS[name], new_rng(1)
    networks = Networks(gan, data, config, new_rng(0), has_reverse_generator=gan.has_cycle)
    episode = MetaEpisodes(data, config).draw(rng)
    moved = networks.translate(episode, rng)
    terms = moment_terms(gan, episode, moved, data, config)
    terms |= pair_terms(gan, networks, episode, moved, config, rng)
    return networks, episode, moved, terms


def test_objectives_are_the_papers_sums():
    terms = {
        "novel_adversarial": torch.tensor(1.0),
        "base_adversarial": torch.tensor(10.0),
        "novel_cycle": torch.tensor(100.0),
        "base_cycle": torch.tensor(20.0),
        "covariance": torch.tensor(1000.0),
        "prototype": torch.tensor(7.0),
    }

    total = generator_objective(terms, TrainConfig.as_printed())

    assert total == 1 + 10 + 5 * (100 + 20) + 0.5 * 1000


def test_discriminators_send_no_gradient_to_generators():
    networks, episode, moved, _ = play()

    sum(discriminator_terms(networks, episode, moved).values()).backward()

    assert all(parameter.grad is None for parameter in networks.generator_parameters())
    assert all(parameter.grad is not None for parameter in networks.discriminator_parameters())


@pytest.mark.parametrize(
    ("term", "reached"),
    [
        ("novel_adversarial", {"base_to_novel"}),
        ("base_adversarial", {"novel_to_base", "noise"}),
        ("novel_cycle", {"base_to_novel", "novel_to_base", "noise"}),
        ("base_cycle", {"base_to_novel", "novel_to_base", "noise"}),
        ("covariance", {"base_to_novel"}),
        ("prototype", {"base_to_novel"}),
    ],
)
def test_each_term_teaches_the_generators_it_is_about(term, reached):
    networks, _, _, terms = play(noise="mixture", residual="none")

    terms[term].backward()

    for name in ("base_to_novel", "novel_to_base", "noise"):
        gradients = [parameter.grad for parameter in getattr(networks, name).parameters()]
        has_gradient = any(g is not None and g.abs().sum() > 0 for g in gradients)
        assert has_gradient == (name in reached), name


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_cycle_ends_at_the_example_that_it_began_with(residual):
    """Where G_b misses by the same vector everywhere, both cycles cost its square."""
    networks, episode, _, terms = play(residual=residual)
    assert terms["novel_cycle"].item() == pytest.approx(0, abs=1e-20)
    assert terms["base_cycle"].item() == pytest.approx(0, abs=1e-20)
    gap = torch.tensor([0.1, -0.2, 0.3, 0.0, 0.0], dtype=torch.float64)
    networks.novel_to_base.last.bias.data = gap

    rng, config = new_rng(2), tiny_config(residual=residual)
    moved = networks.translate(episode, rng)
    terms = pair_terms(GANS["cCov-GAN"], networks, episode, moved, config, rng)

    for term in ("novel_cycle", "base_cycle"):  # weights sum to one, over a mean of classes
        assert terms[term].item() == pytest.approx(gap.square().sum().item())


def of_novel(networks: Networks, episode: Episode, examples: Tensor) -> Tensor:
    """Log-probabilities of D_n, shape (..., answers)."""
    return said_by(networks.novel_discriminator, networks.novel_answers(episode), examples)


def of_base(networks: Networks, episode: Episode, examples: Tensor) -> Tensor:
    return said_by(networks.base_discriminator, networks.base_answers(episode), examples)


def said_by(discriminator: Discriminator, answers: Answers, examples: Tensor) -> Tensor:
    logits = discriminator.embed_examples(examples) @ answers.keys.T + answers.biases
    return logits.log_softmax(dim=-1).unflatten(0, examples.shape[:-1])


def test_every_translation_is_aimed_at_its_own_class():
    networks, episode, moved, terms = play(residual="none")
    to_novel = of_novel(networks, episode, moved.translated)
    to_base = of_base(networks, episode, moved.returned)

    novel_loss = base_loss = 0.0
    for novel in range(2):
        for example, source in enumerate(episode.sources[0]):
            weight = episode.weights[novel, example] / 2
            novel_loss -= weight * to_novel[novel, example, novel]
            base_loss -= episode.back_weights[novel, example] * to_base[novel, example, source]

    torch.testing.assert_close(terms["novel_adversarial"], novel_loss)
    torch.testing.assert_close(terms["base_adversarial"], base_loss)


def test_discriminators_learn_classes_of_real_examples_and_fake_of_translated_ones():
    networks, episode, moved, _ = play(residual="none")
    terms = discriminator_terms(networks, episode, moved)
    novel_real = of_novel(networks, episode, episode.real)
    base_real = of_base(networks, episode, episode.base_examples)
    novel_fake = of_novel(networks, episode, moved.translated)[..., -1]
    base_fake = of_base(networks, episode, moved.returned)[..., -1]

    novel_loss = -(episode.weights * novel_fake).sum() / 2
    base_loss = -(episode.back_weights * base_fake).sum()
    for novel in range(2):
        novel_loss -= (episode.real_weights * novel_real[novel, :, novel]).sum() / 2
    for example, source in enumerate(episode.sources[0]):
        base_loss -= base_real[0, example, source] / episode.sources.shape[1]

    torch.testing.assert_close(terms["novel_discriminator"], novel_loss)
    torch.testing.assert_close(terms["base_discriminator"], base_loss)


class Parrot(Discriminator):
    """A discriminator whose logits are the examples themselves: their last is "fake"."""

    def __init__(self) -> None:
        super().__init__(1, tiny_config(), new_rng(0))

    def embed_examples(self, examples: Tensor) -> Tensor:
        return examples.flatten(0, -2)


def parroted(num_answers: int) -> Answers:
    return Answers(torch.eye(num_answers), torch.zeros(num_answers), num_answers - 1)


def generator_loss(logits: Tensor, targets: Tensor, weights: Tensor, kind: str) -> Tensor:
    """The loss of a generator against a discriminator with logits (N, M, classes + 1)."""
    config = tiny_config(generator_loss=kind)
    return adversarial_loss(Parrot(), logits, parroted(logits.shape[-1]), targets, weights, config)


LOGITS = torch.tensor([[[2.0, 0.5, -1.0, 0.3], [0.0, 1.0, 2.0, -0.5]]])  # three classes and fake
TARGETS = torch.tensor([[1]])
PAIR_WEIGHTS = torch.tensor([[0.25, 0.75]])


@pytest.mark.parametrize(("kind", "num_losses"), [("minimax", 1), ("class-directed", 3)])
def test_only_the_printed_loss_is_blind_to_which_real_class_is_which(kind, num_losses):
    losses = [
        generator_loss(LOGITS[..., order], TARGETS, PAIR_WEIGHTS, kind).item()
        for order in ([0, 1, 2, 3], [1, 2, 0, 3], [2, 0, 1, 3])
    ]

    assert len({round(loss, 3) for loss in losses}) == num_losses


def test_generator_losses_by_hand():
    probabilities = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]])
    targets, weights = torch.tensor([[1]]), torch.tensor([[1.0, 2.0]])

    directed = generator_loss(probabilities.log(), targets, weights, "class-directed")
    minimax = generator_loss(probabilities.log(), targets, weights, "minimax")

    assert directed.item() == pytest.approx(-math.log(0.25) - 2 * math.log(0.1))
    assert minimax.item() == pytest.approx(math.log(0.25) + 2 * math.log(0.8))


@pytest.mark.parametrize("kind", ["minimax", "class-directed"])
def test_generators_want_their_own_class_or_merely_not_to_be_fake(kind):
    logits = LOGITS.clone().requires_grad_()

    generator_loss(logits, TARGETS, PAIR_WEIGHTS, kind).backward()

    wanted = -logits.grad
    assert (wanted[..., -1] < 0).all()
    if kind == "class-directed":
        assert (wanted[..., 1] > 0).all()
        assert (wanted[..., [0, 2]] < 0).all()
    else:  # most of all the class that is the likeliest already, whichever it should be
        assert (wanted[..., :3] > 0).all()
        assert wanted[..., :3].argmax(dim=-1).tolist() == LOGITS[..., :3].argmax(dim=-1).tolist()


def test_the_discriminator_loss_is_the_cross_entropy_of_real_and_translated_examples():
    networks = SimpleNamespace(
        novel_discriminator=Parrot(),
        novel_answers=lambda episode: parroted(2),
        row_dtype=torch.float32,
    )
    episode = SimpleNamespace(
        real=torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]).log(),  # one class, and fake
        real_weights=torch.tensor([0.5, 0.5]),
        weights=torch.tensor([[0.25, 0.75]]),
    )
    translated = torch.tensor([[[0.875, 0.125], [0.5, 0.5]]]).log()

    terms = discriminator_terms(
        networks, episode, SimpleNamespace(translated=translated, returned=None)
    )

    of_real, of_translated = 0.5 * 1 + 0.5 * 2, 0.25 * 3 + 0.75 * 1
    assert terms["novel_discriminator"].item() == pytest.approx(
        math.log(2) * (of_real + of_translated)
    )


def test_a_cycle_costs_the_weighted_squared_distance():
    table = torch.tensor([[[0.0, 0.0], [1.0, 3.0]], [[5.0, 5.0], [6.0, 6.0]]])
    restored = torch.tensor([[[3.0, 4.0], [1.0, 1.0]], [[6.0, 6.0], [6.0, 8.0]]])
    weights = torch.tensor([[0.1, 0.5], [0.3, 0.2]])

    chosen = Chosen(table, torch.tensor([[0, 1], [0, 1]]))

    for originals in (table, chosen):
        loss = cycle_loss(restored, originals, weights)
        assert loss.item() == pytest.approx(0.1 * 25 + 0.5 * 4 + 0.3 * 2 + 0.2 * 4)
    assert cycle_loss(table[:1].expand(2, -1, -1), table[:1], weights) == 0


def loss_of_one_class(translated: Tensor, base: Spectra, ky_fan_order: int) -> Tensor:
    """Covariance loss of a single class, shape (M, D), compared with the first base class."""
    weights = torch.full((1, len(translated)), 1 / len(translated), dtype=torch.float64)
    _, of_translated = moments(translated.unsqueeze(0), weights)
    return covariance_loss(of_translated, base, FIRST_CLASS, FULL_SCORE, ky_fan_order)


def test_moving_a_class_costs_nothing_and_collapse_the_whole_variance():
    base = normals(20, NUM_DIMS)
    of_base = spectra(covariances(base).unsqueeze(0), NUM_DIMS)
    collapsed = normals(1, NUM_DIMS, seed=1).expand(20, NUM_DIMS)

    assert loss_of_one_class(base + 100.0, of_base, NUM_DIMS).item() == pytest.approx(0, abs=1e-9)
    variance = base.var(dim=0, correction=0).sum().item()
    assert loss_of_one_class(collapsed, of_base, NUM_DIMS).item() == pytest.approx(variance)


def test_covariance_losses_are_weighted_by_scores_and_averaged_over_classes():
    base = spectra(torch.stack([torch.eye(2), 3 * torch.eye(2)]).double(), m=1)
    collapsed = torch.zeros(2, 2, 2, dtype=torch.float64)  # no covariance at all
    classes = torch.tensor([[0, 1], [1, 0]])
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.25]], dtype=torch.float64)

    loss = covariance_loss(collapsed, base, classes, scores, 1)

    first, second = 0.9 * 1 + 0.1 * 3, 0.5 * 3 + 0.25 * 1
    assert loss.item() == pytest.approx((first + second) / 2)


def test_following_the_gradient_restores_the_spread_and_leaves_the_base_class_alone():
    base = normals(20, NUM_DIMS).requires_grad_()
    of_base = spectra(covariances(base).unsqueeze(0), 2)
    translated = (0.1 * normals(20, NUM_DIMS, seed=1)).requires_grad_()
    before = loss_of_one_class(translated, of_base, 2)
    before.backward()

    after = loss_of_one_class(translated.detach() - translated.grad, of_base, 2)

    assert base.grad is None
    assert after < before


def test_the_prototype_loss_is_the_squared_distance_of_means():
    means = torch.tensor([[3.0, 6.0], [1.0, 1.0]])

    loss = prototype_loss(means, torch.tensor([[0.0, 2.0], [1.0, 2.0]]))

    assert loss.item() == pytest.approx(((9 + 16) + 1) / 2)


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

    assert classes is None or chosen.tolist() == classes  # of equal ones, any
    torch.testing.assert_close(found, torch.as_tensor(scores, dtype=torch.float64))
    assert ignored.item() == pytest.approx(left_out)
