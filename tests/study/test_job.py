"""Test that an interrupted training gives the same result, and the same as the benchmark."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.multiprocessing.spawn import spawn

from cpaan import evaluate
from cpaan.core.files import unpack_state
from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath
from cpaan.gan.gans import GANS
from cpaan.gan.loop import LOSSES, TrainingRun
from cpaan.methods.registry import ROWS
from cpaan.representation.config import EmbeddingConfig
from cpaan.study import job as job_module
from cpaan.study.cluster import MARK, check_this_machine
from cpaan.study.job import (
    Report,
    TrialJob,
    is_trained,
    load_method,
    mean_top5,
    new_method,
    read_validation,
    run_job,
)
from cpaan.training import drive
from cpaan.training.learning import Run
from cpaan.training.workers import ALONE, Workers
from helpers.gan_runs import SMALL
from helpers.runs import threads
from helpers.studies import QUICK, new_job, scores
from helpers.tables import poisoned

CPU = torch.device("cpu")

TRAINED = ["cCov-GAN", "c-GAN", "MN", "AWG", "PN", "MAML", "FI-PN", "FH", "P-FH", "c-GAN-PN"]
GAN = {**SMALL.to_dict(), "num_episodes": 6, "generator_learning_rate": 0.03}
EPISODES = {"num_ways": 6, "episode_shots": (1, 2), "num_queries": 2, "hidden_dim": 8}
SIZES = {**EPISODES, "num_episodes": 6, "num_tasks": 2, "num_augmented": 3}
SIZES |= {"num_clusters": 3, "batch_size": 8, "num_classifier_steps": 20}
EMBEDDING = EmbeddingConfig(**EPISODES, num_episodes=3)
UNTRAINED = ["LR", "copy", "DC"]


@pytest.fixture
def job(gaussians, tmp_path) -> TrialJob:
    return new_job(gaussians, tmp_path)


def job_of(job: TrialJob, method: str, head: str | None = None, **others: object) -> TrialJob:
    """Return a job of another row, with six episodes or none."""
    row = ROWS[method]
    overrides = {"heads": (head or row.head,), "linear_num_steps": 5, "perplexity": 4.0}
    sizes, known = GAN if row.gan else SIZES, row.config.to_dict()
    return replace(
        job,
        method=method,
        training=row.config.with_overrides({name: sizes[name] for name in sizes if name in known}),
        evaluation=QUICK.with_overrides({**overrides, **others}),
        eval_steps=job.eval_steps if method in TRAINED else (0,),
        embedding=EMBEDDING if row.is_embedded else None,
    )


def finish(job: TrialJob) -> Report:
    *_, last = run_job(job, CPU)
    return last


def kept_state(job: TrialJob) -> dict:
    return unpack_state(job.checkpoint.read())


def kept_weights(job: TrialJob) -> dict[str, torch.Tensor]:
    run = kept_state(job)["run"]
    return run["networks"] if "networks" in run else run["network"]


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def score_again(job: TrialJob) -> dict[str, float]:
    """Return LSL and both GLSL top-5 of a fully trained job."""
    task, queries = read_validation(job, CPU)
    scores = job_module._evaluate(load_method(job, task), task, queries, job, ALONE)
    return mean_top5(scores, job.evaluation.heads[0])


class Died(BaseException):
    """The process was killed."""


def run_until_saved_at(job: TrialJob, episode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a job that saves after every step, and kill it after the checkpoint of an episode."""
    save = drive.Checkpoint.save

    def save_and_die(checkpoint: drive.Checkpoint, run: Run) -> None:
        save(checkpoint, run)
        if run.episode == episode:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(drive, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        patch.setattr(drive, "_MOST_STEPS_AT_ONCE", 1)
        patch.setattr(drive.Checkpoint, "save", save_and_die)
        with pytest.raises(Died):
            list(run_job(job, CPU))


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "head", "num_draws"),
    [
        ("cCov-GAN", "cosine", 2),
        ("c-GAN", "knn", 2),
        ("cCov-GAN", "cosine", 7),
        *(slow(name, None, 2) for name in [*TRAINED, *UNTRAINED] if name not in GANS),
        slow("FI-PN", "knn", 2),
        slow("PN", "knn", 2),
    ],
)
def test_a_trial_scores_as_the_benchmark_does(gaussians, job, method, head, num_draws):
    job = job_of(job, method, head, num_draws=num_draws)

    *_, last = finish(job).curve

    results = evaluate(
        gaussians.table,
        gaussians.split,
        methods=[method],
        config=job.evaluation.with_overrides({"seed": job.seed}),
        settings={method: job.training, **({"PN": EMBEDDING} if job.embedding else {})},
    )
    scores = results.scores[results.scores["head"] == job.evaluation.heads[0]]
    means = scores.groupby("column")["top5"].mean()
    assert last["episode"] == job.eval_steps[-1]
    for column in ("novel", "all", "all_calibrated"):
        assert last[f"{column}_top5"] == pytest.approx(means[column], rel=1e-12)
    assert score_again(job).items() <= last.items()


