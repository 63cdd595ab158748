"""Low-shot learning by feature augmentation: methods, and the benchmark that judges them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpaan.data.builtin import builtin_features
    from cpaan.data.cache import open_features
    from cpaan.data.parquet import read_about, write_features
    from cpaan.data.split_files import read_split
    from cpaan.data.splits import Phase, Split
    from cpaan.data.table import FeatureTable
    from cpaan.evaluation.estimators import Augmenter, LowShotClassifier
    from cpaan.evaluation.few_shot import evaluate_few_shot
    from cpaan.evaluation.few_shot_tasks import FewShotConfig
    from cpaan.evaluation.runner import Results, evaluate
    from cpaan.gan.config import TrainConfig
    from cpaan.gan.covariance import ky_fan_norm
    from cpaan.protocol.config import EvaluationConfig
    from cpaan.report.tables import accuracy_table, difference_table

__version__ = "0.2.0"

_MODULES = {
    "cpaan.data.builtin": ["builtin_features"],
    "cpaan.data.cache": ["open_features"],
    "cpaan.data.parquet": ["read_about", "write_features"],
    "cpaan.data.split_files": ["read_split"],
    "cpaan.data.splits": ["Phase", "Split"],
    "cpaan.data.table": ["FeatureTable"],
    "cpaan.evaluation.estimators": ["Augmenter", "LowShotClassifier"],
    "cpaan.evaluation.few_shot": ["evaluate_few_shot"],
    "cpaan.evaluation.few_shot_tasks": ["FewShotConfig"],
    "cpaan.evaluation.runner": ["Results", "evaluate"],
    "cpaan.gan.config": ["TrainConfig"],
    "cpaan.gan.covariance": ["ky_fan_norm"],
    "cpaan.protocol.config": ["EvaluationConfig"],
    "cpaan.report.tables": ["accuracy_table", "difference_table"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Augmenter",
    "EvaluationConfig",
    "FeatureTable",
    "FewShotConfig",
    "LowShotClassifier",
    "Phase",
    "Results",
    "Split",
    "TrainConfig",
    "accuracy_table",
    "builtin_features",
    "difference_table",
    "evaluate",
    "evaluate_few_shot",
    "ky_fan_norm",
    "open_features",
    "read_about",
    "read_split",
    "write_features",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: torch takes seconds to import, `--help` must not."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
