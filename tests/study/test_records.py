"""What a study remembers: in Optuna's file, in its table, and in the copies elsewhere."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from optuna.distributions import json_to_distribution
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler
from tensorboardX.proto.event_pb2 import Event

from cpaan import Phase, Split
from cpaan.study.config import DataReference
from cpaan.study.folder import Study, newest_study, read_study
from cpaan.study.job import Evaluation, Report
from cpaan.study.records import OPTUNA, TRIALS, Records, read_json, trial_table
from cpaan.study.searcher import (
    ResumableASHA,
    best_trials,
    enqueue_points,
    open_study,
)
from cpaan.study.space import AS_PRINTED, RECOMMENDED, Settled
from cpaan.study.storage import Storage
from cpaan.study.trial import ALL_TOP5, CURVE, EPISODE, NOVEL_TOP5, to_metrics
from helpers.studies import CONFIG, MARKS, SPACE, Search, result_of

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def search(tmp_path) -> Search:
    return Search(tmp_path)


def test_the_first_two_trials_are_the_papers(search):
    first, second = search.suggest("a"), search.suggest("b")

    for number, (trial, whose) in enumerate([(first, RECOMMENDED), (second, AS_PRINTED)]):
        around = SPACE.around(whose)
        assert trial.number == number
        assert trial.settled == Settled(around.training, around.evaluation)


def test_further_points_follow_once(tmp_path):
    study = open_study(tmp_path / OPTUNA, CONFIG)

    for _ in range(2):
        enqueue_points(study, SPACE, [{"cycle_weight": 7.0}])

    search = Search(tmp_path)
    settled = [search.suggest(name).settled for name in "abcd"]
    assert settled[2].training.cycle_weight == 7.0
    assert settled[3].training.cycle_weight != 7.0
    assert len(search.study.get_trials()) == 4


def test_a_finished_trial_is_complete_with_its_score_and_values_by_episode(search):
    search.suggest("a")
    search.report("a", 40)
    search.report("a", 40, 45)
    search.report("a", 40, 45, 50)
    search.end("a", 40, 45, 50)

    trial = search.trial(0)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 50)
    assert trial.intermediate_values == {50: 40, 100: 45, 200: 50}


def test_a_stopped_trial_is_pruned_with_its_values_by_episode(search):
    search.suggest("a")
    search.report("a", 40)
    search.end("a", 40, 45)

    trial = search.trial(0)
    assert trial.state == TrialState.PRUNED
    assert trial.intermediate_values == {50: 40, 100: 45}


def test_a_trial_with_a_problem_has_failed(search):
    search.suggest("a")
    search.end("a", 40, problem="cCov-GAN diverged")

    trial = search.trial(0)
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs["problem"] == "cCov-GAN diverged"
    assert trial.intermediate_values == {50: 40}


def test_a_trial_may_have_a_problem_before_its_first_mark(search):
    search.suggest("a")
    search.end("a", problem="cCov-GAN diverged")

    assert search.trial(0).state == TrialState.FAIL


@pytest.mark.parametrize("result", [None, result_of([40])])
def test_a_trial_that_died_is_handed_out_again_under_its_number(search, tmp_path, result):
    before = search.suggest("a")
    search.report("a", 40)
    search.searcher.on_trial_complete("a", result, error=True)
    assert search.trial(0).state == TrialState.RUNNING

    again = Search(tmp_path)
    after = again.suggest("b")

    assert (after.number, after.settled) == (before.number, before.settled)
    again.report("b", 40, 45)
    again.end("b", 40, 45, 50)
    trial = again.trial(0)
    assert trial.state == TrialState.COMPLETE
    assert trial.user_attrs["problem"] is None
    assert trial.intermediate_values == {50: 40, 100: 45, 200: 50}


def test_trials_that_ran_when_the_search_died_come_first_and_once(search, tmp_path):
    for name in "abc":
        search.suggest(name)
    search.end("b", 40, 45, 50)

    again = Search(tmp_path)

    assert [again.suggest(name).number for name in "def"] == [0, 2, 3]
    assert again.parameters()[:3] == search.parameters()[:3]


def test_reports_that_come_twice_late_or_out_of_order_are_noted_once_each(search):
    search.suggest("a")
    search.report("a", 40, 45)
    search.report("a", 40, 45)
    search.report("a", 40)
    search.report("a", 40, 45, 50)

    trial = search.trial(0)
    assert trial.intermediate_values == {50: 40, 100: 45, 200: 50}
    assert [entry["episode"] for entry in trial.user_attrs["curve"]] == [50, 100, 200]


def test_all_that_is_written_down_is_told(search):
    search.suggest("a")
    search.report("a", 40)
    search.end("a", 40)

    assert search.num_changes == 3


def test_a_trial_knows_all_its_settings(search):
    settled = search.suggest("a").settled

    attributes = json.loads(json.dumps(search.trial(0).user_attrs))
    assert type(settled.training)(**attributes["training"]) == settled.training
    assert type(settled.evaluation)(**attributes["evaluation"]) == settled.evaluation


def score_of(number: int) -> float:
    """Return a score that no other trial has."""
    return 30 + (7 * number) % 13


@pytest.mark.parametrize("every", [1, 6])
def test_proposals_after_a_restart_are_those_without(tmp_path, every):
    """Beyond the random ones at the start, where they depend on what is known."""
    unbroken, broken = Search(tmp_path / "unbroken"), Search(tmp_path / "broken")

    for number in range(7):
        unbroken.run(str(number), 0, 0, score_of(number))
        if number % every == every - 1:
            broken = Search(tmp_path / "broken")
        broken.run(str(number), 0, 0, score_of(number))

    assert broken.parameters() == unbroken.parameters()
    assert len({json.dumps(parameters) for parameters in broken.parameters()}) == 7


def test_proposals_beside_an_unfinished_trial_are_the_same_after_a_restart(tmp_path):
    unbroken, broken = Search(tmp_path / "unbroken"), Search(tmp_path / "broken")
    for search in (unbroken, broken):
        for number in range(5):
            search.run(str(number), 0, 0, score_of(number))
        search.suggest("5")
        search.report("5", 20)

    broken = Search(tmp_path / "broken")
    assert broken.suggest("5 again").number == 5
    for search in (unbroken, broken):
        search.suggest("6")

    assert broken.parameters() == unbroken.parameters()


def test_a_trial_whose_proposal_was_cut_short_is_proposed_alike(tmp_path):
    unbroken, broken = Search(tmp_path / "unbroken"), Search(tmp_path / "broken")
    for search in (unbroken, broken):
        search.run("0", 0, 0, score_of(0))
        search.run("1", 0, 0, score_of(1))
    unbroken.suggest("2")
    broken.study.ask()

    broken = Search(tmp_path / "broken")
    assert broken.suggest("2").number == 2

    assert broken.parameters() == unbroken.parameters()


def test_another_seed_proposes_other_parameters(tmp_path):
    searches = [Search(tmp_path / str(seed), replace(CONFIG, seed=seed)) for seed in range(2)]

    for search in searches:
        for name in "abc":
            search.suggest(name)

    first, second = (search.parameters() for search in searches)
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_with_two_objectives_both_are_told(tmp_path):
    search = Search(tmp_path, replace(CONFIG, pareto=True))

    search.suggest("a")
    search.report("a", 40)
    search.end("a", 40, 45, 50)

    assert search.trial(0).values == [60, 40]
    assert search.trial(0).state == TrialState.COMPLETE


def test_the_best_trials_are_the_finished_ones_by_their_scores(search):
    search.run("a", 0, 0, 50)
    search.run("b", 0, 99)
    search.run("c", 0, 0, 60)
    search.run("d", 0, 0, 50)
    search.suggest("e")

    assert [trial.number for trial in best_trials(search.study, CONFIG, 3)] == [2, 0, 3]
    assert [trial.number for trial in best_trials(search.study, CONFIG, 1)] == [2]


def test_of_two_objectives_the_unbeaten_trials_come_first(tmp_path):
    config = replace(CONFIG, pareto=True)
    search = Search(tmp_path, config)
    for name, values in {"a": (80, 20), "b": (50, 49), "c": (52, 60), "d": (79, 19)}.items():
        search.suggest(name)
        curve = (Evaluation(200, *values, 1.0),)
        search.searcher.on_trial_complete(name, to_metrics(Report(curve), config))

    assert [trial.number for trial in best_trials(search.study, config, 4)] == [2, 0, 1, 3]


def test_there_is_no_best_trial_before_one_has_finished(search):
    search.run("a", 40)

    assert best_trials(search.study, CONFIG, 5) == []


class Ladder:
    """A search whose trials climb the rungs, and may be restarted at any point."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reached: dict[int, list[float]] = {}
        self.decisions: list[tuple[int, int, str]] = []
        self.restart()

    def restart(self) -> None:
        self._search = Search(self._folder)
        self._scheduler = ResumableASHA(CONFIG, MARKS, self._search.study)
        self._running: dict[int, SimpleNamespace] = {}
        for _ in list(self._reached):
            trial = self._begin()
            if scores := self._reached[trial.config["trial"].number]:
                assert self._report(trial, scores) == TrialScheduler.CONTINUE

    def _begin(self) -> SimpleNamespace:
        name = f"run {len(self.decisions)}, trial {len(self._running)}"
        config = {"trial": self._search.suggest(name)}
        trial = SimpleNamespace(trial_id=name, config=config)
        self._running[config["trial"].number] = trial
        self._scheduler.on_trial_add(None, trial)
        return trial

    def _report(self, trial: SimpleNamespace, scores: list[float]) -> str:
        self._search.report(trial.trial_id, *scores)
        return self._scheduler.on_trial_result(None, trial, result_of(scores))

    def climb(self, number: int, score: float) -> None:
        """Let a trial reach its next mark."""
        if number not in self._reached:
            self._reached[number] = []
            assert self._begin().config["trial"].number == number
        trial, scores = self._running[number], self._reached[number]
        scores.append(score)
        decision = self._report(trial, scores)
        self.decisions.append((number, len(scores), decision))
        if decision == TrialScheduler.STOP or len(scores) == len(MARKS):
            self._search.end(trial.trial_id, *scores)
            self._scheduler.on_trial_complete(None, trial, result_of(scores))
            del self._reached[number]


