"""The two commands of a study, as far as they go without Ray; and what one sees of it."""

import io
import json
import re
import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from cpaan.cli import watching
from cpaan.cli.report import main as report
from cpaan.cli.search import main as search
from cpaan.cli.study_options import search_parser
from cpaan.cli.study_setup import new_study
from cpaan.cli.table_setup import settings_of_row, study_of_row
from cpaan.cli.watching import StudyWatch
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.methods.registry import ROWS, rows_of_table
from cpaan.protocol.config import EvaluationConfig
from cpaan.study import cluster
from cpaan.study.config import StudyConfig
from cpaan.study.finals import in_full
from cpaan.study.fleet import WorkLostError
from cpaan.study.folder import read_study
from cpaan.study.records import Records
from cpaan.study.search import Outcome
from cpaan.study.space import Settled
from cpaan.study.storage import Storage
from cpaan.study.table_study import TableStudy
from helpers.studies import STUDY_SETTINGS
from helpers.tables import in_other_order

pytestmark = pytest.mark.usefixtures("builtin_cache")

ROOT = Path(__file__).parents[2]


def refused(capsys, main, *arguments: str) -> str:
    """Return the one line with which a command refuses its input."""
    try:
        status = main(list(arguments))
    except SystemExit as exit:  # of the parser
        status = exit.code
    said = capsys.readouterr()
    assert status == 2
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def dry_run(capsys, *arguments: str) -> dict:
    assert search([*arguments, "--dry-run"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "command"), [("search", search), ("report", report)])
def test_the_commands_teach(name, command, capsys):
    with pytest.raises(SystemExit, match="0"):
        command(["--help"])

    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"python tune/{name}.py" in shown


def test_a_dry_run_shows_everything_and_does_nothing(capsys):
    shown = dry_run(capsys, "--trials", "9", "--episodes", "80")

    assert shown["config"]["num_trials"] == 9
    assert shown["evaluated after episodes"] == [20, 40, 80]
    assert shown["trial 0"] == {
        "cycle_weight": 5.0,
        "covariance_weight": 0.5,
        "ky_fan_order": 10,
        "neighbours": "soft",
        "perplexity": 10.0,
        "noise": "gaussian",
        "noise_dim": 100,
        "mixing_shots": 2.0,
        "prototype_weight": 10.0,
        "residual": "identity",
    }
    assert shown["all settings of these"]["trial 1"]["generator_loss"] == "minimax"
    assert not Path("results").exists()


def test_the_paper_preset_is_of_the_papers_scale(capsys):
    training = dry_run(capsys, "--preset", "paper", "--method", "cCov-GAN")["training"]

    assert training["num_episodes"] == 100_000
    assert (training["batch_size"], training["num_ways"]) == (1000, 20)
    assert training["episode_shots"] == [10]


def test_short_trials_are_a_part_of_what_finalists_are_trained_for(capsys):
    shown = dry_run_of_rows(capsys, "--method", "copy,PN", "--preset", "paper", "--short", "4")
    whole = ROWS["PN"].config.num_episodes

    assert shown["PN"]["training"]["num_episodes"] == whole // 4
    assert shown["PN"]["config"]["final_length"] == 4
    assert shown["copy"]["config"]["final_length"] == 1, "there is nothing to shorten"


def test_a_finalist_has_the_whole_length_and_all_other_settings_of_its_trial():
    trial = Settled(ROWS["CP-AAN+"].config.with_overrides({"num_episodes": 25}), EvaluationConfig())
    whole = in_full(trial, StudyConfig(final_length=4))

    assert whole.training == trial.training.with_overrides({"num_episodes": 100})
    assert whole.evaluation == trial.evaluation
    assert in_full(trial, StudyConfig()) == trial


