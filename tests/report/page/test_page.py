"""Test the HTML of the page, which is complete without scripts. `test_browser.py` opens it."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cpaan.report.ablations import TERMS, Ablation
from cpaan.report.claims.claim import Claim, Contrast
from cpaan.report.claims.verdict import ClaimPart, Judgement
from cpaan.report.figures.picture import Picture
from cpaan.report.page.contents import PUBLISHED, read_contents
from cpaan.report.page.headline import Training, make_headline
from cpaan.report.page.page import Page, axis_of, make_diversity, render, write_page
from cpaan.report.page.views import make_views
from cpaan.report.tables import Cell
from helpers.report_folders import RUN, write_report


def judgement(name, kind, verdict, *differences, printed=None, column="novel", p_value=1.0):
    """Return a judged claim; its differences have intervals of 0.5 and two training seeds."""
    claim = Claim(name, kind, (Contrast("A", "B", column, "fewest"),), "<Yes> or |no|")
    gaps = [Cell(value, 0.5, 0, p_value, (value, value)) for value in differences]
    parts = [ClaimPart(gap, printed, cell="LSL") for gap in gaps]
    return Judgement(claim, parts, {}, p_value, verdict)


JUDGEMENTS = [
    judgement("one", "primary", "confirmed", 8.0, printed=9.0),
    judgement("two", "paper", "opposite", -1.0, printed=2.6, p_value=0.0123),
    judgement("three", "further", "undecided", -0.3, column="log-ratio"),
    judgement("four", "control", "same sign, much smaller", 1.0, printed=6.0),
]


def picture(name: str) -> Picture:
    return Picture(name, f"Title of {name}", "A line.", "It goes up.", Figure())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the page of a small report, with four pictures in place of all."""
    contents = read_contents(write_report(tmp_path_factory.mktemp("report")))
    table = make_views(contents)
    searches = {"PN": picture("c"), "cCov-GAN-PN": None}
    drawn = JUDGEMENTS, [picture("a"), picture("b")], searches
    headline = make_headline(contents, table, {}, JUDGEMENTS)
    return Page(contents, table, headline, picture("lead"), *drawn)


def with_contents(page: Page, **changes) -> Page:
    return replace(page, contents=replace(page.contents, **changes))


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
    assert "&lt;Yes&gt; or |no|" in text
    (data,) = re.findall(r'<script type="application/json".*?>(.*?)</script>', text, re.S)
    assert json.loads(data) == json.loads(json.dumps(page.table.for_page()))


def test_a_claim_has_its_verdict_and_its_place_on_the_axis_and_its_details_are_folded(page, text):
    verdicts = re.findall(r'class="badge [a-z-]+"><span aria-hidden="true">.</span> (.*?)<', text)

    kinds = ("control", "primary", "paper", "further")
    assert verdicts == [x.verdict for kind in kinds for x in JUDGEMENTS if x.claim.kind == kind]
    _, claim, *_ = re.findall(r'<details class="claim.*?</details>', text, re.S)
    assert "open" not in claim.split(">")[0]
    axis = axis_of(page.judgements)
    assert axis.low < 0 < 9 < axis.high
    assert f'class="found" style="left: {axis.at(8.0)}%"' in claim
    assert f'class="of-paper" style="left: {axis.at(9.0)}%"' in claim
    of_reader = render(replace(page, judgements=page.judgements[2:3]))
    headings = ["<h2>Claims</h2>", "<h2>Questions about this method</h2>"]
    assert [heading in text for heading in headings] == [True, False]
    assert [heading in of_reader for heading in headings] == [False, True]


@pytest.mark.parametrize(
    ("differences", "shown"),
    [([0.25], "found +0.25\xa0±\xa00.50"), ([0.25, -0.5], "found −0.50 to +0.25")],
)
@pytest.mark.parametrize("column", ["novel", "ratio"])
def test_a_claim_has_its_differences_and_those_of_ratios_are_not_on_the_axis_of_points(
    page, differences, shown, column
):
    claim = judgement("name", "paper", "undecided", *differences, column=column)

    text = render(replace(page, judgements=[claim]))

    (numbers,) = re.findall('<span class="numbers">(.*?)</span></summary>', text, re.S)
    assert re.findall("<b>(.*?)</b>", numbers) == [shown]
    assert ("ratios, not points" in numbers) == (column == "ratio")
    assert ('class="zero"' in text) == (column == "novel")