# Trial and score: two run at a time. Behind the median of those before them are 2, 3 and 5 at the
# first rung, 1 and 4 at the second.
CLIMB = [(0, 50), (1, 52), (0, 55), (1, 54), (2, 49), (3, 48), (0, 60), (4, 53), (5, 49), (4, 54.2)]
CLIMB += [(6, 60), (7, 61), (6, 62), (7, 63), (7, 64), (6, 1)]


STOPPED = [(1, 2), (2, 1), (3, 1), (5, 1), (4, 2)]


@pytest.mark.parametrize("moment", [None, 1, 4, 8, 13])
def test_half_of_those_that_reach_a_rung_go_on_whether_restarted_or_not(tmp_path, moment):
    ladder = Ladder(tmp_path)

    for step, (number, score) in enumerate(CLIMB):
        if step == moment:
            ladder.restart()
        ladder.climb(number, score)

    decisions = [(trial, rung) for trial, rung, decision in ladder.decisions if decision == "STOP"]
    assert decisions == STOPPED


@pytest.mark.parametrize("num_episodes", [200, 10, 100_000])
def test_the_last_mark_stops_no_trial(tmp_path, num_episodes):
    eval_steps = CONFIG.eval_steps(num_episodes)
    scheduler = ResumableASHA(CONFIG, eval_steps, open_study(tmp_path / OPTUNA, CONFIG))

    for number in range(4):
        config = {"trial": SimpleNamespace(number=number)}
        trial = SimpleNamespace(trial_id=str(number), config=config)
        scheduler.on_trial_add(None, trial)
        for mark in eval_steps:
            # Ahead of all others at the rungs, and behind all of them at the end.
            score = -number if mark == num_episodes else number
            entry = {EPISODE: mark, NOVEL_TOP5: score, ALL_TOP5: score}
            decision = scheduler.on_trial_result(None, trial, {CURVE: [entry]})
            assert decision == TrialScheduler.CONTINUE


