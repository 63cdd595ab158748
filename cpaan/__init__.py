"""Low-shot learning by feature augmentation: methods, and the benchmark that judges them."""

from cpaan.benchmark import Results, evaluate
from cpaan.config import EvaluationConfig
from cpaan.feature_files import open_features, write_features
from cpaan.features import FeatureTable
from cpaan.splits import Phase, Split, read_split

__all__ = [
    "EvaluationConfig",
    "FeatureTable",
    "Phase",
    "Results",
    "Split",
    "evaluate",
    "open_features",
    "read_split",
    "write_features",
]
