"""Test the files that a search writes about its trials."""

import json
import signal
import struct
from dataclasses import replace
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.distributions import json_to_distribution
from optuna.trial import TrialState
from tensorboardX.proto.event_pb2 import Event

from cpaan.study.records import RowRecords, trial_table
from cpaan.study.search import _publishing_at_sigterm
from cpaan.study.searcher import open_trials
from cpaan.study.study import OPTUNA, TRIALS
from helpers.studies import HandRunSearch, new_study
from helpers.waiting import wait_for

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def told(tmp_path) -> HandRunSearch:
    """Return a search with a trial of each state, including a running one."""
    search = HandRunSearch(tmp_path / "study", num_trials=4)
    search.run("a", 40, 45, 50)
    search.run("b", 30, 35)
    search.suggest("c")
    search.end("c", 20, problem="cCov-GAN diverged")
    search.suggest("d")
    return search


def test_the_table_has_a_line_for_each_started_trial_and_reads_back_from_parquet(told, tmp_path):
    config = replace(told.row.config, workers_per_trial=2, gpus_per_worker=0.5)
    told.search.trials.enqueue_trial({"cycle_weight": 7.0})
    assert "score" in trial_table(optuna.create_study(), config).columns

    trial_table(told.search.trials, config).to_parquet(tmp_path / TRIALS, index=False)

    table = pd.read_parquet(tmp_path / TRIALS)
    assert list(table.columns[:4]) == ["trial", "state", "score", "novel_top5"]
    assert list(table.columns[-4:]) == ["curve", "training", "evaluation", "problem"]
    for name, values in {
        "trial": [0, 1, 2, 3],
        "state": ["complete", "stopped early", "failed", "unfinished"],
        "episodes": [200, 100, 50, 0],
        "seconds": [30, 20, 10, 0],
        "worker_seconds": [60, 40, 20, 0],
        "gpu_seconds": [30, 20, 10, 0],
    }.items():
        assert table[name].tolist() == values, name
    scores = table[["score", "novel_top5", "all_top5", "all_calibrated_top5"]]
    assert scores[:3].values.tolist() == [[50, 60, 39, 40], [35, 45, 24, 25], [20, 30, 9, 10]]
    assert scores.loc[3].isna().all()
    assert table["problem"].dropna().to_dict() == {2: "cCov-GAN diverged"}
    # The last trial has the paper's settings and no parameters.
    assert table["cycle_weight"][0] == 5
    assert table["cycle_weight"].isna().tolist() == [False, False, False, True]
    assert [dict(entry) for entry in table["curve"][1]] == told.trial(1).user_attrs["curve"]
    assert json.loads(table["training"][0]) == told.trial(0).user_attrs["training"]
    ranges = json.loads(table["distributions"][0])
    distributions = {name: json_to_distribution(content) for name, content in ranges.items()}
    assert distributions == told.trial(0).distributions


def test_copies_in_the_storage_can_be_read_unless_it_is_the_folder_itself(told, tmp_path):
    shared = tmp_path / "shared"
    before = (told.study.folder / OPTUNA).stat().st_ino

    for location in (f"file://{shared}", f"{told.study.folder}/../study"):
        study = replace(told.study, shared=location)
        RowRecords(study, told.row, told.search.trials).update()

    copy = open_trials(replace(study, folder=shared), told.row)
    states = [trial.state for trial in told.search.trials.get_trials()]
    assert [trial.state for trial in copy.get_trials()] == states
    assert copy.best_trial.params == told.trial(0).params
    assert (shared / TRIALS).read_bytes() == (study.folder / TRIALS).read_bytes()
    assert (study.folder / OPTUNA).stat().st_ino == before


