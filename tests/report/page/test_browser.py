"""The page in a real browser, from disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.page import write_page
from cpaan.report.page.table_data import TableData, make_table_data
from helpers.browsers import Browser, start_browser, what_is_missing
from helpers.report_folders import write_report

pytestmark = pytest.mark.browser

SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
LIGHT, DARK = "rgb(252, 251, 248)", "rgb(20, 22, 26)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a study with its page."""
    folder = write_report(tmp_path_factory.mktemp("study") / "hand")

    def write(name: str, content: bytes) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    write_page(folder, write)
    return folder


@pytest.fixture(scope="module")
def table(folder) -> TableData:
    return make_table_data(read_contents(folder))


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Browser]:
    if missing := what_is_missing():
        pytest.skip(f"no browser: this machine lacks {missing}")
    with start_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(started, folder) -> Browser:
    """Return the browser with the page newly opened, on a wide and bright screen."""
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


def heading_of(browser: Browser, table: str, name: str):
    """Return the button of a heading."""
    path = f"//table[@id='{table}']//th//button[@aria-label='{name}' or starts-with(., '{name}')]"
    return browser.driver.find_element("xpath", path)


def sorted_by(browser: Browser, table: str) -> dict[str, str]:
    """Return which headings say that they sort, and how."""
    return browser.run(
        """
        const found = document.querySelectorAll(`#${arguments[0]} th[aria-sort]`);
        const nameOf = (cell) => cell.querySelector("button").ariaLabel ?? cell.innerText.trim();
        return Object.fromEntries([...found].filter((cell) => cell.ariaSort !== "none").map(
            (cell) => [nameOf(cell), cell.ariaSort]));
        """,
        table,
    )


def choose(browser: Browser, name: str, value: str) -> None:
    """Press a radio button as people do: on what is seen of it."""
    path = f"//input[@name='{name}' and @value='{value}']/.."
    browser.driver.find_element("xpath", path).click()


def background(browser: Browser) -> str:
    return browser.run("return getComputedStyle(document.body).backgroundColor")


def test_the_page_opens_from_disk_without_errors_and_asks_for_nothing(browser, folder):
    assert browser.messages() == []
    assert browser.requests() == [(folder / "report" / "index.html").as_uri()]


def test_a_request_would_be_seen_and_is_refused(browser):
    browser.requests()

    browser.run("new Image().src = 'https://example.org/x.png'")
    browser.run("return fetch('https://example.org/').catch(() => 0)")

    assert any("Content Security Policy" in message for message in browser.messages())


def test_every_figure_has_a_size_and_words(browser):
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")

    figures = browser.run(
        """
        return [...document.querySelectorAll("figure")].map((figure) => {
            const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
            return [figure.id, box.width, box.height, svg.getAttribute("aria-label"),
                    figure.querySelector("figcaption").textContent.trim()];
        })
        """
    )

    assert len(figures) >= 8
    for name, width, height, words, caption in figures:
        assert width > 100, name
        assert height > 50, name
        assert words, name
        assert caption, name


def test_files_of_figures_are_where_the_page_says(browser, folder):
    links = browser.run("return [...document.querySelectorAll('.files a')].map((a) => a.href)")

    assert links
    for link in links:
        assert Path(link.removeprefix("file://")).stat().st_size > 0
    assert len(list((folder / "report" / "figures").iterdir())) == len(links)


def test_a_heading_sorts_down_then_up_then_as_the_paper_has_it(browser):
    button = heading_of(browser, "accuracies", "LSL, 1 shots")
    before = column_of(browser, "accuracies", "Row")

    button.click()
    assert column_of(browser, "accuracies", "LSL, 1 shots") == [
        "41.0", "40.0", "35.0", "32.0", "31.0"
    ]  # fmt: skip
    assert column_of(browser, "accuracies", "Row")[0] == "cCov-GAN-PN"
    assert sorted_by(browser, "accuracies") == {"LSL, 1 shots": "descending"}
    button.click()
    assert column_of(browser, "accuracies", "LSL, 1 shots")[:2] == ["31.0", "32.0"]
    assert sorted_by(browser, "accuracies") == {"LSL, 1 shots": "ascending"}
    button.click()
    assert column_of(browser, "accuracies", "Row") == before
    assert sorted_by(browser, "accuracies") == {}


def test_headings_are_reached_and_pressed_by_keyboard(browser):
    button = heading_of(browser, "accuracies", "Head")

    button.send_keys("\ue007")  # Enter

    heads = column_of(browser, "accuracies", "Head")
    assert heads == sorted(heads)
    assert sorted_by(browser, "accuracies") == {"Head": "ascending"}
    assert "Head, ascending" in browser.run("return document.getElementById('said').textContent")


def test_rows_without_a_number_come_last_either_way(browser):
    button = heading_of(browser, "accuracies", "LSL printed, 1 shots")

    for numbers in (["48.4", "39.4", "39.2"], ["39.2", "39.4", "48.4"]):
        button.click()
        assert column_of(browser, "accuracies", "LSL printed, 1 shots") == [*numbers, "–", "–"]


def test_differences_sort_by_their_signed_numbers(browser):
    heading_of(browser, "pairs", "LSL, 1 shots").click()
    assert column_of(browser, "pairs", "LSL, 1 shots") == ["+10.0", "+9.0", "+6.0", "+1.0"]


