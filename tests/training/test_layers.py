"""Test the layers of networks on cached features."""

import math

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.training.layers import drop, find_log_scale


def test_dropout_scales_what_is_left_and_may_share_its_mask():
    values = torch.ones(2, 200, 200)

    dropped = drop(values, 0.75, new_rng(0))
    first, second = drop(values, 0.75, new_rng(0), values.shape[1:])

    assert set(dropped.unique().tolist()) == {0.0, 4.0}
    assert float(dropped.mean()) == pytest.approx(1, abs=0.05)
    assert not torch.equal(*dropped)
    assert torch.equal(first, second)
    assert drop(values, 0.75, None) is values


def test_a_scale_is_found_where_probabilities_vanish():
    similarities = torch.tensor([[0.0, -1e9, -2.0]])

    log_scale = find_log_scale(lambda scale: (scale * similarities).log_softmax(dim=1))

    assert math.isfinite(log_scale)
