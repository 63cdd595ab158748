"""Test that every file format gives the same table, and a damaged file a one-line error."""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpaan.data.cache import default_cache_folder, open_features
from cpaan.data.parquet import read_about, write_features
from cpaan.data.table import FeatureTable
from helpers.memory import peak_memory
from helpers.tables import LABEL_NAMES, assert_same_table, hdf5_pair, random_table, write_hdf5


def write_parquet(path: Path, **columns: pa.Array) -> Path:
    table = {
        "class": pa.array(["a", "b", "a"]),
        "partition": pa.array(["train", "test", "test"]),
        "feature": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32())),
        **columns,
    }
    pq.write_table(pa.table({name: c for name, c in table.items() if c is not None}), path)
    return path


def cache_entries() -> list[Path]:
    return list(default_cache_folder().glob("*"))


@pytest.mark.parametrize(
    ("dtype", "backbone", "classes", "about"),
    [("float16", None, None, None), ("float32", "ResNet-10", {"b", "c"}, {"of": ["ä"], "seed": 0})],
)
def test_a_written_table_reads_back_the_same(tmp_path, dtype, backbone, classes, about):
    table = random_table(num_rows=20_000, num_dims=2, dtype=dtype)  # more than one block
    table = table.with_changes(backbone=backbone, backbone_classes=classes)

    write_features(tmp_path / "f.parquet", table, about)

    read = open_features(tmp_path / "f.parquet")
    assert read.features.dtype == dtype
    assert_same_table(read, table)
    assert (read.backbone, read.backbone_classes) == (backbone, classes)
    assert read_about(tmp_path / "f.parquet") == about


