import pandas as pd
import pytest

from cpaan.gan.spiral import SpiralOutcome, draw_points, to_plain
from cpaan.report.figures.picture import INK
from cpaan.report.figures.synthetic import draw_spiral, projections, spectra


def points_of(methods: dict[str, float]) -> pd.DataFrame:
    """Return real points on a square of side 4, and synthetic ones on one of the given side."""
    rows = [
        (method, name, kind, centre + side / 2 * x, side / 2 * y)
        for method, synthetic in methods.items()
        for name, centre in {"n1": 0.0, "n2": 9.0}.items()
        for kind, side in {"real": 4.0, "synthetic": synthetic}.items()
        for x, y in [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    ]
    rows += [(method, name, "shot", 0.5, 0.5) for method in methods for name in ("n1", "n2")]
    return pd.DataFrame(rows, columns=["method", "class", "kind", "x", "y"])


@pytest.mark.parametrize("sides", [{"FH": 1.0}, {"FH": 1.0, "FI": 2.0}])
def test_projections_have_a_panel_for_each_method_and_a_key(sides):
    picture = projections(points_of(sides))

    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert [title for title in titles if title] == list(sides)
    (key,) = picture.figure.legends
    assert [text.get_text() for text in key.get_texts()][-2:] == ["1  n1", "2  n2"]
    facts = ", ".join(f"{name} {side / 4:.2f}" for name, side in sides.items())
    assert picture.alt.endswith(f": {facts}.")
    assert "the 1 shots" in picture.caption
    # Thousands of points are rasterised.
    assert sum(layer.get_rasterized() for layer in picture.figure.axes[0].collections) == 4
    numbers = {text.get_text(): text.get_position() for text in picture.figure.axes[0].texts}
    assert numbers == {"1": (0, 0), "2": (9, 0)}, "the median of each cloud"


def shares_of(methods: dict[str, list[list[float]]]) -> pd.DataFrame:
    return pd.DataFrame(
        {"method": method, "class": f"n{number}", "index": index, "share": share}
        for method, classes in methods.items()
        for number, shares in enumerate(classes)
        for index, share in enumerate(shares, start=1)
    )


def test_spectra_are_medians_over_classes_of_the_directions_that_examples_span():
    classes = [[0.5, 0.2, 0.1], [0.6, 0.3, 0.1], [0.9, 0.1, 0.1]]

    picture = spectra(shares_of({"FH": [[0.3, 2e-6, 1e-33]] * 3, "real": classes}))

    (axes,) = picture.figure.axes
    real, other = axes.lines
    assert real.get_color() == INK
    assert list(real.get_ydata()) == pytest.approx([0.6, 0.2, 0.1])
    assert other.get_xydata().tolist() == [[1, 0.3], [2, 2e-6]]
    assert axes.get_ylim()[0] > 1e-8
    assert "first 3 directions have 1.00 of the real variance" in picture.alt
    assert picture.alt.endswith("FH 0.30.")


def test_the_spiral_has_a_panel_for_each_gan_the_raw_points_and_a_key():
    points = draw_points(seed=0)
    outcomes = {
        name: SpiralOutcome(points.novel, points.base, ratio, 0.1)
        for name, ratio in {"c-GAN": 0.2, "cCov-GAN": 1.04}.items()
    }

    picture = draw_spiral(to_plain(points, outcomes))

    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == ["raw", "c-GAN: 0.20", "cCov-GAN: 1.04"]
    assert picture.alt.endswith("c-GAN 0.20, cCov-GAN 1.04.")
    assert len(picture.svg()) < 150_000
