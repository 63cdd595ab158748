"""Whole trials through Ray, as a study runs them; and trials with two workers, against one."""

import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpaan.bench.measuring import Bench, summarise
from cpaan.bench.scales import Scale, real_classes
from cpaan.core.files import load_state
from cpaan.core.randomness import new_rng
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.data.reference import DataReference
from cpaan.data.splits import Phase, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable
from cpaan.gan.config import TrainConfig
from cpaan.protocol.config import EvaluationConfig
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.job import TrialJob

HELP = "a whole trial of cCov-GAN through Ray, and the share of training and evaluation in it"
HELP_DATA_PARALLEL = "an episode of two workers of one thread each on Ray Train, against one"

_METHOD = "cCov-GAN"
_NUM_EPISODES = {"paper": 100_000, "slice": 20, "small": 10}
_NUM_FIRST_EPISODES = 10
_ROWS = {TRAIN: 1_281, TEST: 50}  # of an ImageNet class, on average
_SHOTS_AND_MORE = 60  # train rows of a novel class, from which shots are drawn

_PARALLEL_SIZES: dict[str, dict[str, Any]] = {
    "paper": {"num_ways": 20, "batch_size": 1_000, "episode_shots": (10,)},
    # Large enough that a step's arithmetic outweighs the exchange of its gradients.
    "slice": {"num_ways": 16, "batch_size": 500, "hidden_dim": 128, "num_covariance_classes": 4},
    "small": {"num_ways": 4, "batch_size": 60, "hidden_dim": 32, "num_covariance_classes": 2},
}
_PARALLEL_EPISODES = 30
_PARALLEL_REPEATS = 2  # alternately, so that a busy machine disturbs both alike


def measure(bench: Bench) -> None:
    """Measure the start of Ray, the first trial on a machine, and a whole trial.

    The first trial reads programs from the disk and compiles kernels, even if it hardly trains.
    """
    # Ray takes seconds to import, and the other benchmarks do not need it.
    from cpaan.study.cluster import ray_cluster
    from cpaan.study.machines import check_machines
    from cpaan.study.trial import train_with_workers

    scale = bench.scale
    with tempfile.TemporaryDirectory() as folder:
        data = _write_data(Path(folder), bench) if scale.name == "paper" else _builtin()
        _, evaluation = PRESETS["paper"].recommended()
        training = scale.training.with_overrides({"num_episodes": _NUM_EPISODES[scale.name]})
        gpus = float(bench.device.type == "cuda")
        study = StudyConfig(method=_METHOD, head="linear", gpus_per_worker=gpus)
        job = TrialJob(
            method=_METHOD,
            training=training,
            evaluation=evaluation.with_overrides({"heads": (study.head,)}),
            seed=bench.seed,
            eval_steps=study.eval_steps(training.num_episodes),
            data=data,
            storage=folder,
            path="trial.pt",
            config=study,
        )
        few = training.with_overrides({"num_episodes": _NUM_FIRST_EPISODES})
        first = replace(job, training=few, eval_steps=(), path="first.pt")
        times = [time.monotonic()]
        with ray_cluster(None, bench.say):
            check_machines(folder, bench.say)
            times.append(time.monotonic())
            train_with_workers(first)
            times.append(time.monotonic())
            bench.say(f"{training.num_episodes} episodes, evaluated after {job.eval_steps} ...")
            train_with_workers(job)
            times.append(time.monotonic())
        state = load_state(Path(folder) / job.path)
    of_ray, of_first, seconds = (late - early for early, late in pairwise(times))
    bench.row("trial: start of Ray", summarise([1e3 * of_ray]))
    bench.row(
        "trial: the first on a machine",
        summarise([1e3 * of_first]),
        num_episodes=_NUM_FIRST_EPISODES,
    )
    bench.row(
        f"trial {_METHOD}",
        summarise([1e3 * seconds]),
        num_episodes=training.num_episodes,
        eval_steps=list(job.eval_steps),
        # The rest is the start and end of processes, and opening and preparing the data.
        training_and_evaluation_seconds=state["seconds"],
        share_of_training_and_evaluation=state["seconds"] / seconds,
        share_with_start_of_ray=state["seconds"] / (seconds + of_ray),
        novel_top5=state["curve"][-1]["novel_top5"],
        all_top5=state["curve"][-1]["all_top5"],
    )


def measure_data_parallel(bench: Bench) -> None:
    """Measure an episode of two workers as ours, and of one as plain; the goal is 1.6."""
    from cpaan.study.cluster import ray_cluster
    from cpaan.study.machines import check_machines
    from cpaan.study.trial import train_with_workers

    settings = {"num_episodes": _PARALLEL_EPISODES, **_PARALLEL_SIZES[bench.scale.name]}
    training = TrainConfig(**{"episode_shots": (1, 2, 5), **settings})
    gpus = 0.0 if bench.device.type == "cpu" else 1.0 if torch.cuda.device_count() > 1 else 0.5
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder, ray_cluster(None, bench.say):
        check_machines(folder, bench.say)
        for repeat in range(_PARALLEL_REPEATS):
            for count, times in found.items():
                job = TrialJob(
                    method=_METHOD,
                    training=training,
                    evaluation=EvaluationConfig(heads=("cosine",)),
                    seed=bench.seed,
                    eval_steps=(),
                    data=_builtin(),
                    storage=folder,
                    path=f"{count}-{repeat}.pt",
                    config=StudyConfig(workers_per_trial=count, gpus_per_worker=gpus),
                )
                train_with_workers(job)
                seconds = load_state(Path(folder) / job.path)["seconds"]
                times.append(1e3 * seconds / _PARALLEL_EPISODES)
                bench.say(f"{count} workers: {times[-1]:.4g} ms an episode")
    bench.row(
        "data-parallel",
        summarise(found[2]),
        summarise(found[1]),
        num_episodes=_PARALLEL_EPISODES,
        best_ratio=min(found[1]) / min(found[2]),
        sizes=_PARALLEL_SIZES[bench.scale.name],
    )


def _builtin() -> DataReference:
    table, split = builtin_features()
    return DataReference.of(table, split, None)


def _write_data(folder: Path, bench: Bench) -> DataReference:
    """Write features with the paper's numbers of classes and rows, and open them once.

    Rows are drawn from those of `real_classes`, also for "novel" classes, so scores mean nothing.
    Decoding a file for the first time is not a part of a trial.
    """
    bench.say("writing features ...")
    split = _split(bench.scale)
    names = split.base_classes("validation") + split.validation.novel
    rng = new_rng(bench.seed)
    blocks, classes, partitions = [], [], []
    for name, rows in zip(names, real_classes(len(names)), strict=True):
        for partition, count in _ROWS.items():
            if partition == TRAIN and name in split.validation.novel:
                count = _SHOTS_AND_MORE
            chosen = torch.randint(len(rows), (count,), generator=rng)
            blocks.append(rows[chosen].half().numpy())
            classes += [name] * count
            partitions += [partition] * count
    table = FeatureTable.from_arrays(np.concatenate(blocks), classes, partitions)
    path = folder / "features.parquet"
    write_features(path, table)
    return DataReference.of(open_features(str(path)), split, [str(path)])


def _split(scale: Scale) -> Split:
    """Return the paper's numbers of classes: validation 193 and 300, test 196 and 311."""
    base = [f"base{number:03}" for number in range(scale.num_classes)]
    own, other = tuple(base[scale.num_base :]), tuple(base[: scale.num_base])
    novel = [f"novel{number:03}" for number in range(300 + scale.num_novel)]
    return Split(Phase(own, tuple(novel[:300])), Phase(other, tuple(novel[300:])))
