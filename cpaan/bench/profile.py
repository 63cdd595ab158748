"""Where the time of a training step goes on a GPU, by what its kernels do."""

import torch
from torch.profiler import ProfilerActivity, profile

from cpaan.bench.measuring import Bench, Row, Subject, summarise
from cpaan.bench.scales import training_data
from cpaan.core.randomness import new_rng
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.gans import GANS
from cpaan.gan.loop import TrainingRun

HELP = "where the time of a step of cCov-GAN goes, by kind of kernel; cuda"

METHOD = "cCov-GAN"
_NUM_EPISODES = 10
_NUM_TIMED = 100

FAMILIES = {
    "sums of rows and activations": ("_add_rows_kernel",),
    "gradients of activations": ("_deactivate_kernel", "_sum_parts_kernel"),
    "discriminators' answers": ("_log_likelihood",),
    "products with differences of covariances": ("_times_difference",),
    "orthonormal bases": ("_orthonormal",),
    "small eigenproblems": ("_eigh_kernel", "_gram_kernel"),
    "Adam": ("FusedAdam", "FusedOptimizer"),
    "random numbers": ("distribution_",),
    "matrix products": ("nvjet", "gemm", "cutlass", "splitK", "gemv"),
    "reductions": ("reduce_kernel", "softmax", "scan", "sort", "Sort", "TopK", "topk"),
    "copies, gathers, scatters": ("copy", "memcpy", "index", "gather", "scatter", "Cat", "Fill"),
}
"""Parts of kernels' names; the first family with one of them has the kernel."""
_OTHERS = "other elementwise steps"


def measure(bench: Bench) -> list[Row]:
    """Return a row for each family: milliseconds of its kernels in an episode.

    Kernels that do not wait for each other run side by side, and take longer for it. So the first
    row, the step as a user waits for it, is shorter than the sum of the others.

    Raises:
        ValueError: If the device is no GPU.
    """
    if bench.device.type != "cuda":
        raise ValueError(f"profile is of a GPU's kernels, got {bench.device.type}")
    scale = bench.scale
    config = scale.training()
    data = training_data(scale, scale.num_dims, config.ky_fan_order, str(bench.device))
    run = TrainingRun(GANS[METHOD], MetaEpisodes(data, config), config, new_rng(bench.seed))
    run.advance(_NUM_EPISODES)
    whole = bench.time({"ours": Subject(lambda: run.advance(_NUM_TIMED), _NUM_TIMED)})["ours"]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run.advance(_NUM_EPISODES)
        torch.cuda.synchronize(bench.device)
    found: dict[str, list[float]] = {name: [] for name in (*FAMILIES, _OTHERS)}
    for event in profiler.events():
        if event.device_type.name == "CUDA":
            found[_family_of(event.name)].append(event.device_time / 1e3)
    rows = [bench.row("profile of a step", whole, None, num_kernels=_count(found))]
    for family, times in sorted(found.items(), key=lambda item: -sum(item[1])):
        total = summarise([sum(times) / _NUM_EPISODES])
        num_kernels = len(times) / _NUM_EPISODES
        rows.append(bench.row(f"profile: {family}", total, None, num_kernels=num_kernels))
    return rows


def _family_of(name: str) -> str:
    for family, parts in FAMILIES.items():
        if any(part in name for part in parts):
            return family
    return _OTHERS


def _count(found: dict[str, list[float]]) -> float:
    return sum(len(times) for times in found.values()) / _NUM_EPISODES
