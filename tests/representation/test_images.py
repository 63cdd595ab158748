"""Parquet files and ImageNet's folders give one list, in one order."""

import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpaan.representation.images import ImageList, open_images
from helpers.images import (
    CLASSES,
    VAL_CLASSES,
    Picture,
    some_pictures,
    write_folders,
    write_parquet,
)
from helpers.memory import peak_memory


def kaggle_list(root: Path) -> Path:
    return write_list(
        root / "LOC_val_solution.csv",
        lambda k, name: f"ILSVRC2012_val_0000000{k},{name} 85 1 499 272 {name} 1 2 3 4 ",
        header="ImageId,PredictionString\n",
    )


def tiny_imagenet_list(root: Path) -> Path:
    return write_list(
        root / "val" / "val_annotations.txt",
        lambda k, name: f"ILSVRC2012_val_0000000{k}.JPEG\t{name}\t0\t32\t44\t62",
    )


def write_list(path: Path, line: Callable[[int, str], str], header: str = "") -> Path:
    """Write a list of the validation images, in another order than that of the files."""
    lines = [line(k, name) for k, name in enumerate(VAL_CLASSES)]
    path.write_text(header + "\n".join(reversed(lines)) + "\n")
    return path


LISTS = [kaggle_list, tiny_imagenet_list]


def contents_of(images: ImageList) -> list[bytes]:
    contents = dict(images.source.read(np.arange(len(images))))
    return [
        content.read_bytes() if isinstance(content, Path) else content
        for _, content in sorted(contents.items())
    ]


def in_list_order(pictures: Sequence[Picture]) -> list[Picture]:
    return sorted(pictures, key=lambda picture: (picture.partition != "train", picture.class_name))


def assert_lists_the_pictures(images: ImageList) -> None:
    expected = in_list_order(some_pictures())
    assert images.class_names == CLASSES
    assert images.classes.tolist() == [picture.class_name for picture in expected]
    assert images.is_train.tolist() == [picture.partition == "train" for picture in expected]
    assert contents_of(images) == [picture.content for picture in expected]


def write(form: str, folder: Path, pictures: Sequence[Picture]) -> Path:
    if form == "parquet":
        return write_parquet(folder / "i.parquet", pictures).parent
    write_folders(folder, pictures, flat=form == "flat")
    if form == "flat":
        kaggle_list(folder)
    return folder


def test_images_come_by_partition_then_class_then_file_order(tmp_path):
    pictures = some_pictures()
    write_parquet(tmp_path / "images_1.parquet", pictures[7:])
    write_parquet(tmp_path / "images_0.parquet", pictures[:7])
    write_parquet(tmp_path / "features.parquet", pictures, jpeg=None)  # skipped

    images = open_images(tmp_path, CLASSES)

    assert_lists_the_pictures(images)
    assert images.source.name(0) == "images_0.parquet row 2"
    assert images.source.name(2) == "images_1.parquet row 1"


def test_files_are_read_in_the_order_given(tmp_path):
    pictures = [picture for picture in some_pictures() if picture.class_name == "n01"]
    first = write_parquet(tmp_path / "z.parquet", pictures[:2])
    second = write_parquet(tmp_path / "a.parquet", pictures[2:])

    images = open_images([str(first), second], ["n01"])

    assert contents_of(images) == [picture.content for picture in pictures]


@pytest.mark.parametrize("group_size", [7, 64, 150, 1000])
def test_rows_are_found_in_row_groups_of_any_size(tmp_path, group_size):
    pictures = [Picture("a", "train" if k else "test", "", b"%d" % k) for k in range(500)]
    path = write_parquet(tmp_path / "i.parquet", pictures, group_size)
    rows = np.array([499, 480, 3, 60, 63, 64, 149, 150, 151, 300, 3])

    contents = list(open_images(path, ["a"]).source.read(rows))

    # The one test image is the file's first and the list's last.
    assert contents == [(499, b"0")] + [(row, b"%d" % (row + 1)) for row in sorted(rows)[:-1]]


def test_class_folders_give_the_same_as_parquet(tmp_path):
    images = open_images(write_folders(tmp_path / "imagenet", some_pictures()), CLASSES)

    assert_lists_the_pictures(images)
    assert images.source.name(0) == "train/n01/n01_0.JPEG"
    assert images.source.name(14) == "val/n03/ILSVRC2012_val_00000004.JPEG"


