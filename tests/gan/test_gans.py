"""The four GANs as the paper has them, what each side wants, and what its gradients reach."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episode, MetaEpisodes
from cpaan.gan.gans import (
    GANS,
    Networks,
    Terms,
    Translations,
    _adversarial,
    check_objective,
    discriminator_terms,
    generator_objective,
    moment_terms,
    pair_terms,
)
from cpaan.gan.networks import Answers, Discriminator
from cpaan.gan.noise import GaussianNoise, MixtureNoise
from cpaan.gan.training_data import TrainingData
from cpaan.protocol.tasks import BaseSet


def config_of(**settings) -> TrainConfig:
    small = {"num_ways": 2, "episode_shots": (2,), "batch_size": 12, "perplexity": 2.0}
    sizes = {"hidden_dim": 6, "noise_dim": 3, "num_components": 4, "ky_fan_order": 2}
    return TrainConfig(**{**small, **sizes, **settings})


def data_of(config: TrainConfig) -> TrainingData:
    """Six classes of four examples in four dimensions."""
    features = torch.randn(24, 4, generator=new_rng(0), dtype=torch.float64)
    base = BaseSet(features, torch.full((6,), 4))
    return TrainingData.prepare(base, config, with_covariances=True, dtype=torch.float64)


def test_the_four_gans_differ_as_in_the_paper():
    terms = {gan.name: (gan.has_cycle, gan.has_covariance) for gan in GANS.values()}
    noises = {gan.name: gan.noise for gan in GANS.values() if gan.has_cycle}

    assert list(GANS) == ["c-GAN", "cCyc-GAN", "cDeLi-GAN", "cCov-GAN"]
    assert terms == {
        "c-GAN": (False, False),
        "cCyc-GAN": (True, False),
        "cDeLi-GAN": (True, False),
        "cCov-GAN": (True, True),
    }
    assert noises == {"cCyc-GAN": "gaussian", "cDeLi-GAN": "mixture", "cCov-GAN": None}


def networks_of(name: str, **settings) -> Networks:
    config = config_of(**settings)
    gan = GANS[name]
    return Networks(gan, data_of(config), config, new_rng(0), has_way_back=gan.has_cycle)


def test_a_gan_without_a_cycle_has_no_way_back():
    networks = networks_of("c-GAN")

    assert {name for name, _ in networks.named_children()} == {
        "base_to_novel",
        "novel_discriminator",
    }


@pytest.mark.parametrize(
    ("name", "configured", "kind"),
    [
        ("cCyc-GAN", "mixture", GaussianNoise),
        ("cDeLi-GAN", "gaussian", MixtureNoise),
        ("cCov-GAN", "gaussian", GaussianNoise),
        ("cCov-GAN", "mixture", MixtureNoise),
    ],
)
def test_only_the_covariance_preserving_gan_has_its_noise_configured(name, configured, kind):
    assert isinstance(networks_of(name, noise=configured).noise, kind)


@pytest.mark.parametrize("name", GANS)
def test_every_weight_is_trained_by_one_of_two_sides(name):
    networks = networks_of(name)

    generators, discriminators = networks.of_generators(), networks.of_discriminators()

    sides = [set(map(id, side)) for side in (generators, discriminators)]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == set(map(id, networks.parameters()))
    of_networks = (networks.base_to_novel, networks.novel_discriminator)
    for network, side in zip(of_networks, sides, strict=True):
        assert set(map(id, network.parameters())) <= side


def test_the_mixture_is_trained_with_the_generators():
    networks = networks_of("cDeLi-GAN")

    assert any(each is networks.noise.means for each in networks.of_generators())


def test_networks_have_the_type_of_the_data():
    networks = networks_of("cDeLi-GAN")

    assert {parameter.dtype for parameter in networks.parameters()} == {torch.float64}


def play(name: str = "cCov-GAN", **settings) -> tuple[Networks, Episode, Translations, Terms]:
    """Draw one episode and translate it; return also the generators' terms."""
    config = config_of(**settings)
    data, gan, rng = data_of(config), GANS[name], new_rng(1)
    networks = Networks(gan, data, config, new_rng(0), has_way_back=gan.has_cycle)
    episode = MetaEpisodes(data, config).draw(rng)
    moved = networks.translate(episode, rng)
    terms = moment_terms(gan, episode, moved, data, config, rng)
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
        "noise_penalty": torch.tensor(9.0),
    }

    total = generator_objective(terms, TrainConfig.as_printed())

    assert total == 1 + 10 + 5 * (100 + 20) + 0.5 * 1000


