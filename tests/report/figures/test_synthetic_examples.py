import pandas as pd
import pytest

from cpaan.report.figures.style import INK
from cpaan.report.figures.synthetic_examples import projections, spectra


def points_of(methods: dict[str, float]) -> pd.DataFrame:
    """Real points on a square of side 4, synthetic ones on one of the given side."""
    corners = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    rows = [
        (method, name, kind, centre + side / 2 * x, side / 2 * y)
        for method, own in methods.items()
        for name, centre in {"n1": 0.0, "n2": 9.0}.items()
        for kind, side in {"real": 4.0, "synthetic": own}.items()
        for x, y in corners
    ]
    rows += [(method, name, "shot", 0.5, 0.5) for method in methods for name in ("n1", "n2")]
    return pd.DataFrame(rows, columns=["method", "class", "kind", "x", "y"])


@pytest.mark.parametrize("num_methods", [1, 2, 3])
def test_there_is_a_panel_for_each_method_and_a_key(num_methods):
    sides = dict(list({"FH": 1.0, "FI": 2.0, "ours": 4.0}.items())[:num_methods])

    picture = projections(points_of(sides), {"n1": "goldfish"})

    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert [title for title in titles if title] == list(sides)
    (key,) = [axes.get_legend() for axes in picture.figure.axes if axes.get_legend()]
    assert [text.get_text() for text in key.get_texts()][-2:] == ["1  goldfish", "2  n2"]


def test_the_words_say_how_far_synthetic_points_reach():
    picture = projections(points_of({"FH": 1.0, "ours": 4.0}), {})

    assert picture.alt.endswith("FH 0.25, ours 1.00.")
    assert "the 1 shots" in picture.caption


def test_thousands_of_points_are_pixels():
    axes = projections(points_of({"FH": 1.0}), {}).figure.axes[0]

    assert [points.get_rasterized() for points in axes.collections[:2]] == [True, True]


def shares_of(methods: dict[str, list[list[float]]]) -> pd.DataFrame:
    return pd.DataFrame(
        {"method": method, "class": f"n{number}", "index": index, "share": share}
        for method, classes in methods.items()
        for number, shares in enumerate(classes)
        for index, share in enumerate(shares, start=1)
    )


def test_spectra_are_medians_over_classes():
    frame = shares_of(
        {
            "FH": [[0.3, 0.1], [0.3, 0.1], [0.3, 0.1]],
            "real": [[0.5, 0.2], [0.6, 0.3], [0.9, 0.1]],
        }
    )

    picture = spectra(frame)

    real, other = picture.figure.axes[0].lines
    assert real.get_color() == INK
    assert list(real.get_ydata()) == pytest.approx([0.6, 0.2])
    assert list(other.get_ydata()) == pytest.approx([0.3, 0.1])
    assert "first 2 directions have 0.90 of the real variance" in picture.alt
    assert picture.alt.endswith("FH 0.40.")


def test_directions_that_synthetic_examples_do_not_span_are_left_out():
    frame = shares_of({"FH": [[0.3, 2e-6, 1e-33]] * 3, "real": [[0.5, 0.3, 0.2]] * 3})

    axes = spectra(frame).figure.axes[0]

    assert list(axes.lines[1].get_xdata()) == [1, 2]
    assert axes.get_ylim()[0] > 1e-8


def test_spectra_without_truth_and_projections_without_points_are_refused():
    with pytest.raises(ValueError, match="no real shares, only those of FH"):
        spectra(shares_of({"FH": [[0.3]]}))
    with pytest.raises(ValueError, match="no points"):
        projections(points_of({}), {})
