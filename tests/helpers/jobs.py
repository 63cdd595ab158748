"""Small jobs of every method, and what is left of a finished one."""

from dataclasses import replace

import pytest
import torch

from cpaan.core.files import unpack_state
from cpaan.methods.registry import ROWS
from cpaan.representation.config import EmbeddingConfig
from cpaan.study import job as job_module
from cpaan.study.job import Report, TrialJob, load_method, mean_top5, read_validation, run_job
from cpaan.training.workers import ALONE
from helpers.gan_runs import SMALL
from helpers.studies import QUICK

CPU = torch.device("cpu")

TRAINED = ["cCov-GAN", "c-GAN", "MN", "AWG", "PN", "MAML", "FI-PN", "FH", "P-FH", "c-GAN-PN"]
GAN = {**SMALL.to_dict(), "num_episodes": 6, "generator_learning_rate": 0.03}
EPISODES = {"num_ways": 6, "episode_shots": (1, 2), "num_queries": 2, "hidden_dim": 8}
SIZES = {**EPISODES, "num_episodes": 6, "num_tasks": 2, "num_augmented": 3}
SIZES |= {"num_clusters": 3, "batch_size": 8, "num_classifier_steps": 20}
EMBEDDING = EmbeddingConfig(**EPISODES, num_episodes=3)
UNTRAINED = ["LR", "copy", "DC"]


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


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)
