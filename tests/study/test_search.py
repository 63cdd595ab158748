"""Test a whole study on Ray (search, resume, report), and workers that train together."""

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import optuna
import pandas as pd
import pytest
import ray
from ray.util import placement_group_table
from ray.util.state import list_actors
from ray.util.state.common import ActorState

from cpaan.cli.progress import StudyProgress
from cpaan.core.files import unpack_state
from cpaan.evaluation.job import Job
from cpaan.evaluation.parts import PartKey
from cpaan.gan.spiral import SPIRAL_CONFIG
from cpaan.protocol.config import HEADS
from cpaan.study import report as report_module
from cpaan.study import worker_pool
from cpaan.study.cluster import check_machines, ray_cluster
from cpaan.study.config import StudyConfig
from cpaan.study.job import run_study_job
from cpaan.study.ray_internals import remove_orphans
from cpaan.study.row import Resolved
from cpaan.study.study import read_study
from cpaan.study.trial import train_with_workers
from cpaan.study.worker_pool import WorkLostError, run_on_ray
from helpers.jobs import assert_same_weights, at, kept_state, kept_weights, score_again
from helpers.runs import threads
from helpers.studies import SMALL_STUDY, STUDY_SETTINGS, new_job, report, scores, search

pytestmark = pytest.mark.ray


def arguments(features: Path, *more: str) -> list[str]:
    """Return options of a small study on CPU cores."""
    options = ["--features", str(features), "--episodes", "20", "--gpus-per-worker", "0"]
    return [*options, *SMALL_STUDY, *more]


def stopped_at(words: str) -> Callable[[StudyProgress, str], None]:
    """Return a `say` that raises KeyboardInterrupt, as after Ctrl-C, at the given words."""
    say = StudyProgress.say

    def say_and_stop(self: StudyProgress, message: str) -> None:
        say(self, message)
        if words in message:
            raise KeyboardInterrupt

    return say_and_stop


def test_workers_on_ray_train_as_in_one_process_to_the_last_bit(two_cpus, gaussians, tmp_path):
    config = StudyConfig(workers_per_trial=2)
    job, storage = new_job(gaussians, tmp_path, "on-ray.pt"), str(tmp_path / "storage")
    job = replace(job, evaluation=job.evaluation.with_overrides({"num_draws": 5}))
    here = at("here.pt", job)
    check_machines(storage, print)

    train_with_workers(job, config, storage)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda workers: [*run_study_job(here, workers=workers)], threads(2)))

    assert scores(kept_state(job)["curve"]) == scores(kept_state(here)["curve"])
    assert_same_weights(kept_weights(job), kept_weights(here))
    assert scores(kept_state(job)["curve"])[-1] == {"episode": 6, **score_again(job)}


def actors_of_this_ray(monkeypatch: pytest.MonkeyPatch) -> list[ActorState]:
    """List all actors. Another Ray may run on this machine; the variable overrides the address."""
    with monkeypatch.context() as patched:
        patched.delenv("RAY_ADDRESS")
        return list_actors(ray.get_runtime_context().gcs_address, limit=10_000)


def curves(folder: Path) -> list[dict[int, float]]:
    """Return GLSL by episode for each trial of a study."""
    table = pd.read_parquet(folder / "trials.parquet")
    return [{entry["episode"]: entry["all_top5"] for entry in row} for row in table["curve"]]


def curve_of_run_in_this_process(folder: Path, number: int) -> dict[int, float]:
    """Run a trial of a study again, without Ray; return the values of `curves`."""
    table, study = pd.read_parquet(folder / "trials.parquet"), read_study(folder)
    (row,) = study.rows
    recorded = {name: json.loads(table[name][number]) for name in ("training", "evaluation")}
    resolved = row.for_score(Resolved.of(row.method, recorded))
    job = study.job(row, number, resolved, row.config.seed)
    steps = tuple(entry["episode"] for entry in table["curve"][number])
    alone = replace(job, eval_steps=steps, checkpoint=f"alone-{number}.pt")
    *_, last = run_study_job(alone)
    return {entry["episode"]: entry["all_top5"] for entry in last.curve}