def test_discriminators_send_no_gradient_to_generators():
    networks, episode, moved, _ = play()

    sum(discriminator_terms(networks, episode, moved).values()).backward()

    assert all(parameter.grad is None for parameter in networks.of_generators())
    assert all(parameter.grad is not None for parameter in networks.of_discriminators())


@pytest.mark.parametrize(
    ("term", "reached"),
    [
        ("novel_adversarial", {"base_to_novel"}),
        ("base_adversarial", {"novel_to_base", "noise"}),
        ("novel_cycle", {"base_to_novel", "novel_to_base", "noise"}),
        ("base_cycle", {"base_to_novel", "novel_to_base", "noise"}),
        ("covariance", {"base_to_novel"}),
        ("prototype", {"base_to_novel"}),
        ("noise_penalty", {"noise"}),
    ],
)
def test_each_term_teaches_the_generators_it_is_about(term, reached):
    networks, _, _, terms = play(noise="mixture", noise_penalty=1.0, residual="none")

    terms[term].backward()

    parts = {"base_to_novel", "novel_to_base", "noise"}
    for name in parts:
        gradients = [parameter.grad for parameter in getattr(networks, name).parameters()]
        has_gradient = any(g is not None and g.abs().sum() > 0 for g in gradients)
        assert has_gradient == (name in reached), name


def test_translations_go_from_their_own_class_to_the_other():
    """Generators that start as the mean shift show which prototype is which."""
    _, episode, moved, _ = play(residual="mean-shift")

    for novel in range(2):
        for example, source in enumerate(episode.sources[0]):
            to_novel = episode.novel_prototypes[novel] - episode.base_prototypes[source]
            torch.testing.assert_close(
                moved.translated[novel, example], episode.base_examples[0, example] + to_novel
            )
            partner = episode.shots[novel, episode.partners[novel, example]]
            torch.testing.assert_close(moved.returned[novel, example], partner - to_novel)


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_generators_that_undo_each_other_have_no_cycle_loss(residual):
    *_, terms = play(residual=residual)

    assert terms["novel_cycle"].item() == pytest.approx(0, abs=1e-20)
    assert terms["base_cycle"].item() == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_cycle_ends_at_the_example_that_it_began_with(residual):
    """A way back that misses by the same vector everywhere: both cycles cost its square."""
    networks, episode, _, _ = play(residual=residual)
    gap = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
    networks.novel_to_base.last.bias.data = gap

    rng, config = new_rng(2), config_of(residual=residual)
    moved = networks.translate(episode, rng)
    terms = pair_terms(GANS["cCov-GAN"], networks, episode, moved, config, rng)

    for term in ("novel_cycle", "base_cycle"):  # weights sum to one, over a mean of classes
        assert terms[term].item() == pytest.approx(gap.square().sum().item())


def log_probabilities(discriminator: Discriminator, answers: Answers, examples: Tensor) -> Tensor:
    """What a discriminator says of examples, shape (..., answers)."""
    logits = discriminator.embed_examples(examples) @ answers.keys.T + answers.biases
    return logits.log_softmax(dim=-1).unflatten(0, examples.shape[:-1])


def of_novel(networks: Networks, episode: Episode, examples: Tensor) -> Tensor:
    return log_probabilities(
        networks.novel_discriminator, networks.novel_answers(episode), examples
    )


def of_base(networks: Networks, episode: Episode, examples: Tensor) -> Tensor:
    return log_probabilities(networks.base_discriminator, networks.base_answers(episode), examples)


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


def test_only_base_classes_of_the_batch_can_be_the_answer():
    networks, episode, moved, _ = play(perplexity=1.01, batch_size=5)  # one base example

    answers = of_base(networks, episode, moved.returned).exp()

    present = episode.sources.unique().tolist()
    assert len(present) < len(episode.base_classes)
    for base in range(len(episode.base_classes)):
        assert (answers[..., base] > 0).all() == (base in present)


