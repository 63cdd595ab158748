"""``represent``: from images to features."""

import argparse
import os
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
from cpaan.representation.backbone_training import BACKBONE, train_backbone
from cpaan.representation.config import BackboneConfig, EmbeddingConfig
from cpaan.representation.decoding import find_size
from cpaan.representation.embedding import EMBEDDING, embed
from cpaan.representation.feature_folder import ABOUT, FEATURES
from cpaan.representation.images import open_images
from cpaan.representation.pipeline import FeatureJob, Train, represent
from cpaan.training.drive import Progress
from cpaan.training.few_shot_episodes import check_rows

_HELP = """\
Train a ResNet-10 on the base classes of a split, and compute features of all its classes.

  python -m cpaan represent --images tiny-imagenet/ --split split.json --out results/mine
  python -m cpaan evaluate --features results/mine

Images are Parquet files with the columns wnid, partition (train, test) and jpeg; or ImageNet's or
Tiny-ImageNet's folders, train/<wnid>/*.JPEG and val/, by wnid or with a list of classes. Images
that cannot be decoded are named and skipped.

The backbone is not fitted to a share of each base class's train images (--holdout). Only these
become train rows of the feature table, because a backbone puts images that it was fitted to much
closer together than any others. The command prints the gap between train rows and test rows.

Give the same command again to resume a run that was killed.
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
  a prototypical embedding of existing features:
    python -m cpaan represent --features features.parquet --embed pn --out results/mine
"""

LARGEST_IMAGE = 256
LARGE_GAP = 10.0
HOLDOUT = 0.3
MAX_BAD = 0.001
_OF_IMAGES = ("loss", "holdout", "size", "epochs", "val_labels", "max_bad", "set", "workers")


def add_command(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "represent",
        help="train a backbone on images, and compute features",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_represent)
    data = parser.add_argument_group("data")
    source = data.add_mutually_exclusive_group(required=True)
    help_ = "Parquet files, a folder of them, or ImageNet's folder"
    source.add_argument("--images", nargs="+", metavar="I", help=help_)
    help_ = "existing features, by path or address, for --embed"
    source.add_argument("--features", nargs="+", metavar="F", help=help_)
    help_ = "split.json or the benchmark's label_idx.json; by default the one beside the data"
    data.add_argument("--split", metavar="S", help=help_)
    help_ = (
        "classes of the images in a val folder without subfolders: LOC_val_solution.csv or "
        "val_annotations.txt; by default the one in the folder"
    )
    data.add_argument("--val-labels", metavar="L", help=help_)
    help_ = f"fail if more of the images cannot be decoded (default: {MAX_BAD})"
    data.add_argument("--max-bad", type=float, metavar="SHARE", help=help_)
    data.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results")
    what = parser.add_argument_group("what to train")
    help_ = (
        "cross-entropy (default); with the squared gradient magnitude or the features' norm, as in "
        "the benchmark; or of a cosine classifier, without the last ReLU"
    )
    what.add_argument("--loss", choices=["ce", "sgm", "l2", "cosine"], help=help_)
    help_ = "train an embedding on top: prototypical networks"
    what.add_argument("--embed", choices=["pn"], help=help_)
    help_ = f"train images of a base class that are not fitted (default: {HOLDOUT})"
    what.add_argument("--holdout", type=float, metavar="SHARE", help=help_)
    help_ = f"pixels to which images are scaled (default: their own, {LARGEST_IMAGE} at most)"
    what.add_argument("--size", type=positive_number, metavar="N", help=help_)
    defaults, benchmark = BackboneConfig(), BackboneConfig.as_in_benchmark()
    help_ = f"default: {defaults.num_epochs}; as in the benchmark {benchmark.num_epochs}"
    what.add_argument("--epochs", type=positive_number, metavar="N", help=help_)
    what.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    help_ = "the recipe of Hariharan & Girshick instead of the recommended one; --holdout stays"
    what.add_argument("--as-in-benchmark", action="store_true", help=help_)
    settings: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
    help_ = "any setting of the backbone, repeatable; `python -m cpaan settings` lists them all"
    what.add_argument("--set", **settings, help=help_)
    what.add_argument("--embed-set", **settings, help="any setting of the embedding, repeatable")
    add_device(parser)
    help_ = "train on so many CPUs or GPUs with Ray (default: in this process)"
    parser.add_argument("--workers", type=positive_number, metavar="N", help=help_)
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
    progress, out = new_progress(), options.out
    if options.images:
        job = _job_from(options, split, of_backbone)
        if options.embed:
            check_rows(job.num_train_rows(), embedding)
        train = _trainer_from(options, device, progress)
        max_bad = MAX_BAD if options.max_bad is None else options.max_bad
        try:
            table, about = represent(
                job, out, train, max_bad=max_bad, device=device, progress=progress
            )
        except KeyboardInterrupt:
            progress(f"the work so far is in {out}; run the same command to resume")
            raise
        copy_split(split_path, out)
        _print_backbone(about)
        print(f"Written: {out}/{FEATURES}, {ABOUT}, {BACKBONE}")
    else:
        table, about = _open_features(options, split)
    if options.embed:
        out = out / options.embed
        origin = {name: value for name, value in about.items() if name != "log"}
        job_of = (table, split, embedding, options.seed, out)
        table, about = embed(*job_of, origin=origin, device=device, progress=progress)
        copy_split(split_path, out)
        _print_centroid(about)
        print(f"Written: {out}/{FEATURES}, {ABOUT}, {EMBEDDING}")
    print(f"Next: python -m cpaan evaluate --features {out}")
    return 0


