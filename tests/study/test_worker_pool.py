"""Test the scores of variants of a training, and the cost of parts, whichever command ran them."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd
import pytest

from cpaan.core.files import pack_state
from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation.job import Job
from cpaan.evaluation.parts import Outcome, PartCache, PartKey, run_parts
from cpaan.gan.loop import TrainingRun
from cpaan.study import worker_pool
from cpaan.study.cluster import MARK
from cpaan.study.config import StudyConfig
from cpaan.study.job import run_study_job
from cpaan.study.worker_pool import cost_of
from helpers.jobs import at, checkpoint_of, finish, kept_state, part_of
from helpers.tasks import shots_of


@pytest.fixture
def job(gaussians, job, tmp_path) -> Job:
    """Return the job of a part; the search has used seed 0."""
    (RemotePath.at(tmp_path / "storage") / MARK).write(b"")
    shot_rows = shots_of(gaussians.table, gaussians.split)
    return replace(job, eval_steps=(), draws=shot_rows)


def test_the_cost_of_a_resumed_report_counts_the_parts_of_both_commands(job):
    jobs = {PartKey(row, 1): replace(job, row=row, seed=1) for row in ("a", "b")}
    (first, second), config = jobs, StudyConfig(gpus_per_worker=0.5)
    cache = PartCache(RemotePath.at("parts"))

    def run(key: PartKey, seconds: float) -> dict[PartKey, Outcome]:
        def execute(missing: Mapping[PartKey, Job]) -> Iterator[tuple[PartKey, Outcome]]:
            assert key in missing
            yield key, part_of(seconds=seconds, training_seconds=0.0)

        return run_parts(jobs, execute, cache, lambda line: None)

    assert cost_of(jobs, run(first, 10.0), config)["gpu_seconds"] == 5.0
    resumed = run(second, 20.0)

    assert [*cost_of(jobs, resumed, config).values()] == [30.0, 15.0, 0]
    failed = {first: resumed[first], second: ValueError("diverged")}
    names = ["worker_seconds", "gpu_seconds", "num_uncounted"]
    assert cost_of(jobs, failed, config) == dict(zip(names, [10.0, 5.0, 1], strict=True))


@pytest.mark.parametrize(
    ("seed", "other_path", "other_settings", "worker_seconds"),
    [
        (1, False, False, 3 + 4 + 2 * 100),  # one training of two workers, scored twice
        (1, True, False, 3 + 4 + 2 * 200),
        (1, False, True, 3 + 4 + 2 * 200),  # another training has overwritten the file
        (0, False, False, 3 + 4),  # the training of a trial
    ],
)
def test_a_training_counts_once_for_each_of_its_workers(
    job, seed, other_path, other_settings, worker_seconds
):
    other = at("other.pt", job) if other_path else job
    if other_settings:
        other = replace(other, training=job.training.with_overrides({"cycle_weight": 9.0}))
    jobs = {
        PartKey(row, seed): replace(of_row, row=row, seed=seed)
        for row, of_row in (("with the term", job), ("the row", other))
    }
    parts = [part_of(seconds=seconds, training_seconds=100.0) for seconds in (3.0, 4.0)]

    cost = cost_of(jobs, dict(zip(jobs, parts, strict=True)), StudyConfig(workers_per_trial=2))
    assert cost["worker_seconds"] == worker_seconds


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_part_has_the_seconds_of_a_training_that_was_resumed(job, tmp_path, is_complete):
    if is_complete:
        finish(replace(job, eval_steps=(0,)))
    else:
        next(run_study_job(replace(job, eval_steps=(1,))))
    checkpoint_of(job).write(pack_state({**kept_state(job), "seconds": 1000.0}))

    started = time.monotonic()
    run = worker_pool._run(job, str(tmp_path / "storage")).run
    elapsed = time.monotonic() - started

    assert run["seconds"] > 0
    assert run["training_seconds"] >= 1000.0
    assert (run["training_seconds"] == 1000.0) == is_complete
    assert run["seconds"] + run["training_seconds"] - 1000.0 <= elapsed, "nothing counts twice"


def test_a_finalist_is_trained_once_and_scored_with_each_variant(job, tmp_path, monkeypatch):
    episodes, advance = list[int](), TrainingRun.advance

    def count(run: TrainingRun, num_episodes: int) -> dict[str, float]:
        episodes.append(num_episodes)
        return advance(run, num_episodes)

    def scores_of(evaluation, **options) -> pd.DataFrame:
        finalist = replace(job, evaluation=evaluation, **options)
        return worker_pool._run(finalist, str(tmp_path / "storage")).scores

    monkeypatch.setattr(TrainingRun, "advance", count)
    changes = ({}, {"mixing_shots": 0.25}, {"num_synthetic": 3})
    variants = [job.evaluation.with_overrides(overrides) for overrides in changes]

    together = scores_of(job.evaluation, variants=tuple((job.training, v) for v in variants))

    assert sum(episodes) == job.training.num_episodes
    scores = [frame.drop(columns="method") for _, frame in together.groupby("method")]
    for evaluation, of_variant in zip(variants, scores, strict=True):
        alone = scores_of(evaluation).drop(columns="method")
        pd.testing.assert_frame_equal(
            of_variant.reset_index(drop=True), alone.reset_index(drop=True)
        )
    assert not scores[0]["top5"].equals(scores[1]["top5"]), "mixing has an effect here"
    assert sum(episodes) == job.training.num_episodes, "all of them have the same checkpoint"
