"""Test workers that train one job together: they score, resume and fail as one process does.

They are threads. `test_search.py` compares processes on Ray with them.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pandas as pd
import pytest

from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation import job as job_module
from cpaan.evaluation.job import Job, Report
from cpaan.gan.gans import GANS
from cpaan.study.job import run_study_job
from helpers.jobs import (
    TRAINED,
    UNTRAINED,
    assert_same_weights,
    at,
    checkpoint_of,
    job_of,
    kept_weights,
    score_again,
    slow,
)
from helpers.runs import threads
from helpers.studies import new_job, scores


def run_together(job: Job, num_reports: int | None = None) -> list[list[Report]]:
    """Return the reports of two workers, or only the first ones."""

    def work(workers) -> list[Report]:
        return list(islice(run_study_job(job, workers=workers), num_reports))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, threads(2)))


def test_two_workers_train_one_job_and_resume_it(job):
    unbroken = at("trials/0001.pt", job)
    run_together(job, num_reports=1)

    _, second = run_together(job)
    expected, others = run_together(unbroken)

    assert [entry["episode"] for entry in expected[-1].curve] == [2, 4, 6]
    for report, other in zip(expected, others, strict=True):
        assert (scores(report.curve), report.losses) == (scores(other.curve), other.losses)
    assert second[-1].losses == others[-1].losses
    # A second worker in another state would have changed the mean of the gradients.
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
    evaluate_share, draws = job_module._score_share, {}

    def evaluate_and_tell(*arguments: object) -> pd.DataFrame:
        share = evaluate_share(*arguments)
        draws[arguments[-1].rank] = set(share["draw"])
        return share

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "_score_share", evaluate_and_tell)
        reports = run_together(job)

    ends = [scores(of_worker[-1].curve)[-1] for of_worker in reports]
    assert ends == [{"episode": job.eval_steps[-1], **score_again(job)}] * 2
    first = num_draws // 2
    assert draws == {0: set(range(first)), 1: set(range(first, num_draws))}


def test_workers_end_together_when_training_diverges_or_one_cannot_evaluate(
    gaussians, tmp_path, job, monkeypatch
):
    diverging = new_job(gaussians, tmp_path, "other.pt", generator_learning_rate=1e30)
    first, second = run_together(diverging)
    assert "cCov-GAN diverged" in first[-1].problem
    assert first[-1].problem == second[-1].problem

    evaluate_share = job_module._score_share

    def fail_on_one(*arguments: object) -> pd.DataFrame:
        if arguments[-1].rank == 1:
            raise ValueError("nothing\nto score")
        return evaluate_share(*arguments)

    monkeypatch.setattr(job_module, "_score_share", fail_on_one)
    for reports in run_together(job):
        assert [report.problem for report in reports] == ["nothing to score"]


def test_workers_that_have_read_different_states_start_again(job, monkeypatch):
    run_together(job, num_reports=1)
    ahead = checkpoint_of(job).read()

    def read(path: RemotePath) -> bytes | None:
        return ahead if threading.current_thread().name.endswith("_0") else None

    monkeypatch.setattr(RemotePath, "read_if_exists", read)

    with pytest.raises(RuntimeError, match="they may have read different checkpoints"):
        run_together(job)
