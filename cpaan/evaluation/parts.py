"""Parts of an evaluation: run the jobs that are not cached, and cache their results."""

import hashlib
import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from cpaan.core.provenance import commit, describe_run
from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation.job import Job, Part
from cpaan.training.drive import Progress


class PartKey(NamedTuple):
    """Identifier of a part within one evaluation."""

    row: str
    seed: int


Outcome = Part | ValueError
"""Result of a part, or the reason why it has none."""
Execute = Callable[[Mapping[PartKey, Job]], Iterator[tuple[PartKey, Outcome]]]
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

    def read(self, job: Job) -> Part | None:
        """Return the cached result; None if there is none or the file is damaged."""
        content = self._path(job).read_if_exists()
        if content is None:
            return None
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content_of = {name: io.BytesIO(archive.read(name)) for name in Part._fields}
            fields: dict[str, Any] = {
                name: json.load(file) if name in ("origin", "run") else pd.read_parquet(file)
                for name, file in content_of.items()
            }
        except (ValueError, KeyError, OSError, zipfile.BadZipFile):
            return None
        return Part(**fields)

    def write(self, job: Job, part: Part) -> None:
        """Store a result."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, value in part._asdict().items():
                if isinstance(value, pd.DataFrame):
                    archive.writestr(name, value.to_parquet(index=False, compression="zstd"))
                else:
                    archive.writestr(name, json.dumps(value))
        self._path(job).write(buffer.getvalue())

    def delete(self, job: Job) -> None:
        """Remove a result if it exists."""
        self._path(job).delete()

    def _path(self, job: Job) -> RemotePath:
        text = json.dumps({**job.describe(), **self._code}, sort_keys=True)
        row = re.sub("[^A-Za-z0-9+]+", "-", job.row)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._folder / f"{row}-seed{job.seed}-{digest}.zip"


def run_parts(
    jobs: Mapping[PartKey, Job],
    execute: Execute,
    cache: PartCache | None,
    progress: Progress,
    summarise: Callable[[Job, Part], str] = lambda job, part: "done",
) -> dict[PartKey, Outcome]:
    """Run all parts that are not cached, and cache their results.

    ``progress`` is called with a line for each part. ``summarise`` returns its text for a finished
    part.

    Returns:
        The outcome of each part, in the order of ``jobs``. Parts are missing if ``execute`` stopped
        before them.
    """
    cached = {} if cache is None else {key: cache.read(job) for key, job in jobs.items()}
    outcomes: dict[PartKey, Outcome] = {key: part for key, part in cached.items() if part}
    if outcomes:
        progress(f"{len(outcomes)} of {len(jobs)} parts loaded from the cache")
    missing = {key: job for key, job in jobs.items() if key not in outcomes}
    started, num_left = time.monotonic(), len(missing)
    for key, outcome in execute(missing):
        if isinstance(outcome, Part):  # a process of its own has another command
            outcome = outcome._replace(run={**outcome.run, **describe_run()})
        outcomes[key] = outcome
        num_left -= 1
        text = f"failed: {outcome}"
        if isinstance(outcome, Part):
            text = summarise(jobs[key], outcome)
            if cache is not None:
                cache.write(jobs[key], outcome)
        line = f"{key.row}, seed {key.seed}: {text} ({len(outcomes)} of {len(jobs)})"
        if num_left:
            pace = (time.monotonic() - started) / (len(missing) - num_left)
            line += f", about {pace * num_left:.0f} s left"
        progress(line)
    return {key: outcomes[key] for key in jobs if key in outcomes}
