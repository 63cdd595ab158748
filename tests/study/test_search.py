"""A whole study on Ray: search, go on, report; and workers that train together."""

import fcntl
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import optuna
import pandas as pd
import pytest
import ray
import torch
from ray.util.state import list_actors

from cpaan.cli.report import main as report
from cpaan.cli.search import main as search
from cpaan.cli.watching import StudyWatch
from cpaan.core.files import load_state
from cpaan.gan.spiral import SPIRAL_CONFIG
from cpaan.protocol.config import HEADS
from cpaan.study import report as report_module
from cpaan.study.config import StudyConfig
from cpaan.study.fleet import JobFailedError, WorkLostError, collect
from cpaan.study.job import Evaluation, Job, run_job
from cpaan.study.machines import check_machines
from cpaan.study.trial import Trial, train_with_workers
from helpers.runs import threads
from helpers.studies import STUDY_SETTINGS, new_job, scores

# A test starts up to six trials, each in processes of its own that import torch.
pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

CPU = torch.device("cpu")


def arguments(features: Path, *more: str) -> list[str]:
    """Return options of a small study whose trials do without Ray Train, which starts slowly."""
    return [*with_ray_train(features, *more), "--no-ray-train"]


def with_ray_train(features: Path, *more: str) -> list[str]:
    sets = [part for name, value in STUDY_SETTINGS.items() for part in ("--set", f"{name}={value}")]
    return ["--features", str(features), "--episodes", "20", *sets, *more]


def stopped_at(words: str) -> Callable[[StudyWatch, str], None]:
    """As by Ctrl-C, when some words are said."""
    say = StudyWatch.say

    def say_and_stop(self: StudyWatch, message: str) -> None:
        say(self, message)
        if words in message:
            raise KeyboardInterrupt

    return say_and_stop


def train(job: Job, num_workers: int) -> tuple[list[tuple[int, float, float]], dict]:
    check_machines(job.storage, print)
    train_with_workers(Trial(0, job, StudyConfig(workers_per_trial=num_workers)), [])
    state = load_state(Path(job.storage) / job.path)
    return scores(tuple(Evaluation(**entry) for entry in state["curve"])), state["run"]["networks"]


def train_here(job: Job, num_workers: int) -> tuple[list[tuple[int, float, float]], dict]:
    """Return the same as `train`, of workers that are threads of this process."""
    with ThreadPoolExecutor(num_workers) as pool:
        reports = list(pool.map(lambda each: [*run_job(job, CPU, each)], threads(num_workers)))
    of_rank_0 = reports[0][-1]
    return scores(of_rank_0.curve), load_state(Path(job.storage) / job.path)["run"]["networks"]


def test_workers_on_ray_train_as_in_one_process_to_the_last_bit(two_cpus, gaussians, tmp_path):
    job = new_job(gaussians, tmp_path, "on-ray.pt")

    curve, weights = train(job, num_workers=2)
    curve_here, weights_here = train_here(replace(job, path="here.pt"), num_workers=2)

    assert curve == curve_here
    assert set(weights) == set(weights_here)
    assert all(torch.equal(weights[name], weights_here[name]) for name in weights)


def curves(folder: Path) -> list[dict[int, float]]:
    """Return GLSL by episode, for each trial of a study."""
    table = pd.read_parquet(folder / "trials.parquet")
    return [{entry["episode"]: entry["all_top5"] for entry in row} for row in table["curve"]]


