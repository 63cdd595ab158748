"""A training that can stop anywhere, ends as if it never had, and is the benchmark's own."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpaan import evaluate
from cpaan.core.files import pack_state, unpack_state
from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath
from cpaan.gan.loop import LOSSES, TrainingRun
from cpaan.methods.registry import ROWS
from cpaan.representation.config import EmbeddingConfig
from cpaan.study import job as job_module
from cpaan.study.job import (
    Report,
    TrialCheckpoint,
    TrialJob,
    is_trained,
    load_method,
    new_method,
    read_validation,
    run_job,
    score_job,
)
from cpaan.study.machines import MARK, check_this_machine
from cpaan.training import drive
from cpaan.training.learning import Run
from helpers.gan_runs import SMALL
from helpers.runs import threads
from helpers.studies import QUICK, new_job, scores
from helpers.tables import poisoned

CPU = torch.device("cpu")


@pytest.fixture
def job(gaussians, tmp_path) -> TrialJob:
    return new_job(gaussians, tmp_path)


def test_a_method_that_is_not_trained_is_in_the_job_s_embedding_all_the_same(
    job, gaussians, tmp_path, monkeypatch
):
    monkeypatch.setenv("CPAAN_CACHE", str(tmp_path / "cache"))
    embedding = EmbeddingConfig(num_episodes=2, episode_shots=(1,), num_queries=2, hidden_dim=10)
    control = replace(
        job, method="copy-PN", training=ROWS["copy-PN"].config, eval_steps=(), embedding=embedding
    )
    trained = replace(job, method="cCov-GAN-PN", eval_steps=(), embedding=embedding)
    task, queries = read_validation(job, CPU)
    finish(trained)

    spaces = []
    for method in (new_method(control, CPU), load_method(trained, task)):
        method.fit(task, new_rng(job.seed))
        spaces.append(method.represent(queries.features))

    torch.testing.assert_close(*spaces, rtol=0, atol=0)
    assert not torch.allclose(spaces[0], queries.features)


def finish(job: TrialJob) -> Report:
    *_, last = run_job(job, CPU)
    return last


def kept_state(job: TrialJob) -> dict:
    return unpack_state((RemotePath.at(job.storage) / job.path).read())


def kept_weights(job: TrialJob) -> torch.Tensor:
    networks = kept_state(job)["run"]["networks"]
    return torch.cat([value.flatten() for value in networks.values()])


class Died(BaseException):
    """The process is gone."""


def run_until_saved_at(job: TrialJob, episode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a job that saves after every step, until it dies right after it has saved one."""
    save = TrialCheckpoint.save

    def save_and_die(checkpoint: TrialCheckpoint, run: Run) -> None:
        save(checkpoint, run)
        if run.episode == episode:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(drive, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        patch.setattr(drive, "_MOST_STEPS_AT_ONCE", 1)
        patch.setattr(TrialCheckpoint, "save", save_and_die)
        with pytest.raises(Died):
            list(run_job(job, CPU))


@pytest.mark.parametrize(
    ("method", "num_draws", "head"),
    [("cCov-GAN", 2, "cosine"), ("c-GAN", 2, "knn"), ("cCov-GAN", 7, "cosine")],
)
def test_a_trial_scores_as_the_benchmark_does(gaussians, job, method, num_draws, head):
    evaluation = QUICK.with_overrides({"num_draws": num_draws, "heads": (head,)})

    *_, last = finish(replace(job, method=method, evaluation=evaluation)).curve

    results = evaluate(
        gaussians.table,
        gaussians.split,
        methods=[method],
        config=evaluation.with_overrides({"seed": job.seed}),
        settings={method: job.training},
    )
    means = results.scores.groupby("column")["top5"].mean()
    assert last.episode == job.training.num_episodes
    assert last.novel_top5 == pytest.approx(means["novel"], rel=1e-12)
    assert last.all_top5 == pytest.approx(means["all"], rel=1e-12)


def test_a_job_reports_its_whole_curve_at_every_mark(job):
    reports = list(run_job(job, CPU))

    assert [[entry.episode for entry in report.curve] for report in reports] == [
        [2],
        [2, 4],
        [2, 4, 6],
    ]
    for report in reports:
        assert report.problem is None
        assert set(report.losses) == set(LOSSES)
        assert report.episodes_per_second > 0
    seconds = [entry.seconds for entry in reports[-1].curve]
    assert seconds == sorted(seconds)


def test_without_marks_a_job_is_trained_and_not_evaluated(job):
    (report,) = run_job(replace(job, eval_steps=()), CPU)

    assert report.curve == ()
    assert kept_state(job)["run"]["episode"] == 6


def test_looking_at_a_job_changes_nothing(job):
    looked_at, straight = job, replace(job, eval_steps=(6,), path="trials/0001.pt")

    curve, straight_curve = finish(looked_at).curve, finish(straight).curve

    assert scores(curve)[-1:] == scores(straight_curve)
    assert torch.equal(kept_weights(looked_at), kept_weights(straight))


@pytest.mark.parametrize("num_reports", [1, 2])
def test_a_job_that_stopped_after_a_report_ends_as_if_it_had_not(job, num_reports):
    unbroken = replace(job, path="trials/0001.pt")
    stopped: Iterator[Report] = run_job(job, CPU)
    for _ in range(num_reports):
        next(stopped)
    stopped.close()

    first, *others = run_job(job, CPU)

    curve = scores(finish(unbroken).curve)
    assert scores(first.curve) == curve[:num_reports]
    assert scores(others[-1].curve) == curve
    assert torch.equal(kept_weights(job), kept_weights(unbroken))


def test_a_job_that_dies_again_and_again_ends_as_if_it_had_not(job, monkeypatch):
    unbroken = replace(job, path="trials/0001.pt")

    for episode in (1, 3, 5):  # between the evaluation steps
        run_until_saved_at(job, episode, monkeypatch)

    curve = scores(finish(job).curve)
    assert [episode for episode, *_ in curve] == [2, 4, 6]
    assert curve == scores(finish(unbroken).curve)
    assert torch.equal(kept_weights(job), kept_weights(unbroken))


def test_a_finished_job_only_reports_its_curve(job):
    curve = finish(job).curve
    before = (RemotePath.at(job.storage) / job.path).read()

    (report,) = run_job(job, CPU)

    assert report == Report(curve)
    assert (RemotePath.at(job.storage) / job.path).read() == before


def test_seconds_of_an_earlier_run_count(job):
    first = next(run_job(job, CPU))
    state = kept_state(job)
    state["seconds"] = 1_000.0
    (RemotePath.at(job.storage) / job.path).write(pack_state(state))

    *_, last = finish(job).curve

    assert first.curve[0].seconds < 1_000 < last.seconds


def test_a_diverging_job_ends_with_a_problem_and_keeps_its_last_good_state(gaussians, tmp_path):
    job = new_job(gaussians, tmp_path, generator_learning_rate=1e30)
    job = replace(job, eval_steps=(1, 4, 6))

    good, ended = run_job(job, CPU)

    assert good.problem is None
    assert "cCov-GAN diverged: at episode 1" in ended.problem
    assert "\n" not in ended.problem
    assert ended.curve == good.curve
    assert kept_state(job)["run"]["episode"] == 1
    again = list(run_job(job, CPU))
    assert [report.problem for report in again] == [None, ended.problem]


def test_a_state_of_another_job_is_refused(gaussians, job):
    finish(job)

    other = finish(replace(job, seed=4))
    (RemotePath.at(job.storage) / job.path).write(b"no state at all")
    damaged = finish(job)

    assert re.match("cannot resume from trials/0000.pt: .*another seed", other.problem)
    assert damaged.problem.startswith("cannot resume from trials/0000.pt: ")


def test_a_trained_job_scores_as_it_did_at_its_end(job):
    *_, last = finish(job).curve

    assert score_job(job, CPU) == (last.novel_top5, last.all_top5)


def test_other_draws_give_other_scores_of_the_same_training(job):
    *_, last = finish(job).curve
    fresh = replace(job, evaluation=QUICK.with_overrides({"draw_seed": 1}))

    assert score_job(fresh, CPU) != (last.novel_top5, last.all_top5)


def test_an_unfinished_job_has_no_score(job):
    assert not is_trained(job)
    next(run_job(job, CPU))
    assert not is_trained(job)

    with pytest.raises(ValueError, match=r"^trials/0000.pt has 2 of 6 episodes$"):
        score_job(job, CPU)
    finish(job)
    assert is_trained(job)
    (Path(job.storage) / job.path).write_bytes(b"damaged")
    assert not is_trained(job)


EPISODES = {"num_episodes": 6, "num_ways": 6, "episode_shots": (1, 2), "num_queries": 2}
SMALL_EMBEDDING = EmbeddingConfig(**{**EPISODES, "num_episodes": 3}, hidden_dim=8)
HALLUCINATION = {
    **{"num_episodes": 6, "num_clusters": 3, "batch_size": 8, "hidden_dim": 8},
    "num_classifier_steps": 20,
}
OTHER_ROWS = {
    "MN": EPISODES,
    "AWG": EPISODES,
    "PN": {**EPISODES, "hidden_dim": 8, "learning_rate": 0.03},
    "MAML": {**EPISODES, "num_tasks": 2, "hidden_dim": 8},
    "FI-PN": {**EPISODES, "num_augmented": 3, "hidden_dim": 8},
    "FH": HALLUCINATION,
    "P-FH": HALLUCINATION,
    "c-GAN-PN": {**SMALL.to_dict(), "num_episodes": 6, "generator_learning_rate": 0.03},
}
UNTRAINED = ["LR", "copy", "DC"]


def job_of(job: TrialJob, method: str, head: str | None = None) -> TrialJob:
    """Return a job of another row: six episodes, or none at all."""
    row = ROWS[method]
    is_trained = method in OTHER_ROWS
    overrides = {"heads": (head or row.head,), "linear_num_steps": 5, "perplexity": 4.0}
    return replace(
        job,
        method=method,
        training=row.config.with_overrides(OTHER_ROWS.get(method, {})),
        evaluation=QUICK.with_overrides(overrides),
        eval_steps=job.eval_steps if is_trained else (0,),
        embedding=SMALL_EMBEDDING if row.is_embedded else None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "head"),
    [*((name, None) for name in [*OTHER_ROWS, *UNTRAINED]), ("FI-PN", "knn"), ("PN", "knn")],
)
def test_every_kind_of_row_scores_as_the_benchmark_does(gaussians, job, method, head):
    job = job_of(job, method, head)

    *_, last = finish(job).curve

    results = evaluate(
        gaussians.table,
        gaussians.split,
        methods=[method],
        config=job.evaluation.with_overrides({"seed": job.seed}),
        settings={method: job.training, **({"PN": SMALL_EMBEDDING} if job.embedding else {})},
    )
    scores = results.scores[results.scores["head"] == job.evaluation.heads[0]]
    means = scores.groupby("column")["top5"].mean()
    assert last.episode == job.eval_steps[-1]
    assert last.novel_top5 == pytest.approx(means["novel"], rel=1e-12)
    assert last.all_top5 == pytest.approx(means["all"], rel=1e-12)
    assert score_job(job, CPU) == (last.novel_top5, last.all_top5)


