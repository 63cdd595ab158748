"""The files that a search writes about its trials, and the checkpoints that it deletes."""

import json
import math
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import optuna
import pandas as pd
from optuna.distributions import distribution_to_json
from optuna.trial import FrozenTrial, TrialState
from tensorboardX import SummaryWriter

from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation.job import EPISODE
from cpaan.evaluation.scoring import TOP5
from cpaan.study.config import StudyConfig
from cpaan.study.row import StudyRow
from cpaan.study.study import OPTUNA, TENSORBOARD, TRIALS, Study
from cpaan.study.trial import CURVE, PROBLEM

ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished",
}

_NO_EVALUATION = {EPISODE: 0, **dict.fromkeys(TOP5, math.nan), "seconds": 0.0}
_FIRST = ["trial", "state", "score", *TOP5, "episodes", "seconds"]
_FIRST += ["worker_seconds", "gpu_seconds"]  # then the parameters
_LAST = ["distributions", "curve", "training", "evaluation", PROBLEM]
_PAUSE_FACTOR = 20
"""Pause after an update, as a multiple of its duration, so that updates take 5 % of the time."""
_NUM_REQUESTS = 16  # concurrent deletions, because a remote storage answers slowly


class RowRecords:
    """Writer of a row's files, which it updates from the Optuna study at a limited rate.

    An update handles all trials, so an update after each change would dominate a search of
    thousands of trials. A study resumes from the Optuna study; the other files are for users.
    """

    def __init__(self, study: Study, row: StudyRow, trials: optuna.Study) -> None:
        self._study, self._row, self._trials = study, row, trials
        self._clock = time.monotonic
        self._storage = RemotePath.at(study.storage)
        self._events: dict[int, int] = {}
        self._deleted: set[int] = set()
        self._is_behind = False
        self._waits_until = float("-inf")

    def changed(self) -> None:
        """Record that the Optuna study has changed, and update if it is time."""
        self._is_behind = True
        self.update_if_due()

    def update_if_due(self) -> None:
        """Update if there was a change and the pause is over."""
        if self._is_behind and self._clock() >= self._waits_until:
            started = self._clock()
            self.update()
            self._delete_checkpoints()
            self._is_behind = False  # last, so that a failed update is tried again
            ended = self._clock()
            self._waits_until = ended + _PAUSE_FACTOR * (ended - started)

    def update(self, *, is_last: bool = False) -> None:
        """Write the table of trials, TensorBoard events, and copies in a remote storage.

        A failed copy is repeated with the next update; in the last update, it raises an error.
        """
        config, folder = self._row.config, self._study.folder
        table = self._study.path_of(self._row, TRIALS)
        content = trial_table(self._trials, config).to_parquet(index=False)
        (RemotePath.at(folder) / table).write(content)
        for trial in self._trials.get_trials(deepcopy=False):
            self._write_events(trial)
        with nullcontext() if is_last else suppress(OSError):
            self.publish()
            if (copy := self._study.copy) is not None:
                (copy / table).write(content)

    def publish(self) -> None:
        """Copy the Optuna study, from which a search resumes, to where other machines find it."""
        study, name = self._study, self._study.path_of(self._row, OPTUNA)
        database = study.database_of(self._row)
        places = [] if study.copy is None else [study.copy / name]
        if database != (study.folder / name).resolve():
            places.append(RemotePath.at(study.folder / name))
        content = _snapshot(database) if places else b""
        for place in places:
            place.write(content)

    def _delete_checkpoints(self) -> None:
        """Delete the checkpoints of trials that have ended and are not among the best."""
        config = self._row.config
        best = best_trials(self._trials, config.num_finalists)
        ended = self._trials.get_trials(deepcopy=False, states=ENDED)
        numbers = {trial.number for trial in ended} - {trial.number for trial in best}
        numbers -= self._deleted
        names = [self._study.checkpoint_of(self._row, number, config.seed) for number in numbers]
        with ThreadPoolExecutor(_NUM_REQUESTS) as pool, suppress(OSError):  # retried later
            list(pool.map(lambda name: (self._storage / name).delete(), names))
            self._deleted |= numbers

    def _write_events(self, trial: FrozenTrial) -> None:
        """Append the new evaluations of a trial to its TensorBoard events."""
        curve = trial.user_attrs.get(CURVE, [])
        known = self._events.get(trial.number, 0)
        if len(curve) == known:
            return
        folder = self._study.folder / self._study.path_of(self._row, TENSORBOARD)
        folder = folder / f"{trial.number:04d}"
        if known == 0 and folder.exists() and any(folder.iterdir()):
            self._events[trial.number] = len(curve)  # an earlier run of the search wrote these
            return
        # File names have whole seconds. The suffix separates two files of the same second.
        with SummaryWriter(str(folder), filename_suffix=f".{known:04d}") as writer:
            for entry in curve[known:]:
                values = {"score": self._row.config.score(entry), **entry}
                for name in ("score", *TOP5):
                    writer.add_scalar(name, values[name], entry[EPISODE])
        self._events[trial.number] = len(curve)


def best_trials(study: optuna.Study, count: int) -> list[FrozenTrial]:
    """Return the ``count`` best completed trials, best first."""
    done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    return sorted(done, key=lambda trial: (trial.values[0], -trial.number), reverse=True)[:count]


def trial_table(study: optuna.Study, config: StudyConfig) -> pd.DataFrame:
    """Return a table with a line per trial: parameters, state, curve and cost.

    Parameters that a trial does not have are missing. ``distributions`` has the ranges of the
    others in Optuna's JSON format. Seconds are of training and evaluation; ``worker_seconds`` and
    ``gpu_seconds`` count every worker.
    """
    lines = []
    names: dict[str, None] = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.state not in STATES:
            continue
        known = trial.user_attrs
        last = (known.get(CURVE) or [_NO_EVALUATION])[-1]
        worker_seconds = last["seconds"] * config.workers_per_trial
        ranges = {name: distribution_to_json(kind) for name, kind in trial.distributions.items()}
        names.update(dict.fromkeys(trial.params))
        values = {
            "trial": trial.number,
            "state": STATES[trial.state],
            "score": config.score(last),
            "episodes": last[EPISODE],
            "worker_seconds": worker_seconds,
            "gpu_seconds": worker_seconds * config.gpus_per_worker,
            "distributions": json.dumps(ranges),
            "curve": known.get(CURVE, []),
            PROBLEM: known.get(PROBLEM),
        }
        settings = {name: json.dumps(known.get(name)) for name in ("training", "evaluation")}
        lines.append({**last, **values, **settings, **trial.params})
    return pd.DataFrame(lines, columns=[*_FIRST, *names, *_LAST])


def _snapshot(path: Path) -> bytes:
    """Return a consistent copy of an SQLite file that may be written to at the same time."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(":memory:")) as copy:
        source.backup(copy)
        return bytes(copy.serialize())