def test_options_reach_the_study(capsys):
    config = dry_run(
        capsys,
        *("--method", "c-GAN", "--workers-per-trial", "2", "--gpus-per-worker", "0.25"),
        *("--weights", "2,1", "--no-early-stopping", "--head", "centroid"),
        *("--seed", "7", "--set", "num_finalists=2"),
    )["config"]

    expected = StudyConfig(
        method="c-GAN",
        workers_per_trial=2,
        gpus_per_worker=0.25,
        novel_weight=2.0,
        all_weight=1.0,
        early_stopping=False,
        head="centroid",
        seed=7,
        num_finalists=2,
    )
    assert config == expected.to_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "d-GAN"], "unknown method 'd-GAN', did you mean c-GAN"),
        (["--episodes", "5", "--workers-per-trial", "2"], "5 episodes cannot be shared by 2"),
        (["--set", "nonsense=1"], "unknown setting 'nonsense'"),
        (["--set", "cycle_weight=1000"], "cycle_weight is searched, so it cannot be set"),
        (["--set", "generator_learning_rate=0.1"], "generator_learning_rate is searched"),
        (["--short", "3"], "100 episodes of CP-AAN+ cannot be shortened to one in 3"),
        (
            ["--set", "num_ways=75", "--set", "batch_size=1000"],
            "num_ways is 75, but of 76 base classes",
        ),
        (["--study", "../x"], "a study's name has letters"),
        (["--timeout", "soon"], "'soon' is no time like 90, 10m or 2h"),
        (["--weights", "1"], "'1' is not two numbers"),
        (["--features", "nowhere.parquet"], "no such file: nowhere.parquet"),
        (["--resume"], "there is no study in results/"),
        (["--resume", "nothing"], "results/nothing has no config.json"),
        (["--resume", "x", "--preset", "paper"], "--resume has its study and its preset"),
        (["--storage", "nosuchscheme://x"], "storage nosuchscheme://x/"),
        (["--address", "ray://host:10001"], "a study is no client"),
        (["--gpus-per-worker", "1.5"], "gpus_per_worker must be a whole number or a fraction"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert message in refused(capsys, search, *arguments)


def test_a_trial_of_one_worker_may_do_without_ray_train(capsys):
    assert dry_run(capsys)["config"]["ray_train"]
    assert not dry_run(capsys, "--no-ray-train")["config"]["ray_train"]
    line = refused(capsys, search, "--no-ray-train", "--workers-per-trial", "2")
    assert "ray_train is needed by workers that train together, got 2" in line


@pytest.fixture
def searching_by(monkeypatch) -> Callable[[Callable[..., Outcome]], None]:
    """Have rows searched by a function, without Ray."""

    def replace_search(function: Callable[..., Outcome]) -> None:
        here = cluster.Cluster(None, ({"CPU": 2.0},))
        monkeypatch.setattr("cpaan.cli.search.search", function)
        monkeypatch.setattr("cpaan.cli.search.ray_cluster", lambda *_: nullcontext(here))

    return replace_search


def test_a_row_that_was_lost_does_not_keep_the_others_from_their_search(capsys, searching_by):
    searched = []

    def lose_the_first(study, *_, **__) -> Outcome:
        searched.append(study.config.method)
        if len(searched) == 1:
            raise WorkLostError("(3, 0): the card fell off")
        return Outcome(0, [], None)

    searching_by(lose_the_first)
    status = search(["--method", "none,copy,DC", "--study", "rows"])

    assert status == 1
    assert searched == ["none", "copy", "DC"]
    said = capsys.readouterr()
    assert "none is left for later: (3, 0): the card fell off" in said.err
    assert "none has not ended: python tune/search.py --resume results/rows" in said.out


def test_rows_are_added_to_a_table_as_it_was_begun(capsys, searching_by):
    searched = []

    def note(study, *_, **__) -> Outcome:
        searched.append((study.config.method, study.config.seed))
        return Outcome(0, [], None)

    searching_by(note)
    search(["--method", "none,copy", "--study", "rows", "--seed", "7"])
    searched.clear()

    begun = TableStudy.read(Path("results/rows"))
    for _ in range(2):  # the same command goes on
        search(["--resume", "rows", "--method", "copy,DC"])
    folder = Path("results/rows").absolute()
    begun.write(Records(folder, Storage(str(folder))))  # by a command that began before

    assert searched == 2 * [("none", 7), ("copy", 7), ("DC", 7)]
    content = json.loads(Path("results/rows/config.json").read_text())
    assert content["methods"] == ["none", "copy", "DC"]
    assert len(content["runs"]) == 2
    capsys.readouterr()
    line = refused(capsys, search, "--resume", "rows", "--method", "DC", "--seed", "8")
    assert "rows go on as they were begun, only --trials and rows may be more; got --seed" in line


def test_a_study_of_another_machine_is_not_begun_over(capsys):
    Path("shared/mine").mkdir(parents=True)
    Path("shared/mine/config.json").write_text("{}")

    line = refused(capsys, search, "--study", "mine", "--storage", "shared")

    assert "shared/mine has a study: python tune/search.py --resume mine goes on with it" in line
    assert Path("shared/mine/config.json").read_text() == "{}"


def test_trial_0_has_the_printed_weights_whatever_else_is_set(capsys):
    shown = dry_run(capsys, "--set", "prototype_weight=0", "--method", "cDeLi-GAN")

    assert shown["trial 0"]["num_components"] == 50
    assert shown["training"]["prototype_weight"] == 0


def test_a_storage_that_cannot_be_written_is_one_line(capsys):
    Path("file").write_text("")

    line = refused(capsys, search, "--storage", "file")

    assert re.search(r"error: storage .*file/CP-AAN\+-.* cannot be written: Not a directory", line)


def test_an_address_where_nothing_listens_is_one_line(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        line = refused(capsys, search, "--address", address)

    assert f"error: no Ray answers at {address}" in line


def test_an_address_where_something_else_listens_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS_TO_BE_RAY", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        line = refused(capsys, search, "--address", address)

    assert f"what listens at {address} is no Ray of this version" in line


def room(nodes: list[dict[str, float]], **settings: object) -> int:
    """Return how many trials fit: where none does, the study is refused."""
    there = cluster.Cluster("http://127.0.0.1:8265", tuple(nodes))
    study = StudyConfig(**settings)
    found = there.most_trials_at_once(study)
    is_refused = nullcontext() if found else pytest.raises(ValueError, match="but Ray has room for")
    with is_refused:
        there.check(study)
    return found


def test_room_is_counted_by_machines_and_by_cards():
    one_card = {"CPU": 16.0, "GPU": 1.0}

    assert room([{"CPU": 2.0}]) == 2
    assert room([{"CPU": 2.0}], workers_per_trial=3) == 0
    assert room([{"CPU": 0.0}, {"CPU": 1.0}, {"CPU": 1.0}], workers_per_trial=2) == 1
    assert room([one_card], gpus_per_worker=0.25) == 4
    assert room([one_card], gpus_per_worker=0.3) == 3
    assert room([{"CPU": 2.0, "GPU": 1.0}], gpus_per_worker=0.25, workers_per_trial=4) == 0
    assert room([{"CPU": 8.0, "GPU": 2.0}], gpus_per_worker=0.6, workers_per_trial=3) == 0
    assert room([one_card, one_card], gpus_per_worker=2.0) == 0
    assert room([one_card, one_card], gpus_per_worker=1.0, workers_per_trial=2) == 1


def test_a_ray_without_dashboard_cannot_stop_trials_early():
    there = cluster.Cluster(None, ({"CPU": 2.0},))

    there.check(StudyConfig(early_stopping=False))
    with pytest.raises(ValueError, match="no dashboard, without which"):
        there.check(StudyConfig())


ROWS_HERE = ["none", "MN", "AWG", "c-GAN-PN"]


def test_a_setting_is_for_all_rows_that_have_it_and_for_one_by_its_name():
    given = ["num_draws=3", "dropout=0.2", "AWG.num_ways=7", "cycle_weight=2", "num_finalists=1"]

    kept = {method: settings_of_row(given, method, ROWS_HERE) for method in ROWS_HERE}

    assert kept == {
        "none": ["num_draws=3", "num_finalists=1"],
        "MN": ["num_draws=3", "dropout=0.2", "num_finalists=1"],
        "AWG": ["num_draws=3", "dropout=0.2", "num_ways=7", "num_finalists=1"],
        "c-GAN-PN": ["num_draws=3", "cycle_weight=2", "num_finalists=1"],
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("nonsense=1", "^unknown setting 'nonsense': no method here has it$"),
        ("PN.dropout=1", r"^PN of --set PN\.dropout is none of none, MN, AWG, c-GAN-PN$"),
        ("num_clusters=3", "^unknown setting 'num_clusters'"),
    ],
)
def test_a_setting_of_no_row_is_refused(assignment, message):
    for method in ROWS_HERE:
        with pytest.raises(ValueError, match=message):
            settings_of_row([assignment], method, ROWS_HERE)


def dry_run_of_rows(capsys, *arguments: str) -> dict[str, dict]:
    """Return what is shown of each row."""
    assert search([*arguments, "--dry-run"]) == 0
    text, decoder, shown = capsys.readouterr().out, json.JSONDecoder(), {}
    while text.strip():
        content, end = decoder.raw_decode(text)
        shown[content["config"]["method"]] = content
        text = text[end:].lstrip()
    return shown


def test_a_dry_run_of_rows_shows_each_and_does_nothing(capsys):
    sets = ["--set", "AWG.num_queries=3", "--set", "num_draws=2", "--study", "rows"]

    shown = dry_run_of_rows(capsys, "--method", ",".join(ROWS_HERE), "--episodes", "8", *sets)

    assert list(shown) == ROWS_HERE
    for method, content in shown.items():
        assert content["folder"] == f"results/rows/{method}"
        assert content["config"]["head"] == ROWS[method].head
        assert content["evaluation"]["num_draws"] == 2
    marks = {method: content["evaluated after episodes"] for method, content in shown.items()}
    assert marks == {"none": [0], **{method: [2, 4, 8] for method in ROWS_HERE[1:]}}
    # Where nothing is searched, one trial tells all; the others have the same number.
    trials = {method: content["config"]["num_trials"] for method, content in shown.items()}
    assert trials == {"none": 1, **dict.fromkeys(ROWS_HERE[1:], 12)}
    queries = {method: shown[method]["training"].get("num_queries") for method in ("MN", "AWG")}
    assert queries == {"MN": ROWS["MN"].config.num_queries, "AWG": 3}
    assert shown["c-GAN-PN"]["embedding"]["num_episodes"] == ROWS["PN"].quick["num_episodes"]
    assert shown["MN"]["embedding"] is None
    assert shown["MN"]["trial 1"] == {}
    assert shown["MN"]["all settings of these"]["trial 1"]["optimiser"] == "sgd"
    assert not Path("results").exists()


def test_the_whole_table_can_be_searched_on_the_built_in_features(capsys):
    shown = dry_run_of_rows(capsys, "--method", "table-1", "--trials", "3")

    assert list(shown) == [name for name in rows_of_table() if name != "AWG-cosine"]
    # All have the same budget, but for the one that there is nothing to search of.
    trials = {method: content["config"]["num_trials"] for method, content in shown.items()}
    assert trials == {**dict.fromkeys(shown, 3), "none": 1, "none-PN": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head", "knn"], "--head is of one method, and there are several here"),
        (["--set", "MN.dropout=0.1"], "dropout is searched, so it cannot be set"),
        (["--set", "LR.dropout=0.1"], "LR of --set LR.dropout is none of none, MN, AWG"),
        (["--set", "speed=1"], "unknown setting 'speed': no method here has it"),
        (["--set", "num_queries=1000"], "has 150 train rows"),
    ],
)
def test_bad_input_for_rows_is_one_line(capsys, arguments, message):
    line = refused(capsys, search, "--method", "none,MN,AWG", *arguments)

    assert message in line
    assert not Path("results").exists()


