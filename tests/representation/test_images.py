"""Parquet and every form of ImageNet's folders give one list, in one order."""

import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.io import savemat

from cpaan.representation.decoding import decode_images
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

KIT_NUMBERS = {"n01": 3, "n02": 1, "n03": 2, "n99": 1500}  # not in the order of the names


def list_of_names(root: Path) -> Path:
    return write_list(root / "val.txt", lambda k, name: f"ILSVRC2012_val_0000000{k}.JPEG {name}")


def list_of_positions(root: Path) -> Path:
    return write_list(
        root / "val.txt", lambda k, name: f"ILSVRC2012_val_0000000{k}.JPEG {CLASSES.index(name)}"
    )


def list_of_kaggle(root: Path) -> Path:
    return write_list(
        root / "val" / "LOC_val_solution.csv",
        lambda k, name: f"ILSVRC2012_val_0000000{k},{name} 85 1 499 272 {name} 1 2 3 4 ",
        header="ImageId,PredictionString\n",
    )


def list_of_bare_names(root: Path) -> Path:
    return write_list(root / "val.txt", lambda k, name: name)


def list_of_the_kit(root: Path) -> Path:
    synsets = np.array(
        [(number, name, "words") for name, number in KIT_NUMBERS.items()],
        dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")],
    )
    savemat(root / "meta.mat", {"synsets": synsets[:, None]})
    return write_list(
        root / "ILSVRC2012_validation_ground_truth.txt", lambda k, name: str(KIT_NUMBERS[name])
    )


def list_with_boxes(root: Path) -> Path:
    return write_list(
        root / "val" / "val_annotations.txt",
        lambda k, name: f"ILSVRC2012_val_0000000{k}.JPEG\t{name}\t0\t32\t44\t62",
    )


def write_list(path: Path, line: Callable[[int, str], str], header: str = "") -> Path:
    lines = [line(k, name) for k, name in enumerate(VAL_CLASSES)]
    # A named list need not be in the order of the files.
    is_named = len(lines[0].split()) > 1
    path.write_text(header + "\n".join(reversed(lines) if is_named else lines) + "\n")
    return path


LISTS = [
    list_of_names,
    list_of_positions,
    list_of_kaggle,
    list_of_bare_names,
    list_of_the_kit,
    list_with_boxes,
]


def flat_folder(root: Path) -> Path:
    return write_folders(root, some_pictures(), flat=True)


def pixels_of(images: ImageList, size: int = 8) -> np.ndarray:
    """Return all pixels in the order of the list."""
    pixels = np.zeros((len(images), size, size, 3), np.uint8)
    for rows, batch in decode_images(images, np.arange(len(images)), size, num_threads=1):
        pixels[rows] = batch
    return pixels


def contents_of(images: ImageList) -> list[bytes]:
    contents = dict(images.read(np.arange(len(images))))
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


def test_images_come_by_partition_then_class_then_file_order(tmp_path):
    pictures = some_pictures()
    write_parquet(tmp_path / "images_1.parquet", pictures[7:])
    write_parquet(tmp_path / "images_0.parquet", pictures[:7])

    images = open_images(tmp_path, CLASSES)

    assert_lists_the_pictures(images)
    assert images.classes.tolist() == ["n01"] * 3 + ["n02"] * 3 + ["n03"] * 3 + [
        *["n01"] * 2,
        *["n02"] * 2,
        *["n03"] * 2,
    ]
    assert images.name(0) == "images_0.parquet row 2"
    assert images.name(2) == "images_1.parquet row 1"


def test_files_are_taken_in_the_order_given(tmp_path):
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

    contents = list(open_images(path, ["a"]).read(rows))

    # The one test image is the file's first and the list's last.
    assert contents == [(499, b"0")] + [(row, b"%d" % (row + 1)) for row in sorted(rows)[:-1]]


def test_class_folders_give_the_same_as_parquet(tmp_path):
    parquet = open_images([write_parquet(tmp_path / "i.parquet", some_pictures())], CLASSES)

    images = open_images(write_folders(tmp_path / "imagenet", some_pictures()), CLASSES)

    assert_lists_the_pictures(images)
    np.testing.assert_array_equal(pixels_of(images), pixels_of(parquet))
    assert images.name(0) == "train/n01/n01_0.JPEG"
    assert images.name(14) == "val/n03/ILSVRC2012_val_00000004.JPEG"


