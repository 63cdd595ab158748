"""The compact form loses as much as it is told to, and nothing where it need not."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpaan.data.cache import open_features
from cpaan.data.compact import CompactCode, fit_compact_code
from cpaan.data.parquet import read_about, write_compact_features, write_features
from cpaan.data.table import FeatureTable


def correlated(num_rows: int = 3000, num_dims: int = 24) -> np.ndarray:
    """Signed features whose principal directions have variances 1, 1/4, 1/9, ..."""
    rng = np.random.default_rng(0)
    deviations = 1 / np.arange(1, num_dims + 1)
    rotation, _ = np.linalg.qr(rng.normal(size=(num_dims, num_dims)))
    return (rng.normal(size=(num_rows, num_dims)) * deviations @ rotation).astype(np.float32)


def read_back(features: np.ndarray, relative_error: float) -> np.ndarray:
    code = fit_compact_code(features, relative_error)
    return code.decode(code.encode(features), first_row=0).astype(np.float64)


def table_of(features: np.ndarray) -> FeatureTable:
    names = [f"class{row % 3}" for row in range(len(features))]
    partitions = ["train" if row % 2 else "test" for row in range(len(features))]
    return FeatureTable.from_arrays(
        features, names, partitions, backbone="ResNet-10", backbone_classes=["class0", "class9"]
    )


def write_codes(path: Path, code: CompactCode | str | None, column: pa.Array) -> Path:
    table = pa.table(
        {
            "class": pa.array(["a"] * len(column)),
            "partition": pa.array(["train"] * len(column)),
            "code": column,
        }
    )
    if code is not None:
        text = code if isinstance(code, str) else code.to_json()
        table = table.replace_schema_metadata({"cpaan.compact": text})
    pq.write_table(table, path)
    return path


def hand_made_code() -> CompactCode:
    """Codes that go along the first feature by 1, and along both together by 1/2."""
    return CompactCode(
        mean=np.array([10, 20], np.float32),
        steps=np.array([4, 1], np.uint16),
        directions=np.array([[1, 0], [2, 2]], np.int8),
        scale=0.25,
        is_non_negative=False,
        largest_code=300,
    )


def test_codes_are_steps_along_the_directions():
    code = hand_made_code()
    features = np.array([[10, 20], [11, 20], [9.5, 19.5], [160.5, 20.5]], np.float16)

    codes = [[0, 0], [1, 0], [0, -1], [150, 1]]
    assert code.codes_of(features).tolist() == codes
    assert code.features_of(np.array(codes, np.int32)).tolist() == features.tolist()


def test_small_codes_of_either_sign_leave_the_upper_bytes_zero():
    code = hand_made_code()
    features = code.features_of(np.array([[0, -1], [1, -2], [127, -128], [200, -300]], np.int32))

    content = code.encode(features)

    #                          lower bytes  upper bytes
    assert content.tolist() == [
        [0, 1, 0, 0],
        [2, 3, 0, 0],
        [254, 255, 0, 0],
        [400 % 256, 599 % 256, 1, 2],
    ]
    np.testing.assert_array_equal(code.decode(content, first_row=0), features)


def test_in_one_dimension_a_value_moves_by_half_a_step_at_most():
    features = np.random.default_rng(0).normal(size=(500, 1)).astype(np.float32)
    step = math.sqrt(12 * 0.01 * features.var())

    moved = np.abs(read_back(features, relative_error=0.01) - features)

    assert step / 2 * 0.9 < moved.max() < step / 2 + 0.001  # the latter for float16


@pytest.mark.parametrize("relative_error", [0.01, 0.0006])
def test_the_error_is_the_one_allowed(relative_error):
    features = correlated()

    error = ((read_back(features, relative_error) - features) ** 2).mean()

    # A direction that varies less than a step loses its own variance only, and no step² / 12.
    assert 0.8 < error / (relative_error * features.var(axis=0).mean()) < 1.02


def test_directions_that_vary_most_lose_least():
    features = correlated()
    _, vectors = np.linalg.eigh(np.cov(features.T))

    errors = (read_back(features, 0.0001) - features) @ vectors[:, ::-1]

    # Deviations are 1, 1/2, 1/3, ..., and the errors' variances in proportion to 1, 2, 3, ...
    np.testing.assert_allclose(errors.var(axis=0) / errors[:, 0].var(), range(1, 25), rtol=0.15)


def test_what_varies_less_than_the_error_costs_nothing():
    features = np.zeros((1000, 5), np.float32)
    features[:, 0] = np.random.default_rng(0).normal(size=1000)
    features[:, 1:] = correlated(1000, 4) / 1000

    codes = fit_compact_code(features, 0.0001).codes_of(features)

    assert len(np.unique(codes[:, 0])) > 50
    assert not codes[:, 1:].any()


def test_features_that_move_together_share_one_code():
    amount = np.random.default_rng(0).normal(size=(100, 1))
    features = (amount * [3, 4]).astype(np.float32)

    codes = fit_compact_code(features, 0.001).codes_of(features)

    assert len(np.unique(codes[:, 0])) > 20
    assert not codes[:, 1].any()


def test_constant_features_come_back_exactly():
    features = correlated(num_rows=10)  # fewer rows than dimensions, so that others are free too
    features[:, [3, 7]] = [0.3125, -40]

    back = read_back(features, relative_error=0.01)

    assert (back[:, [3, 7]] == [0.3125, -40]).all()
    assert (read_back(np.full((4, 2), 0.75, np.float16), relative_error=0.01) == 0.75).all()


def test_non_negative_features_stay_so():
    features = np.maximum(correlated(), 0)

    assert read_back(features, relative_error=0.01).min() == 0
    assert read_back(features - 1, relative_error=0.01).min() < -1


def test_class_means_hardly_move():
    features = correlated()

    moved = (read_back(features, 0.01) - features)[:100].mean(axis=0)

    # The mean of 100 independent errors: a hundredth of 0.01 of the variance.
    assert (moved**2).mean() < 2 * 0.0001 * features.var(axis=0).mean()


def test_decoding_is_exact_where_floating_point_sums_are_not():
    code = fit_compact_code(correlated(), 0.0001)
    codes = code.codes_of(correlated())

    whole = codes.astype(np.int64) * code.steps @ code.directions.astype(np.int64)
    expected = (whole * code.scale + code.mean).astype(np.float16)

    np.testing.assert_array_equal(code.features_of(codes), expected)


@pytest.mark.parametrize("relative_error", [0, 1, -0.1, math.nan])
def test_an_error_must_be_a_share(relative_error):
    with pytest.raises(ValueError, match="relative_error must lie between 0 and 1, got"):
        fit_compact_code(correlated(), relative_error)


@pytest.mark.parametrize(
    ("features", "relative_error", "message"),
    [
        (np.ones((0, 2), np.float32), 0.1, "the table has no rows"),
        (np.array([[1], [70000]], np.float32), 0.1, "as large as 70000, but .* ends at 65504"),
        (np.array([[-1e6], [1]], np.float32), 0.1, r"as large as 1e\+06, but .* ends at 65504"),
        # Between 512 and 1024 float16 has steps of a half.
        (1000 + correlated(), 1e-4, r"error is 0\.\d+ of the variance, but 0.0001 was asked"),
        # sqrt(4999 / 12e-8): far from the mean of many rows, and a small error
        (np.eye(5000, 1, dtype=np.float32), 1e-8, "a row lies 20410. steps .* end at 32767"),
    ],
)
def test_what_the_form_cannot_hold_is_refused(features, relative_error, message):
    with pytest.raises(ValueError, match=message):
        fit_compact_code(features, relative_error)


def test_the_largest_float16_survives_rounding():
    features = np.array([[65504], [-65504], [65000], [3]], np.float32)

    assert np.abs(read_back(features, relative_error=0.1)).max() <= 65504


def test_a_written_table_reads_back_with_all_that_belongs_to_it(tmp_path):
    table = table_of(correlated(num_rows=9000))  # more than a block

    write_compact_features(
        tmp_path / "f.parquet", table, {"commit": "f68584a", "seed": 0}, relative_error=0.001
    )

    read = open_features(tmp_path / "f.parquet")
    assert read.features.dtype == np.float16
    error = ((read.features - table.features) ** 2).mean() / table.features.var(axis=0).mean()
    assert error < 0.00102
    np.testing.assert_array_equal(read.labels, table.labels)
    np.testing.assert_array_equal(read.is_train, table.is_train)
    assert read.class_names == table.class_names
    assert (read.backbone, read.backbone_classes) == (table.backbone, table.backbone_classes)
    assert read_about(tmp_path / "f.parquet") == {"commit": "f68584a", "seed": 0}


def test_equal_tables_give_equal_bytes(tmp_path):
    for name in "ab":
        write_compact_features(tmp_path / name, table_of(correlated()), {"seed": 0})

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_half_a_byte_holds_a_value(tmp_path):
    """In whole steps, a Gaussian has an entropy of log2(sqrt(2 π e) / step).

    That is 4 bits for a step of 0.258 standard deviations, whose error is step² / 12 = 0.00556.
    """
    features = np.random.default_rng(0).normal(size=(8192, 64)).astype(np.float16)

    write_compact_features(tmp_path / "f", table_of(features), relative_error=0.00556)

    num_bytes_to_decode = len(fit_compact_code(features, 0.00556).to_json())
    num_bytes = (tmp_path / "f").stat().st_size - num_bytes_to_decode
    assert 0.49 < num_bytes / features.size < 0.53


def test_a_table_written_plainly_from_a_compact_one_is_the_same_table(tmp_path):
    write_compact_features(tmp_path / "compact", table_of(correlated()))
    table = open_features(tmp_path / "compact")

    write_features(tmp_path / "plain", table)

    assert open_features(tmp_path / "plain").fingerprint == table.fingerprint


def test_what_decodes_travels_as_text():
    code = fit_compact_code(correlated(), 0.001)

    read = CompactCode.from_json(code.to_json())

    np.testing.assert_array_equal(read.mean, code.mean)
    np.testing.assert_array_equal(read.steps, code.steps)
    np.testing.assert_array_equal(read.directions, code.directions)
    assert read.to_json() == code.to_json()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"mean": None}, "TypeError"),
        ({"mean": "AAA"}, "Incorrect padding"),
        ({"mean": "AAAA"}, "buffer size must be a multiple"),
        ({"mean": ""}, "0 numbers in the mean, 2 in the steps and 4 in the directions"),
        ({"mean": "AADAf///f38="}, "mean and scale must be finite"),
        ({"steps": "AAA="}, "2 numbers in the mean, 1 in the steps and 4 in the directions"),
        ({"directions": "AAAA"}, "2 numbers in the mean, 2 in the steps and 3 in the directions"),
        ({"scale": -1}, r"scale positive, got -1\.0"),
        ({"scale": math.inf}, "must be finite"),
        ({"largest_code": math.inf}, "OverflowError"),
    ],
)
def test_damaged_metadata_is_refused(tmp_path, damage, message):
    parts = {**json.loads(hand_made_code().to_json()), **damage}
    path = write_codes(tmp_path / "f", json.dumps(parts), pa.array([bytes(4)], pa.binary(4)))

    with pytest.raises(
        ValueError, match=f"f: cpaan.compact in the metadata is damaged: .*{message}"
    ):
        open_features(path)


@pytest.mark.parametrize(
    ("code", "column", "message"),
    [
        (None, pa.array([bytes(4)], pa.binary(4)), "column code needs cpaan.compact"),
        ("{}", pa.array([bytes(4)], pa.binary(4)), "is damaged: KeyError: 'mean'"),
        ("[", pa.array([bytes(4)], pa.binary(4)), "is damaged: JSONDecodeError"),
        (hand_made_code(), pa.array([bytes(5)], pa.binary(5)), r"must have 4 bytes .*binary\[5\]"),
        (hand_made_code(), pa.array([bytes(4)]), "must have 4 bytes .* but holds binary"),
        (hand_made_code(), pa.array([bytes(4), None], pa.binary(4)), "code of row 1 is empty"),
        (
            hand_made_code(),
            pa.array([bytes(4), bytes([0, 0, 0, 255])], pa.binary(4)),
            "row 1 has a code of 32640, but the largest one of the table is 300",
        ),
    ],
)
def test_codes_that_cannot_be_decoded_are_refused(tmp_path, code, column, message):
    with pytest.raises(ValueError, match=message):
        open_features(write_codes(tmp_path / "f", code, column))


def test_codes_written_by_another_program_are_read(tmp_path):
    rows = pa.array([bytes([2, 0, 0, 0]), bytes([0, 1, 0, 0])], pa.binary(4))

    table = open_features(write_codes(tmp_path / "f", hand_made_code(), rows))

    assert table.features.tolist() == [[11, 20], [9.5, 19.5]]
