"""Test proposals, results and early stopping of a search, with restarts at any point."""

import json
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler

from cpaan.study.records import best_trials
from cpaan.study.row import AS_PRINTED, RECOMMENDED
from cpaan.study.searcher import OptunaSearcher, RowScheduler, RowSearch
from helpers.studies import STEPS, HandRunSearch, new_study, result_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_disk")]


@pytest.fixture
def search(tmp_path) -> HandRunSearch:
    return HandRunSearch(tmp_path)


@pytest.mark.parametrize(("num_trials", "number"), [(3, 2), (9, 6)])
def test_our_settings_are_first_and_those_of_the_paper_after_random_ones(
    tmp_path, num_trials, number
):
    search = HandRunSearch(tmp_path, num_trials=num_trials)
    trainings = [search.suggest(str(name))["job"].training for name in range(num_trials)]

    ours, printed = (search.row.settings_of(whose).training for whose in (RECOMMENDED, AS_PRINTED))
    assert [trainings.index(ours), trainings.index(printed)] == [0, number]
    for number, training in enumerate(trainings):
        recorded = json.loads(json.dumps(search.trial(number).user_attrs))["training"]
        assert type(training)(**recorded) == training


def test_settings_of_the_paper_are_tried_once_if_a_search_gets_more_trials(tmp_path):
    for name, num_trials in {"a": 1, "b": 2, "c": 4}.items():
        search = HandRunSearch(tmp_path, num_trials=num_trials)
        while search.search.num_to_propose:
            search.run(f"{name}{search.search.num_to_propose}", 40, 45, 50)

    whose = [trial.user_attrs.get("whose") for trial in search.search.trials.get_trials()]
    assert whose == [RECOMMENDED, AS_PRINTED, None, None]


def test_a_trial_ends_as_complete_pruned_or_failed_with_its_values_by_episode(search):
    for name in "abc":
        search.suggest(name)
    for scores in ([40, 45], [40, 45], [40]):  # reports may come twice or late
        search.report("a", *scores)
    search.end("a", 40, 45, 50)
    search.end("b", 40, 45)
    search.end("c", 40, problem="cCov-GAN diverged")

    trials = [search.trial(number) for number in range(3)]
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
    assert [trial.state for trial in trials] == states
    assert trials[0].value == 50
    assert [entry["episode"] for entry in trials[0].user_attrs["curve"]] == [50, 100, 200]
    assert [trial.intermediate_values for trial in trials] == [
        {50: 40, 100: 45, 200: 50},
        {50: 40, 100: 45},
        {50: 40},
    ]
    assert trials[2].user_attrs["problem"] == "cCov-GAN diverged"


@pytest.mark.parametrize("result", [None, result_of([40])])
def test_trials_that_died_or_ran_when_the_search_died_come_first_and_once(search, tmp_path, result):
    before = [search.suggest(name) for name in "abc"]
    search.report("a", 40)
    search.searcher.on_trial_complete("a", result, error=True)
    search.end("b", 40, 45, 50)
    assert search.trial(0).state == TrialState.RUNNING

    again = HandRunSearch(tmp_path)
    after = [again.suggest(name) for name in "def"]

    assert [trial["number"] for trial in after] == [0, 2, 3]
    assert after[1]["job"].describe() == before[2]["job"].describe()
    assert again.parameters()[:3] == search.parameters()[:3]
    again.end("d", 40, 45, 50)
    trial = again.trial(0)
    assert trial.state == TrialState.COMPLETE
    assert trial.user_attrs["problem"] is None
    assert trial.intermediate_values == {50: 40, 100: 45, 200: 50}


def score_of(number: int) -> float:
    """Return a score that is different for each trial."""
    return 30 + (7 * number) % 13


@pytest.mark.parametrize("every", [1, 6])
def test_proposals_after_a_restart_are_those_without(tmp_path, every):
    """This includes proposals after the random ones, which depend on the known results."""
    unbroken, broken = HandRunSearch(tmp_path / "unbroken"), HandRunSearch(tmp_path / "broken")

    for number in range(7):
        unbroken.run(str(number), 0, 0, score_of(number))
        if number % every == every - 1:
            broken = HandRunSearch(tmp_path / "broken")
        broken.run(str(number), 0, 0, score_of(number))

    assert broken.parameters() == unbroken.parameters()
    assert len({json.dumps(parameters) for parameters in broken.parameters()}) == 7


@pytest.mark.parametrize("is_complete", [True, False])
def test_proposals_beside_an_unfinished_trial_are_the_same_after_a_restart(tmp_path, is_complete):
    """The search may have been killed before the trial had all its parameters."""
    unbroken, broken = HandRunSearch(tmp_path / "unbroken"), HandRunSearch(tmp_path / "broken")
    for search in (unbroken, broken):
        for number in range(5):
            search.run(str(number), 0, 0, score_of(number))
    unbroken.suggest("5")
    if is_complete:
        broken.suggest("5")
        for search in (unbroken, broken):
            search.report("5", 20)
    else:
        broken.search.trials.ask()

    broken = HandRunSearch(tmp_path / "broken")
    assert broken.suggest("5 again")["number"] == 5
    for search in (unbroken, broken):
        search.suggest("6")

    assert broken.parameters() == unbroken.parameters()


def test_another_seed_proposes_other_parameters(tmp_path):
    searches = [HandRunSearch(tmp_path / str(seed), seed=seed) for seed in range(2)]

    for search in searches:
        for name in "abc":
            search.suggest(name)

    first, second = (search.parameters() for search in searches)
    assert first[0] == second[0]
    assert first[2] != second[2]


