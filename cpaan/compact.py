"""Features in about half a byte a value: principal directions, cut into whole steps.

A row of the table becomes whole numbers, a code for each of D directions, and is read back as

    features = mean + scale * codes @ directions

Features of a network are strongly correlated: most principal directions vary little, and their
codes are small numbers that compress well. On the ResNet-10 features of 76 + 124 classes the mean
squared error is a quarter of what rounding each feature by itself leaves in a file of this size.

Decoding multiplies and adds whole numbers, which is exact in any order, so that every machine
reads the same features from a file, to the last bit.

Shapes: R = rows, D = feature dimension.
"""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.features import FeatureArray

ROWS_AT_ONCE = 2048  # 8 MiB at 512 dimensions in float64, and a few such arrays are held
_LARGEST_CODE = 2**15 - 1
_LARGEST_IN_DIRECTION = 127
_LARGEST_FEATURE = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class CompactCode:
    """What one table's codes mean. Make it with `fit_compact_code`."""

    mean: NDArray[np.float32]  # (D,)
    directions: NDArray[np.int8]  # (D, D), a direction in each row
    scale: float
    is_non_negative: bool
    """Whether a negative feature can only come from rounding, so that zero is meant."""
    largest_code: int
    """No code of the table is further from zero."""

    @property
    def num_bytes(self) -> int:
        """How many bytes the codes of a row take, before compression."""
        return 2 * len(self.mean)

    @cached_property
    def _codes_of_units(self) -> NDArray[np.float64]:
        """The inverse of the directions, shape (D, D).

        Rounded to 8 bits, directions are no longer orthogonal, and their transpose would not do.
        """
        inverse: NDArray[np.float64] = np.linalg.inv(self.scale * self.directions)
        return inverse

    def codes_of(self, features: NDArray[np.floating]) -> NDArray[np.int32]:
        """Return the codes nearest to some rows, shape (rows, D).

        Raises:
            ValueError: If a code is larger than the largest one.
        """
        codes = np.rint((features - self.mean.astype(np.float64)) @ self._codes_of_units)
        largest = np.abs(codes).max()
        if largest > self.largest_code:
            raise ValueError(
                f"a row lies {largest:.0f} steps from the mean, but codes end at "
                f"{self.largest_code}: allow a larger error"
            )
        return codes.astype(np.int32)

    def features_of(self, codes: NDArray[np.int32]) -> NDArray[np.float16]:
        """Return the features that some rows of codes stand for, shape (rows, D)."""
        # No sum reaches 2**53, up to which whole numbers are exact in float64.
        features = codes.astype(np.float64) @ self.directions.astype(np.float64)
        features *= self.scale
        features += self.mean
        # Rounding can also carry the largest features beyond what float16 holds.
        lowest = 0 if self.is_non_negative else -_LARGEST_FEATURE
        return np.clip(features, lowest, _LARGEST_FEATURE).astype(np.float16)

    def encode(self, features: FeatureArray) -> NDArray[np.uint8]:
        """Return the codes of some rows as bytes, shape (rows, num_bytes).

        A row has the lower bytes of all codes, then the upper bytes, which are nearly all zero.

        Raises:
            ValueError: If a code is larger than the largest one.
        """
        codes = self.codes_of(features)
        # 0, -1, 1, -2, 2, ... become 0, 1, 2, 3, 4, ..., so that small codes have no upper byte.
        unsigned = np.where(codes < 0, -2 * codes - 1, 2 * codes)
        return np.concatenate([unsigned & 255, unsigned >> 8], axis=1).astype(np.uint8)

    def decode(self, content: NDArray[np.uint8], first_row: int) -> NDArray[np.float16]:
        """Return the features of some rows, shape (rows, D).

        Args:
            content: What `encode` returned, shape (rows, num_bytes).
            first_row: Row number of the first of them, for the message.

        Raises:
            ValueError: If a code is larger than the largest one.
        """
        num_dims = len(self.mean)
        unsigned = content[:, num_dims:].astype(np.int32) << 8
        unsigned |= content[:, :num_dims]
        codes = (unsigned >> 1) ^ -(unsigned & 1)
        largest_of_row = np.abs(codes).max(axis=1, initial=0)
        is_bad = largest_of_row > self.largest_code
        if is_bad.any():
            row = int(is_bad.argmax())
            raise ValueError(
                f"row {first_row + row} has a code of {largest_of_row[row]}, "
                f"but the largest one of the table is {self.largest_code}"
            )
        return self.features_of(codes)

    def to_json(self) -> str:
        """Return it as text, with arrays in base64, little-endian."""
        return json.dumps(
            {
                "mean": base64.b64encode(self.mean.astype("<f4").tobytes()).decode(),
                "directions": base64.b64encode(self.directions.tobytes()).decode(),
                "scale": self.scale,
                "is_non_negative": self.is_non_negative,
                "largest_code": self.largest_code,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "CompactCode":
        """Return what `to_json` wrote.

        Raises:
            ValueError: If something is missing, or of another kind or size.
        """
        try:
            parts = json.loads(text)
            mean = _array_from(parts["mean"], np.dtype("<f4")).astype(np.float32)
            directions = _array_from(parts["directions"], np.dtype(np.int8))
            scale, largest_code = float(parts["scale"]), int(parts["largest_code"])
            is_non_negative = bool(parts["is_non_negative"])
        # Damaged JSON and base64 are ValueErrors, an infinite code an OverflowError.
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not 0 < len(directions) == len(mean) ** 2:
            raise ValueError(
                f"{len(mean)} numbers in the mean, but {len(directions)} in the directions"
            )
        if not (np.isfinite(mean).all() and math.isfinite(scale) and scale > 0):
            raise ValueError(f"mean and scale must be finite and scale positive, got {scale}")
        return cls(
            mean=mean,
            directions=directions.reshape(len(mean), len(mean)),
            scale=scale,
            is_non_negative=is_non_negative,
            largest_code=largest_code,
        )


def fit_compact_code(features: FeatureArray, relative_error: float) -> CompactCode:
    """Return a code for one table, which is read some rows at a time.

    Equal tables give equal codes on one machine. The linear algebra of another one may end at
    slightly other directions, and at other bytes for about the same features.

    Args:
        features: Shape (R, D).
        relative_error: The mean squared error that is allowed, as a share of the features'
            variance. Half of it takes another half a bit for each value.

    Raises:
        ValueError: If there are no rows, or the error is not between 0 and 1 or cannot be
            reached: decoded features are float16, of limited range and precision, and codes
            are limited too.
    """
    if not 0 < relative_error < 1:
        raise ValueError(f"relative_error must lie between 0 and 1, got {relative_error}")
    num_rows, num_dims = features.shape
    if num_rows == 0:
        raise ValueError("the table has no rows")
    total = np.zeros(num_dims)
    lowest, highest = np.full(num_dims, np.inf), np.full(num_dims, -np.inf)
    for block in _blocks(features):
        total += block.sum(axis=0)
        lowest = np.minimum(lowest, block.min(axis=0))
        highest = np.maximum(highest, block.max(axis=0))
    largest = max(highest.max(), -lowest.min())
    if largest > _LARGEST_FEATURE:
        raise ValueError(
            f"a feature is as large as {largest:g}, but float16, in which compact features are "
            f"read, ends at {_LARGEST_FEATURE:g}"
        )
    mean = (total / num_rows).astype(np.float32)
    covariance = np.zeros((num_dims, num_dims))
    for block in _blocks(features):
        block -= mean
        covariance += block.T @ block / num_rows
    directions, scale = _cut_directions(covariance, lowest < highest, relative_error)
    code = CompactCode(mean, directions, scale, bool(lowest.min() >= 0), _LARGEST_CODE)

    largest_code, squared_error = 0, 0.0
    for block in _blocks(features):
        codes = code.codes_of(block)
        largest_code = max(largest_code, int(np.abs(codes).max()))
        squared_error += float(((code.features_of(codes) - block) ** 2).sum())
    variance = float(np.trace(covariance)) * num_rows
    # Even if every code is half a step off, its error is three times that of an average one.
    if squared_error > 4 * relative_error * variance > 0:
        raise ValueError(
            f"the error is {squared_error / variance:.2g} of the variance, but "
            f"{relative_error:.2g} is allowed: these features need more precision than float16 has"
        )
    return replace(code, largest_code=largest_code)


def _cut_directions(
    covariance: NDArray[np.float64], varies: NDArray[np.bool_], relative_error: float
) -> tuple[NDArray[np.int8], float]:
    """Return the directions, shape (D, D), and their scale: a row times it is one step.

    Args:
        covariance: Of the features, shape (D, D).
        varies: Which features are not constant, shape (D,). Constant ones get a direction of
            their own, which nothing moves along, so that they come back exactly.
        relative_error: As in `fit_compact_code`.
    """
    # Any length would do for the directions of constant features: their codes are zero.
    directions = _LARGEST_IN_DIRECTION * np.eye(len(covariance), dtype=np.int8)
    if not varies.any():
        return directions, 1.0
    variances, vectors = np.linalg.eigh(covariance[np.ix_(varies, varies)])
    # The few directions that vary more than the average one tell classes apart: there, half the
    # step removes most of what rounding does to accuracies, and hardly enlarges the file.
    steps = np.where(variances > variances.mean(), 0.5, 1.0)
    # Rounding to whole steps has a variance of step² / 12 along each direction.
    steps *= math.sqrt(12 * relative_error * variances.sum() / (steps**2).sum())
    moves = (vectors * steps).T[::-1]  # neighbours with like variances compress best
    # As float32, so that the last bits, in which even numbers of threads differ, are cut off.
    scale = float(np.float32(np.abs(moves).max() / _LARGEST_IN_DIRECTION))
    directions[np.ix_(varies, varies)] = np.rint(moves / scale).astype(np.int8)
    return directions, scale


def _blocks(features: FeatureArray) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(features), ROWS_AT_ONCE):
        yield features[start : start + ROWS_AT_ONCE].astype(np.float64)


def _array_from(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)