def test_tiny_imagenets_own_folders_give_the_same(tmp_path):
    """They have a folder more: ``train/<class>/images`` and ``val/images``."""
    for picture in some_pictures():
        is_train = picture.partition == "train"
        folder = tmp_path / (f"train/{picture.class_name}/images" if is_train else "val/images")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / picture.file).write_bytes(picture.content)
    tiny_imagenet_list(tmp_path)

    images = open_images(tmp_path, CLASSES)

    assert contents_of(images) == [each.content for each in in_list_order(some_pictures())]
    assert images.source.name(0) == "train/n01/images/n01_0.JPEG"


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("write_list", LISTS)
def test_a_flat_val_with_a_list_gives_the_same(tmp_path, write_list, is_elsewhere):
    root = write_folders(tmp_path / "imagenet", some_pictures(), flat=True)
    path = write_list(root)
    if is_elsewhere:
        path = path.rename(tmp_path / path.name)

    images = open_images(root, CLASSES, val_labels=path if is_elsewhere else None)

    assert_lists_the_pictures(images)
    assert images.source.name(14) == "val/ILSVRC2012_val_00000004.JPEG"


@pytest.mark.parametrize("form", ["parquet", "folders", "flat"])
def test_images_of_other_classes_are_left_out(tmp_path, form):
    images = open_images(write(form, tmp_path, some_pictures()), ["n03", "n02"])

    wanted = [picture for picture in some_pictures() if picture.class_name != "n01"]
    assert images.class_names == ("n02", "n03")
    assert contents_of(images) == [picture.content for picture in in_list_order(wanted)]


def test_all_arrow_types_of_strings_and_bytes_are_read(tmp_path):
    pictures = some_pictures()
    path = write_parquet(
        tmp_path / "i.parquet",
        pictures,
        wnid=pa.array([picture.class_name for picture in pictures], pa.large_string()),
        partition=pa.array([picture.partition for picture in pictures]).dictionary_encode(),
        jpeg=pa.array([picture.content for picture in pictures], pa.large_binary()),
    )

    assert_lists_the_pictures(open_images(path, CLASSES))


def test_all_endings_of_image_files_count_and_names_need_not_be_text(tmp_path):
    root = write_folders(tmp_path, some_pictures())
    folder = os.fsencode(root / "train" / "n01")
    for name in (b"a.JPEG", b"b.jpeg", b"c.jpg", b"d.PNG", b"\xff.JPG", b".g.JPEG", b"h.txt"):
        with open(folder + b"/" + name, "wb") as file:
            file.write(name)

    images = open_images(root, ["n01"])

    found = contents_of(images)[: images.is_train.sum()]
    assert found[:4] == [b"a.JPEG", b"b.jpeg", b"c.jpg", b"d.PNG"]
    assert found[-1] == b"\xff.JPG"
    assert len(found) == 5 + 3


@pytest.mark.parametrize("form", ["parquet", "folders"])
def test_a_pickled_list_is_small_and_works_in_any_folder(tmp_path, monkeypatch, form):
    write(form, tmp_path / "images", some_pictures())
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(open_images("images", CLASSES))
    monkeypatch.chdir("/")

    assert len(content) < 5_000
    assert_lists_the_pictures(pickle.loads(content))


@pytest.mark.parametrize("form", ["parquet", "folders"])
def test_the_digest_depends_on_the_data_and_not_on_its_folder(tmp_path, form):
    def digest(place: str, pictures: Sequence[Picture], classes: Sequence[str] = CLASSES) -> str:
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        return open_images(write(form, tmp_path / place, pictures), classes).digest

    pictures = some_pictures()
    longer = pictures[0]._replace(content=pictures[0].content + b"\0")
    moved = pictures[0]._replace(class_name="n01")

    original = digest("here", pictures)

    assert digest("there", pictures, reversed(CLASSES)) == original
    others = [
        digest("here", pictures[1:]),
        digest("here", [longer, *pictures[1:]]),
        digest("here", [moved, *pictures[1:]]),
        digest("here", pictures, CLASSES[:2]),
    ]
    assert len({original, *others}) == 5


@pytest.mark.parametrize("form", ["parquet", "folders"])
def test_a_class_without_images_is_named(tmp_path, form):
    pictures = [each for each in some_pictures() if each[:2] != ("n02", "test")]
    path = write(form, tmp_path, pictures)

    with pytest.raises(ValueError, match=r"has no test image of class n02$"):
        open_images(path, CLASSES)
    with pytest.raises(ValueError, match=r"has no train image of classes n08, n09$"):
        open_images(path, ["n01", "n09", "n08"])


