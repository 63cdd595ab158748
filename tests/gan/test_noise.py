import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.noise import GaussianNoise, MixtureNoise, make_noise

LIKE = torch.zeros(1, dtype=torch.float64)


def mixture(means: list[list[float]], deviations: list[list[float]]) -> MixtureNoise:
    """A mixture with given components instead of random ones."""
    noise = MixtureNoise(len(means[0]), len(means), spread=1.0, rng=new_rng(0))
    noise.means.data = torch.tensor(means, dtype=torch.float64)
    noise.deviations.data = torch.tensor(deviations, dtype=torch.float64)
    return noise


def assert_moments(draws: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> None:
    """Compare the (draws, Z) sample's moments with the true ones, to five standard errors."""
    centred = draws - mean
    products = centred.unsqueeze(2) * centred.unsqueeze(1)
    for sample, expected in ((draws, mean), (products, covariance)):
        standard_error = sample.std(dim=0) / len(sample) ** 0.5
        assert ((sample.mean(dim=0) - expected).abs() <= 5 * standard_error).all()


def test_gaussian_noise_is_standard_normal():
    draws = GaussianNoise(3)((20_000,), new_rng(0), LIKE)

    assert_moments(draws, torch.zeros(3), torch.eye(3))


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (-1, -1)])
def test_the_sign_of_a_deviation_leaves_the_distribution_unchanged(signs):
    means = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    deviations = torch.tensor([[0.5, 2.0], [0.1, 1.0]])
    flipped = deviations * torch.tensor(signs).unsqueeze(1)

    draws = mixture(means.tolist(), flipped.tolist())((40_000,), new_rng(0), LIKE).detach()

    between = torch.cov(means.T, correction=0)
    within = torch.diag(deviations.square().mean(dim=0))
    assert_moments(draws, means.mean(dim=0), between + within)


def test_flipping_all_signs_mirrors_every_draw_at_the_mean_of_its_component():
    means, deviations = [[1.0, 2.0], [5.0, 6.0]], [[0.3, 0.4], [0.5, 0.6]]
    negative = (-torch.tensor(deviations)).tolist()

    draws = mixture(means, deviations)((100,), new_rng(0), LIKE)
    mirrored = mixture(means, negative)((100,), new_rng(0), LIKE)

    halfway = (draws + mirrored) / 2
    nearest = torch.cdist(halfway, torch.tensor(means, dtype=torch.float64)).min(dim=1).values
    assert nearest.max() < 1e-6


def test_components_are_drawn_alike():
    num_draws = 20_000
    noise = mixture([[0.0], [1.0], [2.0], [3.0]], [[0.0], [0.0], [0.0], [0.0]])

    draws = noise((num_draws,), new_rng(0), LIKE).flatten().long()

    shares = draws.bincount(minlength=4) / num_draws
    # Five standard errors of a share of one quarter.
    assert (shares - 0.25).abs().max() < 5 * (0.25 * 0.75 / num_draws) ** 0.5


def test_components_start_as_in_the_paper():
    noise = MixtureNoise(100, 50, spread=0.2, rng=new_rng(0))

    means, deviations = noise.means.detach(), noise.deviations.detach()

    assert means.shape == deviations.shape == (50, 100)
    assert -1 <= means.min() < -0.99
    assert 0.99 < means.max() <= 1
    # Five standard errors of 5,000 numbers each: U(-1, 1) has variance 1/3.
    assert means.mean().item() == pytest.approx(0, abs=5 * (1 / 3 / 5000) ** 0.5)
    assert deviations.mean().item() == pytest.approx(0, abs=5 * 0.2 / 5000**0.5)
    assert deviations.std().item() == pytest.approx(0.2, abs=5 * 0.2 / 10_000**0.5)


def test_components_are_trained():
    noise = MixtureNoise(3, 4, spread=0.2, rng=new_rng(0))

    noise((100,), new_rng(1), LIKE).square().sum().backward()

    assert {name for name, _ in noise.named_parameters()} == {"means", "deviations"}
    assert (noise.means.grad != 0).all()
    assert (noise.deviations.grad != 0).all()


def test_gaussian_noise_has_nothing_to_train():
    assert list(GaussianNoise(3).parameters()) == []


@pytest.mark.parametrize("kind", ["gaussian", "mixture"])
def test_equal_rng_states_give_equal_draws(kind):
    config = TrainConfig(noise_dim=3, num_components=2)
    noise = make_noise(kind, config, new_rng(0))

    first, second = noise((2, 5), new_rng(1), LIKE), noise((2, 5), new_rng(1), LIKE)

    assert first.shape == (2, 5, 3)
    assert first.dtype == torch.float64
    assert torch.equal(first, second)
    assert not torch.equal(first, noise((2, 5), new_rng(2), LIKE))


def test_equal_rng_states_give_equal_components():
    first, second, other = (MixtureNoise(3, 2, spread=0.2, rng=new_rng(seed)) for seed in (0, 0, 1))

    assert torch.equal(first.means, second.means)
    assert torch.equal(first.deviations, second.deviations)
    assert not torch.equal(first.means, other.means)


def test_noise_is_made_as_configured():
    config = TrainConfig(noise_dim=7, num_components=3, noise_spread=0.0)

    gaussian = make_noise("gaussian", config, new_rng(0))
    several = make_noise("mixture", config, new_rng(0))

    assert isinstance(gaussian, GaussianNoise)
    assert gaussian.num_dims == 7
    assert isinstance(several, MixtureNoise)
    assert several.means.shape == (3, 7)
    assert not several.deviations.any()


def test_the_penalty_is_the_mean_squared_distance_of_deviations_to_one():
    noise = mixture([[0.0, 0.0]], [[1.0, -2.0]])

    assert noise.penalty(torch.zeros(())).item() == pytest.approx((0 + 9) / 2)
    assert GaussianNoise(2).penalty(torch.zeros(())) == 0