def test_a_study_is_searched_gone_on_with_and_reported(
    two_cpus, study_features, capsys, monkeypatch
):
    """Once with everything: Ray Train, and a report with all its pictures."""
    folder = Path("results/mine")
    assert search(arguments(study_features, "--study", "without", "--trials", "1")) == 0
    without_train = curves(Path("results/without"))
    capsys.readouterr()

    assert search(with_ray_train(study_features, "--study", "mine", "--trials", "2")) == 0

    said = capsys.readouterr()
    assert "Ray's dashboard: http://127.0.0.1:" in said.err
    assert said.err.count("of 2 ended") == 2
    assert "Next: python tune/report.py results/mine" in said.out
    best = json.loads((folder / "best.json").read_text())
    assert best["run"]["commit"]
    assert (
        best["features"] == json.loads((folder / "config.json").read_text())["data"]["fingerprint"]
    )
    first = pd.read_parquet(folder / "trials.parquet")
    assert first["trial"].tolist() == [0, 1]
    # Another Ray may run on this machine at the same time.
    actors = partial(list_actors, ray.get_runtime_context().gcs_address, limit=10_000)
    names = {actor.class_name for actor in actors()}
    assert "TrainStateActor" in names, "by which the dashboard knows of Train runs"
    assert list((folder / "tensorboard").glob("0000/events*"))
    assert not list(folder.glob("ray/**/*.pt")), "states are kept once"
    # Which of the two trials is stopped early depends on which of them is sooner.
    one, other = curves(folder)[0], without_train[0]
    both = one.keys() & other.keys()
    assert both
    assert {each: one[each] for each in both} == {each: other[each] for each in both}
    trials = [each for each in actors() if each.class_name == "ImplicitFunc"]
    assert {each.state for each in trials} == {"DEAD"}, "those too that were stopped early"

    assert search(["--resume", "mine", "--trials", "3"]) == 0

    table = pd.read_parquet(folder / "trials.parquet")
    assert table["trial"].tolist() == [0, 1, 2]
    assert table[:2]["score"].tolist() == first["score"].tolist()
    study = optuna.load_study(study_name="cpaan", storage=f"sqlite:///{folder}/optuna.db")
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"}
    assert "of 3 ended" in (folder / "study.log").read_text()
    capsys.readouterr()

    short = SPIRAL_CONFIG.with_overrides({"num_episodes": 20})
    monkeypatch.setattr(report_module, "SPIRAL_CONFIG", short)
    assert report(["--draws", "6"]) == 0

    said = capsys.readouterr().out
    assert said.rstrip().splitlines()[-1] == "The page: results/mine/report/index.html"
    content = json.loads((folder / "report" / "report.json").read_text())
    assert content["phase"] == "test"
    assert content["test_reads"] == 1
    assert len(Path("results/test-reads.jsonl").read_text().splitlines()) == 1
    chosen = json.loads((folder / "best.json").read_text())["trial"]
    seeds = {row["name"]: row["seeds"] for row in content["rows"]}
    assert seeds["CP-AAN+, best"] == [1, 2, 3], "the search has used seed 0"
    variants = [row["ablation"] for row in content["rows"] if row["ablation"] is not None]
    assert {each["family"] for each in variants} == {"neighbours", "ideas"}
    assert {each["of"] for each in variants} == {"CP-AAN+, best"}
    page = (folder / "report" / "index.html").read_text()
    for picture in ("gain-by-neighbours", "gain-by-idea", "projections", "spectra", "spiral"):
        assert (folder / "report" / "figures" / f"{picture}.svg").exists()
        assert f"figures/{picture}.svg" in page
    assert {row["trial"] for row in content["rows"]} == {None, 0, chosen}
    cells = pd.read_csv(folder / "report" / "table.csv")
    assert set(cells["column"]) == {"novel", "all", "novel_joint", "base", "all_prior"}
    every = pd.read_parquet(folder / "report" / "scores.parquet")
    assert every["draw"].nunique() == 5 + 6
    assert r"\bottomrule" in (folder / "report" / "table.tex").read_text()
    assert "trial 0" in said


