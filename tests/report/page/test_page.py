"""Test the HTML of the page, which is complete without scripts. `test_browser.py` opens it."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cpaan.report.claims.judge import TERMS
from cpaan.report.claims.verdict import Claim, Mark
from cpaan.report.figures.picture import Picture
from cpaan.report.page.contents import Ablation, read_contents
from cpaan.report.page.headline import make_headline
from cpaan.report.page.page import Page, axis_of, make_diversity, render, write_page
from cpaan.report.page.views import make_views
from helpers.report_folders import write_report

MARKS = (Mark(1.0, 0.5, 6.0),)
CLAIMS = [
    Claim("one", "<Yes>.", "+9.0", "+8.0 ± 1.0", "confirmed", "primary", (Mark(8.0, 1.0, 9.0),)),
    Claim("two", "No.", "+2.6", "-1.0 ± 0.2", "opposite", parts=(Mark(-1.0, 0.2),), p_value=0.0123),
    Claim("three", "Nearest (|log ratio|).", "", "-0.3 ± 0.9", "undecided", "further"),
    Claim("four", "X over PN.", "+6.0", "+1.0 ± 0.5", "same sign, much smaller", "control", MARKS),
]


def picture(name: str) -> Picture:
    return Picture(name, f"Title of {name}", "A line.", "It goes up.", Figure())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the page of a small report, with four pictures in place of all."""
    contents = read_contents(write_report(tmp_path_factory.mktemp("report")))
    table = make_views(contents)
    searches = [("PN", "4 trials", picture("c")), ("LR", "1 trial", None)]
    drawn = CLAIMS, [picture("a"), picture("b")], searches
    return Page(contents, table, make_headline(contents, table, CLAIMS), picture("lead"), *drawn)


@pytest.fixture(scope="module")
def text(page):
    return render(page)


