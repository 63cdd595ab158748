"""Test that Parquet files and ImageNet's folders give the same list in the same order."""

import os
import shutil
from collections.abc import Sequence
from operator import itemgetter
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

VAL_FILES = [f"ILSVRC2012_val_0000000{k}" for k in range(6)]
# The list has another order than the files.
REVERSED = list(zip(VAL_FILES, VAL_CLASSES, strict=True))[::-1]
KAGGLE_LIST = "ImageId,PredictionString\n" + "".join(
    f"{file},{name} 85 1 499 272 {name} 1 2 3 4 \n" for file, name in REVERSED
)
TINY_LIST = "".join(f"{file}.JPEG\t{name}\t0\t32\t44\t62\n" for file, name in REVERSED)


def contents_of(images: ImageList) -> list[bytes]:
    contents = sorted(images.source.read(np.arange(len(images))), key=itemgetter(0))
    return [x.read_bytes() if isinstance(x, Path) else x for _, x in contents]


def in_list_order(pictures: Sequence[Picture]) -> list[Picture]:
    return sorted(pictures, key=lambda picture: (picture.partition != "train", picture.class_name))


def assert_lists(images: ImageList, class_names: Sequence[str] = CLASSES) -> None:
    """Check that a list has the images of `some_pictures`."""
    wanted = [picture for picture in some_pictures() if picture.class_name in class_names]
    expected = in_list_order(wanted)
    assert images.class_names == tuple(class_names)
    assert images.classes.tolist() == [picture.class_name for picture in expected]
    assert images.is_train.tolist() == [picture.partition == "train" for picture in expected]
    assert contents_of(images) == [picture.content for picture in expected]


def write(form: str, root: Path, pictures: Sequence[Picture]) -> Path:
    """Write pictures in one of the supported formats."""
    if form == "parquet":
        return write_parquet(root / "i.parquet", pictures).parent
    write_folders(root, pictures, flat=form != "folders")
    if form == "kaggle":
        (root / "LOC_val_solution.csv").write_text(KAGGLE_LIST)
    if form == "tiny":  # train/<class>/images and val/images
        for folder in [*(root / "train").iterdir(), root / "val"]:
            folder.rename(root / "images")
            folder.mkdir()
            (root / "images").rename(folder / "images")
        (root / "val" / "val_annotations.txt").write_text(TINY_LIST)
    return root


@pytest.mark.parametrize(
    ("form", "first", "last"),
    [
        ("parquet", "i.parquet row 2", "i.parquet row 13"),
        ("folders", "train/n01/n01_0.JPEG", "val/n03/ILSVRC2012_val_00000004.JPEG"),
        ("kaggle", "train/n01/n01_0.JPEG", "val/ILSVRC2012_val_00000004.JPEG"),
        ("tiny", "train/n01/images/n01_0.JPEG", "val/images/ILSVRC2012_val_00000004.JPEG"),
    ],
)
def test_every_form_gives_the_same_list_of_the_wanted_classes(tmp_path, form, first, last):
    root = write(form, tmp_path, some_pictures())

    images = open_images(root, CLASSES)

    assert_lists(images)
    assert (images.source.name(0), images.source.name(14)) == (first, last)
    assert_lists(open_images(root, ["n03", "n02"]), ("n02", "n03"))


def test_a_list_of_val_may_lie_anywhere(tmp_path):
    root = write_folders(tmp_path / "imagenet", some_pictures(), flat=True)
    for name, content in (("a.csv", KAGGLE_LIST), ("b.txt", TINY_LIST)):
        (tmp_path / name).write_text(content)

        assert_lists(open_images(root, CLASSES, val_labels=tmp_path / name))


def test_parquet_files_of_a_folder_are_sorted_and_given_ones_are_not(tmp_path):
    pictures = some_pictures()
    second = write_parquet(tmp_path / "images_1.parquet", pictures[7:])
    first = write_parquet(tmp_path / "images_0.parquet", pictures[:7])
    write_parquet(tmp_path / "features.parquet", pictures, jpeg=None)  # skipped

    images = open_images(tmp_path, CLASSES)

    assert_lists(images)
    assert images.source.name(0) == "images_0.parquet row 2"
    assert images.source.name(2) == "images_1.parquet row 1"
    turned = [picture.content for picture in in_list_order(pictures[7:] + pictures[:7])]
    assert contents_of(open_images([str(second), first], CLASSES)) == turned


@pytest.mark.parametrize("group_size", [7, 64, 150, 1000])
def test_rows_are_found_in_row_groups_of_any_size(tmp_path, group_size):
    pictures = [Picture("a", "train" if k else "test", "", b"%d" % k) for k in range(500)]
    path = write_parquet(tmp_path / "i.parquet", pictures, group_size)
    rows = np.array([499, 480, 3, 60, 63, 64, 149, 150, 151, 300])

    contents = list(open_images(path, ["a"]).source.read(rows))

    # The only test image is first in the file and last in the list.
    assert contents == [(499, b"0")] + [(row, b"%d" % (row + 1)) for row in sorted(rows)[:-1]]


def test_all_arrow_types_of_strings_and_bytes_are_read(tmp_path):
    pictures = some_pictures()
    columns = {
        "wnid": pa.array([picture.class_name for picture in pictures], pa.large_string()),
        "partition": pa.array([picture.partition for picture in pictures]).dictionary_encode(),
        "jpeg": pa.array([picture.content for picture in pictures], pa.large_binary()),
    }

    assert_lists(open_images(write_parquet(tmp_path / "i.parquet", pictures, **columns), CLASSES))