def test_a_storage_elsewhere(two_cpus, study_features, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    more = ("--no-early-stopping", "--storage", str(elsewhere))
    status = search(arguments(study_features, "--study", "two", "--trials", "2", *more))

    assert status == 0
    table = pd.read_parquet("results/two/trials.parquet")
    assert set(table["state"]) == {"complete"}, "nothing is stopped early"
    for name in ("config.json", "trials.parquet", "best.json", "optuna.db"):
        assert (elsewhere / "two" / name).exists()
    copy = optuna.load_study(study_name="cpaan", storage=f"sqlite:///{elsewhere}/two/optuna.db")
    assert len(copy.trials) == 2

    # On a machine that has nothing of it.
    Path("results").rename("lost")
    assert search(["--resume", "two", "--storage", str(elsewhere), "--trials", "3"]) == 0
    assert len(pd.read_parquet("results/two/trials.parquet")) == 3


def test_rows_are_searched_one_by_one_gone_on_with_and_reported_together(
    two_cpus, study_features, tmp_path, capsys, monkeypatch
):
    elsewhere = ("--storage", str(tmp_path / "elsewhere"))
    rows = ("--method", "none,c-GAN-PN", "--trials", "2", "--study", "rows")

    assert search(arguments(study_features, *rows, *elsewhere, "--timeout", "1")) == 1

    assert "rows are left: python tune/search.py --resume results/rows" in capsys.readouterr().out

    assert report(["rows"]) == 2, "nothing is read of the test phase before all rows have ended"
    assert "of results/rows have no winner so far" in capsys.readouterr().err
    assert not Path("results/test-reads.jsonl").exists()
    assert search(["--resume", "rows", *elsewhere, "--episodes", "30"]) == 2
    assert "only --trials and rows may be more; got --episodes" in capsys.readouterr().err

    # On a machine that has nothing of it, with a row more, while another command works on one.
    Path("results").rename("lost")
    first = Path("results/rows/none")
    first.mkdir(parents=True)
    with (first / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert search(["--resume", "rows", *elsewhere, "--trials", "2", "--method", "AWG"]) == 1
    assert "Other commands work on none" in capsys.readouterr().out
    assert search(["--resume", "rows", *elsewhere, "--trials", "2"]) == 0

    assert "Next: python tune/report.py results/rows" in capsys.readouterr().out
    trials = {
        row: pd.read_parquet(f"results/rows/{row}/trials.parquet") for row in ("AWG", "c-GAN-PN")
    }
    assert {len(table) for table in trials.values()} == {2}
    assert len(pd.read_parquet("results/rows/none/trials.parquet")) == 1, "nothing to search"

    with monkeypatch.context() as patched:
        patched.setattr(StudyWatch, "say", stopped_at("(3 of 9)"))
        assert report(["rows", "--draws", "4", "--table-only"]) == 130
    assert len(list((tmp_path / "elsewhere").rglob("report-parts/*.zip"))) == 3
    assert report(["rows", "--draws", "4", "--table-only"]) == 0

    assert "3 of 9 were measured before" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").rglob("*.zip")), "the report has it all now"
    content = json.loads(Path("results/rows/report/report.json").read_text())
    assert [row["name"] for row in content["rows"]] == ["none", "AWG", "c-GAN-PN"], (
        "as in the paper"
    )
    assert {row["name"]: row["seeds"] for row in content["rows"]}["AWG"] == [1, 2, 3]
    assert content["test_reads"] == 2, "one of them was stopped"
    (earlier,) = content["earlier"]
    assert sum(map(len, earlier["pieces"].values())) == 3
    best = {name: entry["trial"] for name, entry in content["best"].items()}
    assert {row["name"]: row["trial"] for row in content["rows"]} == best
    scores = pd.read_parquet("results/rows/report/scores.parquet")
    assert not scores.duplicated(["method", "head", "column", "shots", "draw", "seed"]).any()
    assert set(scores.groupby("method")["seed"].nunique()) == {3}
    assert set(scores[scores["method"] == "AWG"]["head"]) == {"own"}
    assert set(scores[scores["method"] == "c-GAN-PN"]["head"]) == set(HEADS)
    page = Path("results/rows/report/report.md").read_text()
    assert "the paper's rule for the final classifier" in page
    assert "head chosen on validation" in page
    assert "| CP-AAN | PN | c-GAN | c-GAN-PN | centroid |" in page


def test_work_that_is_lost_leaves_the_rest_to_be_done(two_cpus):
    errors = {1: ValueError("a bad setting"), 2: RuntimeError("the card fell off")}

    def answer(number: int) -> int:
        if number in errors:
            raise errors[number]
        return 10 * number

    work = {number: partial(ray.remote(answer).remote, number) for number in range(4)}

    found = dict(collect(work, num_at_once=1))

    assert (found[0], found[3]) == (0, 30)
    assert isinstance(found[1], JobFailedError)
    assert str(found[1]) == "a bad setting"
    assert isinstance(found[2], WorkLostError)
    assert str(found[2]) == "2: the card fell off"


def test_a_row_with_a_classifier_of_its_own_is_reported_beside_the_controls(
    two_cpus, study_features, capsys
):
    sets = [
        part
        for name in ("shots", "num_draws", "num_finalists", "num_final_seeds")
        for part in ("--set", f"{name}={STUDY_SETTINGS[name]}")
    ]
    options = ["--features", str(study_features), "--set", "episode_shots=1,2", *sets]
    short = ["--episodes", "4", "--short", "2", "--no-early-stopping", "--no-ray-train"]

    assert search([*options, "--method", "AWG", "--study", "own", "--trials", "2", *short]) == 0
    best = json.loads(Path("results/own/best.json").read_text())
    assert best["training"]["num_episodes"] == 4, "the finalists are trained in full"
    trials = pd.read_parquet("results/own/trials.parquet")
    assert trials["episodes"].tolist() == [2, 2]
    leftovers = [Path("results/own/report", name) for name in ("spiral.json", "figures/old.svg")]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of an earlier report")
    assert report(["own", "--draws", "3", "--table-only"]) == 0
    assert not any(path.exists() for path in leftovers)

    scores = pd.read_parquet("results/own/report/scores.parquet")
    assert set(scores[scores["method"] == "AWG, best"]["head"]) == {"own"}
    assert set(scores[scores["method"] == "none"]["head"]) == set(HEADS)
    assert "AWG, best" in capsys.readouterr().out


def test_a_trial_that_fails_is_listed_with_its_parameters(two_cpus, study_features, capsys):
    wrong = ("--set", "generator_learning_rate=1e30")

    status = search(arguments(study_features, "--study", "bad", "--trials", "1", *wrong))

    said = capsys.readouterr().out
    assert status == 1
    assert re.search(r"trial 0 failed: cCov-GAN diverged: .*cycle_weight\": 5.0", said)
    table = pd.read_parquet("results/bad/trials.parquet")
    assert table["state"].tolist() == ["failed"]


def test_what_runs_at_the_timeout_is_left_for_later(two_cpus, study_features, capsys):
    status = search(arguments(study_features, "--study", "late", "--trials", "1", "--timeout", "1"))

    assert status == 1
    assert "trials are left: python tune/search.py --resume results/late" in capsys.readouterr().out
    assert not Path("results/late/best.json").exists()
    assert search(["--resume", "late"]) == 0
    assert pd.read_parquet("results/late/trials.parquet")["trial"].tolist() == [0]


def test_more_gpus_than_exist_are_refused(two_cpus, study_features, capsys):
    status = search(arguments(study_features, "--study", "much", "--gpus-per-worker", "1000"))

    said = capsys.readouterr().err
    assert status == 2
    assert "error: a trial needs 1 workers with 1000 GPUs each, but Ray has room for 0" in said
    assert not Path("results/much/config.json").exists()