def test_a_row_that_wants_cosine_trained_features_is_searched_on_these(capsys, study_features):
    table, data = open_features(study_features), ["--features", str(study_features)]
    changed = replace(table, features=2 * table.features)
    write_features(Path("cosine.parquet"), changed)
    write_features(Path("other.parquet"), in_other_order(changed))
    sets = ["--set", "episode_shots=1,2"]

    shown = dry_run_of_rows(
        capsys, "--method", "AWG,AWG-cosine", *data, "--cosine-features", "cosine.parquet", *sets
    )

    features = {method: content["data"]["features"] for method, content in shown.items()}
    assert features["AWG"] == [str(study_features)]
    assert features["AWG-cosine"] == [str(Path("cosine.parquet").absolute())]
    fingerprints = {content["data"]["fingerprint"] for content in shown.values()}
    assert len(fingerprints) == 2

    line = refused(capsys, search, "--method", "AWG-cosine", *data, *sets)
    assert "AWG-cosine needs features of a backbone that was trained with a cosine" in line

    # Other processes bring them into the order of the others, which makes them the same features.
    other = ["--cosine-features", "other.parquet"]
    again = dry_run_of_rows(capsys, "--method", "AWG,AWG-cosine", *data, *other, *sets)
    assert again["AWG-cosine"]["data"]["in_order_of"] == [str(study_features)]
    assert "in_order_of" not in again["AWG"]["data"]
    assert {content["data"]["fingerprint"] for content in again.values()} == fingerprints


