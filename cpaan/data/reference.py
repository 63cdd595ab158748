"""Serialisable reference to a data set, for processes that open it themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from cpaan.core.remote_paths import absolute
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.split_files import find_split, read_split
from cpaan.data.splits import Split
from cpaan.data.table import FeatureTable, align_rows


@dataclass(frozen=True)
class DataReference:
    """Locations of features, their split, and their expected fingerprint."""

    features: tuple[str, ...]
    """Absolute paths or addresses for `cpaan.open_features`; empty for the built-in features."""
    split: Split
    fingerprint: str
    """Fingerprint of the features, with rows in the order that `open` returns."""
    in_order_of: tuple[str, ...] = ()
    """Other features of the same examples, whose row order is used; empty for the file's own."""

    @classmethod
    def of(
        cls,
        table: FeatureTable,
        split: Split,
        features: list[str] | None,
        in_order_of: list[str] | None = None,
    ) -> Self:
        """Create the reference of an opened table."""
        locations, others = (tuple(map(absolute, given or [])) for given in (features, in_order_of))
        return cls(locations, split, table.fingerprint, others)

    def open(self) -> FeatureTable:
        """Open the table.

        Raises:
            ValueError: If the files have changed since the reference was made.
        """
        if self.features:
            table = self._open(self.features)
            if self.in_order_of:
                table = align_rows(table, self._open(self.in_order_of))
        else:
            table, _ = builtin_features()
        if table.fingerprint != self.fingerprint:
            raise ValueError(
                f"{' '.join(self.features) or 'the built-in data'} changed: its fingerprint is "
                f"{table.fingerprint}, not {self.fingerprint}"
            )
        return table

    def _open(self, locations: tuple[str, ...]) -> FeatureTable:
        return open_features(*locations, label_names=self.split.label_names)

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as JSON-compatible data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Create a reference from the result of `to_dict`."""
        split, others = Split.from_dict(content["split"]), content.get("in_order_of", ())
        return cls(tuple(content["features"]), split, content["fingerprint"], tuple(others))


def open_data(
    features: Sequence[str] | None,
    split: str | None,
    progress: Callable[[str], None] | None = None,
) -> tuple[FeatureTable, Split]:
    """Open the features and their split; without any, the built-in ones.

    Raises:
        ValueError: If there is a split without features, or none beside them.
    """
    if features is None:
        if split is not None:
            raise ValueError("--split needs --features")
        return builtin_features()
    groups = read_split(split or find_split(features[0]))
    return open_features(*features, label_names=groups.label_names, progress=progress), groups
