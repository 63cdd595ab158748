"""One whole trial through Ray, as a study runs it: start, data, training, evaluations, end."""

import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.bench.scales import Scale, real_classes
from cpaan.core.files import load_state
from cpaan.core.randomness import new_rng
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.data.reference import DataReference
from cpaan.data.splits import Phase, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.job import TrialJob

HELP = "a whole trial of cCov-GAN through Ray, and which share of it is training and evaluation"

METHOD = "cCov-GAN"
_NUM_EPISODES = {"paper": 100_000, "slice": 20, "small": 10}
_ROWS = {TRAIN: 1_281, TEST: 50}  # of an ImageNet class, on average
_NUM_FIRST_EPISODES = 10
_SHOTS_AND_MORE = 60
"""Train rows of a novel class: shots are drawn from them."""


def measure(bench: Bench) -> list[Row]:
    """Return rows of Ray's start, of a trial that trains next to nothing, and of a whole one.

    The first trial on a machine reads programs from its disk and compiles kernels; every later one
    of a study finds them.
    """
    # Here, because Ray takes seconds to import, and the other benchmarks do without it.
    from cpaan.study.cluster import ray_cluster
    from cpaan.study.machines import check_machines
    from cpaan.study.trial import Trial, train_with_workers

    scale = bench.scale
    is_cuda = bench.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        data = _write_data(Path(folder), bench) if scale.name == "paper" else _builtin()
        _, evaluation = PRESETS["paper"].recommended()
        training = scale.training(num_episodes=_NUM_EPISODES[scale.name])
        study = StudyConfig(method=METHOD, head="linear", gpus_per_worker=float(is_cuda))
        job = TrialJob(
            method=METHOD,
            training=training,
            evaluation=evaluation.with_overrides({"heads": (study.head,)}),
            seed=bench.seed,
            eval_steps=study.eval_steps(training.num_episodes),
            data=data,
            storage=folder,
            path="trial.pt",
        )
        first = replace(
            job,
            training=training.with_overrides({"num_episodes": _NUM_FIRST_EPISODES}),
            eval_steps=(),
            path="first.pt",
        )
        times = [time.monotonic()]
        with ray_cluster(None, bench.say):
            check_machines(folder, bench.say)
            times.append(time.monotonic())
            train_with_workers(Trial(0, first, study), [])
            times.append(time.monotonic())
            bench.say(f"{training.num_episodes} episodes, evaluated after {job.eval_steps} ...")
            train_with_workers(Trial(1, job, study), [])
            times.append(time.monotonic())
        state = load_state(Path(folder) / job.path)
    of_ray, of_first, seconds = (late - early for early, late in pairwise(times))
    last = state["curve"][-1]
    return [
        bench.row("trial: start of Ray", summarise([1e3 * of_ray]), None),
        bench.row(
            "trial: the first on a machine",
            summarise([1e3 * of_first]),
            None,
            num_episodes=_NUM_FIRST_EPISODES,
        ),
        bench.row(
            f"trial {METHOD}",
            summarise([1e3 * seconds]),
            None,
            num_episodes=training.num_episodes,
            marks=list(job.eval_steps),
            # Outside: processes that start and end, and opening and preparing the data.
            training_and_evaluation_seconds=state["seconds"],
            share_of_training_and_evaluation=state["seconds"] / seconds,
            share_with_start_of_ray=state["seconds"] / (seconds + of_ray),
            novel_top5=last["novel_top5"],
            all_top5=last["all_top5"],
        ),
    ]


def _builtin() -> DataReference:
    table, split = builtin_features()
    return DataReference.of(table, split, None)


def _write_data(folder: Path, bench: Bench) -> DataReference:
    """Write features of the paper's numbers of classes and rows, and open them once.

    Classes are those of `real_classes`, their rows drawn again and again; so are "novel" ones,
    mixed from base classes too: scores mean nothing here. Decoding a file for the first time is
    no part of a trial, and done before.
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