@pytest.mark.slow
@pytest.mark.parametrize("method", OTHER_ROWS)
def test_every_kind_of_training_that_stopped_ends_as_if_it_had_not(job, method, monkeypatch):
    job = job_of(job, method)
    unbroken = replace(job, path="trials/0001.pt")
    run_until_saved_at(job, 3, monkeypatch)

    *_, last = run_job(job, CPU)

    assert scores(last.curve) == scores(finish(unbroken).curve)
    ours, theirs = (kept_state(each)["run"] for each in (job, unbroken))
    name = "networks" if "networks" in ours else "network"
    assert ours["episode"] == theirs["episode"] == 6
    assert set(ours[name]) == set(theirs[name])
    for key, value in ours[name].items():
        assert torch.equal(value, theirs[name][key]), key


@pytest.mark.parametrize("method", UNTRAINED)
def test_what_is_not_trained_is_scored_once_and_kept(job, method):
    job = job_of(job, method)

    (report,) = run_job(job, CPU)
    (again,) = run_job(job, CPU)

    assert [entry.episode for entry in report.curve] == [0]
    assert (report.losses, report.problem) == ({}, None)
    assert again == Report(report.curve)


def test_a_state_of_another_row_is_refused(job):
    finish(job_of(job, "MN"))

    assert finish(job_of(job, "AWG")).problem.startswith("cannot resume from trials/0000.pt: ")
    assert finish(job_of(job, "LR")).problem.startswith("cannot resume from trials/0000.pt: ")


