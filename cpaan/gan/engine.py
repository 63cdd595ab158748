"""The choice of an implementation of the training step, made once per run."""

import importlib.util

import torch

from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episodes
from cpaan.gan.gans import Gan
from cpaan.gan.loop import TrainingRun
from cpaan.training.workers import ALONE, Workers


def new_run(
    gan: Gan,
    episodes: Episodes,
    config: TrainConfig,
    rng: torch.Generator,
    workers: Workers = ALONE,
) -> TrainingRun:
    """Return a new run: with the fast engine where it works, otherwise with the reference.

    Its ``note`` says which one, and why.
    """
    reason = why_reference(gan, episodes, config)
    if reason:
        run = TrainingRun(gan, episodes, config, rng, workers)
        run.note = f"reference engine, because {reason}"
        return run
    from cpaan.gan.fast.run import FastRun  # needs Triton

    return FastRun(gan, episodes, config, rng, workers)


def why_reference(gan: Gan, episodes: Episodes, config: TrainConfig) -> str:
    """Return why the fast engine cannot run; empty if it can."""
    features = episodes.data.base.features
    if config.engine == "reference":
        return "it is set"
    if not features.is_cuda:
        return f"the features are on the {features.device.type.upper()}"
    if features.dtype != torch.float32:
        return f"the features are {features.dtype}".replace("torch.", "")
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    from cpaan.gan.fast.covariances import fits

    num_dims, m = features.shape[1], config.ky_fan_order
    if gan.has_covariance and not fits(num_dims, m):
        return f"covariances of {num_dims} dimensions with m = {m} do not fit its kernels"
    return ""
