"""Data flows one way, and files are read without unpickling."""

import ast
from pathlib import Path

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
    {"bench", "__init__", "__main__"},
]
# The evaluation knows methods by fit and predict alone, so it cannot favour one.
BLIND = {"evaluation": {"augmentation", "classifiers", "methods", "neighbours", "gans", "training"}}


UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SAFELY = {("torch", "load"): ("weights_only", True), ("np", "load"): ("allow_pickle", False)}


def imports_of(tree: ast.Module) -> set[str]:
    """Return the full names of all modules that a file imports, anywhere in the file."""
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


def violations(module: str, source: str) -> list[str]:
    """Return what a file does against the rules; ``module`` is its first name in the package."""
    layer_of = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    tree = ast.parse(source)
    found = [f"{name} may run code of a file" for name in unpickling_calls(tree)]
    for name in sorted(imports_of(tree)):
        first, _, rest = name.partition(".")
        own = rest.partition(".")[0]
        if first == "cpaan" and layer_of.get(own, -1) > layer_of[module]:
            found.append(f"{own} is of a later layer")
        if first == "cpaan" and own in BLIND.get(module, ()):
            found.append(f"{module} must not know {own}")
        if first == "ray" and module != "study":
            found.append("only the study may import Ray")
        if first in {"", "results", "tests", *UNPICKLERS}:
            found.append(f"{name} must not be imported")
    return found


def test_no_file_breaks_the_rules():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found[str(path)] = violations(module, path.read_text())

    assert {path: broken for path, broken in found.items() if broken} == {}


def test_a_file_that_breaks_a_rule_is_found():
    for line in (
        "def f():\n    from cpaan import methods",
        "import cpaan.cli",
        "import ray.tune",
        "from . import features",
        "import tests.conftest",
        "import pickle",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f)",
        "pd.read_pickle(f)",
    ):
        assert violations("features", line), line
    assert violations("evaluation", "from cpaan.neighbours import similarity")
    assert not violations("study", "import ray\ntorch.load(f, weights_only=True)")