def test_rows_of_one_seed_are_named_and_those_as_published_together(page):
    once = [
        replace(page.contents.rows[0], name=f"{name}, {settings}", settings=settings, seeds=(3,))
        for name, settings in (("copy", "best"), ("MAML", PUBLISHED), ("PN", PUBLISHED))
    ]

    assert "one seed: copy, best, rows as published." in render(
        with_contents(page, rows=(*page.contents.rows, *once))
    )


def test_the_setting_and_the_data_stand_beside_the_finding(page, text):
    findings = render(page, "findings.md.jinja")

    for words, finding in ((text, "<h1>"), (findings, page.sentences[0])):
        start = words.index("Positive controls: 0 of 1")
        assert start < words.index("2 base classes, 389 in the papers") < words.index(finding)
        assert "not about CP-AAN" in words
        assert "(16 dimensions), 2 base and 3 novel" in words
        assert "2 training seeds, 3 draws of the shots" in words
    known = with_contents(page, about={**page.contents.about, "backbone": "ResNet-10"})
    confirmed = [judgement("one", "control", "confirmed", 8.0, printed=9.0)]
    better = render(replace(known, judgements=confirmed), "findings.md.jinja")
    assert "one +8.00" in better
    assert "the backbone is ResNet-10." in better
    assert "not about CP-AAN" not in better
    assert "Positive controls" not in render(replace(page, judgements=page.judgements[:3]))


@pytest.mark.parametrize(
    ("lengths", "numbers"),
    [
        (([3000, 4000], 100_000, [300], {0.25: ["A", "B"]}), "3,000 4,000 100,000 300 A, B 0.25"),
        (([9000], 9000, [9000], {}), "9,000"),
    ],
)
def test_the_length_of_training_is_compared_with_that_of_the_paper(page, lengths, numbers):
    headline = page.headline._replace(training=Training(*lengths))
    text = render(replace(page, headline=headline), "findings.md.jinja")

    (words,) = re.findall("GANs were trained .*", text)
    assert re.findall(r"[\d,.]*\d|A, B", words) == re.findall("A, B|[^ ]+", numbers)


def test_provenance_has_size_data_code_and_seeds(page):
    page.contents.studies["MAML"]["data"]["fingerprint"] = "a1a2a3"

    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", render(page)))

    assert (
        facts.items()
        >= {
            "Rows": "5, and 1 variants of them",
            "Trials": "20 in 5 searches",
            "Data fingerprint": "f1f2f3; MAML: a1a2a3",
            "Seeds of the searches": "0",
            "Seeds of the report": "3, 4",
            "Commit": RUN["commit"],
            "Hardware": "1 × 16 CPU, 1 GPU, 1 H200",
            "Versions": "python 3.11.7, numpy 2.4.6, torch 2.13.0",
        }.items()
    )
    numbers = {name: re.findall(r"[\d.]+", words) for name, words in facts.items()}
    assert numbers["Classes"][2:] == ["2", "3", "16"]
    assert numbers["Draws"] == ["2", "3"]
    assert numbers["Reads of the test phase"] == ["7"]
    # Trials, report, the last command of it, and the day.
    assert numbers["Time"] == ["12", "60", "10", "2026", "11", "15"]
    assert numbers["GPU hours"] == ["0.10", "0.05", "0.50"]
    cost = {**page.contents.about["cost"], "num_uncounted": 2.0}
    uncounted = render(with_contents(page, about={**page.contents.about, "cost": cost}))
    assert "report 0.50; 2 parts" in uncounted


def test_pictures_have_files_but_those_of_searches(text):
    links = re.findall(r'href="(figures/.*?)"', text)
    names = ("lead", "a", "b")
    assert links == [f"figures/{name}.{kind}" for name in names for kind in ("svg", "png")]
    ids = re.findall(r'<figure id="figure-(.*?)"', text)
    assert ids == [*names, "c"]


def test_the_finding_comes_first_and_empty_sections_are_left_out(page, text):
    (headline,) = re.findall("<h1>(.*?)</h1>", text)
    assert headline.replace("\u2011", "-") == page.sentences[0]
    ids = re.findall(r'<section id="(.*?)"', text)
    assert ids == ["claims", "table-1", "diversity", "figures", "appendix"]
    assert ids == re.findall(r'<li><a href="#(.*?)">', text)
    appendix = text[text.index('<section id="appendix">') :]
    assert "<details><summary><h2>Appendix" in appendix, "closed"
    poor = with_contents(page, diversity=page.contents.diversity.head(0))
    poor = replace(poor, judgements=[], pictures=[], searches={}, lead=None)
    assert re.findall(r'<section id="(.*?)"', render(poor)) == ["table-1", "appendix"]


