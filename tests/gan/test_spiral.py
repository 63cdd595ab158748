"""Test the toy experiment: its geometry, and the effect of the covariance term."""

import json
import math
from pathlib import Path

import pytest
import torch

from cpaan.cli import main
from cpaan.gan.covariance import covariances
from cpaan.gan.gans import GANS
from cpaan.gan.spiral import (
    SPIRAL_CONFIG,
    SpiralOutcome,
    draw_points,
    run_spiral,
    to_plain,
)
from cpaan.protocol.neighbours import similarity
from helpers.commands import refused


def test_related_arms_have_nearly_the_same_covariance_and_others_do_not():
    points = draw_points(seed=0)
    top, bottom, left, right = (*covariances(points.base), *covariances(points.novel))

    for one, other, is_related in ((top, left, 1), (bottom, right, 1), (top, right, 0)):
        assert ((one - other).norm() / one.norm() < 0.3) == is_related


@pytest.mark.parametrize("seed", range(5))
def test_four_shots_are_enough_to_know_the_related_arm(seed):
    points = draw_points(seed)

    scores = similarity(points.shots.mean(dim=1), points.base.mean(dim=1), SPIRAL_CONFIG)

    assert points.shots.shape == (2, 4, 2)
    assert scores.argmax(dim=1).tolist() == [0, 1]


@pytest.mark.slow
def test_the_covariance_term_keeps_the_diversity_that_a_plain_gan_loses():
    """With four seeds, the error was 4 to 14 % of that without the term."""
    config = SPIRAL_CONFIG.with_overrides({"num_episodes": 100})
    points = draw_points(seed=0)

    plain, preserving = (run_spiral(gan, points, config, 0) for gan in ("c-GAN", "cCov-GAN"))

    error, plain_error = (abs(math.log(outcome.diversity_ratio)) for outcome in (preserving, plain))
    assert error < 0.5 * plain_error


def test_a_spiral_is_small_as_json():
    points = draw_points(seed=0)
    outcome = SpiralOutcome(points.novel, points.base, 0.25, 0.5)

    plain = to_plain(points, dict.fromkeys(GANS, outcome))

    assert len(json.dumps(plain, indent=1)) < 300_000
    assert list(plain["outcomes"]) == list(GANS)
    torch.testing.assert_close(
        torch.tensor(plain["shots"], dtype=torch.float64), points.shots, atol=5.1e-4, rtol=0
    )


def test_the_command_draws_one_picture_and_says_how_it_was_made(capsys):
    status = main(["spiral", "--out", "out", "--episodes", "2", "--set", "hidden_dim=4"])

    assert status == 0
    picture = Path("out", "spiral.svg").read_text()
    assert all(name in picture for name in ("raw", "c-GAN", "cCyc-GAN", "cDeLi-GAN", "cCov-GAN"))
    content = json.loads(Path("out", "spiral.json").read_text())
    assert content["config"]["num_episodes"] == 2
    assert [row["method"] for row in content["rows"]][-1] == "cCov-GAN"
    assert "Written: out/spiral.svg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--episodes", "x"], "'x' is not a positive whole number"),
        (["--set", "ky_fan_order=3"], "ky_fan_order is 3, but the plane has 2 dimensions"),
        (["--set", "perplexity=2"], "below the number of base classes, 2, got 2.0"),
    ],
)
def test_bad_input_ends_in_one_clear_line(options, message, capsys):
    assert message in refused(capsys, main, "spiral", "--out", "never", *options)
    assert not Path("never").exists()