@pytest.mark.parametrize(
    "feature_type",
    [
        pa.list_(pa.float32()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.list_(pa.float64()),
    ],
    ids=str,
)
def test_all_kinds_of_lists_and_dictionaries_are_read(tmp_path, feature_type):
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    names = pa.array(["a", "b", "a"]).dictionary_encode()
    columns = {"class": names, "feature": pa.array(rows, feature_type)}

    table = open_features(write_parquet(tmp_path / "f.parquet", **columns))

    assert table.features.tolist() == rows
    assert table.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("key", ["all_feats", "all_features"])
def test_padding_of_hdf5_files_is_not_data(tmp_path, key):
    table = open_features(*hdf5_pair(tmp_path, key), label_names=LABEL_NAMES)

    expected = FeatureTable.from_arrays(
        np.arange(12, dtype=np.float32).reshape(6, 2),
        ["n03", "n01", "n01", "n02", "n02", "n03"],
        ["train"] * 4 + ["test"] * 2,
    )
    assert_same_table(table, expected)


def test_a_folder_stands_for_the_files_in_it(tmp_path):
    pair = hdf5_pair(tmp_path / "ResNet10")
    (tmp_path / "data").mkdir()
    path = write_parquet(tmp_path / "data" / "f.parquet")

    assert_same_table(open_features(tmp_path / "ResNet10"), open_features(*pair))
    assert_same_table(open_features(tmp_path / "data"), open_features(path))
    assert open_features(*pair).class_names == ("0", "1", "2")
    with pytest.raises(ValueError, match="data is a folder; give one folder, or files only"):
        open_features(tmp_path / "data", path)
    with pytest.raises(ValueError, match="must contain one Parquet file, or one HDF5 file with"):
        open_features(tmp_path)


def test_a_table_is_decoded_again_only_if_its_file_changes_or_the_cache_is_damaged(tmp_path):
    path = write_parquet(tmp_path / "f.parquet")
    first = open_features(path)
    assert isinstance(first.features, np.memmap)
    assert not first.features.flags.writeable

    (entry,) = cache_entries()
    about = json.loads((entry / "about.json").read_text())
    (entry / "about.json").write_text(json.dumps({**about, "backbone": "seen in the cache"}))
    assert open_features(path).backbone == "seen in the cache"
    for name, content in (("about.json", "{}"), ("features.npy", ""), ("labels.npy", "x")):
        (entry / name).write_text(content)
        assert_same_table(open_features(path), first)
    entry.rename(entry.with_name(f".{entry.name}-abc"))  # left by a killed process
    open_features(path)
    assert list(default_cache_folder().iterdir()) == [entry]

    write_parquet(path, **{"class": pa.array(["a", "b", "c"])})
    assert open_features(path).class_names == ("a", "b", "c")
    assert len(cache_entries()) == 1
    assert first.class_names == ("a", "b")


def test_other_names_for_the_same_labels_are_another_table(tmp_path):
    pair = hdf5_pair(tmp_path)

    tables = [open_features(*pair, label_names=names) for names in ("abc", "xyz")]

    assert [table.class_names for table in tables] == [tuple("abc"), tuple("xyz")]
    with pytest.raises(ValueError, match="labels range from 0 to 2, but there are 2 label names"):
        open_features(*pair, label_names=["a", "b"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"class": None}, "missing or duplicate column class in"),
        ({"feature": None, "partition": None}, "missing or duplicate columns partition, feat"),
        ({"class": pa.array(["a", None, "b"])}, "class of row 1 is empty"),
        ({"partition": pa.array(["train", "test", None])}, "partition of row 2 is empty"),
        ({"partition": pa.array(["train", "test", "dev"])}, "partition of row 2 is 'dev'"),
        ({"feature": pa.array([[1.0], None, [2.0]])}, "feature of row 1 is empty"),
        ({"feature": pa.array([[1.0], [2.0], [None]])}, "feature of row 2 has an empty value"),
        ({"feature": pa.array([[1.0], [2.0], [np.nan]])}, "NaN or infinity in .* row 2"),
        ({"feature": pa.array([[1.0], [2.0, 3.0], [4.0]])}, "row 1 has 2 dimensions, .* have 1"),
        ({"feature": pa.array([1.0, 2.0, 3.0])}, "must have type list, but has type double"),
        ({"feature": pa.array([["x"], ["y"], ["z"]])}, "floating-point numbers"),
        ({"class": pa.array([["a"], ["b"], ["c"]])}, "column class must have type string"),
        (
            {  # in another block
                "class": pa.array(["a"] * 10_001),
                "partition": pa.array(["train"] * 10_001),
                "feature": pa.array([[1.0, 2.0]] * 10_000 + [[1.0]]),
            },
            "row 10000 has 1 dimensions, .* have 2",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_row(tmp_path, columns, message):
    path = write_parquet(tmp_path / "f.parquet", **columns)

    with pytest.raises(ValueError, match=rf"f\.parquet.*{message}"):
        open_features(path)
    assert not cache_entries()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("all_feats", np.ones(7, np.float32), "all_feats must be .* with 2 dimensions"),
        ("all_feats", np.ones((7, 2), np.int32), "all_feats must be .* floating-point numbers"),
        ("all_labels", np.ones((7, 1), np.int32), "all_labels must be .* with 1 dimensions"),
        ("all_labels", np.ones(7, np.float32), "all_labels must be .* whole numbers"),
        ("count", np.array([], np.int32), r"count is \[\], but must be one number from 1 to 7"),
        ("count", np.array([2.5]), "count must be .* whole numbers"),
        ("count", np.array([100]), r"count is \[100\], but must be one number from 1 to 7"),
        ("all_feats", None, "no all_feats or all_features, found"),
        ("all_labels", None, "no all_labels, found"),
        ("count", None, "no count, found"),
    ],
)
def test_an_hdf5_array_of_another_form_is_named(tmp_path, name, value, message):
    train, test = hdf5_pair(tmp_path)
    with h5py.File(train, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value

    with pytest.raises(ValueError, match=rf"train\.hdf5.*{message}"):
        open_features(train, test)


@pytest.mark.parametrize(("width", "dtype"), [(5, "float32"), (2, "float16")])
def test_widths_and_precisions_of_an_hdf5_pair_must_agree(tmp_path, width, dtype):
    train, test = hdf5_pair(tmp_path)
    write_hdf5(test, np.ones((2, width), dtype), [0, 1])

    message = f"row 4 has {width} dimensions of {dtype}, but .* have 2 of float32"
    with pytest.raises(ValueError, match=message):
        open_features(train, test)
    assert not cache_entries()


def test_truncated_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "f.parquet"
    write_features(path, random_table(num_rows=5000))
    train, test = hdf5_pair(tmp_path)
    whole, half = path.read_bytes(), train.read_bytes()
    damaged = bytearray(whole)
    damaged[100:3000] = bytes(2900)

    for content in (b"", whole[: len(whole) // 3], whole[:-100], damaged):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"f\.parquet"):
            open_features(path)
    for length in (len(half) // 3, len(half) - 100):
        train.write_bytes(half[:length])
        with pytest.raises(ValueError, match=r"train\.hdf5 .* truncated or damaged"):
            open_features(train, test)
    assert not cache_entries()


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "f.csv").write_text("class,partition,feature\n")
    np.save(tmp_path / "f.npy", np.ones((2, 2)))
    train, _ = hdf5_pair(tmp_path)
    parquet = write_parquet(tmp_path / "f.parquet")

    np.savez(tmp_path / "f.npz", a=np.ones((5, 2)))
    npz = tmp_path / "f.npz"
    for paths in ([train], [train] * 2, [parquet, train], [parquet] * 2, [npz] * 2, [npz, parquet]):
        with pytest.raises(ValueError, match="features must be one Parquet file, two HDF5 files"):
            open_features(*paths)
    for name in ("f.csv", "f.npy"):
        with pytest.raises(ValueError, match=rf"{name}: not a Parquet, HDF5 or \.npz file"):
            open_features(tmp_path / name)
    with pytest.raises(ValueError, match=r"f\.csv cannot be read"):
        read_about(tmp_path / "f.csv")
    with pytest.raises(FileNotFoundError, match=r"no such file: .*gone\.parquet"):
        open_features(tmp_path / "gone.parquet")


@pytest.mark.parametrize("classes", ["5", '["a", 1]', "a,b"])
def test_classes_of_the_backbone_must_be_a_list_of_names(tmp_path, classes):
    path = write_parquet(tmp_path / "f.parquet")
    table = pq.read_table(path).replace_schema_metadata({"cpaan.backbone_classes": classes})
    pq.write_table(table, path)

    with pytest.raises(ValueError, match="backbone_classes must be a JSON list of class names"):
        open_features(path)


@pytest.mark.parametrize("form", ["parquet", "hdf5"])
def test_a_large_table_is_never_whole_in_memory(tmp_path, form, monkeypatch):
    """Read 32 MiB of features in blocks of 0.5 MiB."""
    num_rows, num_dims = 32_768, 512
    monkeypatch.setattr(f"cpaan.data.{form}.ROWS_PER_BLOCK", 512)
    block = np.random.default_rng(0).normal(size=(4096, num_dims)).astype(np.float16)
    if form == "parquet":
        lists = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), num_dims)
        rows = pa.table([["a"] * 4096, ["train"] * 4096, lists], ["class", "partition", "feature"])
        paths = [tmp_path / "f.parquet"]
        # One row group is the hardest case, because a reader could load it at once.
        table = pa.concat_tables([rows] * (num_rows // 4096))
        pq.write_table(table, paths[0], row_group_size=num_rows)
        del table
    else:
        half = np.tile(block, (4, 1))
        paths = [tmp_path / "train.hdf5", tmp_path / "val.hdf5"]
        for path in paths:
            write_hdf5(path, half, [0] * len(half))
        del half

    with peak_memory() as peak:
        table = open_features(*paths)

        assert table.features.nbytes == 32 << 20
        assert peak() < 16
