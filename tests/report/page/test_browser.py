"""Test the page in a real browser, opened from disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.page import write_page
from cpaan.report.page.views import make_views
from helpers.browsers import Browser, start_browser, what_is_missing
from helpers.report_folders import write_report

pytestmark = pytest.mark.browser

SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
LIGHT, DARK = "rgb(252, 251, 248)", "rgb(20, 22, 26)"
FIRST = "LSL, 1 shots"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Write a study with its page, and return its folder."""
    folder = write_report(tmp_path_factory.mktemp("study") / "hand")

    def write(name: str, content: bytes) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    write_page(folder, write)
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Browser]:
    if missing := what_is_missing():
        pytest.skip(f"no browser: this machine lacks {missing}")
    with start_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(started, folder) -> Browser:
    """Open the page on a wide screen with the light scheme, and return the browser."""
    started.resize(1440, 900)
    started.prefer("light")
    started.driver.get("about:blank")
    started.messages()
    started.requests()
    started.driver.get((folder / "report" / "index.html").as_uri())
    return started


def column_of(browser: Browser, table: str, heading: str) -> list[str]:
    """Return the first text of every cell below a heading, from top to bottom."""
    return browser.run(
        """
        const [table, heading] = arguments, shown = document.getElementById(table);
        const nameOf = (cell) => cell.querySelector("button").ariaLabel ?? cell.innerText.trim();
        const at = [...shown.tHead.rows[1].cells].findIndex((cell) => nameOf(cell) === heading);
        return [...shown.tBodies[0].rows].filter((row) => !row.hidden).map(
            (row) => (row.cells[at].querySelector("b") ?? row.cells[at]).textContent);
        """,
        table,
        heading,
    )


def heading_of(browser: Browser, table: str, name: str) -> Any:
    path = f"//table[@id='{table}']//th//button[@aria-label='{name}' or starts-with(., '{name}')]"
    return browser.driver.find_element("xpath", path)


def sorted_by(browser: Browser) -> list[str]:
    """Return the sort directions in the headings of Table 1."""
    headings = "#accuracies th[aria-sort]:not([aria-sort=none])"
    return browser.run(
        f"return [...document.querySelectorAll('{headings}')].map((x) => x.ariaSort)"
    )


def texts(browser: Browser, selector: str) -> list[str]:
    """Return the texts of visible elements."""
    script = """return [...document.querySelectorAll(arguments[0])].filter(
        (element) => element.offsetWidth > 0).map((element) => element.textContent)"""
    return browser.run(script, selector)


def choose(browser: Browser, name: str, value: str) -> None:
    """Click the visible label of a radio button."""
    path = f"//input[@name='{name}' and @value='{value}']/.."
    browser.driver.find_element("xpath", path).click()


def open_at(browser: Browser, width: int) -> None:
    """Load the page again on a screen of this width."""
    browser.resize(width, 800)
    browser.driver.refresh()


def open_details(browser: Browser) -> None:
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def test_the_page_opens_from_disk_without_errors_and_requests_are_refused(browser, folder):
    assert browser.messages() == []
    assert browser.requests() == [(folder / "report" / "index.html").as_uri()]

    browser.run("new Image().src = 'https://example.org/x.png'")
    browser.run("return fetch('https://example.org/').catch(() => 0)")

    assert any("Content Security Policy" in message for message in browser.messages())


def test_every_figure_has_a_size_words_and_files(browser, folder):
    open_details(browser)

    figures = browser.run(
        """
        return [...document.querySelectorAll("figure")].map((figure) => {
            const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
            const caption = figure.querySelector("figcaption").textContent.trim();
            return [figure.id, box.width, box.height, svg.ariaLabel !== "", caption !== ""];
        })
        """
    )
    links = browser.run("return [...document.querySelectorAll('.files a')].map((a) => a.href)")

    assert len(figures) == 5, "three of the rows, and one each of two searches"
    for name, width, height, *has_words in figures:
        assert width > 100, name
        assert height > 50, name
        assert has_words == [True, True], name
    assert all(Path(link.removeprefix("file://")).stat().st_size > 0 for link in links)
    assert len(list((folder / "report" / "figures").iterdir())) == len(links) == 6


def test_a_heading_sorts_down_then_up_then_as_the_paper_has_it(browser):
    button = heading_of(browser, "accuracies", FIRST)
    before = column_of(browser, "accuracies", "Row")
    down = ["41.0", "40.0", "35.0", "32.0", "31.0"]

    button.click()
    assert column_of(browser, "accuracies", FIRST) == down
    assert column_of(browser, "accuracies", "Row")[0] == "cCov-GAN-PN"
    assert sorted_by(browser) == ["descending"]
    button.click()
    assert column_of(browser, "accuracies", FIRST) == down[::-1]
    assert sorted_by(browser) == ["ascending"]
    button.click()
    assert column_of(browser, "accuracies", "Row") == before
    assert sorted_by(browser) == []


