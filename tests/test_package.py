"""Test the wheel, the version and the example as a user has them: without the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cpaan

ROOT = Path(__file__).parent.parent


def run(command: list[object], folder: Path, path: Path | str = "") -> str:
    """Run a command in a folder, with another one first on Python's path; return its output."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_files_agree_on_the_version():
    citation, changes = ((ROOT / name).read_text() for name in ("CITATION.cff", "CHANGELOG.md"))

    assert re.findall(r"^version: (.+)$", citation, re.M) == [cpaan.__version__]
    assert re.findall(r"^## (\S+)", changes, re.M)[0] == cpaan.__version__


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(tmp_path):
    source, wheels, bare = (tmp_path / name for name in ("source", "wheels", "bare"))
    # A copy, because setuptools would include files of earlier builds.
    shutil.copytree(ROOT / "cpaan", source / "cpaan", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # The environments have no pip; see the Makefile.
    pip = [sys._base_executable, "-m", "pip", "--python"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source]
    run([*pip, sys.executable, *build], tmp_path)
    (wheel,) = wheels.iterdir()
    run([sys._base_executable, "-m", "venv", "--without-pip", bare], tmp_path)
    run([*pip, bare / "bin/python", "install", "--no-deps", "--no-index", wheel], tmp_path)
    # Installing the dependencies would take minutes. Python does not read the .pth files of this
    # folder, so the repository, which is installed there in place, cannot be imported.
    (site,) = bare.glob("lib/*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shutil.rmtree(source)
    empty = tmp_path / "empty"
    empty.mkdir()

    names = "import cpaan; cpaan.Augmenter; print(cpaan.__file__)"
    found = run([bare / "bin/python", "-c", names], empty)
    options = ["evaluate", "--shots", "1", "--heads", "cosine", "--draws", "2"]
    output = run([bare / "bin/cpaan", *options], empty)

    assert Path(found.strip()) == site / "cpaan/__init__.py"
    assert run([bare / "bin/cpaan", "--version"], empty) == f"cpaan {cpaan.__version__}\n"
    assert "40 base and 56 novel classes, 4800 queries, 2 draws" in output
    assert wheel.name.startswith(f"cpaan-{cpaan.__version__}-")
    modules = {path for path in (ROOT / "cpaan").rglob("*.py")}
    data = {path for path in (ROOT / "cpaan/data/tiny-imagenet").iterdir()}
    page = {path for path in (ROOT / "cpaan/report/page").iterdir() if path.is_file()}
    for path in modules | data | page | {ROOT / "cpaan/py.typed"}:
        assert (site / path.relative_to(ROOT)).exists(), path


@pytest.mark.slow
def test_the_example_runs_and_draws_its_picture(builtin_cache, tmp_path):
    """Run it with one draw instead of three, because each takes ten seconds."""
    code = (ROOT / "cpaan/examples/quickstart.py").read_text()
    short = code.replace("NUM_DRAWS = 3", "NUM_DRAWS = 1")
    output = run([sys.executable, "-c", short], tmp_path, ROOT)

    means = {
        name: [float(value) for value in values.split()]
        for name, values in re.findall(r"^(\S.*?)  +([\d. ]+)$", output, re.M)
    }
    alone, weighted, naive = (
        means[name] for name in ("shots alone", "copy, with weights", "copy, all weights 1")
    )
    assert len(alone) == 4
    assert all(right > wrong for right, wrong in zip(weighted, naive, strict=True))
    assert weighted[3] > alone[3] + 5  # the nearest centroid among all classes
    assert "Warning" not in output
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000
