"""Test the code and links of the README, and the pinned dependencies."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import cpaan

ROOT = Path(__file__).parent.parent


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.slow
def test_the_ten_lines_of_the_readme_run(capsys):
    _, snippet = SNIPPETS
    rng = np.random.default_rng(0)
    classes = np.repeat([f"class{number:02d}" for number in range(60)], 30)
    centres = np.repeat(rng.normal(size=(60, 16)), 30, axis=0)
    np.savez(
        "arrays.npz",
        features=centres + rng.normal(size=centres.shape),
        classes=classes,
        partitions=np.tile(["train"] * 20 + ["test"] * 10, 60),
    )

    exec(snippet, {})

    output = capsys.readouterr().out
    assert re.search(r"copy +linear", output)
    assert len([line for line in snippet.splitlines() if line]) <= 10


def test_the_three_lines_with_an_estimator_run():
    rng = np.random.default_rng(0)
    names = {
        **{"cpaan": cpaan, "classifier": LogisticRegression()},
        **{"X_base": rng.normal(size=(200, 8)), "y_base": np.repeat(np.arange(20), 10)},
        **{"X_shots": rng.normal(size=(3, 8)), "y_shots": [20, 20, 21]},
    }

    exec(SNIPPETS[0], names)

    assert names["classifier"].classes_.tolist() == [20, 21]


def test_every_dependency_is_pinned():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = settings["dependencies"] + settings["optional-dependencies"]["dev"]
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]
    )
    names = {name.lower().replace("_", "-") for name in pinned}

    for requirement in wanted:
        name = re.split(r"[\[<>=;]", requirement)[0].lower()
        # Every build of torch needs a specific version of Triton.
        assert name in names or name == "triton"
    assert pinned["torch"] == "2.13.0"


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += [ROOT / "results" / "protocol.md"]
PAGES += [
    path
    for name in ("cpaan", "tune", "cluster", "results")
    for path in (ROOT / name).rglob("README.md")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_short_sentences_and_links_that_lead_somewhere(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in link or (page.parent / link).exists(), link
    prose = re.sub(r"```.*?```|^ *(\||#|!\[).*?$", "", text, flags=re.S | re.M)
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", prose))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(block.split())):
            assert len(sentence.split()) <= 25, sentence


def test_the_first_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