def test_cosine_trained_features_beside_the_built_in_ones_have_their_order(
    capsys, gaussians, monkeypatch
):
    monkeypatch.setattr(
        "cpaan.cli.options.builtin_features", lambda: (gaussians.table, gaussians.split)
    )
    write_features(Path("other.parquet"), in_other_order(gaussians.table))

    line = refused(capsys, search, "--method", "AWG-cosine", "--cosine-features", "other.parquet")

    assert "--cosine-features have their rows in another order than the built-in ones" in line


@pytest.fixture
def begun(study_features) -> Path:
    """A study that was written down, and no more."""
    sets = [part for name, value in STUDY_SETTINGS.items() for part in ("--set", f"{name}={value}")]
    options = search_parser().parse_args(
        ["--features", str(study_features), "--study", "mine", "--episodes", "8", *sets]
    )
    new_study(options, "cCov-GAN", "mine").write()
    return Path("results/mine")


def test_a_study_is_read_as_it_was_written(begun):
    study = read_study(begun)

    assert study.training.num_episodes == 8
    assert study.data.open().num_dims == 16
    assert study.storage == str(begun.absolute())


def test_a_name_that_is_taken_is_refused(capsys, begun, study_features):
    line = refused(capsys, search, "--study", "mine", "--features", str(study_features))

    assert "results/mine exists: python tune/search.py --resume mine goes on with it" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "9"], "was begun with num_episodes = 8 and cannot go on with 9"),
        (["--seed", "1"], "was begun with seed = 0 and cannot go on with 1"),
        (["--workers-per-trial", "2"], "was begun with workers_per_trial = 1"),
        (["--set", "num_ways=4"], "was begun with num_ways = 3 and cannot go on with 4"),
    ],
)
def test_other_settings_cannot_go_on_with_a_study(capsys, begun, arguments, message):
    assert message in refused(capsys, search, "--resume", "mine", *arguments)