def test_headings_sort_words_by_keyboard_and_signed_and_missing_numbers(browser):
    heading_of(browser, "accuracies", "Head").send_keys("\ue007")  # Enter
    heads = column_of(browser, "accuracies", "Head")
    assert heads == sorted(heads)
    assert "Head, ascending" in browser.run("return document.getElementById('said').textContent")
    browser.driver.find_element("name", "printed").click()
    for numbers in (["48.4", "39.4", "39.2"], ["39.2", "39.4", "48.4"]):
        heading_of(browser, "accuracies", "LSL printed, 1 shots").click()
        printed = column_of(browser, "accuracies", "LSL printed, 1 shots")
        assert printed == [*numbers, "–", "–"], "rows without a number come last"
    browser.driver.find_element("name", "minus").send_keys("cCov-GAN-PN")
    heading_of(browser, "accuracies", FIRST).click()
    assert column_of(browser, "accuracies", FIRST) == ["−1.0", "−6.0", "−9.0", "−10.0", "–"]


@pytest.mark.parametrize(
    ("rule", "metric", "draws"),
    [
        ("paper", "top5", "fixed"),
        ("validation", "top1", "seeded"),
        ("linear", "top5", "seeded"),
        ("own", "top1", "fixed"),
    ],
)
def test_switches_show_the_numbers_of_the_data(browser, folder, rule, metric, draws):
    table = make_views(read_contents(folder))
    head_of, cells = table.rules[rule], table.views[rule, metric, draws]
    for name, value in (("rule", rule), ("metric", metric), ("draws", draws), ("column", "base")):
        choose(browser, name, value)

    names = column_of(browser, "accuracies", "Row")
    assert column_of(browser, "accuracies", "Head") == [head_of.get(name, "–") for name in names]
    expected = [cells.get((name, "base", 5)) for name in names]
    shown = ["–" if cell is None else f"{cell.value:.1f}" for cell in expected]
    assert column_of(browser, "accuracies", "Base, 5 shots") == shown
    intervals = texts(browser, "#accuracies td[data-column=base] small")
    assert [x for x in intervals[1::2] if x] == [f"±{c.interval:.1f}" for c in expected if c]
    marked = browser.run(
        """return [...document.querySelectorAll("#accuracies td.first:not([hidden])")].map(
            (cell) => cell.parentElement.cells[0].textContent)"""
    )
    ranks = {name: cells[name, "base", 1].rank for name in names if name in head_of}
    assert marked == [name for name in ranks if ranks[name] == 1] * 2  # for one and five shots


def test_columns_and_printed_numbers_can_be_chosen(browser):
    titles = "#accuracies thead tr:first-child th"

    assert texts(browser, titles) == ["LSL", "GLSL"], "printed numbers are off"
    browser.driver.find_element("name", "printed").click()
    assert texts(browser, titles) == ["LSL", "GLSL", "LSL, printed", "GLSL, printed"]
    choose(browser, "metric", "top1")
    assert texts(browser, titles) == ["LSL", "GLSL"], "the papers print top-5 only"
    choose(browser, "metric", "top5")
    choose(browser, "column", "all")
    assert texts(browser, titles) == ["GLSL", "GLSL, printed"]
    choose(browser, "column", "all_calibrated")
    assert texts(browser, titles) == ["Calibrated GLSL"]


def test_the_table_shows_differences_to_a_row_that_is_chosen(browser):
    choose(browser, "metric", "top1")
    browser.driver.find_element("name", "minus").send_keys("MAML")

    assert column_of(browser, "accuracies", FIRST) == ["−3.0", "−4.0", "–", "+5.0", "+6.0"]
    assert browser.run("return document.querySelector('[name=metric]:checked').value") == "top5"
    sides = "return document.querySelectorAll('#accuracies td.{}:not([hidden])').length"
    assert [browser.run(sides.format(side)) for side in ("above", "below", "first")] == [8, 8, 0]
    choose(browser, "rule", "validation")
    assert column_of(browser, "accuracies", FIRST) == ["−3.0", "+1.0", "–", "+5.0", "+10.0"]
    choose(browser, "metric", "top1")  # of which there are no differences
    assert column_of(browser, "accuracies", FIRST)[2] == "25.0"


