"""Features in about half a byte a value: principal directions, cut into whole steps.

A row of the table becomes whole numbers, a code for each of D directions, and is read back as

    features = mean + scale * (codes * steps) @ directions

Features of a network are strongly correlated: most principal directions vary little, and their
codes are small numbers that compress well. On ResNet-10 features of 200 classes, at 4.4 bits a
value, the mean squared error is a third of what rounding each feature by itself leaves, and the
less a direction varies, the more of it is there, where it moves accuracies least.

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

from cpaan.data.table import FeatureArray

ROWS_AT_ONCE = 2048  # 8 MiB at 512 dimensions in float64, and a few such arrays are held
_LARGEST_CODE = 2**15 - 1
_LARGEST_STEP = 2**16 - 1
_LARGEST_IN_DIRECTION = 127
_LARGEST_FEATURE = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class CompactCode:
    """What one table's codes mean. Make it with `fit_compact_code`."""

    mean: NDArray[np.float32]  # (D,)
    steps: NDArray[np.uint16]  # (D,), how far one unit of a code goes
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
    def _whole_moves(self) -> NDArray[np.float64]:
        """How far, in units of scale, one unit of each code moves each feature, shape (D, D)."""
        return self.steps[:, None].astype(np.float64) * self.directions

    @cached_property
    def _codes_of_features(self) -> NDArray[np.floating]:
        """The inverse of the moves, shape (D, D).

        Rounded to 8 bits, directions are no longer orthogonal, and their transpose would not do.
        """
        return np.linalg.inv(self.scale * self._whole_moves)

    def codes_of(self, features: NDArray[np.floating]) -> NDArray[np.int32]:
        """Return the codes nearest to some rows, shape (rows, D).

        Raises:
            ValueError: If a code is larger than the largest one.
        """
        codes = np.rint((features - self.mean.astype(np.float64)) @ self._codes_of_features)
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
        features = codes.astype(np.float64) @ self._whole_moves
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
                "steps": base64.b64encode(self.steps.astype("<u2").tobytes()).decode(),
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
            steps = _array_from(parts["steps"], np.dtype("<u2")).astype(np.uint16)
            directions = _array_from(parts["directions"], np.dtype(np.int8))
            scale, largest_code = float(parts["scale"]), int(parts["largest_code"])
            is_non_negative = bool(parts["is_non_negative"])
        # Damaged JSON and base64 are ValueErrors, an infinite code an OverflowError.
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not 0 < len(mean) == len(steps) == math.sqrt(len(directions)):
            raise ValueError(
                f"{len(mean)} numbers in the mean, {len(steps)} in the steps and "
                f"{len(directions)} in the directions, but there must be D, D and D times D"
            )
        if not (np.isfinite(mean).all() and math.isfinite(scale) and scale > 0):
            raise ValueError(f"mean and scale must be finite and scale positive, got {scale}")
        return cls(
            mean=mean,
            steps=steps,
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
        relative_error: The mean squared error to aim at, as a share of the features' variance.
            Half of it takes another half a bit for each value.

    Raises:
        ValueError: If there are no rows, or the error is not between 0 and 1 or far from being
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
    steps, directions, scale = _cut(covariance, lowest < highest, relative_error)
    code = CompactCode(
        mean, steps, directions, scale, bool(lowest.min() >= 0), largest_code=_LARGEST_CODE
    )

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
            f"{relative_error:.2g} was asked for: float16 is not precise enough for these features"
        )
    return replace(code, largest_code=largest_code)


def _cut(
    covariance: NDArray[np.float64], varies: NDArray[np.bool_], relative_error: float
) -> tuple[NDArray[np.uint16], NDArray[np.int8], float]:
    """Return steps, shape (D,), directions, shape (D, D), and the scale of both.

    Args:
        covariance: Of the features, shape (D, D).
        varies: Which features are not constant, shape (D,). Constant ones get a direction of
            their own, which nothing moves along, so that they come back exactly.
        relative_error: As in `fit_compact_code`.
    """
    whole_steps = np.ones(len(covariance), dtype=np.uint16)
    directions = np.eye(len(covariance), dtype=np.int8)
    if not varies.any():
        return whole_steps, directions, 1.0
    variances, vectors = np.linalg.eigh(covariance[np.ix_(varies, varies)])
    variances, vectors = variances[::-1], vectors[:, ::-1]
    # What varies less than the error may be lost whole.
    allowed = relative_error * variances.mean()
    is_kept = variances > allowed
    # Equal steps would make the squared error least, steps in proportion to the deviations would
    # spend equal numbers of bits. Large directions tell classes apart, and there errors show in
    # accuracies: hence smaller steps than elsewhere, by the root of the ratio of deviations.
    steps = np.maximum(variances, allowed) ** -0.25
    # Rounding to whole steps has a variance of step² / 12.
    rest = allowed * len(variances) - variances[~is_kept].sum()
    steps *= math.sqrt(12 * rest / (steps[is_kept] ** 2).sum())
    unit_of_steps = steps.max() / _LARGEST_STEP
    unit_of_vectors = np.abs(vectors).max() / _LARGEST_IN_DIRECTION
    whole_steps[varies] = np.rint(steps / unit_of_steps)
    directions[np.ix_(varies, varies)] = np.rint(vectors / unit_of_vectors).T
    # As float32, to cut off the last bits, which depend even on the number of threads.
    return whole_steps, directions, float(np.float32(unit_of_steps * unit_of_vectors))


def _blocks(features: FeatureArray) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(features), ROWS_AT_ONCE):
        yield features[start : start + ROWS_AT_ONCE].astype(np.float64)


def _array_from(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)