def test_a_job_reports_its_whole_curve_at_every_step_and_looking_changes_nothing(job):
    reports = list(run_job(job, CPU))
    straight = replace(job, eval_steps=(6,), path="trials/0001.pt")
    unseen = replace(job, eval_steps=(), path="trials/0002.pt")

    steps = [[entry["episode"] for entry in report.curve] for report in reports]
    assert steps == [[2], [2, 4], [2, 4, 6]]
    for report in reports:
        assert report.problem is None
        assert set(report.losses) == set(LOSSES)
        assert report.episodes_per_second > 0
    seconds = [entry["seconds"] for entry in reports[-1].curve]
    assert seconds == sorted(seconds)
    assert scores(finish(straight).curve) == scores(reports[-1].curve)[-1:]
    assert finish(unseen).curve == ()
    for other in (straight, unseen):
        assert_same_weights(kept_weights(other), kept_weights(job))


@pytest.mark.parametrize("num_reports", [1, 2])
def test_a_job_that_stopped_after_a_report_ends_as_if_it_had_not(job, num_reports):
    unbroken = replace(job, path="trials/0001.pt")
    stopped = run_job(job, CPU)
    for _ in range(num_reports):
        next(stopped)
    stopped.close()

    first, *others = run_job(job, CPU)

    curve = scores(finish(unbroken).curve)
    assert scores(first.curve) == curve[:num_reports]
    assert scores(others[-1].curve) == curve
    assert_same_weights(kept_weights(job), kept_weights(unbroken))


@pytest.mark.parametrize("method", ["cCov-GAN", *(slow(name) for name in TRAINED[1:])])
def test_a_job_that_dies_again_and_again_ends_as_if_it_had_not(job, method, monkeypatch):
    job = job_of(job, method)
    unbroken = replace(job, path="trials/0001.pt")

    for episode in (1, 3, 5):  # between the evaluation steps
        run_until_saved_at(job, episode, monkeypatch)

    curve = scores(finish(job).curve)
    assert [entry["episode"] for entry in curve] == [2, 4, 6]
    assert curve == scores(finish(unbroken).curve)
    assert_same_weights(kept_weights(job), kept_weights(unbroken))


@pytest.mark.parametrize("method", ["cCov-GAN", *UNTRAINED])
def test_a_finished_job_only_reports_its_curve(job, method):
    job = job_of(job, method)
    curve = finish(job).curve
    before = job.checkpoint.read()

    (report,) = run_job(job, CPU)

    assert report == Report(curve)
    assert job.checkpoint.read() == before
    assert curve[-1]["episode"] == (6 if method in TRAINED else 0)


def test_a_diverging_job_ends_with_a_problem_and_keeps_its_last_good_state(gaussians, tmp_path):
    job = new_job(gaussians, tmp_path, generator_learning_rate=1e30)
    job = replace(job, eval_steps=(1, 4, 6))

    good, ended = run_job(job, CPU)

    assert good.problem is None
    assert "cCov-GAN diverged at episode 1" in ended.problem
    assert "\n" not in ended.problem
    assert ended.curve == good.curve
    assert kept_state(job)["run"]["episode"] == 1
    assert [report.problem for report in run_job(job, CPU)] == [None, ended.problem]


