"""Low-shot learning by feature augmentation: methods, and the benchmark that judges them."""

from cpaan.data.cache import open_features
from cpaan.data.parquet import read_about, write_features
from cpaan.data.splits import Phase, Split, read_split
from cpaan.data.table import FeatureTable
from cpaan.evaluation.runner import Results, evaluate
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import ky_fan_norm
from cpaan.protocol.config import EvaluationConfig
from cpaan.report.tables import accuracy_table, difference_table

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
    "ky_fan_norm",
    "open_features",
    "read_about",
    "read_split",
    "write_features",
]
