"""How much faster two workers of one thread each are than one, on Ray Train."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.core.files import load_state
from cpaan.data.builtin import builtin_features
from cpaan.data.reference import DataReference
from cpaan.gan.config import TrainConfig
from cpaan.protocol.config import EvaluationConfig
from cpaan.study.config import StudyConfig
from cpaan.study.job import TrialJob

HELP = "an episode of two workers of one thread each on Ray Train, against one (goal: 1.6)"

SIZES: dict[str, dict[str, Any]] = {
    "paper": {"num_ways": 20, "batch_size": 1_000, "episode_shots": (10,)},
    # Large enough that a step's arithmetic outweighs the exchange of its gradients.
    "slice": {
        "num_ways": 16,
        "batch_size": 500,
        "episode_shots": (1, 2, 5),
        "hidden_dim": 128,
        "num_covariance_classes": 4,
    },
    "small": {
        "num_ways": 4,
        "batch_size": 60,
        "episode_shots": (1, 2, 5),
        "hidden_dim": 32,
        "num_covariance_classes": 2,
    },
}
"""Of the training, on the built-in features, by scale."""
NUM_EPISODES = 30
REPEATS = 2  # alternately, so that a slow minute of the machine meets both


def measure(bench: Bench) -> list[Row]:
    """Return one row: two workers as ours, one as plain, and half of one's time as the floor."""
    # Here, because Ray takes seconds to import, and the other benchmarks do without it.
    from cpaan.study.cluster import ray_cluster
    from cpaan.study.machines import check_machines
    from cpaan.study.trial import Trial, train_with_workers

    sizes = SIZES[bench.scale.name]
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder, ray_cluster(None, bench.say):
        check_machines(folder, bench.say)
        for repeat in range(REPEATS):
            for count, times in found.items():
                job = make_job(folder, f"{count}-{repeat}.pt", seed=bench.seed, **sizes)
                study = StudyConfig(
                    workers_per_trial=count, gpus_per_worker=_gpus_per_worker(bench.device)
                )
                train_with_workers(Trial(0, job, study), [])
                seconds = load_state(Path(folder) / job.path)["seconds"]
                times.append(1e3 * seconds / NUM_EPISODES)
                bench.say(f"{count} workers: {times[-1]:.4g} ms an episode")
    one, two = (summarise(found[count]) for count in (1, 2))
    return [
        bench.row(
            "data-parallel",
            two,
            one,
            floor_ms=one.median_ms / 2,
            num_episodes=NUM_EPISODES,
            best_ratio=min(found[1]) / min(found[2]),
            sizes=sizes,
        )
    ]


def _gpus_per_worker(device: torch.device) -> float:
    """Return a GPU for each of two workers, or halves of one where there is one."""
    if device.type == "cpu":
        return 0.0
    return 1.0 if torch.cuda.device_count() > 1 else 0.5


def make_job(folder: str, path: str, seed: int = 0, **settings: Any) -> TrialJob:
    """Return a training on the built-in features, without evaluations."""
    table, split = builtin_features()
    training = TrainConfig().with_overrides({"num_episodes": NUM_EPISODES, **settings})
    return TrialJob(
        method="cCov-GAN",
        training=training,
        evaluation=EvaluationConfig(heads=("cosine",)),
        seed=seed,
        eval_steps=(),
        data=DataReference.of(table, split, None),
        storage=folder,
        path=path,
    )
