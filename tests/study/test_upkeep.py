"""A search's own storage and upkeep: nothing is lost by doing things less often."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

from cpaan.bench.driver import new_study
from cpaan.core.remote_paths import RemotePath
from cpaan.study.folder import Study, state_path
from cpaan.study.records import OPTUNA
from cpaan.study.searcher import OptunaSearcher
from cpaan.study.upkeep import Upkeep
from helpers.studies import CONFIG, Search

pytestmark = pytest.mark.usefixtures("quick_disk", "builtin_cache")


def in_the_file(folder: Path) -> list[optuna.trial.FrozenTrial]:
    """Return trials as a process that knows nothing reads them."""
    return optuna.load_study(study_name="cpaan", storage=f"sqlite:///{folder}/{OPTUNA}").trials


def test_what_is_known_of_trials_is_what_the_file_has(tmp_path):
    search = Search(tmp_path)

    def check() -> None:
        assert search.study.get_trials(deepcopy=False) == in_the_file(tmp_path)

    check()
    for name in "abcdefgh":
        search.suggest(name)
        check()
    search.report("a", 40)
    check()
    search.end("b", 40, 45, 50)
    search.end("c", 40)
    search.end("d", 40, problem="diverged")
    check()
    search.searcher.on_trial_complete("e", None, error=True)
    check()
    search.study.enqueue_trial({"cycle_weight": 1.0})
    check()


def test_trials_are_read_again_only_if_one_was_written(tmp_path):
    search = Search(tmp_path)
    for name in "abc":
        search.suggest(name)
    search.study.get_trials()
    backend = search.study._storage._backend
    read, real = [], backend._get_trials

    def count(*arguments, **named):
        read.append(len(found := real(*arguments, **named)))
        return found

    backend._get_trials = count
    search.study.get_trials()
    search.study.get_trials()
    assert read == []

    search.report("b", 40)
    search.study.get_trials()
    assert read == [1], "and that one alone"


class Kept:
    """An upkeep whose work takes so long, by a clock that is set by hand."""

    def __init__(self, study: Study, takes: float = 1.0) -> None:
        self.now, self.takes, self.num_writes, self.num_shown = 0.0, takes, 0, 0
        self.error: OSError | None = None
        found = optuna.create_study()
        records = SimpleNamespace(update=self._update)
        self.upkeep = Upkeep(study, found, records, self._show, lambda: self.now)

    def _update(self, study, config) -> None:
        self.now += self.takes
        if self.error is not None:
            raise self.error
        self.num_writes += 1

    def _show(self, study) -> None:
        self.num_shown += 1


@pytest.fixture
def study(tmp_path) -> Study:
    return new_study(tmp_path, num_trials=4)


def test_upkeep_takes_a_twentieth_of_the_time(study):
    kept = Kept(study)

    for _ in range(1_000):
        kept.upkeep.changed()
        kept.now += 0.5

    assert kept.num_writes == kept.num_shown
    assert 0.04 < kept.num_writes * kept.takes / kept.now <= 0.05


def test_a_change_in_between_is_caught_up_with_later_and_once(study):
    kept = Kept(study)
    kept.upkeep.changed()
    kept.upkeep.changed()
    assert kept.num_writes == 1

    for kept.now in (20.9, 21.1, 100.0):
        kept.upkeep.catch_up()

    assert kept.num_writes == 2


def test_the_end_does_not_wait(study):
    kept = Kept(study)
    kept.upkeep.changed()
    kept.upkeep.changed()

    kept.upkeep.finish()
    kept.upkeep.finish()

    assert kept.num_writes == 2


def test_what_could_not_be_written_is_left_to_do(study):
    kept = Kept(study)
    kept.error = OSError("no space")
    with pytest.raises(OSError, match="no space"):
        kept.upkeep.changed()

    kept.error = None
    kept.upkeep.catch_up()

    assert kept.num_writes == 1


def test_a_trial_that_is_new_does_not_go_on_from_a_lost_one(study):
    path = RemotePath.at(study.storage) / state_path(3, study.config.seed)
    path.write(b"of a trial whose proposal was lost with its machine")

    Kept(study).upkeep.begin_anew(3)

    assert not path.is_file()


def test_in_one_place_proposals_cannot_be_lost(study):
    alone = replace(study, elsewhere=None)
    path = RemotePath.at(alone.storage) / state_path(3, alone.config.seed)
    path.write(b"state")

    Kept(alone).upkeep.begin_anew(3)

    assert path.is_file()


def test_only_trials_that_were_not_proposed_begin_anew(tmp_path):
    numbers: list[int] = []

    def restarted() -> Search:
        search = Search(tmp_path)
        given = search.searcher
        search.searcher = OptunaSearcher(
            search.study, given._space, CONFIG, given._make_trial, lambda: None, numbers.append
        )
        return search

    search = restarted()
    search.suggest("a")
    search.study.ask()  # and dies before it is proposed

    again = restarted()
    again.suggest("b")
    again.suggest("c")
    again.suggest("d")

    assert numbers == [0, 1, 2]
