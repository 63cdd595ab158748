"""Processes and machines die; the study does not. Real processes, killed for real."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import ray
import torch
from conftest import STUDY_SETTINGS
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from cpaan.study.cluster import ray_cluster
from cpaan.study.folder import Study, read_study
from cpaan.study.job import run_job
from cpaan.study.searcher import open_study, settled_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
POINTS = [
    {"cycle_weight": 1.0, "covariance_weight": 0.1, "ky_fan_order": order, "neighbours": "hard"}
    | {"num_neighbours": 3, "noise": "gaussian", "noise_dim": 10}
    for order in (1, 2, 3, 4)
]


STARTED: list[subprocess.Popen] = []


def start_search(study_features: Path, *arguments: str, resume: bool = False) -> subprocess.Popen:
    """Start the command as a user does; its output goes to a file beside the results."""
    command = [sys.executable, str(ROOT / "tune" / "search.py"), *arguments]
    if not resume:
        command += ["--features", str(study_features)]
        for name, value in STUDY_SETTINGS.items():
            command += ["--set", f"{name}={value}"]
    with Path("output.txt").open("a") as output:
        STARTED.append(subprocess.Popen(command, stdout=output, stderr=output))
    return STARTED[-1]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """End what a test that fails has left."""
    yield
    for process in STARTED:
        process.kill()
        process.wait()
    STARTED.clear()


def wait_for(condition: Callable[[], object], driver: subprocess.Popen | None = None) -> None:
    """Wait until something is true; fail with the command's output if it ends or takes too long."""
    deadline = time.monotonic() + 300
    while not condition():
        is_over = driver is not None and driver.poll() is not None
        if is_over or time.monotonic() > deadline:
            raise AssertionError(f"it did not come to that:\n{Path('output.txt').read_text()}")
        time.sleep(0.02)


def processes(title: str, raylets: set[int]) -> list[int]:
    """Return processes of these raylets whose title begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if command.startswith(title) and parent in raylets:
            found.append(int(folder.name))
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without CPUs, and two nodes of one each."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True}
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def raylets_of(cluster: Cluster) -> set[int]:
    nodes = cluster.list_all_nodes()
    return {node.all_processes["raylet"][0].process.pid for node in nodes}


def undisturbed(study: Study) -> dict[int, list[tuple[float, float]]]:
    """Train every trial in this process, without Ray; return the scores of their curves."""
    found = {}
    for trial in open_study(study.folder / "optuna.db", study.config).trials:
        job = study.job(trial.number, settled_of(trial, study.config), study.config.seed)
        marks = study.config.marks(study.training.num_episodes)
        plain = type(job)(**{**vars(job), "marks": marks, "path": f"plain/{trial.number}.pt"})
        *_, last = run_job(plain, torch.device("cpu"))
        found[trial.number] = [(entry.novel_top5, entry.all_top5) for entry in last.curve]
    return found


def test_deaths_of_a_worker_a_trial_a_driver_and_a_node_change_no_score(study_features, cluster):
    Path("points.json").write_text(json.dumps(POINTS))
    address = ("--address", cluster.address, "--concurrent", "1")
    arguments = ("--study", "s", "--trials", "6", "--no-early-stopping", "--points", "points.json")
    state = Path("results/s/trials")

    def is_under_way(number: int) -> bool:
        return (state / f"{number:04d}-seed0.pt").exists()

    def workers() -> list[int]:
        return processes("ray::RayTrainWorker", raylets_of(cluster))

    driver = start_search(study_features, *arguments, "--episodes", "600", *address)
    wait_for(lambda: is_under_way(0) and workers(), driver)
    kill(workers()[0])
    wait_for(lambda: is_under_way(1), driver)
    (trial_actor,) = processes("ray::ImplicitFunc", raylets_of(cluster))
    kill(trial_actor)
    wait_for(lambda: is_under_way(2), driver)
    kill(driver.pid)
    driver.wait()
    driver = start_search(study_features, "--resume", "s", *address, resume=True)
    wait_for(lambda: is_under_way(4) and workers(), driver)
    worker = workers()[0]
    raylet = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    kill(raylet)
    # Ray has been seen to take four minutes to tell that a process it was just starting on that
    # node will never come.
    status = driver.wait(timeout=600)

    assert status == 0, Path("output.txt").read_text()
    study = read_study(Path("results/s"))
    table = pd.read_parquet("results/s/trials.parquet")
    assert table["trial"].tolist() == [0, 1, 2, 3, 4, 5]
    assert set(table["state"]) == {"complete"}
    found = {
        int(row.trial): [(entry["novel_top5"], entry["all_top5"]) for entry in row.curve]
        for row in table.itertuples()
    }
    assert found == undisturbed(study)


def test_with_early_stopping_every_trial_ends_once_and_nothing_is_left(study_features):
    arguments = ("--study", "s", "--trials", "6", "--episodes", "400", "--workers-per-trial", "2")
    with ray_cluster(None, lambda message: None):
        address = ray.get_runtime_context().gcs_address
        (raylet,) = (
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if is_child_raylet(path, os.getpid())
        )
        driver = start_search(study_features, *arguments, "--address", address)
        wait_for(lambda: Path("results/s/trials/0000-seed0.pt").exists(), driver)
        kill(processes("ray::RayTrainWorker", {raylet})[0])
        wait_for(lambda: num_ended() >= 1 and processes("ray::ImplicitFunc", {raylet}), driver)
        kill(processes("ray::ImplicitFunc", {raylet})[0])
        wait_for(lambda: num_ended() >= 2, driver)
        kill(driver.pid)
        driver.wait()
        resumed = start_search(study_features, "--resume", "s", "--address", address, resume=True)
        assert resumed.wait(timeout=300) == 0, Path("output.txt").read_text()

        table = pd.read_parquet("results/s/trials.parquet")
        assert table["trial"].tolist() == [0, 1, 2, 3, 4, 5]
        assert set(table["state"]) <= {"complete", "stopped early"}
        assert json.loads(Path("results/s/best.json").read_text())["trial"] in table["trial"].values
        wait_for(lambda: not processes("ray::RayTrainWorker", {raylet}))
        wait_for(lambda: not processes("ray::ImplicitFunc", {raylet}))
        wait_for(
            lambda: all(group["state"] == "REMOVED" for group in placement_group_table().values())
        )


def num_ended() -> int:
    path = Path("results/s/trials.parquet")
    if not path.exists():
        return 0
    # In one go: by its name it would be opened twice, and may be another file the second time.
    table = pd.read_parquet(io.BytesIO(path.read_bytes()))
    return int((table["state"] != "unfinished").sum())


def is_child_raylet(folder: Path, parent: int) -> bool:
    try:
        is_raylet = b"raylet/raylet" in (folder / "cmdline").read_bytes().split(b"\0")[0]
        return is_raylet and f" {parent} " in (folder / "stat").read_text()
    except OSError:
        return False