def test_on_a_network_file_system_the_trials_are_on_a_local_disk_and_copied(tmp_path, monkeypatch):
    monkeypatch.setattr("cpaan.study.study.is_on_network", lambda path: True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    search = HandRunSearch(tmp_path / "shared")
    search.run("a", 40, 45, 50)
    search.search.records.update()
    (local,) = (tmp_path / "local").rglob(OPTUNA)
    assert search.study.database_of(search.row) == local
    search.suggest("b")

    # A machine without local files resumes from the copy.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    resumed = HandRunSearch(tmp_path / "shared")
    assert resumed.trial(0).value == 50
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    again = HandRunSearch(tmp_path / "shared")
    assert again.trial(0).value == 50
    assert len(again.parameters()) == len(resumed.parameters()), "the copy counts"


def test_sigterm_copies_the_trials_to_the_storage_at_once(tmp_path):
    """Ray kills a stopped job after three seconds, and Ray Tune takes longer to end."""
    search = HandRunSearch(tmp_path / "study", num_trials=2)
    study = replace(search.study, shared=str(tmp_path / "shared"))
    search.search.records = RowRecords(study, search.row, search.search.trials)
    search.search.records._waits_until = float("inf")  # in the pause after an update
    search.run("a", 40, 45, 50)
    assert not (tmp_path / "shared").exists()
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), _publishing_at_sigterm([search.search]):
        signal.raise_signal(signal.SIGTERM)

    wait_for((tmp_path / "shared" / OPTUNA).exists, 60, lambda: "no copy")
    (trial,) = open_trials(replace(study, folder=tmp_path / "shared"), search.row).get_trials(
        states=[TrialState.COMPLETE]
    )
    assert trial.value == 50
    assert signal.getsignal(signal.SIGTERM) is before


def events_in(folder: Path) -> list[tuple[int, str]]:
    """Return the step and name of every value in TensorBoard's files."""
    values = []
    for path in sorted(folder.iterdir()):
        content, position = path.read_bytes(), 0
        while position < len(content):
            (length,) = struct.unpack_from("<Q", content, position)
            start = position + 12  # after the length and its checksum
            event = Event.FromString(content[start : start + length])
            values += [(event.step, value.tag) for value in event.summary.value]
            position = start + length + 4
    return sorted(values)


def test_every_evaluation_is_an_event_once(tmp_path):
    search = HandRunSearch(tmp_path)

    def update(records: RowRecords) -> list[int]:
        records.update()
        events = events_in(tmp_path / "tensorboard" / "0000")
        return [step for step, name in events if name == "novel_top5"]

    records = RowRecords(search.study, search.row, search.search.trials)
    search.suggest("a")
    search.report("a", 40)
    assert update(records) == update(records) == [50]
    search.report("a", 40, 45)
    assert update(records) == [50, 100]

    restarted = RowRecords(search.study, search.row, search.search.trials)
    assert update(restarted) == [50, 100]
    search.report("a", 40, 45, 50)
    assert update(restarted) == [50, 100, 200]


class TimedRecords(RowRecords):
    """Records with a manual clock, on which an update takes one second."""

    def __init__(self, folder: Path) -> None:
        self.now, self.num_updates = 0.0, 0
        self.error: OSError | None = None
        study = new_study(folder)
        super().__init__(study, study.rows[0], optuna.create_study())
        self._clock = lambda: self.now

    def update(self, *, is_last: bool = False) -> None:
        self.now += 1.0
        if self.error is not None:
            raise self.error
        self.num_updates += 1


def test_updates_take_a_twentieth_of_the_time(tmp_path):
    records = TimedRecords(tmp_path)

    for _ in range(1_000):
        records.changed()
        records.now += 0.5

    assert 0.04 < records.num_updates / records.now <= 0.05


def test_a_change_during_the_pause_or_that_could_not_be_written_is_written_later(tmp_path):
    records = TimedRecords(tmp_path)
    for _ in range(2):
        records.changed()
    assert records.num_updates == 1
    for records.now in (20.9, 21.1, 100.0):
        records.update_if_due()
    assert records.num_updates == 2

    records.error = OSError("no space")
    with pytest.raises(OSError, match="no space"):
        records.changed()
    records.error = None
    records.update_if_due()
    assert records.num_updates == 3


def test_checkpoints_of_ended_trials_are_deleted_but_those_of_the_best(tmp_path):
    search = HandRunSearch(tmp_path, num_finalists=1)
    paths = [tmp_path / search.study.checkpoint_of(search.row, number, 0) for number in range(3)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(b"state")
    search.search.records._waits_until = float("inf")
    search.run("a", 40, 45, 50)
    search.run("b", 40, 45, 51)
    search.suggest("c")

    search.search.records._waits_until = 0.0
    search.search.records.update_if_due()

    assert [path.exists() for path in paths] == [False, True, True]