def test_paths_of_another_form_are_refused(tmp_path):
    path = write_parquet(tmp_path / "a" / "i.parquet", some_pictures())
    (tmp_path / "train").mkdir()

    with pytest.raises(ValueError, match=r"holds neither Parquet files .* nor the folders train"):
        open_images(tmp_path, CLASSES)
    with pytest.raises(ValueError, match="got 0 folders and 2 files"):
        open_images([path, path], CLASSES)
    with pytest.raises(ValueError, match="got 1 folders and 1 files"):
        open_images([tmp_path, path], CLASSES)
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*gone\.parquet"):
        open_images("gone.parquet", CLASSES)
    with pytest.raises(ValueError, match=r"val\.txt is for a flat val folder"):
        open_images(path, CLASSES, val_labels="val.txt")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"wnid": None}, "column wnid missing or double"),
        ({"jpeg": None}, "column jpeg missing or double"),
        ({"wnid": pa.array(range(15))}, "column wnid must hold strings, but holds int64"),
        ({"jpeg": pa.array(["x"] * 15)}, "column jpeg must hold bytes, but holds string"),
        ({"wnid": pa.array(["n01", None] + ["n01"] * 13)}, "wnid of row 1 is empty"),
        ({"partition": pa.array(["train"] * 14 + [None])}, "partition of row 14 is empty"),
        ({"partition": pa.array(["train"] * 14 + ["val"])}, "partition of row 14 is 'val'"),
    ],
)
def test_a_column_of_another_form_is_named(tmp_path, columns, message):
    path = write_parquet(tmp_path / "i.parquet", some_pictures(), **columns)

    with pytest.raises(ValueError, match=rf"i\.parquet: {message}"):
        open_images(path, CLASSES)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_parquet(tmp_path / "i.parquet", some_pictures())
    images = open_images(path, CLASSES)
    content = path.read_bytes()

    path.write_bytes(content[: len(content) // 2])
    for paths in (path, tmp_path):
        with pytest.raises(ValueError, match=r"i\.parquet: "):
            open_images(paths, CLASSES)
    path.write_bytes(content[:4] + bytes(996) + content[1000:])  # a page
    with pytest.raises(ValueError, match=r"i\.parquet: "):
        contents_of(images)
    write_parquet(path, some_pictures()[:-1])
    with pytest.raises(ValueError, match=r"i\.parquet: 14 rows, but it had 15 when listed"):
        contents_of(images)
    with pytest.raises(ValueError, match=r"file i\.parquet without any image"):
        open_images(write_parquet(path, []), CLASSES)


def test_a_list_and_a_flat_val_need_each_other(tmp_path):
    flat = write_folders(tmp_path / "flat", some_pictures(), flat=True)
    folders = write_folders(tmp_path / "folders", some_pictures())

    with pytest.raises(ValueError, match=r"val holds 6 images outside class folders and no list"):
        open_images(flat, CLASSES)
    with pytest.raises(FileNotFoundError, match=r"no such file: .*gone\.txt"):
        open_images(flat, CLASSES, val_labels=flat / "gone.txt")
    with pytest.raises(ValueError, match=r"csv is for a flat val folder, but .* is not flat"):
        open_images(folders, CLASSES, val_labels=kaggle_list(flat))


@pytest.mark.parametrize("write_list", LISTS)
def test_a_list_must_name_the_files_of_val(tmp_path, write_list):
    root = write_folders(tmp_path, some_pictures(), flat=True)
    path = write_list(root)
    lines = path.read_text().splitlines()  # the file of the last line is number 0
    stranger = lines[-1].replace("00000", "99999", 1)

    path.write_text("\n".join([*lines[:-1], stranger]))
    with pytest.raises(ValueError, match=r"does not list file ILSVRC2012_val_00000000\.JPEG"):
        open_images(root, CLASSES)
    path.write_text("\n".join([*lines, stranger]))
    with pytest.raises(ValueError, match=r"for 6 images .* does not have: image ILSVRC2012_val_99"):
        open_images(root, CLASSES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "does not list files ILSVRC2012_val_00000000.JPEG"),
        ("n01\nn02\n", "line 1 does not begin with a file name and a class"),
        ("ImageId,PredictionString\na,n01 1 2\nb,\n", "line 3 does not begin with"),
        ("ILSVRC2012_val_00000000.JPEG 65\n", "line 1 does not begin with"),
        (
            "ILSVRC2012_val_00000000.JPEG n01\nILSVRC2012_val_00000000.JPEG n02\n",
            "puts ILSVRC2012_val_00000000.JPEG into n01 and into n02",
        ),
    ],
)
def test_a_list_of_another_form_is_refused(tmp_path, text, message):
    root = write_folders(tmp_path, some_pictures(), flat=True)
    (root / "val_annotations.txt").write_text(text)

    with pytest.raises(ValueError, match=rf"val_annotations\.txt.* {message}"):
        open_images(root, CLASSES)


def test_compressed_images_are_never_all_in_memory(tmp_path):
    """50 MiB of images in one row group, in pages of 16 images."""
    rng = np.random.default_rng(0)
    table = {
        "wnid": pa.array(["a"] * 512),
        "partition": pa.array(["train", "test"] * 256),
        "jpeg": pa.array([rng.bytes(100 << 10) for _ in range(512)], pa.binary()),
    }
    pq.write_table(pa.table(table), tmp_path / "i.parquet", row_group_size=512, write_batch_size=16)

    with peak_memory() as peak:
        images = open_images(tmp_path / "i.parquet", ["a"])
        num_bytes = sum(len(content) for _, content in images.source.read(np.arange(512)))

        assert num_bytes == 50 << 20
        assert peak() < 20
