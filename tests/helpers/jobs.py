"""Small jobs of every method, and what is left of a finished one."""

from dataclasses import replace

import pytest
import torch

from cpaan.core.files import unpack_state
from cpaan.methods.registry import ROWS, with_episodes
from cpaan.representation.config import EmbeddingConfig
from cpaan.study import job as job_module
from cpaan.study.job import Report, TrialJob, load_method, mean_top5, read_validation, run_job
from cpaan.training.workers import ALONE
from helpers.runs import tiny
from helpers.studies import QUICK

CPU = torch.device("cpu")

TRAINED = ["cCov-GAN", "c-GAN", "MN", "AWG", "PN", "MAML", "FI-PN", "FH", "P-FH", "c-GAN-PN"]
EMBEDDING = tiny(EmbeddingConfig())
UNTRAINED = ["LR", "copy", "DC"]


def job_of(job: TrialJob, method: str, head: str | None = None, **others: object) -> TrialJob:
    """Return a job of another row, with six episodes or none."""
    row = ROWS[method]
    overrides = {"heads": (head or row.head,), "linear_num_steps": 5, "perplexity": 4.0}
    return replace(
        job,
        method=method,
        training=job.training if row.gan else with_episodes(tiny(row.config), 6),
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


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)