def test_other_data_cannot_go_on_with_a_study(capsys, begun, gaussians):
    from cpaan import write_features

    write_features(Path("other.parquet"), gaussians.table)
    groups = {
        name: {"base": phase.base, "novel": phase.novel}
        for name, phase in vars(gaussians.split).items()
        if phase is not None
    }
    Path("split.json").write_text(json.dumps(groups))

    line = refused(capsys, search, "--resume", "mine", "--features", "other.parquet")

    assert "results/mine is a study of other data" in line


def test_a_study_keeps_its_storage(capsys, begun):
    line = refused(capsys, search, "--resume", "mine", "--storage", "other")

    assert re.search("results/mine has its storage in .*results/mine, not in .*other/mine", line)


def test_one_process_at_a_time_works_on_a_study(begun):
    study = read_study(begun)

    with study.locked(), pytest.raises(ValueError, match="another process works on results/mine"):
        study.locked().__enter__()
    with study.locked():
        pass


def test_more_trials_may_be_wanted_and_the_folder_may_have_moved(capsys, begun):
    Path("results").rename("elsewhere")

    shown = dry_run(capsys, "--resume", "elsewhere/mine", "--trials", "50")

    assert shown["config"]["num_trials"] == 50
    assert shown["folder"] == "elsewhere/mine"