def test_what_was_swept_stands_beside_what_was_searched(page):
    best = {**page.contents.best["cCov-GAN-PN"], "swept": {"mixing_shots": 0.5}}
    swept = render(with_contents(page, best={**page.contents.best, "cCov-GAN-PN": best}))

    assert "<i>ky fan order</i> 5</span> <span><i>mixing shots</i> 0.5 (swept)</span>" in swept
    assert "(swept)" not in render(page)


def test_the_commit_that_drew_the_page_stands_beside_the_command_that_draws_it(page, monkeypatch):
    monkeypatch.setenv("CPAAN_COMMIT", f"{'a' * 40}-dirty")

    assert '--redraw</code></td><td data-label="Commit"><code>aaaaaaaaaa-dirty<' in render(page)
    assert "--redraw`, commit `aaaaaaaaaa-dirty`\n" in render(page, "findings.md.jinja")


def test_diversity_is_shown_for_gans_with_and_without_a_term_and_for_copies(page):
    contents, ours = page.contents, page.contents.rows[-2]
    term = replace(ours, name="X", ablation=Ablation("cCov-GAN-PN", TERMS, "without-cycle"))
    rows = (*contents.rows, term, replace(ours, name="Y", method="FH"))
    frames = [
        contents.diversity[contents.diversity["method"] == "copy"].assign(method=name, ratio=ratio)
        for name, ratio in (("X", 0.5), ("Y", 0.6), ("cCov-GAN-PN: all", 0.7))
    ]
    frames[0] = frames[0].query("shots == 1")
    diversity = pd.concat([contents.diversity, *frames], ignore_index=True)

    table = make_diversity(replace(contents, rows=rows, diversity=diversity))

    assert table.markdown().splitlines()[2:] == [
        "| copy | 1.10±0.00 | 1.10±0.00 |",
        "| cCov-GAN-PN | 0.80±0.00 | 0.80±0.00 |",
        "| cCov-GAN-PN: without the cycle term | 0.50±0.00 | – |",
    ]


def test_findings_are_tables_whose_lines_have_the_same_width(page):
    text = render(page, "findings.md.jinja")

    words = "<Yes> or \\|no\\| (LSL)"
    assert f"**three**: {words} | – | −0.30 ± 0.50 (" in text
    assert f"**two**: {words} | +2.6 | −1.00 ± 0.50 (by seed −1.00, −1.00); p = 0.012 " in text
    tables = [part for part in re.split(r"\n(?!\|)", text) if "\n|" in part]
    assert len(tables) == 5, "a table for each kind of claim, and that of diversity"
    for table in tables:
        lines = table.splitlines()[1:]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "&" not in text, "nothing is escaped as if it were HTML"


@pytest.mark.slow
def test_a_page_and_its_pictures_are_written_below_the_report(tmp_path):
    """Use a study of one row; `test_browser.py` uses a table."""
    folder = write_report(tmp_path / "hand", is_table=False)
    written, again = dict[str, bytes](), dict[str, bytes]()

    lines = write_page(folder, written.__setitem__)
    write_page(folder, again.__setitem__)

    assert again == written, "to the last byte"
    assert "cCov-GAN-PN − PN is +1.00" in lines[0]
    numbers = [re.findall(r"^  (\S+) |([\d.]+ ± [\d.]+)", line) for line in lines[1:4]]
    assert [[name or number for name, number in row] for row in numbers] == [
        ["cCov-GAN-PN", "41.0 ± 7.1", "46.0 ± 7.1"],
        ["PN", "40.0 ± 7.1", "45.0 ± 7.1"],
        ["MAML", "35.0 ± 7.1", "40.0 ± 7.1"],
    ]
    assert lines[4:] == [f"The page: {folder}/report/index.html"]
    assert written.pop("report/findings.md").startswith(b"# hand")
    page = written.pop("report/index.html").decode()
    assert written
    for name, content in written.items():
        assert f'href="{name.removeprefix("report/")}"' in page
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