def test_rows_with_the_same_space_try_different_points_and_the_same_ones_again(tmp_path):
    def points(folder: str) -> list[list[dict]]:
        study = new_study(tmp_path / folder, ("copy", "copy-PN"), num_trials=3)
        first, second = (RowSearch(study, row) for row in study.rows)
        assert first.row.searched == second.row.searched
        return [[search.propose()[0].params for _ in range(3)] for search in (first, second)]

    copies, copies_in_pn = once = points("once")

    assert copies[0] == copies_in_pn[0], "the recommended settings"
    assert copies[1] != copies_in_pn[1]
    assert copies[2] != copies_in_pn[2]
    assert points("again") == once


def test_the_best_trials_are_the_finished_ones_by_their_scores(search):
    assert best_trials(search.search.trials, 3) == []
    search.run("a", 0, 0, 50)
    search.run("b", 0, 99)
    search.run("c", 0, 0, 60)
    search.run("d", 0, 0, 50)
    search.suggest("e")

    assert [trial.number for trial in best_trials(search.search.trials, 3)] == [2, 0, 3]


def test_rows_start_in_their_order_each_with_its_trials_and_its_rungs(tmp_path):
    study = new_study(tmp_path, methods=("cCov-GAN", "c-GAN"), num_trials=2)
    searches = [RowSearch(study, row) for row in study.rows]
    searcher, scheduler = OptunaSearcher(searches), RowScheduler(searches)

    trials = [SimpleNamespace(trial_id=name, config=searcher.suggest(name)) for name in "abcd"]

    described = [trial.config["job"] for trial in trials]
    assert [job.method for job in described] == ["cCov-GAN"] * 2 + ["c-GAN"] * 2
    assert [trial.config["number"] for trial in trials] == [0, 1, 0, 1]
    assert described[2].checkpoint.endswith("/c-GAN/trials/0000-seed0.pt")
    assert searcher.suggest("e") is None
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    # The first trial of a row continues. The second is behind it; the other row does not count.
    decisions = [
        scheduler.on_trial_result(None, trial, result_of([score]))
        for trial, score in zip(trials, [50, 49, 10, 9], strict=True)
    ]
    assert decisions == ["CONTINUE", "STOP", "CONTINUE", "STOP"]
    searcher.on_trial_complete("c", result_of([10, 20, 30]))
    assert [search.num_ended for search in searches] == [0, 1]


class Ladder:
    """A search whose trials reach rung after rung, and that may restart at any point."""

    def __init__(self, folder) -> None:
        self._folder = folder
        self._reached: dict[int, list[float]] = {}
        self.decisions: list[tuple[int, int, str]] = []
        self.restart()

    def restart(self) -> None:
        self._search = HandRunSearch(self._folder)
        self._scheduler = RowScheduler([self._search.search])
        self._running: dict[int, SimpleNamespace] = {}
        for _ in list(self._reached):
            trial = self._start()
            if scores := self._reached[trial.config["number"]]:
                assert self._report(trial, scores) == TrialScheduler.CONTINUE

    def _start(self) -> SimpleNamespace:
        name = f"run {len(self.decisions)}, trial {len(self._running)}"
        config = self._search.suggest(name)
        trial = SimpleNamespace(trial_id=name, config=config)
        self._running[config["number"]] = trial
        self._scheduler.on_trial_add(None, trial)
        return trial

    def _report(self, trial: SimpleNamespace, scores: list[float]) -> str:
        self._search.report(trial.trial_id, *scores)
        return self._scheduler.on_trial_result(None, trial, result_of(scores))

    def climb(self, number: int, score: float) -> None:
        """Report a score at the next evaluation step of a trial."""
        if number not in self._reached:
            self._reached[number] = []
            assert self._start().config["number"] == number
        trial, scores = self._running[number], self._reached[number]
        scores.append(score)
        decision = self._report(trial, scores)
        self.decisions.append((number, len(scores), decision))
        if decision == TrialScheduler.STOP or len(scores) == len(STEPS):
            self._search.end(trial.trial_id, *scores)
            self._scheduler.on_trial_complete(None, trial, result_of(scores))
            del self._reached[number]


# Trials and scores; two trials run at a time. Below the median of earlier trials are 2, 3 and 5 at
# the first rung, and 1 and 4 at the second. The last evaluation stops no trial, not even trial 6.
CLIMB = [(0, 50), (1, 52), (0, 55), (1, 54), (2, 49), (3, 48), (0, 60), (4, 53), (5, 49), (4, 54.2)]
CLIMB += [(6, 60), (7, 61), (6, 62), (7, 63), (7, 64), (6, 1)]
STOPPED = [(1, 2), (2, 1), (3, 1), (5, 1), (4, 2)]


@pytest.mark.parametrize("moment", [None, 1, 4, 8, 13])
def test_half_of_the_trials_at_a_rung_continue_whether_restarted_or_not(tmp_path, moment):
    ladder = Ladder(tmp_path)

    for step, (number, score) in enumerate(CLIMB):
        if step == moment:
            ladder.restart()
        ladder.climb(number, score)

    decisions = [(trial, rung) for trial, rung, decision in ladder.decisions if decision == "STOP"]
    assert decisions == STOPPED


def test_a_record_that_cannot_be_written_ends_the_search_and_not_the_trial(search):
    search.suggest("a")

    def full() -> None:
        raise OSError("No space left on device")

    search.search.records.changed = full
    search.end("a", 40, 45, 50)

    assert str(search.searcher.failure) == "No space left on device"
    assert search.trial(0).state is TrialState.COMPLETE
