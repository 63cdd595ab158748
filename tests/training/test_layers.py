"""Parts of networks on cached features."""

import math

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.training.layers import drop, find_log_scale


def test_what_is_left_out_is_made_up_for():
    values = torch.ones(200, 200)

    dropped = drop(values, 0.75, new_rng(0))

    assert set(dropped.unique().tolist()) == {0.0, 4.0}
    assert float(dropped.mean()) == pytest.approx(1, abs=0.05)
    assert drop(values, 0.75, None) is values


def test_values_can_share_what_is_left_out():
    values = torch.ones(2, 50, 8)

    first, second = drop(values, 0.5, new_rng(0), values.shape[1:])

    assert torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_a_scale_is_found_where_probabilities_vanish():
    similarities = torch.tensor([[0.0, -1e9, -2.0]])

    log_scale = find_log_scale(lambda scale: (scale * similarities).log_softmax(dim=1))

    assert math.isfinite(log_scale)