def test_the_finding_comes_first_then_claims_table_figures_and_a_closed_appendix(browser):
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"

    headline = browser.run("return document.querySelector('h1').innerText").replace("\u2011", "-")
    assert "cCov-GAN-PN − PN is +1.00" in headline
    assert browser.run(top, ".lead svg") < 400, "beside the headline"
    parts = ("h1", "#claims", "#accuracies", "#diversity", "#figures", "#appendix")
    tops = [browser.run(top, part) for part in parts]
    assert tops == sorted(tops)
    opened = "return document.querySelectorAll('details[open]').length"
    assert browser.run(opened) == 0, "the appendix, and the details of claims"


def test_the_page_is_dark_where_the_system_is_and_the_button_turns_it(browser):
    for scheme, grounds in (("light", (LIGHT, DARK, LIGHT)), ("dark", (DARK, LIGHT, DARK))):
        browser.prefer(scheme)
        browser.driver.refresh()
        for ground in grounds:
            shown = browser.run("return getComputedStyle(document.body).backgroundColor")
            assert shown == ground
            browser.driver.find_element("id", "theme").click()


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (1400, "light"), (1400, "dark"), (2560, "light")]
)
def test_nothing_is_cut(browser, width, scheme):
    browser.prefer(scheme)
    open_at(browser, width)
    height = browser.run("return document.documentElement.scrollHeight")
    browser.resize(width, height)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser.driver.save_screenshot(str(SCREENSHOTS / f"page-{width}-{scheme}.png"))
    browser.resize(width, 800)
    open_details(browser)

    cut = browser.run(
        """
        const limit = document.documentElement.clientWidth, cut = [];
        const isOut = (element, left, right) => {
            const box = element.getBoundingClientRect();
            return box.width && (box.left < left - 1 || box.right > right + 1);
        };
        for (const part of document.querySelectorAll("main *:not(svg *)")) {
            const hidden = part.closest(".visually-hidden, #appendix .scroll, .switch input");
            if (!hidden && isOut(part, 0, limit)) cut.push(part.outerHTML.slice(0, 90));
        }
        for (const svg of document.querySelectorAll("svg")) {
            const { left, right } = svg.getBoundingClientRect();
            for (const text of svg.querySelectorAll("text"))
                if (isOut(text, left, right)) cut.push(text.textContent);
        }
        return cut;
        """
    )
    assert cut == []
    assert browser.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 1000, 1360])
def test_table_1_fits_and_its_header_covers_no_row_and_stays_in_view(browser, width):
    open_at(browser, width)
    edges = """
        const boxOf = (name) => document.querySelector(name).getBoundingClientRect();
        const ends = [boxOf("#accuracies thead").bottom, boxOf("#accuracies tbody tr").top];
        window.scrollBy(0, boxOf("#accuracies tbody tr:last-child").top - 150);
        const head = boxOf("#accuracies thead").top;
        return [...ends, boxOf("#accuracies").right, head, boxOf("nav").bottom];
        """

    head, first, right, scrolled, nav = browser.run(edges)

    assert abs(head - first) < 1
    if width == 1360:
        assert right <= 1360
        assert abs(scrolled - nav) < 3, "below the links to the sections"


def test_a_phone_has_one_shot_of_lsl_and_glsl_and_a_column_alone_has_every_number(browser):
    open_at(browser, 360)
    shown = """
        const { cells } = document.querySelector("#accuracies tbody tr");
        const shown = [...cells].filter((cell) => cell.offsetWidth);
        return shown.map((cell) => cell.querySelector("b")?.textContent);
        """

    assert browser.run(shown) == [None, "32.0", "37.0"]
    choose(browser, "column", "novel")
    assert browser.run(shown)[-2:] == ["32.0", "42.0"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser, scheme):
    """Compute the WCAG contrast of every text colour with every background."""
    browser.prefer(scheme)

    contrasts = browser.run(
        """
        const luminance = (name) => {
            const probe = document.body.appendChild(document.createElement("i"));
            probe.style.color = `var(${name})`;
            const numbers = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
            const parts = numbers.map((number) => {
                const value = number / 255;
                return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
            });
            probe.remove();
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
        };
        const ratios = {};
        for (const ground of ["--ground", "--raised", "--ours"])
            for (const ink of ["--ink", "--soft", "--accent", "--good", "--bad", "--open"]) {
                const [low, high] = [luminance(ground), luminance(ink)].sort((a, b) => a - b);
                ratios[`${ink} on ${ground}`] = (high + 0.05) / (low + 0.05);
            }
        return ratios;
        """
    )

    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
