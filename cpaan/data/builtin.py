"""The built-in data set: ResNet-10 features of the 200 classes of Tiny-ImageNet.

Its data card is ``cpaan/data/tiny-imagenet/README.md``: source, terms, command, numbers.
"""

from pathlib import Path

from cpaan.data.cache import open_features
from cpaan.data.split_files import read_split
from cpaan.data.splits import Split
from cpaan.data.table import FeatureTable

FOLDER = Path(__file__).parent / "tiny-imagenet"


def builtin_features() -> tuple[FeatureTable, Split]:
    """Return the feature table, and the low-shot benchmark's split of its classes."""
    return open_features(FOLDER / "features.parquet"), read_split(FOLDER / "split.json")
