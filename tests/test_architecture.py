"""Test the order of imports between packages, and that files are read without unpickling."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cpaan"

# A package may import itself and the packages before it.
PACKAGES = [
    *("core", "data", "protocol", "training", "gan", "representation"),
    *("methods", "evaluation", "report", "study", "cli", "bench"),
]


UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SAFELY = {("torch", "load"): ("weights_only", True), ("np", "load"): ("allow_pickle", False)}


def imports_of(tree: ast.Module) -> set[str]:
    """Return the full names of all modules that a file imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def unpickling_calls(tree: ast.Module) -> set[str]:
    """Return the calls that could run code from the file that they read."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            call = (owner.id if isinstance(owner, ast.Name) else "", name)
            values = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
            if call in SAFELY and values.get(SAFELY[call][0]) is not SAFELY[call][1]:
                found.add(".".join(call))
            if name == "read_pickle":
                found.add(name)
    return found


def violations(package: str, source: str) -> list[str]:
    """Return the violations of the rules in a file of this package."""
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    tree = ast.parse(source)
    found = [f"{name} may run code of a file" for name in unpickling_calls(tree)]
    for name in sorted(imports_of(tree)):
        first, _, rest = name.partition(".")
        if first == "cpaan" and rest and rest.partition(".")[0] not in allowed:
            found.append(f"{package} must not import {name}")
        if first == "ray" and package != "study":
            found.append("only the study may import Ray")
        if first in {"", "results", "tests", *UNPICKLERS}:
            found.append(f"{name} must not be imported")
    return found


def test_no_file_breaks_the_rules():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        first, *inside = path.relative_to(PACKAGE).parts
        if inside:
            found[str(path)] = violations(first, path.read_text())
        else:
            assert first in {"__init__.py", "__main__.py"}, f"{path} belongs in a package"

    assert {path: broken for path, broken in found.items() if broken} == {}


def test_public_class_names_are_unique():
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path))

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_file_that_breaks_a_rule_is_found():
    for line in (
        "def f():\n    from cpaan import methods",
        "import cpaan.cli",
        "import ray.tune",
        "from . import table",
        "import tests.conftest",
        "import pickle",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f)",
        "pd.read_pickle(f)",
    ):
        assert violations("data", line), line
    assert not violations("study", "import ray\ntorch.load(f, weights_only=True)")
