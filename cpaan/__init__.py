"""Low-shot learning by feature augmentation: methods, and the benchmark that judges them."""

from cpaan.benchmark import Results, evaluate
from cpaan.config import EvaluationConfig, TrainConfig
from cpaan.feature_cache import open_features
from cpaan.feature_parquet import read_about, write_compact_features, write_features
from cpaan.features import FeatureTable
from cpaan.splits import Phase, Split, read_split
from cpaan.tables import accuracy_table, difference_table

__all__ = [
    "EvaluationConfig",
    "FeatureTable",
    "Phase",
    "Results",
    "Split",
    "TrainConfig",
    "accuracy_table",
    "difference_table",
    "evaluate",
    "open_features",
    "read_about",
    "read_split",
    "write_compact_features",
    "write_features",
]