@pytest.fixture
def told(search) -> Search:
    """A trial of each kind, and one that waits for nobody."""
    search.run("a", 40, 45, 50)
    search.run("b", 30, 35)
    search.suggest("c")
    search.end("c", 20, problem="cCov-GAN diverged")
    search.suggest("d")
    return search


def test_the_table_has_a_row_for_each_trial_that_was_begun(told):
    config = replace(CONFIG, workers_per_trial=2, gpus_per_worker=0.5)
    told.study.enqueue_trial({"cycle_weight": 7.0})

    table = trial_table(told.study, config).set_index("trial")

    assert table["state"].tolist() == ["complete", "stopped early", "failed", "unfinished"]
    assert table["score"].tolist()[:3] == [50, 35, 20]
    assert table["novel_top5"].tolist()[:3] == [60, 45, 30]
    assert table["all_top5"].tolist()[:3] == [40, 25, 10]
    assert table.loc[3, ["score", "novel_top5", "all_top5"]].isna().all()
    assert table["episodes"].tolist() == [200, 100, 50, 0]
    assert table["seconds"].tolist() == [30, 20, 10, 0]
    assert table["worker_seconds"].tolist() == [60, 40, 20, 0]
    assert table["gpu_seconds"].tolist() == [30, 20, 10, 0]
    assert table["problem"].dropna().to_dict() == {2: "cCov-GAN diverged"}
    assert table["cycle_weight"].tolist()[:2] == [5, 5]
    assert table["perplexity"].isna().tolist()[:2] == [False, True]