@pytest.mark.parametrize(
    ("rule", "metric", "draws"),
    [
        ("paper", "top5", "fixed"),
        ("validation", "top1", "seeded"),
        ("linear", "top5", "seeded"),
        ("own", "top1", "fixed"),
    ],
)
def test_switches_show_the_numbers_of_the_data(browser, table, rule, metric, draws):
    choose(browser, "rule", rule)
    choose(browser, "metric", metric)
    choose(browser, "draws", draws)
    choose(browser, "column", "base")

    view = table.views[rule, metric, draws]
    names = column_of(browser, "accuracies", "Row")
    assert column_of(browser, "accuracies", "Head") == [
        view.head_of.get(name, "–") for name in names
    ]
    expected = [view.cells.get((name, "base", 5)) for name in names]
    assert column_of(browser, "accuracies", "Base, 5 shots") == [
        "–" if cell is None else f"{cell.mean:.1f}" for cell in expected
    ]
    intervals = browser.run(
        """
        return [...document.querySelectorAll("#accuracies td[data-column=base] small")].map(
            (small) => small.textContent)
        """
    )
    assert intervals[1::2] == ["" if cell is None else f"±{cell.interval:.1f}" for cell in expected]
    marks = browser.run(
        """
        return [...document.querySelectorAll("#accuracies td.first:not([hidden])")].map(
            (cell) => cell.parentElement.cells[0].textContent)
        """
    )
    best = [
        name for name in names if (cell := view.cells.get((name, "base", 1))) and cell.rank == 1
    ]
    assert marks == best * 2  # for one shot and for five


def shown_columns(browser: Browser) -> list[str]:
    return browser.run(
        """
        return [...document.querySelectorAll("#accuracies thead tr:first-child th")].filter(
            (cell) => cell.offsetWidth > 0).map((cell) => cell.textContent)
        """
    )


def test_columns_and_printed_numbers_can_be_chosen(browser):
    assert shown_columns(browser) == ["LSL", "GLSL", "LSL, printed", "GLSL, printed"]
    choose(browser, "column", "all")
    assert shown_columns(browser) == ["GLSL", "GLSL, printed"]
    browser.driver.find_element("name", "printed").click()
    assert shown_columns(browser) == ["GLSL"]
    choose(browser, "column", "all_prior")
    assert shown_columns(browser) == ["With prior"]


def test_printed_numbers_are_of_top_5_only(browser):
    choose(browser, "metric", "top1")

    assert shown_columns(browser) == ["LSL", "GLSL"]


def test_another_row_can_be_compared_with_all_others(browser):
    select = browser.driver.find_element("name", "subject")
    select.send_keys("MAML")

    assert column_of(browser, "pairs", "Minus") == ["none", "copy", "PN", "cCov-GAN-PN"]
    assert column_of(browser, "pairs", "LSL, 1 shots") == ["+3.0", "+4.0", "−5.0", "−6.0"]
    choose(browser, "pairs", "validation")
    assert column_of(browser, "pairs", "LSL, 1 shots") == ["+3.0", "−1.0", "−5.0", "−10.0"]


def test_the_page_is_dark_where_the_system_is_and_the_button_turns_it(browser):
    assert background(browser) == LIGHT
    button = browser.driver.find_element("id", "theme")
    button.click()
    assert background(browser) == DARK
    button.click()
    assert background(browser) == LIGHT

    browser.prefer("dark")
    browser.driver.refresh()
    assert background(browser) == DARK
    browser.driver.find_element("id", "theme").click()
    assert background(browser) == LIGHT


def save_screenshot(browser: Browser, name: str) -> None:
    """Save the whole page as a picture that one can look at after the tests."""
    width, height = browser.run(
        "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
    )
    browser.resize(width, height)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser.driver.save_screenshot(str(SCREENSHOTS / name))
    browser.resize(width, 800)


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (768, "light"), (1440, "light"), (1440, "dark")]
)
def test_the_body_does_not_scroll_sideways(browser, width, scheme):
    browser.prefer(scheme)
    browser.resize(width, 800)
    browser.driver.refresh()
    save_screenshot(browser, f"page-{width}-{scheme}.png")
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")

    content, screen = browser.run(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert content <= screen <= width


def test_names_of_rows_stay_in_view_while_numbers_scroll(browser):
    browser.resize(360, 800)
    browser.driver.refresh()

    left, first, last = browser.run(
        """
        const scroll = document.querySelector("#table-1 .scroll");
        scroll.scrollLeft = 10000;
        const edges = (cell) => cell.getBoundingClientRect().left;
        const { cells } = document.querySelector("#accuracies tbody tr");
        return [scroll.scrollLeft, edges(cells[0]), edges(cells[cells.length - 1])];
        """
    )
    assert left > 100
    assert first == 0
    assert 0 < last < 360


def contrasts(browser: Browser) -> dict[str, float]:
    """Return the contrast of every colour of text with the ground, as WCAG defines it."""
    return browser.run(
        """
        const luminance = (name) => {
            const probe = document.body.appendChild(document.createElement("i"));
            probe.style.color = `var(${name})`;
            const numbers = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
            const parts = numbers.map((each) => {
                const value = each / 255;
                return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
            });
            probe.remove();
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
        };
        const found = {};
        for (const ground of ["--ground", "--raised", "--ours"])
            for (const ink of ["--ink", "--soft", "--accent", "--good", "--bad", "--open"]) {
                const [low, high] = [luminance(ground), luminance(ink)].sort((a, b) => a - b);
                found[`${ink} on ${ground}`] = (high + 0.05) / (low + 0.05);
            }
        return found;
        """
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser, scheme):
    browser.prefer(scheme)

    too_weak = {name: ratio for name, ratio in contrasts(browser).items() if ratio < 4.5}

    assert too_weak == {}
