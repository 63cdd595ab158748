import pytest

from cpaan.gan.spiral import SpiralOutcome, draw_points
from cpaan.report.figures.spiral import draw_spiral


def test_the_spiral_has_a_panel_for_each_gan_the_raw_points_and_a_key():
    points = draw_points(seed=0)
    outcomes = {
        name: SpiralOutcome(points.novel, points.base, ratio, 0.1)
        for name, ratio in {"c-GAN": 0.2, "cCov-GAN": 1.04}.items()
    }

    picture = draw_spiral(points, outcomes)

    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == ["raw", "c-GAN: 0.20", "cCov-GAN: 1.04", "", "", ""]
    assert picture.alt.endswith("c-GAN 0.20, cCov-GAN 1.04.")
    assert len(picture.svg()) < 150_000


def test_no_outcome_is_no_picture():
    with pytest.raises(ValueError, match="no outcomes"):
        draw_spiral(draw_points(seed=0), {})