def test_the_table_reads_back_from_parquet(told, tmp_path):
    trial_table(told.study, CONFIG).to_parquet(tmp_path / TRIALS, index=False)

    table = pd.read_parquet(tmp_path / TRIALS)

    assert list(table.columns[:4]) == ["trial", "state", "score", "novel_top5"]
    assert list(table.columns[-4:]) == ["curve", "training", "evaluation", "problem"]
    curve = [dict(entry) for entry in table["curve"][1]]
    assert curve == told.trial(1).user_attrs["curve"]
    assert len(table["curve"][3]) == 0
    assert json.loads(table["training"][0]) == told.trial(0).user_attrs["training"]


def test_the_table_has_the_ranges_of_a_trials_own_parameters(told):
    table = trial_table(told.study, CONFIG)

    for number, text in enumerate(table["distributions"][:2]):
        found = {name: json_to_distribution(each) for name, each in json.loads(text).items()}
        assert found == told.trial(number).distributions
    assert "perplexity" in json.loads(table["distributions"][0])
    assert "perplexity" not in json.loads(table["distributions"][1])


def test_a_table_without_trials_has_its_columns(search, tmp_path):
    trial_table(search.study, CONFIG).to_parquet(tmp_path / TRIALS, index=False)

    assert "score" in pd.read_parquet(tmp_path / TRIALS).columns


def test_records_elsewhere_are_copies_that_can_be_read(told, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    records = Records(tmp_path, Storage(f"file://{elsewhere}"))

    records.update(told.study, CONFIG)
    records.write_json("best.json", {"score": 50.0})

    copy = open_study(elsewhere / OPTUNA, CONFIG)
    assert [trial.state for trial in copy.get_trials()] == [
        trial.state for trial in told.study.get_trials()
    ]
    assert copy.best_trial.params == told.trial(0).params
    assert (elsewhere / TRIALS).read_bytes() == (tmp_path / TRIALS).read_bytes()
    assert read_json(elsewhere, "best.json") == read_json(tmp_path, "best.json") == {"score": 50.0}


def test_the_same_folder_by_another_name_is_not_elsewhere(tmp_path):
    folder = tmp_path / "study"
    search = Search(folder)
    search.suggest("a")

    Records(folder, Storage(f"{folder}/../study")).update(search.study, CONFIG)
    search.end("a", 40, 45, 50)

    assert Search(folder).trial(0).state == TrialState.COMPLETE


def events_in(folder: Path) -> list[tuple[int, str]]:
    """Return step and name of every number in TensorBoard's files."""
    found = []
    for path in sorted(folder.iterdir()):
        content, position = path.read_bytes(), 0
        while position < len(content):
            (length,) = struct.unpack_from("<Q", content, position)
            start = position + 12  # behind the length and its checksum
            event = Event.FromString(content[start : start + length])
            found += [(event.step, value.tag) for value in event.summary.value]
            position = start + length + 4
    return sorted(found)


def test_every_entry_of_a_curve_is_an_event_once(search, tmp_path):
    def update(records: Records) -> list[int]:
        records.update(search.study, CONFIG)
        events = events_in(tmp_path / "tensorboard" / "0000")
        return [step for step, name in events if name == "novel_top5"]

    records = Records(tmp_path, Storage(str(tmp_path)))
    search.suggest("a")
    search.report("a", 40)
    assert update(records) == update(records) == [50]
    search.report("a", 40, 45)
    assert update(records) == [50, 100]

    restarted = Records(tmp_path, Storage(str(tmp_path)))
    assert update(restarted) == [50, 100]
    search.report("a", 40, 45, 50)
    assert update(restarted) == [50, 100, 200]


def test_infinity_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Records(tmp_path, Storage(str(tmp_path))).write_json("best.json", {"score": float("inf")})

    assert not (tmp_path / "best.json").exists()


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ValueError, match=f"{tmp_path} has no best.json: it is no study"):
        read_json(tmp_path, "best.json")
    with pytest.raises(ValueError, match=r"config.json cannot be read: "):
        read_json(tmp_path, "config.json")


