"""How much faster two workers of one thread each are than one, on Ray Train."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpaan.builtin import builtin_features
from cpaan.config import EvaluationConfig, TrainConfig
from cpaan.files import load_state
from cpaan.study.cluster import ray_cluster
from cpaan.study.config import DataReference, StudyConfig
from cpaan.study.job import Job
from cpaan.study.trial import Trial, train_with_workers

HELP = "episodes per second of two workers on two cores, over those of one (goal: 1.6)"

# Large enough that a step's arithmetic outweighs the exchange of its gradients.
SIZES = {
    "num_ways": 16,
    "batch_size": 500,
    "episode_shots": (1, 2, 5),
    "hidden_dim": 128,
    "num_covariance_classes": 4,
}
NUM_EPISODES = 30
REPEATS = 2  # alternately, so that a slow minute of the machine meets both


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """Return episodes per second by number of workers, every run of them, and the ratio."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder, ray_cluster(None, say):
        for repeat in range(REPEATS):
            for count, rates in found.items():
                job = make_job(folder, f"{count}-{repeat}.pt")
                study = StudyConfig(workers_per_trial=count)
                train_with_workers(Trial(0, job, study), [])
                seconds = load_state(Path(folder) / job.path)["seconds"]
                rates.append(NUM_EPISODES / seconds)
                say(f"{count} workers: {rates[-1]:.2f} episodes per second")
    best = {count: max(rates) for count, rates in found.items()}
    return {
        "sizes": SIZES,
        "episodes": NUM_EPISODES,
        "episodes_per_second": {str(count): rates for count, rates in found.items()},
        "ratio": best[2] / best[1],
    }


def make_job(folder: str, path: str, **settings: Any) -> Job:
    """Return a training on the built-in features, without evaluations."""
    table, split = builtin_features()
    training = TrainConfig().with_overrides({**SIZES, "num_episodes": NUM_EPISODES, **settings})
    return Job(
        method="cCov-GAN",
        training=training,
        evaluation=EvaluationConfig(heads=("cosine",)),
        seed=0,
        marks=(),
        data=DataReference.of(table, split, None),
        storage=folder,
        path=path,
    )