@pytest.mark.parametrize("method", ["MN", "c-GAN-PN", "copy"])
def test_a_job_of_any_row_is_plain_data(job, method):
    job = job_of(job, method)

    assert TrialJob.from_dict(job.to_dict()) == job


def test_jobs_of_one_machine_share_an_embedding_and_jobs_of_another_seed_have_another(
    job, monkeypatch
):
    job = job_of(job, "c-GAN-PN")
    others = [
        replace(job, path="trials/0001.pt"),
        replace(job, path="trials/0002.pt", seed=4),
        replace(
            job,
            path="trials/0003.pt",
            embedding=SMALL_EMBEDDING.with_overrides({"dropout": 0.1}),
        ),
    ]
    for each in (job, *others):
        assert finish(each).problem is None

    kept = sorted(Path("cache/embeddings").rglob("*.pt"))
    assert sorted(path.name for path in kept) == ["PN-seed3.pt", "PN-seed3.pt", "PN-seed4.pt"]
    assert len({path.parent for path in kept}) == 2


def run_together(
    job: TrialJob, monkeypatch: pytest.MonkeyPatch, num_reports: int | None = None
) -> tuple[list[list[Report]], list[TrainingRun]]:
    """Return reports and runs of two workers."""
    runs: dict[int, TrainingRun] = {}
    begin = job_module._begin

    def begin_and_tell(job, task, workers):
        method, run = begin(job, task, workers)
        runs[workers.rank] = run
        return method, run

    def work(workers) -> list[Report]:
        reports = run_job(job, CPU, workers)
        return [report for report, _ in zip(reports, range(num_reports or 100), strict=False)]

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(job_module, "_begin", begin_and_tell)
        reports = list(pool.map(work, threads(2)))
    return reports, [runs[rank] for rank in range(2)]


