"""The four GANs as the paper has them, and what each side's gradients reach."""

import pytest
import torch

from cpaan.config import TrainConfig
from cpaan.episodes import MetaEpisodes, TrainingData
from cpaan.gans import (
    GANS,
    Networks,
    discriminator_terms,
    generator_objective,
    generator_terms,
)
from cpaan.noise import GaussianNoise, MixtureNoise
from cpaan.randomness import new_rng
from cpaan.tasks import BaseSet


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