def test_a_state_of_another_job_is_not_taken(job):
    """A machine whose records were lost may have left it under the number of a new trial."""
    finish(job)
    others = [replace(job, seed=4), job_of(job, "AWG"), job_of(job, "LR")]
    others += [job_of(job, "LR", num_draws=3)]  # the same training, which has no episode

    for other in others:
        assert not is_trained(other) or other == others[-1]
        alone = replace(other, path="trials/0001.pt")
        assert scores(finish(other).curve) == scores(finish(alone).curve)
        alone.checkpoint.delete()

    assert is_trained(others[-1])
    job.checkpoint.write(b"no state at all")
    assert finish(job).problem.startswith("cannot resume from ")


def test_a_storage_that_does_not_answer_is_not_a_problem_of_the_job(job, monkeypatch):
    next(run_job(job, CPU))

    def fail(*_: object) -> None:
        raise OSError("the storage does not answer")

    for name in ("read_if_exists", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(RemotePath, name, fail)
            with pytest.raises(OSError, match="does not answer"):
                list(run_job(job, CPU))
    assert finish(job).problem is None


def test_a_lack_of_memory_is_a_problem_of_the_job_after_one_retry(job, monkeypatch):
    train, num_starts = TrainingRun.advance, 0

    def advance(run: TrainingRun, count: int) -> dict[str, float]:
        nonlocal num_starts
        if run.episode >= 4:
            num_starts += 1
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        return train(run, count)

    monkeypatch.setattr(TrainingRun, "advance", advance)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            list(run_job(job, CPU))
    problem = "out of memory twice: CUDA out of memory. Tried to allocate 2 GiB"
    assert finish(job).problem == finish(job).problem == problem
    assert num_starts == 2

    monkeypatch.setattr(TrainingRun, "advance", train)
    assert finish(replace(job, seed=4)).problem is None, "other settings have their own attempts"


def test_an_unfinished_job_has_no_score(job):
    assert not is_trained(job)
    next(run_job(job, CPU))
    assert not is_trained(job)

    with pytest.raises(ValueError, match=r"^checkpoint trials/0000.pt is incomplete: 2 of 6"):
        score_again(job)
    finish(job)
    assert is_trained(job)
    job.checkpoint.write(b"damaged")
    assert not is_trained(job)


def test_a_method_that_is_not_trained_is_in_the_job_s_embedding_all_the_same(job):
    trained, control = job_of(job, "c-GAN-PN"), job_of(job, "copy-PN")
    task, queries = read_validation(job, CPU)
    finish(trained)

    spaces = []
    for method in (new_method(control, CPU), load_method(trained, task)):
        method.fit(task, new_rng(job.seed))
        spaces.append(method.represent(queries.features))

    torch.testing.assert_close(*spaces, rtol=0, atol=0)
    assert not torch.allclose(spaces[0], queries.features)


def test_jobs_of_one_machine_share_an_embedding_and_jobs_of_another_seed_have_another(job):
    job = job_of(job, "c-GAN-PN")
    other = EMBEDDING.with_overrides({"dropout": 0.1})
    changes = ({}, {}, {"seed": 4}, {"embedding": other})
    for number, change in enumerate(changes):
        assert finish(replace(job, path=f"trials/{number}.pt", **change)).problem is None

    kept = sorted(Path("cache/embeddings").rglob("*.pt"))
    assert sorted(path.name for path in kept) == ["PN-seed3.pt", "PN-seed3.pt", "PN-seed4.pt"]
    assert len({path.parent for path in kept}) == 2


def run_together(
    job: TrialJob, monkeypatch: pytest.MonkeyPatch, num_reports: int = 100
) -> tuple[list[list[Report]], list[Run]]:
    """Return the reports and the runs of two workers."""
    runs: dict[int, Run] = {}
    begin = job_module._begin

    def begin_and_tell(job, task, workers):
        method, runs[workers.rank] = begin(job, task, workers)
        return method, runs[workers.rank]

    def work(workers) -> list[Report]:
        reports = run_job(job, CPU, workers)
        return [report for report, _ in zip(reports, range(num_reports), strict=False)]

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(job_module, "_begin", begin_and_tell)
        reports = list(pool.map(work, threads(2)))
    return reports, [runs[rank] for rank in range(2)]


def test_two_workers_train_one_job_and_resume_it(job, monkeypatch):
    unbroken = replace(job, path="trials/0001.pt")
    run_together(job, monkeypatch, num_reports=1)

    (_, second), runs = run_together(job, monkeypatch)
    (expected, others), unbroken_runs = run_together(unbroken, monkeypatch)

    assert [entry["episode"] for entry in expected[-1].curve] == [2, 4, 6]
    assert [scores(report.curve) for report in expected] == [scores(each.curve) for each in others]
    assert [report.losses for report in expected] == [report.losses for report in others]
    assert second[-1].losses == others[-1].losses
    for run in (*runs, *unbroken_runs):
        assert_same_weights(run.networks.state_dict(), kept_weights(unbroken))
    assert_same_weights(kept_weights(job), kept_weights(unbroken))


@pytest.mark.parametrize(
    ("method", "head", "num_draws"),
    [
        ("cCov-GAN", "cosine", 1),  # one worker has nothing to do
        ("cCov-GAN", "linear", 5),
        ("c-GAN", "knn", 7),
        *(slow(name, None, 5) for name in [*TRAINED, *UNTRAINED] if name not in GANS),
    ],
)
def test_workers_share_the_draws_and_score_as_one_process_does(
    job, monkeypatch, method, head, num_draws
):
    job = job_of(job, method, head, num_draws=num_draws)
    evaluate_share, draws = job_module._evaluate, {}

    def evaluate_and_tell(*arguments: object) -> pd.DataFrame:
        found = evaluate_share(*arguments)
        draws[arguments[-1].rank] = set(found["draw"])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "_evaluate", evaluate_and_tell)
        reports, _ = run_together(job, patch)

    found = [scores(each[-1].curve)[-1] for each in reports]
    assert found == [{"episode": job.eval_steps[-1], **score_again(job)}] * 2
    first = num_draws // 2
    assert draws == {0: set(range(first)), 1: set(range(first, num_draws))}


