"""The four GANs of the paper, and how their networks translate and answer."""

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.gans import GANS, Networks, check_objective
from cpaan.gan.noise import GaussianNoise, MixtureNoise
from helpers.gan_runs import tiny_config, tiny_data


def networks_of(name: str, **settings) -> Networks:
    config, gan = tiny_config(**settings), GANS[name]
    data = tiny_data(config)
    return Networks(gan, data, config, new_rng(0), has_reverse_generator=gan.has_cycle)


def test_the_four_gans_differ_as_in_the_paper():
    assert {gan.name: (gan.has_cycle, gan.noise, gan.has_covariance) for gan in GANS.values()} == {
        "c-GAN": (False, None, False),
        "cCyc-GAN": (True, "gaussian", False),
        "cDeLi-GAN": (True, "mixture", False),
        "cCov-GAN": (True, None, True),
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
def test_every_weight_has_the_type_of_the_data_and_belongs_to_one_of_two_sides(name):
    networks = networks_of(name)

    sides = [
        set(map(id, side))
        for side in (networks.generator_parameters(), networks.discriminator_parameters())
    ]

    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == set(map(id, networks.parameters()))
    assert {parameter.dtype for parameter in networks.parameters()} == {torch.float64}
    generators, discriminators = [networks.base_to_novel], [networks.novel_discriminator]
    if GANS[name].has_cycle:
        generators += [networks.novel_to_base, networks.noise]  # the mixture is a part of G_b
        discriminators.append(networks.base_discriminator)
    for parts, side in zip((generators, discriminators), sides, strict=True):
        assert {id(each) for part in parts for each in part.parameters()} == side
    assert len(list(networks.children())) == len(generators) + len(discriminators)


def test_translations_go_from_their_own_class_to_the_other():
    """Generators that start as the mean shift show which prototype is which."""
    networks, config = networks_of("cCov-GAN", residual="mean-shift"), tiny_config()
    rng = new_rng(1)
    episode = MetaEpisodes(tiny_data(config), config).draw(rng)

    moved = networks.translate(episode, rng)

    for novel in range(2):
        for example, source in enumerate(episode.sources[0]):
            to_novel = episode.novel_prototypes[novel] - episode.base_prototypes[source]
            torch.testing.assert_close(
                moved.translated[novel, example], episode.base_examples[0, example] + to_novel
            )
            partner = episode.shots[novel, episode.partners[novel, example]]
            torch.testing.assert_close(moved.returned[novel, example], partner - to_novel)


def test_only_base_classes_of_the_batch_can_be_the_answer():
    config = tiny_config(perplexity=1.01, batch_size=5)  # one base example
    episode = MetaEpisodes(tiny_data(config), config).draw(new_rng(1))

    answers = networks_of("cCov-GAN").base_answers(episode)

    is_possible = answers.biases[: len(episode.base_classes)].isfinite()
    assert is_possible.nonzero().flatten().tolist() == episode.sources.unique().tolist()
    assert answers.biases[-1].isfinite()  # fake


def test_weights_that_leave_nothing_to_learn_are_refused():
    nothing = TrainConfig(adversarial_weight=0.0, prototype_weight=0.0)

    with pytest.raises(ValueError, match="c-GAN has nothing to learn: adversarial_weight"):
        check_objective(GANS["c-GAN"], nothing)
    check_objective(GANS["cCyc-GAN"], nothing)