def new_study(folder: Path, **fields: object) -> Study:
    names = ("ant", "bee", "cat", "dog")
    split = Split(Phase(("ant",), ("bee",)), Phase(("cat",), ("dog",)), label_names=names)
    data = DataReference(("/data/train.hdf5", "/data/test.hdf5"), split, "0123")
    settings = {"config": CONFIG, "training": SPACE.training, "evaluation": SPACE.evaluation}
    return Study(**{**settings, "data": data, "num_dims": 512, "folder": folder, **fields})


def test_a_study_reads_back_from_its_folder(tmp_path):
    study = new_study(tmp_path, elsewhere="mock:///study")

    study.write()

    assert read_study(tmp_path) == study
    assert read_study(tmp_path).storage == "mock:///study"


def test_a_folder_that_was_moved_is_the_storage_of_its_study(tmp_path):
    new_study(tmp_path / "before").write()
    (tmp_path / "before").rename(tmp_path / "after")

    assert read_study(tmp_path / "after").storage == str(tmp_path / "after")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": replace(CONFIG, seed=1)}, "begun with seed = 0 and cannot go on with 1"),
        (
            {"training": SPACE.training.with_overrides({"num_episodes": 400})},
            "begun with num_episodes = 200 and cannot go on with 400",
        ),
        (
            {"evaluation": SPACE.evaluation.with_overrides({"num_draws": 3})},
            "begun with num_draws = 5 and cannot go on with 3",
        ),
        (
            {"data": replace(new_study(Path("study")).data, fingerprint="4567")},
            "other data: their fingerprint is 0123 and that of these 4567",
        ),
    ],
)
def test_a_study_goes_on_with_the_same_settings_and_data_only(changes, message, tmp_path):
    new_study(tmp_path).write()

    with pytest.raises(ValueError, match=message):
        new_study(tmp_path, **changes).check_goes_on_from(read_study(tmp_path))


def test_a_study_may_go_on_to_more_trials_and_with_moved_data_but_not_with_other_draws(tmp_path):
    new_study(tmp_path).write()
    moved = replace(new_study(tmp_path).data, features=("/moved/features.parquet",))
    more = new_study(tmp_path, config=replace(CONFIG, num_trials=100), data=moved)

    other = replace(more, evaluation=more.evaluation.with_overrides({"num_draws": 3}))

    more.check_goes_on_from(read_study(tmp_path))
    with pytest.raises(ValueError, match="num_draws"):
        other.check_goes_on_from(read_study(tmp_path))


def test_the_newest_study_is_found(tmp_path):
    with pytest.raises(ValueError, match=r"there is no study in .*: python tune/search.py makes"):
        newest_study(tmp_path)

    for name in ("b", "a"):
        new_study(tmp_path / name).write()

    assert newest_study(tmp_path) == tmp_path / "a"


def test_a_folder_of_something_else_is_no_study(tmp_path):
    (tmp_path / "config.json").write_text('{"config": {}}')

    with pytest.raises(ValueError, match=r"config.json is of no study that can be read"):
        read_study(tmp_path)


def test_a_record_that_cannot_be_written_ends_the_search_and_not_the_trial(tmp_path):
    search = Search(tmp_path)
    search.suggest("a")

    def full() -> None:
        raise OSError("No space left on device")

    search.searcher._changed = full
    search.report("a", 40)
    search.end("a", 40, 45, 50)

    assert str(search.searcher.failure) == "No space left on device"
    assert search.study.trials[0].state is TrialState.COMPLETE
