"""Data flows one way: which modules may import which."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cpaan"

# A module may import those of earlier lines and of its own line.
LAYERS = [
    {"devices", "kernels"},
    {"settings", "config", "files", "linalg", "randomness", "provenance", "rows", "workers"},
    {"places", "copies"},
    {"features"},
    {"compact", "feature_source", "feature_parquet", "feature_hdf5"},
    {"feature_files", "feature_cache", "splits", "builtin"},
    {"tasks", "synthetic", "neighbours"},
    {"learning"},
    {"few_shot_episodes", "layers"},
    {"representation"},
    {"training_data", "networks", "noise"},
    {"episodes"},
    {"objectives"},
    {"gans"},
    {"steps"},
    {"training"},
    {"augmentation", "checkpoints", "classifiers"},
    {"low_shot"},
    {"embedded", "parts"},
    {"baselines"},
    {"evaluation", "priors", "summary", "spiral"},
    {"table_row"},
    {"methods"},
    {"scoring", "illustration"},
    {"benchmark", "claims", "figures", "gains", "published", "table_one", "tables"},
    {"page"},
    {"parallel"},
    {"study"},
    {"cli"},
    {"bench"},
]
# The evaluation knows methods by fit and predict alone, so it cannot favour one.
BLIND = {"evaluation": {"augmentation", "classifiers", "methods", "neighbours", "gans", "training"}}


def imports_of(path: Path) -> set[str]:
    """Return full names of all modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, by their first name."""
    parts = [name.split(".") for name in imports_of(path)]
    return {part[1] for part in parts if part[0] == "cpaan" and len(part) > 1}


def modules() -> list[Path]:
    """Return all files of the package; those of a folder belong to it."""
    return sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem[0] != "_")


def module_of(path: Path) -> str:
    """Return the first name of a file's module below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_earlier_layers_only(path):
    layer_of = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    module = module_of(path)
    assert module in layer_of, "a new module needs its place in LAYERS"

    for name in own_imports(path) & set(layer_of):
        assert layer_of[name] <= layer_of[module], f"{module} imports {name}"
    assert not own_imports(path) & BLIND.get(module, set())


def test_only_the_study_imports_ray():
    for path in PACKAGE.rglob("*.py"):
        if "study" not in path.relative_to(PACKAGE).parts:
            assert not any(name.split(".")[0] == "ray" for name in imports_of(path)), path


def test_nothing_imports_results_or_tests():
    for path in PACKAGE.rglob("*.py"):
        assert not {name.split(".")[0] for name in imports_of(path)} & {"results", "tests"}


def test_an_import_against_the_arrows_would_be_seen(tmp_path):
    (tmp_path / "x.py").write_text(
        "def f():\n    from cpaan import methods\n    import cpaan.cli\n    import ray.tune\n"
    )

    assert {"methods", "cli"} <= own_imports(tmp_path / "x.py")
    assert "ray.tune" in imports_of(tmp_path / "x.py")


UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SAFELY = {("torch", "load"): ("weights_only", True), ("np", "load"): ("allow_pickle", False)}


def unpickling(path: Path) -> list[str]:
    """Return what in a file could run code that the file it reads has brought."""
    found = [name for name in imports_of(path) if name.split(".")[0] in UNPICKLERS]
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = node.func.value, node.func.attr
        call = (owner.id if isinstance(owner, ast.Name) else "", name)
        values = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
        if call in SAFELY and values.get(SAFELY[call][0]) is not SAFELY[call][1]:
            found.append(f"{'.'.join(call)} in line {node.lineno}")
        if name == "read_pickle":
            found.append(f"read_pickle in line {node.lineno}")
    return found


def test_our_own_files_are_read_without_unpickling():
    for path in PACKAGE.rglob("*.py"):
        assert unpickling(path) == [], path


@pytest.mark.parametrize(
    "line",
    ["import pickle", "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f)"],
)
def test_unpickling_would_be_seen(tmp_path, line):
    (tmp_path / "x.py").write_text(f"{line}\n")

    assert unpickling(tmp_path / "x.py")