def weights(run: TrainingRun) -> torch.Tensor:
    return torch.cat([value.flatten() for value in run.networks.state_dict().values()])


def test_two_workers_train_one_job(job, monkeypatch):
    (first, second), runs = run_together(job, monkeypatch)

    assert [entry.episode for entry in first[-1].curve] == [2, 4, 6]
    assert [report.curve for report in second] == [(), (), ()]
    assert [report.losses for report in first] == [report.losses for report in second]
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    assert torch.equal(kept_weights(job), weights(runs[0]))
    *_, last = first[-1].curve
    assert score_job(job, CPU) == (last.novel_top5, last.all_top5)


def test_two_workers_that_stopped_end_as_if_they_had_not(job, monkeypatch):
    unbroken = replace(job, path="trials/0001.pt")
    run_together(job, monkeypatch, num_reports=1)

    (first, second), runs = run_together(job, monkeypatch)

    (expected, _), unbroken_runs = run_together(unbroken, monkeypatch)
    assert len(first) == len(second)
    assert scores(first[-1].curve) == scores(expected[-1].curve)
    for run, unbroken_run in zip(runs, unbroken_runs, strict=True):
        assert torch.equal(weights(run), weights(unbroken_run))


def test_workers_whose_training_diverges_end_together(gaussians, tmp_path, monkeypatch):
    job = new_job(gaussians, tmp_path, generator_learning_rate=1e30)

    (first, second), _ = run_together(job, monkeypatch)

    assert "cCov-GAN diverged" in first[-1].problem
    assert first[-1].problem == second[-1].problem


def test_a_worker_learns_that_another_one_could_not_evaluate(job, monkeypatch):
    def fail(*arguments: object) -> None:
        raise ValueError("nothing\nto score")

    monkeypatch.setattr(job_module, "_evaluate", fail)

    (first, second), _ = run_together(job, monkeypatch)

    assert [report.problem for report in first] == ["nothing to score"]
    assert [report.problem for report in second] == ["another worker could not continue"]


def test_a_job_reads_nothing_of_the_test_phase(gaussians, job, tmp_path):
    split = gaussians.split

    def is_allowed(name: str, is_train: bool) -> bool:
        return name in split.validation.base + split.validation.novel or (
            name in split.test.base and is_train
        )

    other = replace(gaussians, table=poisoned(gaussians, is_allowed))
    of_other = new_job(other, tmp_path / "poisoned")

    assert of_other.data.fingerprint != job.data.fingerprint
    assert scores(finish(of_other).curve) == scores(finish(job).curve)
    assert torch.equal(kept_weights(of_other), kept_weights(job))


def test_workers_that_have_read_different_states_start_again(job, monkeypatch):
    run_together(job, monkeypatch, num_reports=1)
    ahead = (RemotePath.at(job.storage) / job.path).read()

    def read(path: RemotePath) -> bytes | None:
        return ahead if threading.current_thread().name.endswith("_0") else None

    monkeypatch.setattr(RemotePath, "read_if_exists", read)

    with pytest.raises(RuntimeError, match="workers have read different states"):
        run_together(job, monkeypatch)


def test_a_machine_that_does_not_see_the_study_takes_no_work(tmp_path):
    """As one that joins late may not: its folder of that name is another one."""
    location = str(tmp_path / "shared")

    with pytest.raises(RuntimeError, match=f"does not see the study in {location}"):
        check_this_machine(location)

    (RemotePath.at(location) / MARK).write(b"of the machine that started")
    check_this_machine(location)
