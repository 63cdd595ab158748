"""Parts of an evaluation: the job of a part, its result, and the cache of results."""

import hashlib
import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch

from cpaan.core.provenance import commit, describe_run
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.reference import DataReference
from cpaan.data.splits import ShotRows
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.drive import Progress


class PartKey(NamedTuple):
    """Identifier of a part within one evaluation."""

    row: str
    seed: int


@dataclass(frozen=True, eq=False)
class PartJob:
    """One row of a table with one training seed: everything that determines its scores."""

    row: str
    """Name of the row in the table."""
    method: str
    training: Settings
    embedding: EmbeddingConfig | None
    """Settings of the embedding, if the method works in one."""
    evaluation: EvaluationConfig
    seed: int
    data: DataReference
    phase: str
    shot_rows: ShotRows
    """Draws of the phase, shape (draws, novel classes, shots)."""
    scores_validation: bool = False
    """Whether the validation phase is also scored, to choose biases and heads."""
    is_illustrated: bool = False
    """Whether spectra and projections of synthetic examples are also computed."""
    diversity_draws: range | None = None
    """Draws whose diversity is computed; None for all."""
    variants: tuple[tuple[Settings, EvaluationConfig], ...] = ()
    """Settings of the method and of the evaluation to score one training with, its own first. Other
    settings than its own need no training. Empty for the job's settings alone."""
    device: str = "cpu"

    @property
    def key(self) -> PartKey:
        """Return the name of the row and the seed."""
        return PartKey(self.row, self.seed)

    def describe(self) -> dict[str, Any]:
        """Return all inputs that determine the result, except the code, for JSON."""
        split = self.data.split
        return {
            "row": self.row,
            "method": self.method,
            "training": self.training.to_dict(),
            "embedding": None if self.embedding is None else self.embedding.to_dict(),
            # Other seeds of the same evaluation have no effect.
            "evaluation": {**self.evaluation.to_dict(), "seed": None, "num_seeds": None},
            "seed": self.seed,
            "features": self.data.fingerprint,
            "classes": [each and asdict(each) for each in (split.validation, split.test)],
            "phase": self.phase,
            "shots": hashlib.sha256(self.shot_rows.tobytes()).hexdigest()[:16],
            "scores_validation": self.scores_validation,
            "is_illustrated": self.is_illustrated,
            "diversity_draws": str(self.diversity_draws),
            "variants": [[each.to_dict() for each in variant] for variant in self.variants],
            "device": torch.device(self.device).type,
        }


class Part(NamedTuple):
    """The result of a part."""

    scores: pd.DataFrame
    """One line for each head, column, number of shots, draw and bias."""
    diversity: pd.DataFrame
    validation: pd.DataFrame
    """Scores on the validation phase, means over draws; empty unless the job requires them."""
    spectra: pd.DataFrame
    projections: pd.DataFrame
    origin: dict[str, Any] | None
    """Checkpoint from which the training resumed, if any."""
    run: dict[str, Any]
    """Command, commit and time, from `describe_run`, which `run_parts` adds. On Ray also
    ``seconds`` of the process without the training, and ``training_seconds`` over all sessions."""


Outcome = Part | ValueError
"""Result of a part, or the reason why it has none."""
Execute = Callable[[Mapping[PartKey, PartJob]], Iterator[tuple[PartKey, Outcome]]]
"""Function that runs parts, and yields each with its outcome when it ends."""


class PartCache:
    """Results in a folder, one ZIP file for each.

    The file name contains a digest of everything that determines the result. A part with other
    settings, data or commit is therefore never found.
    """

    def __init__(self, folder: RemotePath) -> None:
        self._folder = folder
        # The commit is found once, by calling git. Results with other fields are not read.
        self._code = {"commit": commit(), "fields": Part._fields}

    def read(self, job: PartJob) -> Part | None:
        """Return the cached result; None if there is none or the file is damaged."""
        content = self._path(job).read_if_exists()
        if content is None:
            return None
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content_of = {name: io.BytesIO(archive.read(name)) for name in Part._fields}
            found: dict[str, Any] = {
                name: json.load(file) if name in ("origin", "run") else pd.read_parquet(file)
                for name, file in content_of.items()
            }
        except (ValueError, KeyError, OSError, zipfile.BadZipFile):
            return None
        return Part(**found)

    def write(self, job: PartJob, part: Part) -> None:
        """Store a result."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, value in part._asdict().items():
                if isinstance(value, pd.DataFrame):
                    archive.writestr(name, value.to_parquet(index=False, compression="zstd"))
                else:
                    archive.writestr(name, json.dumps(value))
        self._path(job).write(buffer.getvalue())

    def delete(self, job: PartJob) -> None:
        """Remove a result if it exists."""
        self._path(job).delete()

    def _path(self, job: PartJob) -> RemotePath:
        text = json.dumps({**job.describe(), **self._code}, sort_keys=True)
        row = re.sub("[^A-Za-z0-9+]+", "-", job.row)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._folder / f"{row}-seed{job.seed}-{digest}.zip"


def run_parts(
    jobs: Mapping[PartKey, PartJob],
    execute: Execute,
    cache: PartCache | None,
    progress: Progress,
    summarise: Callable[[PartJob, Part], str] = lambda job, part: "done",
) -> dict[PartKey, Outcome]:
    """Run all parts that are not cached, and cache their results.

    ``progress`` is called with a line for each part. ``summarise`` returns its text for a finished
    part.

    Returns:
        The outcome of each part, in the order of ``jobs``. Parts are missing if ``execute`` stopped
        before them.
    """
    cached = {} if cache is None else {key: cache.read(job) for key, job in jobs.items()}
    found: dict[PartKey, Outcome] = {key: part for key, part in cached.items() if part is not None}
    if found:
        progress(f"{len(found)} of {len(jobs)} parts loaded from the cache")
    missing = {key: job for key, job in jobs.items() if key not in found}
    started, num_left = time.monotonic(), len(missing)
    for key, outcome in execute(missing):
        if isinstance(outcome, Part):  # a process of its own has another command
            outcome = outcome._replace(run={**outcome.run, **describe_run()})
        found[key] = outcome
        num_left -= 1
        text = f"failed: {outcome}"
        if isinstance(outcome, Part):
            text = summarise(jobs[key], outcome)
            if cache is not None:
                cache.write(jobs[key], outcome)
        line = f"{key.row}, seed {key.seed}: {text} ({len(found)} of {len(jobs)})"
        if num_left:
            each = (time.monotonic() - started) / (len(missing) - num_left)
            line += f", about {each * num_left:.0f} s left"
        progress(line)
    return {key: found[key] for key in jobs if key in found}
