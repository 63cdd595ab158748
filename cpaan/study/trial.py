"""One trial: a job, trained by workers of Ray Train, or alone, in a function of Ray Tune."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from ray import train as ray_train
from ray import tune as ray_tune
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util.metrics import Gauge

from cpaan.core.remote_paths import join
from cpaan.study.cluster import worker_resources
from cpaan.study.config import StudyConfig
from cpaan.study.job import Report, TrialJob, run_job
from cpaan.study.machines import check_this_machine
from cpaan.training.workers import ALONE, Workers

EPISODE, SCORE, NOVEL_TOP5, ALL_TOP5 = "episode", "score", "novel_top5", "all_top5"
CURVE, PROBLEM = "curve", "problem"

MOST_FAILURES = 3
"""Deaths of a process, after each of which its work goes on from what was kept."""


@dataclass(frozen=True)
class Trial:
    """A job, and how many do it."""

    number: int
    job: TrialJob
    study: StudyConfig


def run_trial(config: dict[str, Any]) -> None:
    """Run one trial as a function of Ray Tune: ``config`` holds a `Trial` under "trial"."""
    trial: Trial = config["trial"]
    if trial.study.ray_train:
        train_with_workers(trial, [TuneReportCallback()])
    else:
        device = torch.device("cuda" if trial.study.gpus_per_worker else "cpu")
        _train(trial, device, ALONE, report_to_tune)


def report_to_tune(metrics: dict[str, Any]) -> None:
    """Report from a function of Ray Tune that has no Ray Train inside."""
    ray_tune.report(metrics)


def train_with_workers(trial: Trial, callbacks: list[UserCallback]) -> None:
    """Train with Ray Train, as many workers as the study has for a trial.

    Raises:
        ray.train.TrainingFailedError: If workers died more often than is forgiven.
    """
    study, job = trial.study, trial.job
    # NCCL refuses two ranks on one card.
    shares_card = 0 < study.gpus_per_worker < 1
    uses_nccl = study.gpus_per_worker and not shares_card
    TorchTrainer(
        _work,
        # Plain data: Train's controller, a process of its own, reads it too, and need not know us.
        train_loop_config={
            "number": trial.number,
            "job": job.to_dict(),
            "study": study.to_dict(),
        },
        torch_config=TorchConfig(backend="nccl" if uses_nccl else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=study.workers_per_trial,
            use_gpu=study.gpus_per_worker > 0,
            resources_per_worker=worker_resources(study),
        ),
        run_config=RunConfig(
            name=job.path.replace("/", "-").removesuffix(".pt"),
            storage_path=join(job.storage, "ray/train"),
            callbacks=callbacks,  # type: ignore[arg-type]  # mypy sees the older Train
            # A start that cannot be had is an error in the end, not a wait for ever.
            failure_config=FailureConfig(
                max_failures=MOST_FAILURES,
                controller_failure_limit=1,  # type: ignore[call-arg]  # here too
            ),
        ),
    ).fit()


def _work(arguments: dict[str, Any]) -> None:
    """Train as one of the workers."""
    job, study = TrialJob.from_dict(arguments["job"]), StudyConfig(**arguments["study"])
    context = ray_train.get_context()
    workers = Workers(context.get_world_rank(), context.get_world_size())
    _train(Trial(arguments["number"], job, study), get_device(), workers, ray_train.report)


def _train(
    trial: Trial, device: torch.device, workers: Workers, tell: Callable[[dict[str, Any]], None]
) -> None:
    """Train as the only worker or one of several.

    At every evaluation ``tell`` is called with its metrics, which rank 0 alone has.
    """
    check_this_machine(trial.job.storage)
    gauges = _Gauges(trial.number) if workers.rank == 0 else None
    for report in run_job(trial.job, device, workers):
        metrics = to_metrics(report, trial.study) if gauges else {}
        if gauges:
            gauges.set(report, metrics)
        tell(metrics)


def to_metrics(report: Report, study: StudyConfig) -> dict[str, Any]:
    """Return a report as Ray Tune and its searchers want it: every name in every report."""
    last = report.curve[-1] if report.curve else None
    novel, everything = (last.novel_top5, last.all_top5) if last else (0.0, 0.0)
    return {
        EPISODE: last.episode if last else 0,
        SCORE: study.score(novel, everything),
        NOVEL_TOP5: novel,
        ALL_TOP5: everything,
        CURVE: [asdict(entry) for entry in report.curve],
        PROBLEM: report.problem,
        "losses": report.losses,
        "episodes_per_second": report.episodes_per_second,
    }


class _Gauges:
    """What Prometheus can read beside Ray's own numbers."""

    def __init__(self, number: int) -> None:
        self._tags = {"trial": str(number)}
        names = (SCORE, NOVEL_TOP5, ALL_TOP5, EPISODE, "episodes_per_second")
        self._gauges = {
            name: Gauge(f"cpaan_{name}", f"{name} of a trial", tag_keys=("trial",))
            for name in names
        }
        self._losses = Gauge("cpaan_loss", "a loss term of a trial", tag_keys=("trial", "term"))

    def set(self, report: Report, metrics: dict[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            if metrics[name] is not None:
                gauge.set(metrics[name], self._tags)
        for term, value in report.losses.items():
            self._losses.set(value, {**self._tags, "term": term})
