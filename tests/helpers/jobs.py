"""Small jobs of every method, and what is left of a finished one."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from cpaan.core.files import unpack_state
from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation.job import Job, Part, Report
from cpaan.evaluation.scoring import mean_top5
from cpaan.methods.registry import ROWS, with_episodes
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.job import run_study_job
from helpers.runs import tiny
from helpers.studies import QUICK

CPU, NOTHING = torch.device("cpu"), pd.DataFrame()

TRAINED = ["cCov-GAN", "c-GAN", "MN", "AWG", "PN", "MAML", "FI-PN", "FH", "P-FH", "c-GAN-PN"]
EMBEDDING = tiny(EmbeddingConfig())
UNTRAINED = ["LR", "copy", "DC"]


def job_of(job: Job, method: str, head: str | None = None, **others: object) -> Job:
    """Return a job of another row, with six episodes or none."""
    row = ROWS[method]
    overrides = {"heads": (head or row.head,), "linear_num_steps": 5, "perplexity": 4.0}
    return replace(
        job,
        row=method,
        method=method,
        training=job.training if row.method.gan else with_episodes(tiny(row.method.config), 6),
        evaluation=QUICK.with_overrides({**overrides, **others}),
        eval_steps=job.eval_steps if method in TRAINED else (0,),
        embedding=EMBEDDING if row.is_embedded else None,
    )


def at(path: str, job: Job) -> Job:
    """Return the same job with its checkpoint elsewhere in the storage."""
    storage = job.checkpoint.partition("storage")[0]
    return replace(job, checkpoint=f"{storage}storage/{path}")


def part_of(scores: pd.DataFrame = NOTHING, **run: float) -> Part:
    """Return a part with scores or seconds only."""
    return Part(scores, NOTHING, NOTHING, NOTHING, NOTHING, None, run)


def finish(job: Job) -> Report:
    *_, last = run_study_job(job)
    return last


def checkpoint_of(job: Job) -> RemotePath:
    return RemotePath.at(job.checkpoint)


def kept_state(job: Job) -> dict:
    return unpack_state(checkpoint_of(job).read())


def kept_weights(job: Job) -> dict[str, torch.Tensor]:
    run = kept_state(job)["run"]
    return run["networks"] if "networks" in run else run["network"]


def assert_same_weights(
    weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    assert set(weights) == set(expected)
    for name, value in weights.items():
        assert torch.equal(value, expected[name]), name


def score_again(job: Job) -> dict[str, float]:
    """Return LSL and both GLSL top-5 of a trained job."""
    *_, last = run_study_job(replace(job, eval_steps=()), is_scored=True)
    return mean_top5(last.part.scores, job.evaluation.heads[0])


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)
