"""Benchmark of whole trials on Ray, as in a study."""

import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from cpaan.bench.measuring import Bench, Timing
from cpaan.bench.scales import real_classes
from cpaan.core.files import unpack_state
from cpaan.core.randomness import new_rng
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.data.reference import DataReference
from cpaan.data.splits import Phase, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.job import TrialJob

HELP = "a whole trial of cCov-GAN through Ray, and the share of training and evaluation in it"

_METHOD = "cCov-GAN"
_NUM_EPISODES = {"paper": 100_000, "slice": 20, "small": 10}
_NUM_FIRST_EPISODES = 10
_ROWS = {TRAIN: 1_281, TEST: 50}  # of an ImageNet class, on average
_SHOTS_AND_MORE = 60  # train rows of a novel class, from which shots are drawn


def measure(bench: Bench) -> None:
    """Measure the start of Ray, the first trial on a machine, and a whole trial.

    The first trial loads programs from disk and compiles kernels, even if it hardly trains.
    """
    # Importing Ray takes seconds, and the other benchmarks do not need it.
    from cpaan.study.cluster import check_machines, ray_cluster
    from cpaan.study.trial import train_with_workers

    scale = bench.scale
    training = scale.training.with_overrides({"num_episodes": _NUM_EPISODES[scale.name]})
    few = training.with_overrides({"num_episodes": _NUM_FIRST_EPISODES})
    gpus = float(bench.device.type == "cuda")
    study = StudyConfig(method=_METHOD, head="linear", gpus_per_worker=gpus)
    _, evaluation = PRESETS["paper"].recommended()
    sizes = {
        "num_synthetic": min(evaluation.num_synthetic, scale.num_synthetic),
        "linear_num_steps": min(evaluation.linear_num_steps, scale.num_linear_steps),
    }
    evaluation = evaluation.with_overrides({"heads": ("linear",), **sizes})
    eval_steps = study.eval_steps(training.num_episodes)
    times = [time.monotonic()]
    with tempfile.TemporaryDirectory() as folder, ray_cluster(None, bench.say):
        check_machines(folder, bench.say)
        times.append(time.monotonic())
        data = DataReference.of(*builtin_features(), None)
        if scale.name == "paper":
            data = _write_data(Path(folder), bench)
        first = TrialJob(
            _METHOD, few, evaluation, bench.seed, (), data, folder, "first.pt", config=study
        )
        times.append(time.monotonic())
        train_with_workers(first)
        times.append(time.monotonic())
        bench.say(f"{training.num_episodes} episodes, evaluated after {eval_steps} ...")
        train_with_workers(
            replace(first, training=training, eval_steps=eval_steps, path="trial.pt")
        )
        times.append(time.monotonic())
        state = unpack_state(Path(folder, "trial.pt").read_bytes())
    of_ray, _, of_first, seconds = (late - early for early, late in pairwise(times))
    bench.row("trial: start of Ray", Timing([1e3 * of_ray]))
    bench.row(
        "trial: the first on a machine", Timing([1e3 * of_first]), num_episodes=few.num_episodes
    )
    bench.row(
        f"trial {_METHOD}",
        Timing([1e3 * seconds]),
        num_episodes=training.num_episodes,
        eval_steps=list(eval_steps),
        # The rest is process start and exit, and opening and preparing the data.
        training_and_evaluation_seconds=state["seconds"],
        share_of_training_and_evaluation=state["seconds"] / seconds,
        share_with_start_of_ray=state["seconds"] / (seconds + of_ray),
        novel_top5=state["curve"][-1]["novel_top5"],
        all_top5=state["curve"][-1]["all_top5"],
    )


def _write_data(folder: Path, bench: Bench) -> DataReference:
    """Write features with the paper's numbers of classes and rows, and open them once.

    Rows are drawn from `real_classes`, also for "novel" classes, so scores have no meaning.
    Decoding a file for the first time is not part of a trial.
    """
    bench.say("writing features ...")
    scale, rng = bench.scale, new_rng(bench.seed)
    # Classes in the paper: validation 193 base and 300 novel, test 196 and 311.
    base = tuple(f"base{number:03}" for number in range(scale.num_classes))
    novel = tuple(f"novel{number:03}" for number in range(300 + scale.num_novel))
    split = Split(
        Phase(base[scale.num_base :], novel[:300]), Phase(base[: scale.num_base], novel[300:])
    )
    names = [*base, *novel[:300]]
    counts = {(name, part): count for name in names for part, count in _ROWS.items()}
    counts |= {(name, TRAIN): _SHOTS_AND_MORE for name in novel[:300]}
    rows_of = dict(zip(names, real_classes(len(names)), strict=True))
    blocks = [
        rows_of[name][torch.randint(len(rows_of[name]), (count,), generator=rng)].half().numpy()
        for (name, _), count in counts.items()
    ]
    classes, partitions = np.repeat(list(counts), list(counts.values()), axis=0).T.tolist()
    table = FeatureTable.from_arrays(np.concatenate(blocks), classes, partitions)
    path = folder / "features.parquet"
    write_features(path, table)
    return DataReference.of(open_features(str(path)), split, [str(path)])
