"""``represent``: from images to features."""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpaan.cli.options import (
    add_device,
    add_traceback,
    check_writable,
    choose_device,
    new_progress,
    positive_number,
)
from cpaan.core.provenance import describe_run
from cpaan.core.settings import parse_settings
from cpaan.data.cache import local_files, open_features
from cpaan.data.parquet import read_about
from cpaan.data.splits import Split, copy_split, find_split, read_split
from cpaan.data.table import FeatureTable, name_some
from cpaan.representation.backbone_training import BACKBONE, train_alone
from cpaan.representation.config import BackboneConfig, EmbeddingConfig
from cpaan.representation.decoding import find_size
from cpaan.representation.embedding_training import EMBEDDING, embed
from cpaan.representation.images import open_images
from cpaan.representation.layout import ABOUT, FEATURES
from cpaan.representation.pipeline import Job, Train, represent
from cpaan.training.few_shot_episodes import check_rows

_HELP = """\
Train a ResNet-10 on the base classes of a split, and make features of all its classes.

  python -m cpaan represent --images tiny-imagenet/ --split split.json --out results/mine
  python -m cpaan evaluate --features results/mine

Images are Parquet files with the columns wnid, partition (train, test) and jpeg; or ImageNet's
folders train/<wnid>/*.JPEG and val/, by wnid or with a list of classes; or Tiny-ImageNet's. What
cannot be decoded is named and skipped.

The backbone is not fitted to a share of each base class's train images (--holdout). Only these
become train rows of the feature table, as a backbone puts images it was fitted to much closer
together than any others. The command says how far train rows and test rows are apart.

A run that was killed goes on when the same command is given again.
"""

_EXAMPLES = """\
examples:
  ImageNet as in the benchmark, on four GPUs:
    python -m cpaan represent --images /data/imagenet --split label_idx.json --as-in-benchmark \\
      --workers 4 --out results/imagenet
  features with both signs for a cosine classifier:
    python -m cpaan represent ... --loss cosine
  a prototypical embedding on top, as a second table in results/mine/pn:
    python -m cpaan represent ... --embed pn --out results/mine
  a prototypical embedding of features that are there already:
    python -m cpaan represent --features features.parquet --embed pn --out results/mine
"""

LARGEST_IMAGE = 256
LARGE_GAP = 10.0
HOLDOUT = 0.3
MAX_BAD = 0.001


def add_command(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "represent",
        help="train a backbone on images, and make features",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_represent)
    defaults = BackboneConfig()
    data = parser.add_argument_group("data")
    source = data.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--images", nargs="+", metavar="I", help="Parquet files, a folder of them, or ImageNet's"
    )
    source.add_argument(
        "--features",
        nargs="+",
        metavar="F",
        help="features that are there, by path or address, to work on",
    )
    data.add_argument(
        "--split",
        metavar="S",
        help="split.json or the benchmark's label_idx.json; by default the one beside the data",
    )
    data.add_argument(
        "--val-labels",
        metavar="L",
        help="classes of the images in a val folder without subfolders: lines of name and wnid, or "
        "of name and number, Kaggle's LOC_val_solution.csv, or the devkit's ground truth with "
        "meta.mat beside it; a list of a usual name is found",
    )
    data.add_argument(
        "--max-bad",
        type=float,
        metavar="SHARE",
        help=f"fail if more of the images cannot be decoded (default: {MAX_BAD})",
    )
    data.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it is left")
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--loss",
        choices=["ce", "sgm", "l2", "cosine"],
        help="cross-entropy (default); with the squared gradient magnitude or the features' norm, "
        "as in the benchmark; or of a cosine classifier, without the last ReLU",
    )
    what.add_argument(
        "--embed", choices=["pn"], help="train an embedding on top: prototypical networks"
    )
    what.add_argument(
        "--holdout",
        type=float,
        metavar="SHARE",
        help=f"train images of a base class that are not fitted (default: {HOLDOUT})",
    )
    what.add_argument(
        "--size",
        type=positive_number,
        metavar="N",
        help=f"pixels to which images are brought (default: their own, {LARGEST_IMAGE} at most)",
    )
    what.add_argument(
        "--epochs",
        type=positive_number,
        metavar="N",
        help=f"default: {defaults.num_epochs}; as in the benchmark "
        f"{BackboneConfig.as_in_benchmark().num_epochs}",
    )
    what.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    what.add_argument(
        "--as-in-benchmark",
        action="store_true",
        help="the recipe of Hariharan & Girshick, and not the one we recommend; --holdout stays",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting of the backbone, as often as needed; `python -m cpaan settings` "
        "lists them all",
    )
    what.add_argument(
        "--embed-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the same, of the embedding",
    )
    add_device(parser)
    parser.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="train on so many CPUs or GPUs with Ray (default: in this process)",
    )
    add_traceback(parser)