def test_tiny_imagenets_own_folders_give_the_same(tmp_path):
    """They have a folder more: ``train/<class>/images`` and ``val/images``."""
    for picture in some_pictures():
        is_train = picture.partition == "train"
        folder = tmp_path / (f"train/{picture.class_name}/images" if is_train else "val/images")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / picture.file).write_bytes(picture.content)
    list_with_boxes(tmp_path)

    images = open_images(tmp_path, CLASSES)

    assert contents_of(images) == [each.content for each in in_list_order(some_pictures())]
    assert images.name(0) == "train/n01/images/n01_0.JPEG"


@pytest.mark.parametrize("write", LISTS)
def test_a_flat_val_with_any_list_gives_the_same(tmp_path, write):
    parquet = open_images([write_parquet(tmp_path / "i.parquet", some_pictures())], CLASSES)
    root = flat_folder(tmp_path / "imagenet")
    write(root)

    images = open_images(root, CLASSES)

    assert_lists_the_pictures(images)
    np.testing.assert_array_equal(pixels_of(images), pixels_of(parquet))
    assert images.name(14) == "val/ILSVRC2012_val_00000004.JPEG"


@pytest.mark.parametrize("write", LISTS)
def test_the_list_may_lie_elsewhere(tmp_path, write):
    root = flat_folder(tmp_path / "imagenet")
    path = write(root)
    elsewhere = tmp_path / "kit"
    elsewhere.mkdir()
    for part in [path, *root.glob("meta.mat")]:
        part.rename(elsewhere / part.name)

    assert_lists_the_pictures(open_images(root, CLASSES, val_labels=elsewhere / path.name))


@pytest.mark.parametrize("form", ["parquet", "folders", "flat"])
def test_images_of_other_classes_are_left_out(tmp_path, form):
    if form == "parquet":
        root = write_parquet(tmp_path / "i.parquet", some_pictures())
    else:
        root = write_folders(tmp_path, some_pictures(), flat=form == "flat")
        list_of_positions(root)  # positions count all class folders, wanted or not

    images = open_images(root, ["n03", "n02"])

    wanted = [picture for picture in some_pictures() if picture.class_name != "n01"]
    assert images.class_names == ("n02", "n03")
    assert contents_of(images) == [picture.content for picture in in_list_order(wanted)]


def test_other_names_of_the_columns_and_kinds_of_strings_are_read(tmp_path):
    pictures = some_pictures()
    names = pa.array([picture.class_name for picture in pictures])
    path = write_parquet(
        tmp_path / "i.parquet",
        pictures,
        wnid=None,
        jpeg=None,
        partition=pa.array([picture.partition for picture in pictures]).dictionary_encode(),
        **{"class": names.cast(pa.large_string())},
        image=pa.array([picture.content for picture in pictures], pa.large_binary()),
    )

    assert_lists_the_pictures(open_images(path, CLASSES))


def test_features_beside_the_images_are_passed_over(tmp_path):
    write_parquet(tmp_path / "images.parquet", some_pictures())
    write_parquet(tmp_path / "features.parquet", some_pictures(), jpeg=None)

    assert_lists_the_pictures(open_images(tmp_path, CLASSES))


def test_all_endings_of_image_files_count_and_nothing_else(tmp_path):
    root = write_folders(tmp_path, some_pictures())
    content = some_pictures()[0].content
    for name in ("a.JPEG", "b.jpeg", "c.jpg", "d.JPG", "e.png", "f.PNG", ".g.JPEG", "h.txt"):
        (root / "train" / "n01" / name).write_bytes(content)

    images = open_images(root, ["n01"])

    names = [images.name(row)[len("train/n01/")] for row in range(6)]
    assert names == list("abcdef")
    assert images.is_train.sum() == 6 + 3


def test_file_names_need_not_be_text(tmp_path):
    root = write_folders(tmp_path, some_pictures())
    path = os.fsencode(root / "train" / "n01") + b"/\xff\xe9.JPEG"
    with open(path, "wb") as file:
        file.write(b"odd")

    images = open_images(root, CLASSES)

    assert b"odd" in contents_of(images)
    assert os.fsencode(images.name(3)) == b"train/n01/\xff\xe9.JPEG"


def test_a_list_survives_pickling_and_a_change_of_folder(tmp_path, monkeypatch):
    write_parquet(tmp_path / "i.parquet", some_pictures())
    write_folders(tmp_path / "imagenet", some_pictures())
    for path in ("i.parquet", "imagenet"):
        monkeypatch.chdir(tmp_path)
        content = pickle.dumps(open_images(path, CLASSES))
        monkeypatch.chdir("/")

        images = pickle.loads(content)

        assert_lists_the_pictures(images)


