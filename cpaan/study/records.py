"""What a study leaves behind, for people and for programs."""

import io
import json
import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.distributions import distribution_to_json
from optuna.trial import FrozenTrial, TrialState
from tensorboardX import SummaryWriter

from cpaan.core.remote_paths import RemotePath
from cpaan.study.config import StudyConfig
from cpaan.study.trial import ALL_TOP5, CURVE, EPISODE, NOVEL_TOP5, PROBLEM

CONFIG, TRIALS, BEST, OPTUNA = "config.json", "trials.parquet", "best.json", "optuna.db"
TENSORBOARD, LOG = "tensorboard", "study.log"

STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished",
}

_NOTHING_YET: dict[str, Any] = {
    EPISODE: 0,
    NOVEL_TOP5: math.nan,
    ALL_TOP5: math.nan,
    "seconds": 0.0,
}


class Records:
    """The folder of a study, and its copies in the storage where that is elsewhere."""

    def __init__(self, folder: Path, storage: RemotePath) -> None:
        """Keep the two places."""
        self.folder = folder
        self._storage = storage
        self._is_elsewhere = storage.local is None or storage.local.resolve() != folder.resolve()
        self._events: dict[int, int] = {}

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the folder, whole, and its copy."""
        data = content.encode() if isinstance(content, str) else content
        RemotePath.at(self.folder / name).write(data)
        if self._is_elsewhere:
            (self._storage / name).write(data)

    def delete(self, name: str) -> None:
        """Remove a file of the folder and its copy, as far as they are there."""
        RemotePath.at(self.folder / name).delete()
        if self._is_elsewhere:
            (self._storage / name).delete()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        self.write(name, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def update(self, study: optuna.Study, config: StudyConfig, *, is_last: bool = False) -> None:
        """Bring table, events and copies up to what the Optuna study knows.

        A copy elsewhere that fails is made again with the next update; the last one must not fail.
        """
        buffer = io.BytesIO()
        trial_table(study, config).to_parquet(buffer, index=False)
        RemotePath.at(self.folder / TRIALS).write(buffer.getvalue())
        for trial in study.get_trials(deepcopy=False):
            self._write_events(trial, config)
        if self._is_elsewhere:
            with nullcontext() if is_last else suppress(OSError):
                (self._storage / OPTUNA).write(_snapshot(self.folder / OPTUNA))
                (self._storage / TRIALS).write(buffer.getvalue())

    def _write_events(self, trial: FrozenTrial, config: StudyConfig) -> None:
        """Append what is new of a trial's curve to its TensorBoard events."""
        curve = trial.user_attrs.get(CURVE, [])
        known = self._events.get(trial.number, 0)
        if len(curve) == known:
            return
        folder = self.folder / TENSORBOARD / f"{trial.number:04d}"
        if known == 0 and folder.exists() and any(folder.iterdir()):
            self._events[trial.number] = len(curve)  # an earlier run of the search wrote these
            return
        # Files are named by seconds: without the suffix, the second one of a second wins.
        with SummaryWriter(str(folder), filename_suffix=f".{known:04d}") as writer:
            for entry in curve[known:]:
                score = config.score(entry[NOVEL_TOP5], entry[ALL_TOP5])
                values = {"score": score, NOVEL_TOP5: entry[NOVEL_TOP5], ALL_TOP5: entry[ALL_TOP5]}
                for name, value in values.items():
                    writer.add_scalar(name, value, entry[EPISODE])
        self._events[trial.number] = len(curve)


def trial_table(study: optuna.Study, config: StudyConfig) -> pd.DataFrame:
    """Return a row for each trial that was begun: parameters, state, curve and cost.

    Parameters that a trial does not have are missing; ``distributions`` has the ranges of those
    that it has, as Optuna writes them. Seconds are of training and evaluation;
    ``worker_seconds`` and ``gpu_seconds`` count every worker.
    """
    rows = []
    names: dict[str, None] = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.state not in STATES:
            continue
        curve = trial.user_attrs.get(CURVE, [])
        last = curve[-1] if curve else _NOTHING_YET
        seconds = last["seconds"]
        names.update(dict.fromkeys(trial.params))
        rows.append(
            {
                "trial": trial.number,
                "state": STATES[trial.state],
                "score": config.score(last[NOVEL_TOP5], last[ALL_TOP5]),
                NOVEL_TOP5: last[NOVEL_TOP5],
                ALL_TOP5: last[ALL_TOP5],
                "episodes": last[EPISODE],
                "seconds": seconds,
                "worker_seconds": seconds * config.workers_per_trial,
                "gpu_seconds": seconds * config.workers_per_trial * config.gpus_per_worker,
                **trial.params,
                "distributions": json.dumps(
                    {
                        name: distribution_to_json(distribution)
                        for name, distribution in trial.distributions.items()
                    }
                ),
                "curve": curve,
                "training": json.dumps(trial.user_attrs.get("training")),
                "evaluation": json.dumps(trial.user_attrs.get("evaluation")),
                PROBLEM: trial.user_attrs.get(PROBLEM),
            }
        )
    columns = ["trial", "state", "score", NOVEL_TOP5, ALL_TOP5, "episodes", "seconds"]
    columns += ["worker_seconds", "gpu_seconds", *names, "distributions", "curve"]
    columns += ["training", "evaluation", PROBLEM]
    return pd.DataFrame(rows, columns=columns)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return a JSON file of a study.

    Raises:
        ValueError: If it is not there, or is none.
    """
    try:
        content: dict[str, Any] = json.loads((folder / name).read_text())
        return content
    except FileNotFoundError:
        raise ValueError(
            f"{folder} has no {name}: it is no study, or one without a result"
        ) from None
    except ValueError as error:
        raise ValueError(f"{folder / name} cannot be read: {error}") from error


def _snapshot(path: Path) -> bytes:
    """Return a consistent copy of an SQLite file that may be written to at the same time."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(":memory:")) as copy:
        source.backup(copy)
        return bytes(copy.serialize())
