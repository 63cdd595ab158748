"""Test the style of pictures, the placement of labels, and the file formats."""

import re
from xml.etree import ElementTree as ET

import pytest
from matplotlib.text import Text

from cpaan.report.figures.picture import (
    COLOURS,
    INK,
    Picture,
    drawing,
    label_ends,
    look_of,
    new_figure,
    slug,
)


def picture(name: str = "one") -> Picture:
    """Draw a line, rasterised and clipped points, and text."""
    with drawing():
        figure = new_figure(height=2)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=COLOURS[0])
        axes.scatter([0, 1], [1, 0], color=INK, rasterized=True)
        axes.set_title("Of what is drawn")
    return Picture(name, "A line", "It rises.", 'From "0" to 1 & <up>.', figure)


def test_pictures_on_the_same_page_share_no_id_and_refer_to_their_own():
    one, other = (re.findall(r'\bid="([^"]+)"', picture(name).svg()) for name in ("one", "other"))

    assert not set(one) & set(other)
    assert len(one) == len(set(one))
    references = re.findall(r'(?:url\(#|href="#)([^)"]+)', picture("one").svg())
    assert references
    assert set(references) <= set(one)


def test_a_picture_in_a_page_has_the_page_s_colour_font_and_width_and_its_words():
    svg = picture().svg()
    root = ET.fromstring(svg)

    assert all(part in svg for part in ("currentColor", COLOURS[0].lower(), ">Of what is drawn<"))
    assert not any(part in svg for part in ("<?xml", INK, "#ffffff", "<style", "<metadata"))
    assert set(re.findall(r"font-family: ([^;]+)", svg)) == {"sans-serif"}
    assert (root.attrib["aria-label"], root[0].text) == ('From "0" to 1 & <up>.', "A line")
    assert root.attrib["width"] == "100%"
    assert root.attrib["viewBox"].startswith("0 0 360 ")


def test_a_file_stands_alone_on_white_and_the_same_data_give_the_same_bytes():
    one, again = picture(), picture()
    file, pixels = one.file("svg").decode(), one.file("png")

    assert file.startswith("<?xml")
    assert "#ffffff" in file
    assert "currentColor" not in file
    size = [int.from_bytes(pixels[at : at + 4], "big") for at in (16, 20)]
    assert size == [750, 300], "150 pixels an inch"
    assert one.svg() == one.svg() == again.svg()
    assert (file, pixels) == (again.file("svg").decode(), again.file("png"))


def test_no_two_of_21_lines_look_alike_and_names_of_rows_become_names_of_files():
    looks = [look_of(number) for number in range(21)]

    assert len(set(looks)) == len({look[1:] for look in looks}) == 21, "not by colour alone"
    names = ("CP-AAN+-PN", "cCov-GAN, NBS-H k=5")
    assert [slug(name) for name in names] == ["CP-AAN-plus-PN", "cCov-GAN-NBS-H-k-5"]


def test_labels_of_ends_keep_their_order_and_stay_in_the_panel():
    axes = new_figure(height=3).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    ends = {"one": 0.999, "two": 0.998, "three": 0.998, "four": 0.3}

    label_ends(axes, [(name, "#000000", 1.0, height) for name, height in ends.items()])

    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    axes.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
    assert max(heights, key=heights.get) == "one"
    assert (heights["one"], heights["four"]) == pytest.approx((1.0, 0.3))