def test_all_endings_of_image_files_count_and_names_need_not_be_text(tmp_path):
    root = write_folders(tmp_path, some_pictures())
    folder = os.fsencode(root / "train" / "n01")
    for name in (b"a.JPEG", b"b.jpeg", b"c.jpg", b"d.PNG", b"\xff.JPG", b".g.JPEG", b"h.txt"):
        with open(folder + b"/" + name, "wb") as file:
            file.write(name)

    images = open_images(root, ["n01"])

    contents = contents_of(images)[: images.is_train.sum()]
    assert contents[:4] == [b"a.JPEG", b"b.jpeg", b"c.jpg", b"d.PNG"]
    assert contents[-1] == b"\xff.JPG"
    assert len(contents) == 5 + 3


@pytest.mark.parametrize("form", ["parquet", "folders"])
def test_the_digest_depends_on_the_data_and_not_on_its_folder(tmp_path, form):
    def digest(place: str, pictures: Sequence[Picture], classes: Sequence[str] = CLASSES) -> str:
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        return open_images(write(form, tmp_path / place, pictures), classes).digest

    first, *others = pictures = some_pictures()
    changed = [
        digest("here", others),
        digest("here", [first._replace(content=first.content + b"\0"), *others]),
        digest("here", [first._replace(class_name="n01"), *others]),
        digest("here", pictures, CLASSES[:2]),
    ]

    assert digest("there", pictures, reversed(CLASSES)) == digest("here", pictures)
    assert len({digest("here", pictures), *changed}) == 5


def test_paths_of_another_form_are_refused(tmp_path):
    pictures = [picture for picture in some_pictures() if picture[:2] != ("n02", "test")]
    path = write_parquet(tmp_path / "a" / "i.parquet", pictures)
    folders = write_folders(tmp_path / "folders", pictures)
    flat = write_folders(tmp_path / "flat", some_pictures(), flat=True)

    for images in (path, folders):
        with pytest.raises(ValueError, match=r"has no test image of class n02$"):
            open_images(images, CLASSES)
        with pytest.raises(ValueError, match=r"has no train image of classes n08, n09$"):
            open_images(images, ["n01", "n09", "n08"])
        with pytest.raises(ValueError, match=r"val\.txt is for a flat val folder"):
            open_images(images, CLASSES, val_labels="val.txt")
    for paths in ([path, path], [folders, path]):
        with pytest.raises(ValueError, match="one folder, or one or more distinct Parquet files"):
            open_images(paths, CLASSES)
    with pytest.raises(ValueError, match=r"has neither Parquet files .* nor the folders train"):
        open_images(tmp_path, CLASSES)
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*gone\.parquet"):
        open_images("gone.parquet", CLASSES)
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        open_images(flat, CLASSES, val_labels=flat / "gone.txt")
    with pytest.raises(ValueError, match=r"val has 6 images outside class folders and no list"):
        open_images(flat, CLASSES)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"wnid": None}, "missing or duplicate column wnid"),
        ({"jpeg": pa.array(["x"] * 15)}, "column jpeg must have type binary, but has type string"),
        ({"wnid": pa.array(["n01", None] + ["n01"] * 13)}, "wnid of row 1 is empty"),
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
        with pytest.raises(ValueError, match=r"i\.parquet cannot be read"):
            open_images(paths, CLASSES)
    path.write_bytes(content[:4] + bytes(996) + content[1000:])  # damages a page
    with pytest.raises(ValueError, match=r"i\.parquet cannot be read"):
        contents_of(images)
    write_parquet(path, some_pictures()[:-1])
    with pytest.raises(ValueError, match=r"i\.parquet: .* has 14 rows, but had 15 before"):
        contents_of(images)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KAGGLE_LIST.replace("val_00000000", "x"), r"not list image ILSVRC2012_val_00000000\.JPEG"),
        (TINY_LIST.replace("val_00000000", "x"), r"not list image ILSVRC2012_val_00000000\.JPEG"),
        (KAGGLE_LIST + "val_9,n01 1 2", "for 6 images in val.* val lacks: image val_9"),
        (TINY_LIST + "val_9.JPEG n01", "for 6 images in val.* val lacks: image val_9"),
        ("\n", "does not list images ILSVRC2012_val_00000000.JPEG"),
        ("n01\nn02\n", "line 1 does not begin with a file name and a class"),
        ("ImageId,PredictionString\na,n01 1 2\nb,\n", "line 3 does not begin with"),
        ("ILSVRC2012_val_00000000.JPEG 65\n", "line 1 does not begin with"),
        ("a.JPEG n01\na.JPEG n02\n", "assigns a.JPEG to n01 and to n02"),
    ],
)
def test_a_list_that_does_not_fit_val_is_refused(tmp_path, text, message):
    root = write_folders(tmp_path, some_pictures(), flat=True)
    (root / "val_annotations.txt").write_text(text)

    with pytest.raises(ValueError, match=rf"val_annotations\.txt.* {message}"):
        open_images(root, CLASSES)


def test_compressed_images_are_never_all_in_memory(tmp_path):
    """Read 50 MiB of images in one row group, with pages of 16 images."""
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