def _open_features(
    options: argparse.Namespace, split: Split
) -> tuple[FeatureTable, dict[str, Any]]:
    """Return existing features and their provenance."""
    table = open_features(*options.features, label_names=split.label_names, progress=new_progress())
    files = local_files(options.features)
    made = read_about(files[0]) if len(files) == 1 else None  # HDF5 pairs have no provenance
    return table, {"run": describe_run(), "features": table.fingerprint, "made_from": made}


def _refuse_idle(options: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    if options.embed_set and not options.embed:
        raise ValueError("--embed-set is for --embed")
    if options.features and not options.embed:
        raise ValueError("--features needs --embed: there is nothing else to do")
    given = [name for name in _OF_IMAGES if getattr(options, name) not in (None, [])]
    given += ["as_in_benchmark"] if options.as_in_benchmark else []
    if options.features and given:
        raise ValueError(f"--{given[0].replace('_', '-')} is for --images, not for --features")


def _job_from(options: argparse.Namespace, split: Split, further: dict[str, Any]) -> FeatureJob:
    classes = [name for each in (split.validation, split.test) for name in each.base + each.novel]
    images = open_images(options.images, classes, val_labels=options.val_labels)
    config = BackboneConfig()
    if options.as_in_benchmark:
        config = BackboneConfig.as_in_benchmark()
    elif options.size is None:
        config = config.with_overrides({"image_size": min(find_size(images), LARGEST_IMAGE)})
    given = {"loss": options.loss, "image_size": options.size, "num_epochs": options.epochs}
    overrides = {name: value for name, value in given.items() if value is not None}
    config = config.with_overrides({**overrides, **further})
    holdout = HOLDOUT if options.holdout is None else options.holdout
    return FeatureJob(images=images, split=split, config=config, seed=options.seed, holdout=holdout)


def _trainer_from(options: argparse.Namespace, device: torch.device, progress: Progress) -> Train:
    if options.workers in (None, 1):
        return partial(train_backbone, device=device, progress=progress)
    is_gpu = device.type == "cuda"
    available = torch.cuda.device_count() if is_gpu else os.cpu_count() or 1
    if options.workers > available and "RAY_ADDRESS" not in os.environ:
        raise ValueError(f"--workers {options.workers} on a machine with {available}: too many")
    # Imported only where it is used, because Ray takes seconds to import.
    from cpaan.study.backbone import train_with_ray

    return partial(train_with_ray, num_workers=options.workers, use_gpu=is_gpu, progress=progress)


def _print_backbone(about: dict[str, Any]) -> None:
    if bad := about["bad_images"]:
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
            "The gap is large. In small classes, each row is a large part of its own centroid; "
            "otherwise base rows are tighter than novel ones can be."
        )