def _represent(options: argparse.Namespace) -> int:
    _refuse_idle(options)
    device = choose_device(options.device)
    split_path = options.split or find_split((options.images or options.features)[0])
    split = read_split(split_path)
    (of_backbone,) = parse_settings(options.set, BackboneConfig())
    (of_embedding,) = parse_settings(options.embed_set, EmbeddingConfig())
    embedding = EmbeddingConfig().with_overrides(of_embedding)
    check_writable(options.out)
    progress = new_progress()
    if options.images:
        job = _job_from(options, split, of_backbone)
        if options.embed:
            check_rows(job.num_train_rows(), embedding)
        try:
            table, about = represent(
                job,
                options.out,
                _trainer_from(options, device, progress),
                max_bad=MAX_BAD if options.max_bad is None else options.max_bad,
                device=device,
                progress=progress,
            )
        except KeyboardInterrupt:
            progress(f"the work so far is kept in {options.out}; the same command goes on")
            raise
        copy_split(split_path, options.out)
        _print_backbone(about)
        print(f"Written: {options.out}/{FEATURES}, {ABOUT}, {BACKBONE}")
    else:
        table, about = _open_features(options, split)
    newest = options.out
    if options.embed:
        newest = options.out / options.embed
        table, about = embed(
            table,
            split,
            embedding,
            options.seed,
            newest,
            origin={name: value for name, value in about.items() if name != "log"},
            device=device,
            progress=progress,
        )
        copy_split(split_path, newest)
        _print_centroid(about)
        print(f"Written: {newest}/{FEATURES}, {ABOUT}, {EMBEDDING}")
    print(f"Next: python -m cpaan evaluate --features {newest}")
    return 0


def _open_features(
    options: argparse.Namespace, split: Split
) -> tuple[FeatureTable, dict[str, Any]]:
    """Return features that are there already, and where they come from."""
    table = open_features(*options.features, label_names=split.label_names, progress=new_progress())
    files = local_files(options.features)
    made = read_about(files[0]) if len(files) == 1 else None  # HDF5 pairs say nothing of it
    return table, {"run": describe_run(), "features": table.fingerprint, "made_from": made}


def _refuse_idle(options: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    if options.embed_set and not options.embed:
        raise ValueError("--embed-set is for --embed")
    if options.features and not options.embed:
        raise ValueError("--features needs --embed: there is nothing else to do")
    of_images = ("loss", "holdout", "size", "epochs", "val_labels", "max_bad", "set", "workers")
    given = [name for name in of_images if getattr(options, name) not in (None, [])]
    given += ["as_in_benchmark"] if options.as_in_benchmark else []
    if options.features and given:
        raise ValueError(f"--{given[0].replace('_', '-')} is for --images, not for --features")


def _job_from(options: argparse.Namespace, split: Split, further: dict[str, Any]) -> Job:
    images = open_images(
        options.images,
        [name for phase in (split.validation, split.test) for name in phase.base + phase.novel],
        val_labels=options.val_labels,
    )
    config = BackboneConfig()
    if options.as_in_benchmark:
        config = BackboneConfig.as_in_benchmark()
    elif options.size is None:
        config = config.with_overrides({"image_size": min(find_size(images), LARGEST_IMAGE)})
    given = {"loss": options.loss, "image_size": options.size, "num_epochs": options.epochs}
    overrides = {name: value for name, value in given.items() if value is not None}
    return Job(
        images=images,
        split=split,
        config=config.with_overrides({**overrides, **further}),
        seed=options.seed,
        holdout=HOLDOUT if options.holdout is None else options.holdout,
    )


def _trainer_from(
    options: argparse.Namespace, device: torch.device, progress: Callable[[str], None]
) -> Train:
    if options.workers in (None, 1):
        return partial(train_alone, device=device, progress=progress)
    available = torch.cuda.device_count() if device.type == "cuda" else os.cpu_count() or 1
    if options.workers > available and "RAY_ADDRESS" not in os.environ:
        raise ValueError(f"--workers {options.workers} on a machine with {available}: too many")
    # Ray takes seconds to import, which nobody else should wait for.
    from cpaan.study.backbone import train_with_ray

    return partial(
        train_with_ray,
        num_workers=options.workers,
        use_gpu=device.type == "cuda",
        progress=progress,
    )


def _print_backbone(about: dict[str, Any]) -> None:
    bad = about["bad_images"]
    if bad:
        images = [f"{name} ({reason})" for name, reason in bad.items()]
        print(f"{len(bad)} not decoded: {name_some('image', images)}")
    print(
        f"{about['backbone']}: fitted to {about['fitted_images']} images of "
        f"{len(about['classes'])} base classes in {about['training_seconds']:.0f} s "
        f"({about['training_device']}, workers: {about['training_workers']})"
    )
    for group, accuracies in about["classifier"].items():
        print(
            f"Its own classifier on {group.replace('_', ' ')} rows: top-1 "
            f"{accuracies['top1']:.1f} %, top-5 {accuracies['top5']:.1f} %"
        )
    _print_centroid(about)


def _print_centroid(about: dict[str, Any]) -> None:
    centroid = about["centroid"]
    print(
        f"Nearest centroid, top-1: base train rows {centroid['base_train']:.1f} %, base test rows "
        f"{centroid['base_test']:.1f} %, a gap of {centroid['gap']:.1f} points"
    )
    if centroid["gap"] > LARGE_GAP:
        print(
            "The gap is large. Where a class has few rows, that each is part of its own centroid "
            "makes much of it; otherwise base rows look tighter than novel ones can."
        )