def table_of(text: str, name: str) -> list[list[str]]:
    """Return the texts of a table's body, by row and cell."""
    table = re.search(rf'<table id="{name}".*?</table>', text, re.S)
    rows = re.findall(r"<tr data-row.*?</tr>", table[0], re.S)
    return [
        [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        for row in rows
    ]


def test_without_a_script_the_table_shows_the_paper_s_rule(text):
    rows = table_of(text, "accuracies")

    assert [row[0] for row in rows] == ["none", "copy", "MAML", "PN", "cCov-GAN-PN"]
    assert [row[4] for row in rows] == ["linear", "linear", "own", "centroid", "centroid"]
    # LSL and GLSL with one and five shots.
    assert rows[3][5:9] == ["40.0±7.1", "50.0±7.1", "45.0±7.1", "55.0±7.1"]
    assert rows[3][-4:] == ["39.4", "66.6", "49.3", "69.6"]  # the paper's numbers
    assert rows[0][-4:] == ["–"] * 4
    for mark, numbers in (("first", ["41.0", "51.0"]), ("second", ["40.0", "50.0"])):
        marked = rf'<td class="number[ \w]* {mark}" data-column="novel"><b>(.*?)</b>'
        assert re.findall(marked, text) == numbers


def test_words_of_the_report_are_text_and_the_script_has_the_same_numbers(page, text):
    assert "it diverged &amp; ended &lt;early&gt;" in text
    assert "&lt;Yes&gt;." in text
    (data,) = re.findall(r'<script type="application/json".*?>(.*?)</script>', text, re.S)
    assert json.loads(data) == json.loads(json.dumps(page.table.for_page()))


def test_a_claim_has_its_verdict_and_its_place_on_the_axis_and_its_details_are_folded(page, text):
    badges = re.findall(r'class="badge [a-z-]+"><span aria-hidden="true">(.)</span> (.*?)<', text)

    assert badges == [
        *(("↘", "same sign, much smaller"), ("✓", "confirmed")),
        *(("✗", "opposite"), ("?", "undecided")),
    ]
    assert re.findall("<h3>(.*?)</h3>", text)[:4] == [
        "Positive controls: gains over PN that other papers print: 1 same sign, much smaller",
        "Primary comparisons: 1 confirmed",
        "Other claims of the paper (secondary): 1 opposite",
        "Further questions of a reader (secondary): 1 undecided",
    ]
    _, *claims = re.findall(r'<details class="claim.*?</details>', text, re.S)
    assert "open" not in claims[0].split(">")[0]
    assert "printed +9.0" in claims[0]
    axis = axis_of(page.claims)
    assert axis.low < 0 < 9 < axis.high
    assert f'class="found" style="left: {axis.at(8.0)}%"' in claims[0]
    assert f'class="of-paper" style="left: {axis.at(9.0)}%"' in claims[0]
    of_reader = render(replace(page, claims=page.claims[2:3]))
    assert "<h2>Claims</h2>" in text
    assert "<h2>Questions about this method</h2>" in of_reader
    assert "printed in the paper" not in of_reader


@pytest.mark.parametrize(
    ("found", "shown"),
    [([0.25], "found +0.25\xa0±\xa00.10"), ([0.25, -0.5], "found −0.50 to +0.25"), ([], "")],
)
def test_a_claim_about_ratios_shows_them_without_the_axis_of_points(page, found, shown):
    parts = tuple(Mark(value, 0.1) for value in found)
    claim = replace(page.claims[0], marks=(), parts=parts, printed="")

    text = render(replace(page, claims=[claim]))

    (numbers,) = re.findall('<span class="numbers">(.*?)</span></summary>', text, re.S)
    assert "ratios, not points" in numbers
    assert re.findall("<b>(.*?)</b>", numbers) == ([shown] if shown else [])


def test_rows_of_one_seed_are_named_and_those_as_published_together(page):
    rows = page.contents.rows
    names = ["copy", "MAML, as published", "PN, as published"]
    once = [replace(rows[0], name=name, seeds=(3,)) for name in names]

    few, many = (
        render(replace(page, contents=replace(page.contents, rows=(*rows, *more))))
        for more in (once[:2], once)
    )

    assert "has one seed: copy, MAML, as published." in few
    assert "has one seed: copy, all rows as published." in many


def test_positive_controls_are_said_before_anything_else(page, text):
    said = "Positive controls: 0 of 1 gains over PN that other papers print are confirmed"
    found = "four +1.00\u00a0±\u00a00.50 (printed +6.0: same sign, much smaller)"
    limits = (
        "What limits it: methods are trained on 2 base classes, 389 in the papers. So “not found” "
        "below is about this setting, not about CP-AAN alone."
    )

    for each in (text, render(page, "findings.md.jinja")):
        assert f"{said} in this setting: {found}. {limits}" in each
        assert each.index(limits) < each.index("<h1>" if "<h1>" in each else page.headline.finding)
    known = replace(page.contents, about={**page.contents.about, "backbone": "ResNet-10"})
    assert "the backbone is ResNet-10." in render(replace(page, contents=known))
    assert said not in render(replace(page, claims=page.claims[:3]))
    first, *others = page.contents.rows
    with_awg = replace(page.contents, rows=(replace(first, method="AWG"), *others))
    cosine = "backbones trained with a cosine classifier, which no row has here; methods"
    assert cosine in render(replace(page, contents=with_awg))
    confirmed = replace(page.claims[3], verdict="confirmed")
    assert "not about CP-AAN" not in render(replace(page, claims=[confirmed]))


def test_pictures_have_files_but_those_of_searches(text):
    links = re.findall(r'href="(figures/.*?)"', text)
    names = ("lead", "a", "b")
    assert links == [f"figures/{name}.{kind}" for name in names for kind in ("svg", "png")]
    ids = re.findall(r'<figure id="figure-(.*?)"', text)
    assert ids == [*names, "c"]


def test_the_finding_comes_first_and_empty_sections_are_left_out(page, text):
    (headline,) = re.findall("<h1>(.*?)</h1>", text)
    assert headline.replace("\u2011", "-") == page.headline.finding
    ids = re.findall(r'<section id="(.*?)"', text)
    assert ids == ["claims", "table-1", "diversity", "figures", "appendix"]
    assert ids == re.findall(r'<li><a href="#(.*?)">', text)
    appendix = text[text.index('<section id="appendix">') :]
    assert "<details><summary><h2>Appendix" in appendix, "closed"
    poor = replace(page, claims=[], pictures=[], searches=[], lead=None)
    nothing = page.contents.diversity.head(0)
    poor = replace(poor, contents=replace(page.contents, diversity=nothing))
    assert re.findall(r'<section id="(.*?)"', render(poor)) == ["table-1", "appendix"]


def test_what_was_swept_stands_beside_what_was_searched(page):
    best = {**page.contents.best["cCov-GAN-PN"], "swept": {"mixing_shots": 0.5}}
    every = {**page.contents.best, "cCov-GAN-PN": best}
    swept = replace(page, contents=replace(page.contents, best=every))

    both = "<i>ky fan order</i> 5</span> <span><i>mixing shots</i> 0.5 (swept)</span>"
    assert both in render(swept)
    assert "(swept)" not in render(page)
    assert ["a sweep of the weight" in render(each) for each in (swept, page)] == [True, False]


def test_the_commit_that_drew_the_page_stands_beside_the_command_that_draws_it(page, monkeypatch):
    monkeypatch.setenv("CPAAN_COMMIT", f"{'a' * 40}-dirty")

    assert '--redraw</code></td><td data-label="Commit"><code>aaaaaaaaaa-dirty<' in render(page)
    assert "--redraw`, commit `aaaaaaaaaa-dirty`\n" in render(page, "findings.md.jinja")


def test_diversity_is_shown_for_gans_with_and_without_a_term_and_for_copies(page):
    contents = page.contents
    ours = next(row for row in contents.rows if row.name == "cCov-GAN-PN")
    term = replace(ours, name="X", ablation=Ablation("cCov-GAN-PN", TERMS, "without it"))
    rows = (*contents.rows, term, replace(ours, name="Y", method="FH"))
    frames = [
        contents.diversity[contents.diversity["method"] == "copy"].assign(method=name, ratio=ratio)
        for name, ratio in (("X", 0.5), ("Y", 0.6), ("cCov-GAN-PN: all base classes", 0.7))
    ]
    frames[0] = frames[0].query("shots == 1")
    diversity = pd.concat([contents.diversity, *frames], ignore_index=True)

    table = make_diversity(replace(contents, rows=rows, diversity=diversity))

    assert table.markdown().splitlines()[2:] == [
        "| copy | 1.10±0.00 | 1.10±0.00 |",
        "| cCov-GAN-PN | 0.80±0.00 | 0.80±0.00 |",
        "| X | 0.50±0.00 | – |",
    ]


def test_findings_are_tables_whose_lines_have_the_same_width(page):
    text = render(page, "findings.md.jinja")

    claim = "**three**: Nearest (\\|log ratio\\|). | – | −0.3 ± 0.9 |"
    assert claim in text
    assert "**two**: No. | +2.6 | −1.0 ± 0.2; p = 0.012 |" in text
    tables = [part for part in re.split(r"\n(?!\|)", text) if "\n|" in part]
    assert len(tables) == 5, "a table for each kind of claim, and that of diversity"
    places = [text.index(part) for part in (page.headline.finding, "claims", "Table 1", "Figures")]
    assert places == sorted(places), "the order of the page"
    for table in tables:
        lines = table.splitlines()[1:]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "&" not in text, "nothing is escaped as if it were HTML"
    seeds, hours = text.splitlines()[-2:]
    assert seeds == "- training seeds: searches 0; report 3, 4"
    assert hours.endswith("trials 0.10; finalists 0.05; report 0.50")


@pytest.mark.slow
def test_a_page_and_its_pictures_are_written_below_the_report(tmp_path):
    """Use a study of one row; `test_browser.py` uses a table."""
    folder = write_report(tmp_path / "hand", is_table=False)
    written, again = dict[str, bytes](), dict[str, bytes]()

    lines = write_page(folder, written.__setitem__)
    write_page(folder, again.__setitem__)

    assert again == written, "to the last byte"
    assert lines[0].startswith("On these features, cCov-GAN-PN scores higher than PN")
    assert lines[1:] == [
        "  cCov-GAN-PN  LSL 41.0 ± 7.1, GLSL 46.0 ± 7.1 (K = 1, centroid head)",
        "  PN           LSL 40.0 ± 7.1, GLSL 45.0 ± 7.1 (K = 1, centroid head)",
        "  MAML         LSL 35.0 ± 7.1, GLSL 40.0 ± 7.1 (K = 1, own head)",
        f"The page: {folder}/report/index.html",
    ]
    assert written.pop("report/findings.md").startswith(b"# hand: what was found\n")
    page = written.pop("report/index.html").decode()
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert written
    for name, content in written.items():
        assert f'href="{name.removeprefix("report/")}"' in page
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
