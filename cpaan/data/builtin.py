"""The real data set inside the project: ResNet-10 features of Tiny-ImageNet's 200 classes.

``cpaan/data/tiny-imagenet/README.md`` is its card: source, terms, command, numbers.
"""

from pathlib import Path

from cpaan.data.cache import open_features
from cpaan.data.splits import Split, read_split
from cpaan.data.table import FeatureTable

FOLDER = Path(__file__).parent / "tiny-imagenet"


def builtin_features() -> tuple[FeatureTable, Split]:
    """Return the table and the benchmark's split of its classes."""
    return open_features(FOLDER / "features.parquet"), read_split(FOLDER / "split.json")
