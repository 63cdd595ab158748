"""``represent``: from images to features."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from cpaan.cli.command import check_writable, new_progress
from cpaan.core.devices import choose_device
from cpaan.core.provenance import describe_run
from cpaan.core.settings import parse_settings
from cpaan.data.cache import local_files
from cpaan.data.files import PARQUET, kind_of
from cpaan.data.parquet import read_about
from cpaan.data.reference import open_data
from cpaan.data.split_files import copy_split, find_split, read_split
from cpaan.data.splits import Split
from cpaan.data.table import name_some
from cpaan.representation.backbone_training import BACKBONE, train_backbone
from cpaan.representation.config import BackboneConfig, EmbeddingConfig
from cpaan.representation.decoding import find_size
from cpaan.representation.embedding import EMBEDDING, embed
from cpaan.representation.feature_folder import ABOUT, FEATURES
from cpaan.representation.images import open_images
from cpaan.representation.pipeline import FeatureJob, Train, represent
from cpaan.training.drive import Progress
from cpaan.training.few_shot_episodes import check_rows

LARGEST_IMAGE = 256
LARGE_GAP = 10.0
HOLDOUT = 0.3
MAX_BAD = 0.001
_OF_IMAGES = (
    *("loss", "holdout", "size", "epochs", "as_in_benchmark", "val_labels", "max_bad"),
    *("set", "workers"),
)


def run(options: argparse.Namespace, __: Sequence[str]) -> int:
    """Train, write features and print their accuracies; return the exit status."""
    _refuse_unused(options)
    device = choose_device(options.device)
    split_path = options.split or find_split((options.images or options.features)[0])
    split = read_split(split_path)
    (of_embedding,) = parse_settings(options.embed_set, EmbeddingConfig())
    embedding = EmbeddingConfig().with_overrides(of_embedding)
    check_writable(options.out)
    progress, out = new_progress(), options.out
    if options.images:
        job = _job(options, split)
        if options.embed:
            check_rows(job.num_train_rows(), embedding)
        train = _trainer(options, device, progress)
        max_bad = MAX_BAD if options.max_bad is None else options.max_bad
        try:
            table, about = represent(
                job, out, train, max_bad=max_bad, device=device, progress=progress
            )
        except KeyboardInterrupt:
            progress(f"stopped; finished work is saved in {out}; run the same command to resume")
            raise
        copy_split(split_path, out)
        _print_backbone(about)
        print(f"Written: {out}/{FEATURES}, {ABOUT}, {BACKBONE}")
    else:
        table, _ = open_data(options.features, split_path, progress)
        files = local_files(options.features)
        made = read_about(files[0]) if kind_of(files) == PARQUET else None
        about = {"run": describe_run(), "features": table.fingerprint, "made_from": made}
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


def _refuse_unused(options: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    if options.embed_set and not options.embed:
        raise ValueError("--embed-set needs --embed")
    if options.features and not options.embed:
        raise ValueError("--features needs --embed pn")
    for name in _OF_IMAGES:
        if options.features and getattr(options, name) not in (None, False, []):
            raise ValueError(f"--{name.replace('_', '-')} is for --images, not for --features")


def _job(options: argparse.Namespace, split: Split) -> FeatureJob:
    (of_backbone,) = parse_settings(options.set, BackboneConfig())
    classes = [name for phase in split.phases.values() for name in phase.base + phase.novel]
    images = open_images(options.images, classes, val_labels=options.val_labels)
    config = BackboneConfig()
    if options.as_in_benchmark:
        config = BackboneConfig.as_in_benchmark()
    elif options.size is None:
        config = config.with_overrides({"image_size": min(find_size(images), LARGEST_IMAGE)})
    given = {"loss": options.loss, "image_size": options.size, "num_epochs": options.epochs}
    overrides = {name: value for name, value in given.items() if value is not None}
    config = config.with_overrides({**overrides, **of_backbone})
    holdout = HOLDOUT if options.holdout is None else options.holdout
    return FeatureJob(images=images, split=split, config=config, seed=options.seed, holdout=holdout)


def _trainer(options: argparse.Namespace, device: torch.device, progress: Progress) -> Train:
    if options.workers in (None, 1):
        return partial(train_backbone, device=device, progress=progress)
    is_gpu = device.type == "cuda"
    available = torch.cuda.device_count() if is_gpu else os.cpu_count() or 1
    if options.workers > available and os.environ.get("RAY_ADDRESS", "local") == "local":
        kind = "GPUs" if is_gpu else "CPUs"
        raise ValueError(
            f"--workers {options.workers}: this machine has {available} {kind}; use --workers "
            f"{available} or less"
        )
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