class Parrot(Discriminator):
    """A discriminator whose logits are the examples themselves: their last is "fake"."""

    def __init__(self) -> None:
        super().__init__(1, 1, config_of(), new_rng(0))

    def embed_examples(self, examples: Tensor) -> Tensor:
        return examples.flatten(0, -2)


def parroted(num_answers: int) -> Answers:
    return Answers(torch.eye(num_answers), torch.zeros(num_answers), num_answers - 1)


def generator_loss(logits: Tensor, targets: Tensor, weights: Tensor, kind: str) -> Tensor:
    """What a generator wants of a discriminator with these logits, shape (N, M, classes + 1)."""
    answers = parroted(logits.shape[-1])
    return _adversarial(Parrot(), logits, answers, targets, weights, config_of(generator_loss=kind))


LOGITS = torch.tensor([[[2.0, 0.5, -1.0, 0.3], [0.0, 1.0, 2.0, -0.5]]])  # three classes and fake
TARGETS = torch.tensor([[1]])
PAIR_WEIGHTS = torch.tensor([[0.25, 0.75]])


def losses_of_permuted_classes(kind: str) -> list[float]:
    orders = ([0, 1, 2, 3], [1, 2, 0, 3], [2, 0, 1, 3])
    return [
        generator_loss(LOGITS[..., order], TARGETS, PAIR_WEIGHTS, kind).item() for order in orders
    ]


def test_the_printed_loss_is_blind_to_which_real_class_is_which():
    first, *others = losses_of_permuted_classes("minimax")

    assert others == pytest.approx([first, first])


def test_the_class_directed_loss_is_not_blind_to_the_class():
    losses = losses_of_permuted_classes("class-directed")

    assert len({round(loss, 3) for loss in losses}) == 3


def test_generator_losses_by_hand():
    probabilities = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]])
    targets, weights = torch.tensor([[1]]), torch.tensor([[1.0, 2.0]])

    directed = generator_loss(probabilities.log(), targets, weights, "class-directed")
    minimax = generator_loss(probabilities.log(), targets, weights, "minimax")

    assert directed.item() == pytest.approx(-math.log(0.25) - 2 * math.log(0.1))
    assert minimax.item() == pytest.approx(math.log(0.25) + 2 * math.log(0.8))


def test_targets_may_differ_by_class_or_by_example():
    logits = torch.randn(2, 3, 4, generator=new_rng(0))
    weights = torch.full((2, 3), 1 / 3)

    by_class = generator_loss(logits, torch.tensor([[0], [2]]), weights, "class-directed")
    by_example = generator_loss(logits, torch.tensor([[1, 0, 2]]), weights, "class-directed")

    log_probabilities = logits.log_softmax(dim=-1)
    first, second = log_probabilities
    assert by_class.item() == pytest.approx(-(first[:, 0].mean() + second[:, 2].mean()).item())
    chosen = log_probabilities[:, [0, 1, 2], [1, 0, 2]]
    assert by_example.item() == pytest.approx(-chosen.mean(dim=1).sum().item())


def test_a_generator_wants_its_own_class_to_be_likelier():
    logits = LOGITS.clone().requires_grad_()

    generator_loss(logits, TARGETS, PAIR_WEIGHTS, "class-directed").backward()

    wanted = -logits.grad
    assert (wanted[..., 1] > 0).all()
    assert (wanted[..., [0, 2, -1]] < 0).all()


def test_a_minimax_generator_wants_nothing_but_not_to_be_fake():
    logits = LOGITS.clone().requires_grad_()

    generator_loss(logits, TARGETS, PAIR_WEIGHTS, "minimax").backward()

    wanted = -logits.grad
    assert (wanted[..., :3] > 0).all()
    assert (wanted[..., -1] < 0).all()
    # Most of all, it wants the class that is the likeliest already, whichever it should be.
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


def test_weights_that_leave_nothing_to_learn_are_refused():
    nothing = TrainConfig(adversarial_weight=0.0, prototype_weight=0.0)

    with pytest.raises(ValueError, match="c-GAN has nothing to learn: adversarial_weight"):
        check_objective(GANS["c-GAN"], nothing)
    check_objective(GANS["cCyc-GAN"], nothing)
