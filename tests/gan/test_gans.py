"""Test the networks and objectives of the paper's four GANs."""

import pytest

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.gans import GANS, Networks, check_objective
from cpaan.gan.noise import GaussianNoise, MixtureNoise
from helpers.gan_runs import tiny_config, tiny_data


def networks_of(name: str, **settings) -> Networks:
    config = tiny_config(**settings)
    return Networks(GANS[name], tiny_data(config), config, new_rng(0))


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
    assert type(networks_of(name, noise=configured).noise) is kind


@pytest.mark.parametrize("name", GANS)
def test_every_weight_belongs_to_one_of_two_sides(name):
    networks = networks_of(name)
    parts = {"base_to_novel": 0, "novel_to_base": 0, "noise": 0}  # G_b includes the mixture
    parts |= {"novel_discriminator": 1, "base_discriminator": 1}

    sides = (networks.generator_parameters(), networks.discriminator_parameters())

    of_side: tuple[set, set] = ({*map(id, sides[0])}, {*map(id, sides[1])})
    for part, module in networks.named_children():
        assert {id(weight) for weight in module.parameters()} <= of_side[parts[part]]
    assert sum(map(len, sides)) == len(list(networks.parameters()))


def test_weights_that_leave_nothing_to_learn_are_refused():
    nothing = TrainConfig(adversarial_weight=0.0, prototype_weight=0.0)

    with pytest.raises(ValueError, match="c-GAN has no loss: adversarial_weight"):
        check_objective(GANS["c-GAN"], nothing)
    check_objective(GANS["cCyc-GAN"], nothing)
