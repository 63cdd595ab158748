"""Test distribution calibration: the transform, and means and covariances of the samples."""

import dataclasses

import numpy as np
import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.distribution_calibration import (
    DistributionCalibration,
    DistributionCalibrationConfig,
    calibrated_samples,
    tukey,
)
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.heads import NearestCentroid
from cpaan.protocol.tasks import BaseSet, LowShotTask
from helpers.tasks import small_task

AS_THEY_ARE = DistributionCalibrationConfig(tukey_power=1.0, num_samples=40_000)
CENTROID = EvaluationConfig(heads=("centroid",))


def three_classes() -> BaseSet:
    """Return classes around (0, 0, 0), (10, 0, 0) and (0, 50, 0) with different covariances."""
    rows = torch.randn(3, 8, 3, generator=new_rng(0))
    rows[0] *= torch.tensor([3.0, 1.0, 0.5])
    rows[1, :, 2] += rows[1, :, 0]
    rows += torch.tensor([[[0.0, 0.0, 0.0]], [[10.0, 0.0, 0.0]], [[0.0, 50.0, 0.0]]])
    return BaseSet(rows.flatten(0, 1), torch.full((3,), 8))


def covariance_of(base: BaseSet, number: int) -> torch.Tensor:
    return torch.from_numpy(np.cov(base.by_class()[number].numpy(), rowvar=False)).float()


@pytest.mark.parametrize("num_nearest", [1, 2])
def test_samples_have_the_stated_mean_and_covariance(num_nearest):
    base = three_classes()
    config = AS_THEY_ARE.with_overrides({"num_nearest": num_nearest})
    shot = torch.tensor([4.0, 0.0, 3.0])  # closer to the first class than to the second

    (samples,) = calibrated_samples(shot.view(1, 1, 3), base, 0.21, config, new_rng(1))

    mean = (base.prototypes[:num_nearest].sum(dim=0) + shot) / (num_nearest + 1)
    covariance = sum(covariance_of(base, number) for number in range(num_nearest)) / num_nearest
    covariance = covariance + 0.21 * torch.ones(3, 3)
    torch.testing.assert_close(samples.mean(dim=0), mean, atol=0.05, rtol=0)
    torch.testing.assert_close(samples.T.cov(), covariance, atol=0.15, rtol=0.02)


def test_every_shot_has_its_own_neighbours_and_its_share_of_the_samples():
    """Base classes of equal rows have no spread, so the samples are the means."""
    means = torch.tensor([[0.0, 0.0], [4.0, 0.0], [100.0, 0.0], [104.0, 0.0]])
    base = BaseSet(means.repeat_interleave(3, dim=0), torch.full((4,), 3))
    config = AS_THEY_ARE.with_overrides({"num_samples": 5, "num_nearest": 2})
    shots = torch.tensor([[[1.0, 3.0], [101.0, 6.0]]])

    (samples,) = calibrated_samples(shots, base, 0.0, config, new_rng(0))

    first, second = [(0 + 4 + 1) / 3, 3 / 3], [(100 + 104 + 101) / 3, 6 / 3]
    expected = torch.tensor([first, second, first, second, first])
    torch.testing.assert_close(samples, expected)


def test_the_transform_keeps_signs_and_order_and_can_be_undone():
    features = torch.tensor([-4.0, -0.25, 0.0, 0.25, 9.0])

    assert tukey(features, 0.5).tolist() == [-2.0, -0.5, 0.0, 0.5, 3.0]
    torch.testing.assert_close(tukey(tukey(features, 0.5), 2.0), features)
    assert tukey(features, 1.0) is features
    assert tukey(features.half(), 0.5).dtype == torch.half


def test_heads_work_in_the_transformed_space():
    """Samples have weight zero here, so the scores depend on the real examples only."""
    task = small_task([[[1.0, 4.0], [9.0, 0.0]], [[25.0, 1.0]]], [[[0.0, 16.0]]])
    config = dataclasses.replace(CENTROID, mixing_weight=1.0)
    by_hand = small_task([[[1.0, 2.0], [3.0, 0.0]], [[5.0, 1.0]]], [[[0.0, 4.0]]])
    head = NearestCentroid(config)
    head.fit(by_hand, None, new_rng(0))

    method = DistributionCalibration(
        AS_THEY_ARE.with_overrides({"tukey_power": 0.5, "num_samples": 9}), config
    )

    scores = method.fit(task, new_rng(0)).predict(torch.tensor([[4.0, 9.0], [1.0, 0.0]]))[
        "centroid"
    ]
    torch.testing.assert_close(scores, head.scores(torch.tensor([[2.0, 3.0], [1.0, 0.0]])))


def samples_of(task: LowShotTask, **settings: object) -> torch.Tensor:
    """Return samples of the only novel class."""
    config = AS_THEY_ARE.with_overrides({"num_samples": 3_000, **settings})
    method = DistributionCalibration(config, CENTROID)
    return method.fit(task, new_rng(0), keep=0).synthetic[0][0]


@pytest.mark.parametrize(("is_transformed", "base_mean"), [(True, (1 + 3) / 2), (False, 5)])
def test_base_classes_are_transformed_or_not(is_transformed, base_mean):
    task = small_task([[[1.0], [9.0]]], [[[16.0]]])

    samples = samples_of(task, tukey_power=0.5, transformed_base=is_transformed, spread=0.0)

    assert float(samples.mean()) == pytest.approx((base_mean + 4) / 2, abs=0.4)


@pytest.mark.parametrize(("is_relative", "expected"), [(True, 0.5 * 9), (False, 0.5)])
def test_a_relative_spread_is_in_units_of_the_variance_of_a_number(is_relative, expected):
    """The base class has variance nine in each dimension."""
    task = small_task([[[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]]], [[[0.0, 0.0]]])

    samples = samples_of(task, spread=0.5, relative_spread=is_relative)

    # Off the diagonal, the base class has zeros, so only the spread remains.
    assert float(samples.T.cov()[0, 1]) == pytest.approx(expected, abs=0.6)