def test_a_study_is_searched_resumed_and_reported(two_cpus, study_features, capsys, monkeypatch):
    """Run all parts once, with Ray Train and a report with pictures."""
    folder = Path("results/mine")
    new = ("--study", "mine", "--trials", "2", "--ray-train")
    assert search(arguments(study_features, *new)) == 0

    said = capsys.readouterr()
    assert "trials run with Ray Train: as set" in said.err
    assert "Ray dashboard: http://127.0.0.1:" in said.err
    assert said.err.count("of 2 trials ended") == 2
    verdict, *finalists, following = said.out.splitlines()
    assert re.match(r"CP-AAN\+, .+ is best with score \d+\.\d\d on new validation draws", verdict)
    assert finalists
    assert following == "Next: python tune/report.py results/mine"
    assert (folder / "study.log").read_text().splitlines()[-1] == following
    best = json.loads((folder / "best.json").read_text())
    assert best["run"]["commit"]
    (row,) = json.loads((folder / "config.json").read_text())["rows"]
    assert best["features"] == row["data"]["fingerprint"]
    first = pd.read_parquet(folder / "trials.parquet")
    assert first["trial"].tolist() == [0, 1]
    actors = partial(actors_of_this_ray, monkeypatch)
    names = {actor.class_name for actor in actors()}
    assert "TrainStateActor" in names, "by which the dashboard knows of Train runs"
    assert not names & {"PlacementGroupCleaner", "DatasetManager", "PreemptionWatcher"}
    assert list((folder / "tensorboard").glob("0000/events*"))
    assert not list(folder.glob("ray/**/*.pt")), "states are kept once"
    assert curves(folder)[0] == curve_of_run_in_this_process(folder, 0)
    trials = [actor for actor in actors() if actor.class_name == "ImplicitFunc"]
    assert {actor.state for actor in trials} == {"DEAD"}, "those too that were stopped early"

    assert search(["--resume", "mine", "--trials", "3"]) == 0

    table = pd.read_parquet(folder / "trials.parquet")
    assert table["trial"].tolist() == [0, 1, 2]
    assert table[:2]["score"].tolist() == first["score"].tolist()
    study = optuna.load_study(study_name="cpaan", storage=f"sqlite:///{folder}/optuna.db")
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"}
    assert "of 3 trials ended" in (folder / "study.log").read_text()
    capsys.readouterr()

    short = SPIRAL_CONFIG.with_overrides({"num_episodes": 20})
    monkeypatch.setattr(report_module, "SPIRAL_CONFIG", short)
    assert report(["--draws", "6"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5, "the verdict, three rows, and the path of the page"
    assert lines[-1] == "The page: results/mine/report/index.html"
    assert (folder / "study.log").read_text().splitlines()[-5:] == lines
    content = json.loads((folder / "report" / "report.json").read_text())
    assert content["phase"] == "test"
    assert content["test_reads"] == 1
    chosen = json.loads((folder / "best.json").read_text())["trial"]
    seeds = {row["name"]: row["seeds"] for row in content["rows"]}
    assert seeds["CP-AAN+, best"] == [1, 2, 3], "the search has used seed 0"
    page = (folder / "report" / "index.html").read_text()
    for picture in ("projections", "spectra", "spiral"):
        assert (folder / "report" / "figures" / f"{picture}.svg").exists()
        assert f"figures/{picture}.svg" in page
    assert {row["trial"] for row in content["rows"]} == {None, 0, chosen}
    every = pd.read_parquet(folder / "report" / "scores.parquet")
    assert every["draw"].nunique() == 5 + 6
    assert set(every["column"]) == {"novel", "all", "novel_joint", "base", "all_calibrated"}


def test_a_process_that_stopped_a_trial_runs_the_next_with_the_same_scores(
    two_cpus, study_features, capsys, monkeypatch
):
    actors = partial(actors_of_this_ray, monkeypatch)
    known = {actor.actor_id for actor in actors()}

    one = ("--study", "one", "--trials", "4", "--concurrent", "1")
    assert search(arguments(study_features, *one)) == 0

    line = "trials run in one process each, without Ray Train: 1 worker a trial, without a GPU"
    assert line in capsys.readouterr().err
    folder = Path("results/one")
    new = [actor for actor in actors() if actor.actor_id not in known]
    assert [actor.class_name for actor in new].count("ImplicitFunc") == 1
    states = pd.read_parquet(folder / "trials.parquet")["state"].tolist()
    assert "stopped early" in states[:-1]
    for number, curve in enumerate(curves(folder)):
        assert curve == curve_of_run_in_this_process(folder, number)


def test_rows_are_searched_side_by_side_resumed_elsewhere_and_reported_together(
    two_cpus, study_features, tmp_path, capsys, monkeypatch
):
    shared = tmp_path / "shared"
    storage = ("--storage", str(shared))
    rows = ("--method", "none,AWG,cCyc-GAN-PN", "--trials", "2", "--study", "rows")

    assert search(arguments(study_features, *rows, *storage, "--timeout", "1")) == 1

    resume = "resume with: python tune/search.py --resume results/rows"
    assert f"trials are left; {resume}" in capsys.readouterr().out
    assert report(["rows"]) == 2, "the test phase is not read before all searches have ended"
    assert "has no result yet" in capsys.readouterr().err
    assert not Path("results/test-reads.jsonl").exists()

    # Resume on a machine without files of the study.
    Path("results").rename("lost")
    assert search(["--resume", "rows", *storage, "--trials", "2"]) == 0

    assert "Next: python tune/report.py results/rows" in capsys.readouterr().out
    for row, count in {"AWG": 2, "cCyc-GAN-PN": 2, "none": 1}.items():  # none has no parameters
        assert len(pd.read_parquet(f"results/rows/{row}/trials.parquet")) == count
        copy = optuna.load_study(
            study_name="cpaan", storage=f"sqlite:///{shared}/rows/{row}/optuna.db"
        )
        assert len(copy.trials) == count
        assert (shared / "rows" / row / "best.json").exists()
    assert not list(shared.rglob("*.zip")), "best.json has the scores of the finalists"

    with monkeypatch.context() as patched:
        patched.setattr(StudyProgress, "say", stopped_at("(3 of 15)"))
        assert report(["rows", "--draws", "4", "--table-only"]) == 130
    assert len(list(shared.rglob("parts/*.zip"))) >= 2
    assert report(["rows", "--draws", "4", "--table-only", "--seeds", "3"]) == 0

    assert "of 15 parts loaded from the cache" in capsys.readouterr().err
    assert not list(shared.rglob("*.zip")), "the report has everything"
    content = json.loads(Path("results/rows/report/report.json").read_text())
    names = ["none", "AWG", "cCyc-GAN-PN"]  # the paper's order
    terms = ["cCyc-GAN-PN: recommended-weight", "cCyc-GAN-PN: without-cycle"]
    assert [row["name"] for row in content["rows"]] == [*names, *terms]
    assert {row["name"]: row["seeds"] for row in content["rows"]}["AWG"] == [1, 2, 3]
    assert content["test_reads"] == 2, "one of them was stopped"
    assert content["earlier"] == [], "both have the command of this process"
    assert content["cost"]["worker_seconds"] > 0 == content["cost"]["num_uncounted"]
    assert content["best"]["AWG"]["run"]["worker_seconds"] > 0, "of the finalists"
    best = {name: entry["trial"] for name, entry in content["best"].items()}
    assert {row["name"]: row["trial"] for row in content["rows"][:3]} == best
    scores = pd.read_parquet("results/rows/report/scores.parquet")
    assert not scores.duplicated(["method", "head", "column", "shots", "draw", "seed"]).any()
    assert set(scores.groupby("method")["seed"].nunique()) == {3}
    assert set(scores[scores["method"] == "AWG"]["head"]) == {"own"}
    assert set(scores[scores["method"] == "cCyc-GAN-PN"]["head"]) == set(HEADS)
    assert not list(shared.glob("rows/cCyc-GAN-PN/trials/*recommended*")), "it is not trained again"
    page = Path("results/rows/report/report.md").read_text()
    assert "the paper's rule for the final classifier" in page
    assert "head chosen on validation" in page
    assert "| CP-AAN | PN | cCyc-GAN | cCyc-GAN-PN | centroid |" in page


def test_a_part_that_is_lost_leaves_the_others_to_be_done(two_cpus, gaussians, tmp_path):
    errors = {"bad": ValueError("a bad setting"), "lost": RuntimeError("the card fell off")}

    def answer(name: str) -> str:
        if name in errors:
            raise errors[name]
        return name

    task, started = ray.remote(answer), list[ray.ObjectRef]()

    def start(job: Job) -> tuple[ray.ObjectRef, None]:
        """Start a task after all others have ended, because all have the same checkpoint."""
        ended, _ = ray.wait(started, num_returns=len(started), timeout=0) if started else ([], [])
        assert len(ended) == len(started)
        started.append(task.remote(job.row))
        return started[-1], None

    job, keys = new_job(gaussians, tmp_path), [PartKey(name, 0) for name in ("bad", "lost", "good")]
    outcomes = run_on_ray({key: replace(job, row=key.row) for key in keys}, start, num_at_once=3)

    (bad, reason), good = next(outcomes), next(outcomes)

    assert (bad, str(reason), good) == (keys[0], "a bad setting", (keys[2], "good"))
    with pytest.raises(WorkLostError, match="lost, seed 0 was lost: the card fell off"):
        next(outcomes)


def test_a_cancelled_training_of_several_workers_releases_its_cores(two_cpus, gaussians, tmp_path):
    config = StudyConfig(workers_per_trial=2)
    training, storage = new_job(gaussians, tmp_path, num_episodes=10**8), str(tmp_path / "storage")
    check_machines(storage, print)
    keys = [PartKey("endless", 0), PartKey("waits for its workers", 0)]

    def groups(state: str) -> list[str]:
        known = placement_group_table().items()
        return [name for name, group in known if group["state"] == state]

    while remove_orphans():  # groups of earlier tests
        time.sleep(0.1)
    before = groups("CREATED")

    def await_workers() -> None:
        while len(groups("CREATED")) == len(before):
            time.sleep(0.1)

    task = ray.remote(num_cpus=0)(await_workers)
    jobs = {keys[0]: training, keys[1]: at("of-no-training.pt", training)}

    def start(job: Job) -> tuple[ray.ObjectRef, ray.ObjectRef | None]:
        if job is training:
            return worker_pool._start(job, config, storage)
        return task.remote(), None

    outcomes = run_on_ray(jobs, start, num_at_once=2)
    assert next(outcomes) == (keys[1], None)
    outcomes.close()

    assert groups("CREATED") == before
    assert ray.get(ray.remote(num_cpus=2)(lambda: "started").remote(), timeout=120) == "started"


def test_a_row_with_a_classifier_of_its_own_is_reported_beside_the_controls(
    two_cpus, study_features, capsys
):
    of_gans = {"num_ways", "batch_size", "hidden_dim", "num_synthetic", "num_final_draws"}
    sets = [
        f"--set={name}={STUDY_SETTINGS[name]}" for name in STUDY_SETTINGS if name not in of_gans
    ]
    options = ["--features", str(study_features), "--method", "AWG", "--trials", "2", *sets]
    short = ["--episodes", "4", "--short", "2", "--no-early-stopping"]

    assert search([*options, "--study", "own", *short]) == 0
    best = json.loads(Path("results/own/best.json").read_text())
    assert best["training"]["num_episodes"] == 4, "the report trains in full"
    trials = pd.read_parquet("results/own/trials.parquet")
    assert trials["episodes"].tolist() == [2, 2]
    winner = Path(f"results/own/trials/{best['trial']:04d}-seed0.pt")
    assert unpack_state(winner.read_bytes())["run"]["episode"] == 2
    known = {f"000{number}-seed0.pt" for number in range(2)}
    assert {path.name for path in Path("results/own").rglob("*.pt")} <= known, "of the trials"
    leftovers = [Path("results/own/report", name) for name in ("spiral.json", "figures/old.svg")]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of an earlier report")
    assert report(["own", "--draws", "3", "--table-only"]) == 0
    assert not any(path.exists() for path in leftovers)
    of_report = winner.with_name(winner.name.replace("seed0", "seed1"))
    assert unpack_state(of_report.read_bytes())["run"]["episode"] == 4

    scores = pd.read_parquet("results/own/report/scores.parquet")
    assert set(scores[scores["method"] == "AWG, best"]["head"]) == {"own"}
    assert set(scores[scores["method"] == "none"]["head"]) == set(HEADS)
    assert "| AWG | - | AWG, best | own |" in Path("results/own/report/report.md").read_text()


def test_a_trial_that_fails_is_listed_with_its_parameters(two_cpus, study_features, capsys):
    wrong = ("--set", "adversarial_weight=1e38")

    status = search(arguments(study_features, "--study", "bad", "--trials", "1", *wrong))

    said = capsys.readouterr().out
    assert status == 1
    assert re.search(r"trial 0 failed: cCov-GAN diverged at .*cycle_weight\": 5.0", said)
    table = pd.read_parquet("results/bad/trials.parquet")
    assert table["state"].tolist() == ["failed"]


def test_more_gpus_than_exist_are_refused(two_cpus, study_features, capsys):
    status = search(arguments(study_features, "--study", "much", "--gpus-per-worker", "1000"))

    said = capsys.readouterr().err
    assert status == 2
    assert "error: --workers-per-trial 1 with --gpus-per-worker 1000: Ray has room for 0" in said
    assert not Path("results/much/config.json").exists()


def test_the_address_of_another_ray_is_refused_in_a_connected_process(two_cpus, monkeypatch):
    connected = ray.get_runtime_context().gcs_address
    for address in (connected, "auto", None):
        with ray_cluster(address, print) as same:
            assert same.nodes == two_cpus.nodes
    # Take the address for that of a running Ray.
    monkeypatch.setattr("cpaan.study.cluster._check_address", lambda address, defaults: None)
    message = f"cannot use Ray at host:6379: this process is connected to Ray at {connected}"
    with pytest.raises(ValueError, match=message), ray_cluster("host:6379", print):
        pass
