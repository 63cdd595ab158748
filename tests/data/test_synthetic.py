import torch

from cpaan.data.synthetic import gaussian_classes


def test_a_family_shares_its_covariance_and_no_other_has_it(gaussians):
    covariances = gaussians.covariances
    first = covariances["family00-validation-base-0"]

    torch.testing.assert_close(covariances["family00-test-novel-1"], first)
    assert (covariances["family01-validation-base-0"] - first).abs().max() > 0.1


def test_examples_have_the_mean_and_covariance_that_are_told():
    made = gaussian_classes(num_families=2, num_train=20_000, num_test=1, num_dims=4)

    for name in ("family00-validation-novel-0", "family01-test-base-1"):
        examples = made.table.gather(made.table.rows_of(name, "train")).double()
        truth = made.covariances[name]
        close = 0.05 * truth.diagonal().max().item()
        torch.testing.assert_close(examples.mean(0), made.means[name], atol=close, rtol=0)
        torch.testing.assert_close(torch.cov(examples.T), truth, atol=close, rtol=0)


def test_relatives_are_nearer_than_strangers(gaussians):
    names = gaussians.split.validation.base
    means = torch.stack([gaussians.means[name] for name in names])
    distances = torch.cdist(means, means)
    is_relative = torch.tensor([[a[:8] == b[:8] for b in names] for a in names])
    is_relative.fill_diagonal_(False)

    strangers = distances[~is_relative & (distances > 0)]
    assert distances[is_relative].mean() < strangers.mean() / 1.5


def test_the_seed_decides_everything():
    first, second, other = (
        gaussian_classes(num_families=2, num_dims=4, seed=seed).table for seed in (0, 0, 1)
    )

    assert first.fingerprint == second.fingerprint != other.fingerprint
