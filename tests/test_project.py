"""Test the code and links of the README, and the pinned dependencies."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_ten_lines_of_the_readme_run(capsys):
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    rng = np.random.default_rng(0)
    classes = np.repeat([f"class{number:02d}" for number in range(60)], 30)
    centres = np.repeat(rng.normal(size=(60, 16)), 30, axis=0)
    np.savez(
        "mine.npz",
        features=centres + rng.normal(size=centres.shape),
        classes=classes,
        partitions=np.tile(["train"] * 20 + ["test"] * 10, 60),
    )

    exec(snippet, {})

    output = capsys.readouterr().out
    assert re.search(r"half-mean-shift +linear", output)
    assert len([line for line in snippet.splitlines() if line]) <= 10


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


def test_links_of_the_readme_lead_somewhere():
    for page in ("README.md", "CONTRIBUTING.md", "results/README.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
            assert "://" in link or ((ROOT / page).parent / link).exists(), link
