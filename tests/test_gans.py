"""The four GANs as the paper has them, and what each side's gradients reach."""

import pytest
import torch

from cpaan.config import TrainConfig
from cpaan.episodes import MetaEpisodes
from cpaan.gans import (
    GANS,
    Networks,
    check_objective,
    discriminator_terms,
    generator_objective,
    generator_terms,
)
from cpaan.noise import GaussianNoise, MixtureNoise
from cpaan.randomness import new_rng
from cpaan.tasks import BaseSet
from cpaan.training_data import TrainingData


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


def terms_of(name: str, **settings):
    """Play one episode; return networks, the discriminators' and the generators' terms."""
    config = config_of(**settings)
    data, gan, rng = data_of(config), GANS[name], new_rng(1)
    networks = Networks(gan, data, config, new_rng(0), has_way_back=gan.has_cycle)
    episode = MetaEpisodes(data, config).draw(rng)
    moved = networks.translate(episode, rng)
    of_discriminators = discriminator_terms(networks, episode, moved)
    of_generators = generator_terms(gan, networks, episode, moved, data, config, rng)
    return networks, of_discriminators, of_generators


def test_objectives_are_the_papers_sums():
    terms = {
        "novel_adversarial": torch.tensor(1.0),
        "base_adversarial": torch.tensor(10.0),
        "cycle": torch.tensor(100.0),
        "covariance": torch.tensor(1000.0),
        "prototype": torch.tensor(7.0),
        "noise_penalty": torch.tensor(9.0),
    }

    total = generator_objective(terms, TrainConfig.as_printed())

    assert total == 1 + 10 + 5 * 100 + 0.5 * 1000


def test_discriminators_send_no_gradient_to_generators():
    networks, terms, _ = terms_of("cCov-GAN")

    sum(terms.values()).backward()

    assert all(parameter.grad is None for parameter in networks.of_generators())
    assert all(parameter.grad is not None for parameter in networks.of_discriminators())


@pytest.mark.parametrize(
    ("term", "reached"),
    [
        ("novel_adversarial", {"base_to_novel"}),
        ("base_adversarial", {"novel_to_base", "noise"}),
        ("cycle", {"base_to_novel", "novel_to_base", "noise"}),
        ("covariance", {"base_to_novel"}),
        ("prototype", {"base_to_novel"}),
        ("noise_penalty", {"noise"}),
    ],
)
def test_each_term_teaches_the_generators_it_is_about(term, reached):
    networks, _, terms = terms_of("cCov-GAN", noise="mixture", noise_penalty=1.0, residual="none")

    terms[term].backward()

    parts = {"base_to_novel", "novel_to_base", "noise"}
    for name in parts:
        gradients = [parameter.grad for parameter in getattr(networks, name).parameters()]
        has_gradient = any(g is not None and g.abs().sum() > 0 for g in gradients)
        assert has_gradient == (name in reached), name


def play(name: str = "cCov-GAN", **settings):
    """Draw one episode and translate it; return all that terms are made of."""
    config = config_of(**settings)
    data, gan, rng = data_of(config), GANS[name], new_rng(1)
    networks = Networks(gan, data, config, new_rng(0), has_way_back=gan.has_cycle)
    episode = MetaEpisodes(data, config).draw(rng)
    moved = networks.translate(episode, rng)
    terms = generator_terms(gan, networks, episode, moved, data, config, rng)
    return networks, episode, moved, terms


def test_translations_go_from_their_own_class_to_the_other():
    """Generators that start as the mean shift show which prototype is which."""
    _, episode, moved, _ = play(residual="mean-shift")

    for novel in range(2):
        for example, source in enumerate(episode.sources[0]):
            to_novel = episode.novel_prototypes[novel] - episode.base_prototypes[source]
            torch.testing.assert_close(
                moved.translated[novel, example], episode.base_examples[0, example] + to_novel
            )
            torch.testing.assert_close(
                moved.returned[novel, example], episode.partners[novel, example] - to_novel
            )


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_generators_that_undo_each_other_have_no_cycle_loss(residual):
    *_, terms = play(residual=residual)

    assert terms["cycle"].item() == pytest.approx(0, abs=1e-20)


def test_every_translation_is_aimed_at_its_own_class():
    networks, episode, moved, terms = play(residual="none")
    to_novel = networks.novel_answers(episode, moved.translated)
    to_base = networks.base_answers(episode, moved.returned)

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
    novel_real = networks.novel_answers(episode, episode.real)
    base_real = networks.base_answers(episode, episode.base_examples)
    novel_fake = networks.novel_answers(episode, moved.translated)[..., -1]
    base_fake = networks.base_answers(episode, moved.returned)[..., -1]

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

    answers = networks.base_answers(episode, moved.returned).exp()

    present = episode.sources.unique().tolist()
    assert len(present) < len(episode.base_classes)
    for base in range(len(episode.base_classes)):
        assert (answers[..., base] > 0).all() == (base in present)


def test_weights_that_leave_nothing_to_learn_are_refused():
    nothing = TrainConfig(adversarial_weight=0.0, prototype_weight=0.0)

    with pytest.raises(ValueError, match="c-GAN has nothing to learn: adversarial_weight"):
        check_objective(GANS["c-GAN"], nothing)
    check_objective(GANS["cCyc-GAN"], nothing)