def train_as_process(rank: int, job: TrialJob, store: Path) -> None:
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    list(run_job(job, CPU, Workers(rank, 2)))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_score_as_one_does(job, tmp_path):
    job = job_of(job, "cCov-GAN", "cosine", num_draws=5)

    spawn(train_as_process, (job, tmp_path / "store"), nprocs=2)

    assert scores(kept_state(job)["curve"])[-1] == {"episode": 6, **score_again(job)}


def test_workers_end_together_when_training_diverges_or_one_cannot_evaluate(
    gaussians, tmp_path, job, monkeypatch
):
    diverging = new_job(gaussians, tmp_path, "other.pt", generator_learning_rate=1e30)
    (first, second), _ = run_together(diverging, monkeypatch)
    assert "cCov-GAN diverged" in first[-1].problem
    assert first[-1].problem == second[-1].problem

    evaluate_share = job_module._evaluate

    def fail_on_one(*arguments: object) -> pd.DataFrame:
        if arguments[-1].rank == 1:
            raise ValueError("nothing\nto score")
        return evaluate_share(*arguments)

    monkeypatch.setattr(job_module, "_evaluate", fail_on_one)
    for reports in run_together(job, monkeypatch)[0]:
        assert [report.problem for report in reports] == ["nothing to score"]


def test_workers_that_have_read_different_states_start_again(job, monkeypatch):
    run_together(job, monkeypatch, num_reports=1)
    ahead = job.checkpoint.read()

    def read(path: RemotePath) -> bytes | None:
        return ahead if threading.current_thread().name.endswith("_0") else None

    monkeypatch.setattr(RemotePath, "read_if_exists", read)

    with pytest.raises(RuntimeError, match="they may have read different checkpoints"):
        run_together(job, monkeypatch)


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
    assert_same_weights(kept_weights(of_other), kept_weights(job))


def test_a_machine_that_does_not_see_the_study_takes_no_work(tmp_path):
    """A machine that joins late may have a different folder of the same name."""
    location = str(tmp_path / "shared")

    with pytest.raises(RuntimeError, match=f"cannot find the study in {location}"):
        check_this_machine(location)

    (RemotePath.at(location) / MARK).write(b"of the machine that started")
    check_this_machine(location)