def test_pickles_hold_no_images(tmp_path):
    pictures = [picture._replace(content=bytes(100_000)) for picture in some_pictures()]

    for path in (
        write_parquet(tmp_path / "i.parquet", pictures),
        write_folders(tmp_path / "imagenet", pictures),
    ):
        assert len(pickle.dumps(open_images(path, CLASSES))) < 5_000


@pytest.mark.parametrize("form", ["parquet", "folders"])
def test_the_digest_knows_other_data_but_not_other_places(tmp_path, form):
    def digest(place: str, pictures: Sequence[Picture], classes: Sequence[str] = CLASSES) -> str:
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        if form == "parquet":
            write_parquet(tmp_path / place / "i.parquet", pictures)
        else:
            write_folders(tmp_path / place, pictures)
        return open_images(tmp_path / place, classes).digest

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
    pictures = [
        picture
        for picture in some_pictures()
        if (picture.class_name, picture.partition) != ("n02", "test")
    ]
    if form == "parquet":
        path = write_parquet(tmp_path / "i.parquet", pictures)
    else:
        path = write_folders(tmp_path, pictures)

    with pytest.raises(ValueError, match=r"has no test image of class n02$"):
        open_images(path, CLASSES)
    with pytest.raises(ValueError, match=r"has no train image of classes n08, n09$"):
        open_images(path, ["n01", "n09", "n08"])
    with pytest.raises(ValueError, match="no classes are wanted"):
        open_images(path, [])


def test_paths_of_another_form_are_refused(tmp_path):
    path = write_parquet(tmp_path / "a" / "i.parquet", some_pictures())
    (tmp_path / "train").mkdir()

    with pytest.raises(ValueError, match=r"holds neither Parquet files .* nor the folders train"):
        open_images(tmp_path, CLASSES)
    with pytest.raises(ValueError, match="got 0 folders and 2 files"):
        open_images([path, path], CLASSES)
    with pytest.raises(ValueError, match="got 1 folders and 1 files"):
        open_images([tmp_path, path], CLASSES)
    with pytest.raises(ValueError, match="got 0 folders and 0 files"):
        open_images([], CLASSES)
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*gone\.parquet"):
        open_images("gone.parquet", CLASSES)
    with pytest.raises(ValueError, match=r"val\.txt is for a flat val folder"):
        open_images(path, CLASSES, val_labels="val.txt")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"wnid": None}, "column wnid or class missing or double"),
        ({"partition": None}, "column partition missing or double"),
        ({"jpeg": None}, "column jpeg or image missing or double"),
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


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"file i\.parquet without any image"):
        open_images(write_parquet(tmp_path / "i.parquet", []), CLASSES)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_parquet(tmp_path / "i.parquet", some_pictures())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    for paths in (path, tmp_path):
        with pytest.raises(ValueError, match=r"i\.parquet: "):
            open_images(paths, CLASSES)


def test_a_file_that_changed_since_it_was_listed_is_named(tmp_path):
    path = write_parquet(tmp_path / "i.parquet", some_pictures())
    images = open_images(path, CLASSES)
    write_parquet(path, some_pictures()[:-1])

    with pytest.raises(ValueError, match=r"i\.parquet: 14 rows, but it had 15 when listed"):
        contents_of(images)


def test_a_page_damaged_since_then_is_named(tmp_path):
    path = write_parquet(tmp_path / "i.parquet", some_pictures())
    images = open_images(path, CLASSES)
    content = bytearray(path.read_bytes())
    content[4:1000] = bytes(996)
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"i\.parquet: "):
        contents_of(images)


def test_a_flat_val_needs_a_list(tmp_path):
    root = flat_folder(tmp_path)

    with pytest.raises(ValueError, match=r"val holds 6 images outside class folders and no list"):
        open_images(root, CLASSES)
    with pytest.raises(FileNotFoundError, match=r"no such file: .*gone\.txt"):
        open_images(root, CLASSES, val_labels=root / "gone.txt")


def test_a_list_for_class_folders_is_refused(tmp_path):
    root = write_folders(tmp_path, some_pictures())

    with pytest.raises(ValueError, match=r"val\.txt is for a flat val folder, but .* is not flat"):
        open_images(root, CLASSES, val_labels=list_of_names(root))


