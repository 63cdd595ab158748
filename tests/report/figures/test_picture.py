import re
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from cpaan.report.figures.picture import Picture, slug
from cpaan.report.figures.style import COLOURS, INK, drawing, new_figure


def picture(name: str = "one", **words: str) -> Picture:
    """A line, points in pixels that are clipped, and text."""
    with drawing():
        figure = new_figure(height=2)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=COLOURS[0])
        axes.scatter([0, 1], [1, 0], color=INK, rasterized=True)
        axes.set_title("Of what is drawn")
    said = {"title": "A line", "caption": "It rises.", "alt": "From 0 to 1 & <up>.", **words}
    return Picture(name=name, figure=figure, **said)


def ids_in(svg: str) -> list[str]:
    return re.findall(r'\bid="([^"]+)"', svg)


def test_pictures_on_the_same_page_share_no_id_and_refer_to_their_own():
    one, other = picture("one").svg(), picture("other").svg()

    assert not set(ids_in(one)) & set(ids_in(other))
    assert len(ids_in(one)) == len(set(ids_in(one)))
    references = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', one)
    assert references
    assert {first or second for first, second in references} <= set(ids_in(one))


def test_text_and_axes_have_the_colour_of_the_page_and_there_is_no_ground():
    svg = picture().svg()

    assert "currentColor" in svg
    assert INK not in svg
    assert "#ffffff" not in svg
    assert COLOURS[0].lower() in svg


def test_a_picture_in_a_page_is_named_and_takes_the_width_that_there_is():
    root = ET.fromstring(picture().svg())

    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "From 0 to 1 & <up>."
    assert root.attrib["width"] == "100%"
    assert "height" not in root.attrib
    assert root.attrib["viewBox"].startswith("0 0 403.2 ")
    assert root[0].tag.endswith("title")
    assert root[0].text == "A line"


def test_no_rule_of_a_picture_reaches_the_rest_of_the_page():
    svg = picture().svg()

    assert not svg.startswith("<?xml")
    assert "<!DOCTYPE" not in svg
    assert "<style" not in svg
    assert "<metadata" not in svg


def test_text_is_text_in_any_font():
    svg = picture().svg()

    assert ">Of what is drawn</text>" in svg
    assert set(re.findall(r"font-family: ([^;]+)", svg)) == {"sans-serif"}


def test_the_same_data_give_the_same_bytes():
    one, again = picture(), picture()

    assert one.svg() == one.svg() == again.svg()
    assert one.svg_file() == again.svg_file()
    assert one.png() == one.png() == again.png()


def test_a_file_stands_alone_on_white():
    content = picture().svg_file()

    assert content.startswith("<?xml")
    assert "#ffffff" in content
    assert "currentColor" not in content
    assert "<dc:date>" not in content


def test_pixels_are_150_an_inch():
    content = picture().png()

    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 840
    assert int.from_bytes(content[20:24], "big") == 300


@pytest.mark.parametrize("name", ["", "CP-AAN+", "a b", "a/b"])
def test_a_name_that_cannot_be_a_file_or_an_id_is_refused(name):
    with pytest.raises(ValueError, match="no name of a picture"):
        Picture(name, "title", "caption", "alt", Figure())


@pytest.mark.parametrize("empty", ["title", "caption", "alt"])
def test_a_picture_without_its_words_is_refused(empty):
    with pytest.raises(ValueError, match="the picture one needs a title, a caption and an alt"):
        picture(**{empty: ""})


def test_names_of_rows_become_names_of_files():
    assert slug("CP-AAN+-PN") == "CP-AAN-plus-PN"
    assert slug("cCov-GAN, NBS-H k=5") == "cCov-GAN-NBS-H-k-5"
