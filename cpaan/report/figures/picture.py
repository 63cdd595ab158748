"""A figure with its words, and the forms in which people get to see it."""

import io
import re
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from matplotlib.figure import Figure

from cpaan.report.figures.style import INK, drawing

_DOTS_PER_INCH = 150
_SVG = "http://www.w3.org/2000/svg"
_LARGEST = 1.6  # pixels of the screen for a point of the figure, where there is room
_WITHOUT_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, what it shows, and how to say that to people who cannot see it.

    Raises:
        ValueError: If the name has other characters than letters, digits and hyphens, or a text
            is empty.
    """

    name: str
    """Of its files, and of all ids within its SVG."""
    title: str
    caption: str
    """What is seen and what it says."""
    alt: str
    """The facts, for people who cannot see it."""
    figure: Figure

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.name):
            raise ValueError(f"{self.name!r} is no name of a picture: letters, digits and hyphens")
        if not (self.title and self.caption and self.alt):
            raise ValueError(f"the picture {self.name} needs a title, a caption and an alt text")
        # Laid out once: layouts that are found again at every drawing differ a little each time.
        with drawing():
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def svg(self) -> str:
        """Return SVG to be put into an HTML page: in the page's own text colour, on its ground.

        Its ids begin with the name, so pictures with other names may stand on the same page. The
        width is the page's, up to a limit.
        """
        root = ET.fromstring(self._saved("svg", is_transparent=True))
        width = float(root.attrib["viewBox"].split()[2])
        for element in root.iter():
            element.tag = _local(element.tag)
            element.attrib = {
                _local(key): self._inlined(_local(key), value)
                for key, value in element.attrib.items()
            }
        for parent in list(root.iter()):
            for child in list(parent):
                if child.tag in ("metadata", "style"):  # rules for the whole page
                    parent.remove(child)
        del root.attrib["height"]
        root.attrib |= {
            "xmlns": _SVG,
            "width": "100%",
            "style": f"max-width: {_LARGEST * width:.0f}px; height: auto",
            "stroke-linejoin": "round",
            "stroke-linecap": "butt",
            "role": "img",
            "aria-label": self.alt,
        }
        title = ET.Element("title")
        title.text = self.title
        root.insert(0, title)
        return ET.tostring(root, encoding="unicode") + "\n"

    def svg_file(self) -> str:
        """Return SVG that stands alone: on white, for whatever shows it as an image."""
        return self._saved("svg", is_transparent=False).decode()

    def png(self) -> bytes:
        """Return the picture in pixels, on white."""
        return self._saved("png", is_transparent=False)

    def _saved(self, kind: str, *, is_transparent: bool) -> bytes:
        content = io.BytesIO()
        with drawing():
            self.figure.savefig(
                content,
                format=kind,
                dpi=_DOTS_PER_INCH,
                transparent=is_transparent,
                facecolor="none" if is_transparent else "white",
                metadata=_WITHOUT_DATE if kind == "svg" else {"Software": None},
            )
        return content.getvalue()

    def _inlined(self, key: str, value: str) -> str:
        """Return an attribute with ids of our own, the page's colour and fewer digits."""
        if key == "id":
            return f"{self.name}-{value}"
        if key == "href":
            return re.sub("^#", f"#{self.name}-", value)
        if key in ("d", "x", "y"):
            return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value)
        value = value.replace("'DejaVu Sans', ", "")  # any font will do: the reader's own
        return value.replace("url(#", f"url(#{self.name}-").replace(INK, "currentColor")


def slug(name: str) -> str:
    """Return the name of a row as part of a picture's: letters, digits and hyphens."""
    return re.sub("[^A-Za-z0-9]+", "-", name.replace("+", "-plus")).strip("-")


def _local(name: str) -> str:
    """Return a name of XML without its namespace."""
    return name.rpartition("}")[2]