@pytest.mark.parametrize("write", [list_of_bare_names, list_of_the_kit])
@pytest.mark.parametrize("num_lines", [5, 7])
def test_a_bare_list_of_another_length_is_refused(tmp_path, write, num_lines):
    root = flat_folder(tmp_path)
    path = write(root)
    lines = path.read_text().split()
    path.write_text("\n".join([*lines, lines[0]][:num_lines]))

    with pytest.raises(ValueError, match=f"has {num_lines} lines, but val has 6 images"):
        open_images(root, CLASSES)


@pytest.mark.parametrize("write", [list_of_names, list_of_positions, list_of_kaggle])
def test_a_named_list_must_name_the_files_of_val(tmp_path, write):
    root = flat_folder(tmp_path)
    path = write(root)
    lines = path.read_text().splitlines()  # the file of the last line is number 0

    path.write_text("\n".join([*lines[:-1], lines[-1].replace("00000", "99999")]))
    with pytest.raises(ValueError, match=r"does not list file ILSVRC2012_val_00000000\.JPEG"):
        open_images(root, CLASSES)

    path.write_text("\n".join([*lines, lines[-1].replace("00000", "99999")]))
    with pytest.raises(
        ValueError, match=r"7 lines, for 6 images .* does not have: image ILSVRC2012_val_99999"
    ):
        open_images(root, CLASSES)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            "101323",
            "class numbers from 0 to 3, but the 3 class folders of train are numbers 0 to 2",
        ),
        ("212332", "class numbers from 1 to 3, but the 3 class folders"),
        ("101101", "class numbers from 0 to 1, but the 3 class folders"),
        ("212112", "class numbers from 1 to 2, but the 3 class folders"),
    ],
)
def test_positions_must_be_those_of_the_class_folders(tmp_path, numbers, message):
    root = flat_folder(tmp_path)
    lines = [f"ILSVRC2012_val_0000000{k}.JPEG {number}" for k, number in enumerate(numbers)]
    (root / "val.txt").write_text("\n".join(lines))

    with pytest.raises(ValueError, match=message):
        open_images(root, CLASSES)


def test_numbers_of_the_kit_mean_nothing_without_its_table(tmp_path):
    root = flat_folder(tmp_path)
    path = list_of_the_kit(root)

    path.write_text("1\n3\n2\n1\n2\n7\n")
    with pytest.raises(ValueError, match=r"class number 7, which meta\.mat with 4 classes"):
        open_images(root, CLASSES)
    (root / "meta.mat").write_text("no table")
    with pytest.raises(ValueError, match=r"meta\.mat is not the development kit's"):
        open_images(root, CLASSES)
    (root / "meta.mat").unlink()
    with pytest.raises(ValueError, match=r"put the kit's meta\.mat beside it") as caught:
        open_images(root, CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "is empty, but must list the classes of val"),
        ("n01\nn02\n3\n", "mixes 1 class numbers with 2 class names"),
        ("a.JPEG n01\nn02\n", "line 2 has 1 of name and class, but the first image has 2"),
        ("ImageId,PredictionString\na,n01 1 2\nb,\n", "line 3 has 1 of name and class"),
        (
            "ILSVRC2012_val_00000000.JPEG n01\nILSVRC2012_val_00000000.JPEG n02\n",
            "puts ILSVRC2012_val_00000000.JPEG into n01 and into n02",
        ),
    ],
)
def test_a_list_of_no_known_kind_is_refused(tmp_path, text, message):
    root = flat_folder(tmp_path)
    (root / "val.txt").write_text(text)

    with pytest.raises(ValueError, match=rf"val\.txt.* {message}"):
        open_images(root, CLASSES)


def test_compressed_images_are_never_all_in_memory(tmp_path):
    """50 MiB of images in one row group, in pages of 16 images."""
    rng = np.random.default_rng(0)
    contents = [rng.bytes(100 << 10) for _ in range(512)]
    table = {
        "wnid": pa.array(["a"] * 512),
        "partition": pa.array(["train", "test"] * 256),
        "jpeg": pa.array(contents, pa.binary()),
    }
    pq.write_table(pa.table(table), tmp_path / "i.parquet", row_group_size=512, write_batch_size=16)

    with peak_memory() as peak:
        images = open_images(tmp_path / "i.parquet", ["a"])
        num_bytes = sum(len(content) for _, content in images.read(np.arange(512)))

        assert num_bytes == 50 << 20
        assert peak() < 20
