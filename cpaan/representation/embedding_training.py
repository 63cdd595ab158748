"""From features to embedded features: the drive to the last episode, kept on disk."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cpaan.core.files import load_state, save_state, write_whole
from cpaan.core.provenance import describe_run
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.data.splits import VALIDATION_PHASE, Split
from cpaan.data.table import FeatureTable
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, embed_table
from cpaan.representation.layout import (
    ABOUT,
    FEATURES,
    read_made,
    refuse_foreign,
)
from cpaan.representation.quality import centroid_quality
from cpaan.training.few_shot_episodes import read_base

EMBEDDING = "embedding.pt"
_EPISODES_AT_ONCE = 20
_SECONDS_BETWEEN_MESSAGES = 10.0
_SECONDS_BETWEEN_CHECKPOINTS = 30.0


def embed(
    table: FeatureTable,
    split: Split,
    config: EmbeddingConfig,
    seed: int,
    out: Path,
    *,
    origin: Mapping[str, Any],
    device: torch.device,
    progress: Callable[[str], None],
) -> tuple[FeatureTable, dict[str, Any]]:
    """Train an embedding on the base classes' train rows, and leave the embedded table in a folder.

    Whatever of the work is already there is used.

    Args:
        table: What to embed.
        split: Base and novel classes of the phases.
        config: Everything that decides the embedding.
        seed: Decides the rest.
        out: Where ``features.parquet``, ``about.json`` and ``embedding.pt`` are left.
        origin: Where the table comes from, to be written down.
        device: Where to train.
        progress: Called with a line now and then.

    Returns:
        The embedded table, and where it comes from.

    Raises:
        ValueError: If the folder holds another embedding, there are too few rows, or training
            diverges.
    """
    job = {"features": table.fingerprint, "seed": seed, **config.to_dict()}
    job = json.loads(json.dumps(job))  # as it comes back from a file
    if made := read_made(out, job):
        progress(f"{out / FEATURES} is already there")
        return open_features(out / FEATURES), made
    refuse_foreign(out, out / EMBEDDING)
    run = EmbeddingRun(read_base(table, split, device), config, seed)
    _train(run, out / EMBEDDING, progress)
    embedded = embed_table(run, table)
    quality = centroid_quality(embedded, sorted(split.base_classes(VALIDATION_PHASE)))
    about = {
        "job": job,
        "backbone": embedded.backbone,
        "run": describe_run(),
        "centroid": {**asdict(quality), "gap": quality.gap},
        "fingerprint": embedded.fingerprint,
        "made_from": origin,
    }
    write_features(out / FEATURES, embedded, about)
    write_whole(out / ABOUT, json.dumps(about, indent=1))
    return embedded, about


def _train(run: EmbeddingRun, checkpoint: Path, progress: Callable[[str], None]) -> None:
    """Train up to the last episode, from the checkpoint on where there is one."""
    if checkpoint.exists():
        state = load_state(checkpoint)
        try:
            run.load_state_dict(state)
        except (ValueError, KeyError) as error:
            raise ValueError(f"cannot go on from {checkpoint}: {error}") from error
    total = run.config.num_episodes
    started = said = saved = time.monotonic()
    first = run.episode
    while run.episode < total:
        terms = run.advance(min(_EPISODES_AT_ONCE, total - run.episode))
        now, is_last = time.monotonic(), run.episode == total
        if is_last or now - said > _SECONDS_BETWEEN_MESSAGES:
            said = now
            left = (total - run.episode) * (now - started) / (run.episode - first)
            progress(
                f"episode {run.episode} of {total}: query loss {terms['query_loss']:.3f}, "
                f"{left:.0f} s left"
            )
        if is_last or now - saved > _SECONDS_BETWEEN_CHECKPOINTS:
            save_state(checkpoint, run.state_dict())
            saved = now
