"""Test the order of imports between packages, and that files are read without unpickling."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {path: path.read_text() for path in ROOT.glob("cpaan/**/*.py")}
PACKAGES = [
    *("core", "data", "protocol", "training", "gan", "representation"),
    *("methods", "evaluation", "report", "study", "cli", "bench"),
]


def test_a_package_imports_only_itself_and_packages_before_it():
    for path, text in FILES.items():
        package, *file = path.relative_to(ROOT / "cpaan").parts
        if not file:
            assert package in ("__init__.py", "__main__.py"), f"{path} belongs in a package"
            continue
        text = text.replace("from cpaan import __version__\n", "")  # loads no other module
        for module in re.findall(r"^ *(?:from|import) ([\w.]+)", text, re.M):
            first, second, *_ = [*module.split("."), ""]
            if first == "cpaan":
                # Examples import only what `cpaan` exports.
                known = [""] if package == "examples" else PACKAGES[: PACKAGES.index(package) + 1]
                assert second in known, f"{path} imports {module}"
            assert first not in ("", "results", "tests"), f"{path} imports {module}"
            assert first != "ray" or package == "study", f"{path} imports Ray"


def test_private_modules_of_ray_are_used_in_one_file():
    """They change without notice, so a new version of Ray is checked there."""
    for path, text in FILES.items():
        used = re.findall(r"\bray(?:\.\w+)*(?:\.| import )_[a-z]\w*|\bray\.core\.generated\b", text)
        assert not used or path.name == "ray_internals.py", f"{path} uses {used}"


def test_only_the_engine_and_a_benchmark_import_the_fast_implementation():
    """The definition of the training step contains nothing that is there for speed on a GPU."""
    gan = ROOT / "cpaan" / "gan"
    for path, text in FILES.items():
        is_fast = (gan / "fast") in path.parents
        if not is_fast and path not in (gan / "engine.py", ROOT / "cpaan/bench/kyfan.py"):
            assert "cpaan.gan.fast" not in text, path
        if path.parent == gan and path.name != "engine.py":
            assert not re.search("CudaGraph|Beside|autocast|import triton|bfloat16", text, re.I), (
                path
            )


def test_the_reading_order_has_the_numbers_of_lines():
    """They may be off by a tenth, so that a small change needs no edit."""
    table = (ROOT / "cpaan/README.md").read_text().partition("| what to learn |")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.endswith(" |")][1:]
    assert len(rows) == 9
    for _, names, count in rows:
        paths = [ROOT / "cpaan" / name.strip("`") for name in names.split(", ")]
        files = [
            file for path in paths for file in (path.glob("*.py") if path.is_dir() else [path])
        ]
        lines = sum(len(file.read_text().splitlines()) for file in files)
        assert lines == pytest.approx(int(count.strip(" |").replace(",", "")), rel=0.1), names


def test_no_file_is_unpickled():
    """Ruff forbids pickle and marshal. NumPy and torch do not unpickle by default."""
    for path, text in FILES.items():
        assert not re.search(
            "allow_pickle=True|weights_only=False|cloudpickle|joblib.load", text
        ), path


def test_public_class_names_are_unique():
    names = Counter(re.findall(r"^class ([A-Z]\w*)", "\n".join(FILES.values()), re.M))

    assert [name for name, count in names.items() if count > 1] == []