def test_a_report_needs_a_result(capsys, begun):
    assert "results/mine has no best.json" in refused(capsys, report)
    assert "results/other has no config.json" in refused(capsys, report, "other")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def entry(episode: int, score: float, seconds: float = 1.0) -> dict:
    return {"episode": episode, "novel_top5": score, "all_top5": score, "seconds": seconds}


def trial(
    state: TrialState, *scores: float, problem: str | None = None
) -> optuna.trial.FrozenTrial:
    curve = [entry(10 * (place + 1), score) for place, score in enumerate(scores)]
    attributes = {"curve": curve, "problem": problem}
    value = scores[-1] if state is TrialState.COMPLETE else None
    return create_trial(state=state, value=value, user_attrs=attributes)


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(direction="maximize")


def test_elsewhere_than_in_a_terminal_every_end_is_a_line(study):
    stream = io.StringIO()
    watch = StudyWatch(StudyConfig(num_trials=4), 20, stream=stream)
    study.add_trial(trial(TrialState.COMPLETE, 50, 60))
    watch.show(study)
    assert stream.getvalue() == "", "what an earlier run has done is no news"

    study.add_trial(trial(TrialState.PRUNED, 40))
    study.add_trial(trial(TrialState.FAIL, problem="it diverged"))
    study.add_trial(trial(TrialState.COMPLETE, 50, 70))
    watch.show(study)
    watch.show(study)

    lines = [line.partition("] ")[2] for line in stream.getvalue().splitlines()]
    summary = "4 of 4 ended, best 70.00 (trial 3)"
    assert lines == [
        f"trial 1 stopped early: score 40.00 after 10 episodes; {summary}",
        f"trial 2 failed: it diverged; {summary}",
        f"trial 3 complete: score 70.00 after 20 episodes; {summary}",
    ]


def test_a_terminal_has_a_table_that_is_drawn_in_place(study):
    stream = Terminal()
    watch = StudyWatch(StudyConfig(num_trials=4), 20, stream=stream)
    study.add_trial(trial(TrialState.COMPLETE, 50, 60))
    study.add_trial(trial(TrialState.RUNNING, 40))

    watch.show(study)
    first = stream.getvalue()
    watch.show(study)

    rows = [line.split() for line in first.splitlines()]
    assert rows[2] == ["1", "running", "10", "of", "20", "40.00", "40.00", "40.00"]
    assert rows[3] == ["0", "complete", "20", "of", "20", "60.00", "60.00", "60.00"]
    assert stream.getvalue() == f"{first}\x1b[{len(rows)}A\x1b[J{first}"


def test_the_time_left_is_that_of_ended_trials(study, monkeypatch):
    now = 0.0
    monkeypatch.setattr(watching.time, "monotonic", lambda: now)
    stream = io.StringIO()
    watch = StudyWatch(StudyConfig(num_trials=6), 20, stream=stream)
    for _ in range(2):
        study.add_trial(trial(TrialState.RUNNING, 40))
    watch.show(study)
    now = 30.0
    study.tell(0, 50.0)
    study.add_trial(trial(TrialState.RUNNING))
    watch.show(study)

    # Trial 1 is as old as trial 0 was: a tenth of its time. Four more of 30 s. Two at a time.
    assert "about 62 s left" in stream.getvalue()


def test_what_is_said_is_also_in_the_log():
    watch = StudyWatch(StudyConfig(), 20, log=Path("results/x/study.log"), stream=io.StringIO())

    watch.say("starting")

    assert Path("results/x/study.log").read_text().endswith("] starting\n")


def test_a_row_that_another_command_has_begun_meanwhile_is_taken_as_it_is(study_features):
    given = ["--method", "copy,none", "--study", "t", "--preset", "quick", "--trials", "3"]
    given += ["--features", str(study_features), "--set", "shots=1,2", "--set", "num_draws=2"]
    options, table = search_parser().parse_args(given), TableStudy(("copy", "none"), tuple(given))
    mine = study_of_row(options, table, Path("results/t"), "copy")
    other = replace(mine, config=mine.config.with_overrides({"gpus_per_worker": 0.5}))
    other.write()

    again = study_of_row(options, table, Path("results/t"), "copy")

    assert again.config == other.config != mine.config
