"""Test that a study survives killed processes and lost machines, with real processes."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from ray.util import placement_group, placement_group_table, remove_placement_group
from werkzeug.serving import make_server

from cpaan.study.cluster import MARK
from cpaan.study.job import run_job
from cpaan.study.row import Resolved
from cpaan.study.searcher import open_trials
from cpaan.study.study import Study, read_study
from helpers.studies import SMALL_STUDY
from helpers.waiting import Found, wait_for

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

STARTED: list[subprocess.Popen] = []


def start_search(study_features: Path, *arguments: str, resume: bool = False) -> subprocess.Popen:
    """Start the command as a user does, with its output in a file."""
    command = [sys.executable, str(ROOT / "tune" / "search.py"), *arguments]
    if not resume:
        command += ["--features", str(study_features), *SMALL_STUDY]
    with Path("output.txt").open("a") as output:
        STARTED.append(subprocess.Popen(command, stdout=output, stderr=output))
    return STARTED[-1]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """Kill the processes that a failed test has left."""
    yield
    for process in STARTED:
        process.kill()
        process.wait()
    STARTED.clear()


def await_study(
    condition: Callable[[], Found], driver: subprocess.Popen | None = None, seconds: float = 300
) -> Found:
    """Wait for a condition and return its value; fail if the command ends before."""
    return wait_for(
        condition,
        seconds,
        Path("output.txt").read_text,
        is_over=lambda: driver is not None and driver.poll() is not None,
    )


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes(title: str, raylets: set[int]) -> list[int]:
    """Return the processes of these raylets whose command starts with the title."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode()
            if command.startswith(title) and parent_of(int(folder.name)) in raylets:
                found.append(int(folder.name))
        except (OSError, ValueError):  # the process has just ended
            continue
    return found


def time_of_state() -> int:
    """Return the time of trial 0's last checkpoint in nanoseconds; 0 if there is none."""
    path = Path("results/s/trials/0000-seed0.pt")
    return path.stat().st_mtime_ns if path.exists() else 0


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Start a head without CPUs and two nodes with one CPU each."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # another Ray may use the default port
        port = server.getsockname()[1]
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def raylets_of(cluster: Cluster) -> set[int]:
    nodes = cluster.list_all_nodes()
    return {node.all_processes["raylet"][0].process.pid for node in nodes}


def undisturbed(study: Study) -> list[tuple[float, float]]:
    """Train the only trial in this process, without Ray; return the scores of its curve."""
    (row,) = study.rows
    trial = open_trials(study, row).trials[0]
    resolved = row.for_score(Resolved.of(row.method, trial.user_attrs))
    job = study.job(row, trial.number, resolved, row.config.seed)
    plain = replace(job, eval_steps=row.config.eval_steps(row.num_episodes), path="plain.pt")
    *_, last = run_job(plain, torch.device("cpu"))
    return [(entry["novel_top5"], entry["all_top5"]) for entry in last.curve]


def test_deaths_of_a_worker_a_trial_a_driver_and_a_node_change_no_score(study_features, cluster):
    """All happen in one trial, each after another evaluation step; it resumes from a checkpoint."""
    address = ("--address", cluster.address)
    # Evaluation steps at 20, 40, ..., 1280 episodes leave episodes after each of four deaths.
    arguments = ("--study", "s", "--trials", "1", "--episodes", "1280", "--set", "num_rungs=6")
    raylets = raylets_of(cluster)

    def await_state(newer_than: int) -> int:
        await_study(lambda: time_of_state() > newer_than, driver)
        return time_of_state()

    driver = start_search(study_features, *arguments, "--no-early-stopping", *address)
    state = await_state(newer_than=0)
    (worker,) = processes("ray::RayTrainWorker", raylets)
    kill(worker)
    state = await_state(newer_than=state)
    (trial,) = processes("ray::ImplicitFunc", raylets)
    kill(trial)
    await_state(newer_than=state)
    kill(driver.pid)
    driver.wait()
    await_study(lambda: not processes("ray::RayTrainWorker", raylets))
    state = time_of_state()
    driver = start_search(study_features, "--resume", "s", *address, resume=True)
    await_state(newer_than=state)
    (worker,) = processes("ray::RayTrainWorker", raylets)
    kill(parent_of(worker))
    status = driver.wait()

    assert status == 0, Path("output.txt").read_text()
    (trial,) = pd.read_parquet("results/s/trials.parquet").itertuples()
    assert trial.state == "complete"
    curve = [(entry["novel_top5"], entry["all_top5"]) for entry in trial.curve]
    assert curve == undisturbed(read_study(Path("results/s")))


def test_with_early_stopping_every_trial_ends_once_and_nothing_is_left(two_cpus, study_features):
    arguments = ("--study", "s", "--trials", "2", "--episodes", "200", "--workers-per-trial", "2")
    address = ray.get_runtime_context().gcs_address
    raylets = {ray._private.worker.global_worker.node.all_processes["raylet"][0].process.pid}

    def workers() -> list[int]:
        return processes("ray::RayTrainWorker", raylets)

    def trials() -> list[int]:
        return processes("ray::ImplicitFunc", raylets)

    driver = start_search(study_features, *arguments, "--address", address)
    await_study(time_of_state, driver)
    worker, _ = workers()
    kill(worker)
    await_study(num_ended, driver)
    kill(driver.pid)
    driver.wait()
    resumed = start_search(study_features, "--resume", "s", "--address", address, resume=True)
    assert resumed.wait() == 0, Path("output.txt").read_text()

    table = pd.read_parquet("results/s/trials.parquet")
    assert table["trial"].tolist() == [0, 1]
    assert set(table["state"]) <= {"complete", "stopped early"}
    assert json.loads(Path("results/s/best.json").read_text())["trial"] in table["trial"].values
    await_study(lambda: not workers() and not trials())
    await_study(
        lambda: all(group["state"] == "REMOVED" for group in placement_group_table().values())
    )


CHECKS = """
import sys
import ray
from cpaan.study.cluster import check_this_machine
from cpaan.study.worker_pool import _RETRIES

def work(location):
    check_this_machine(location)
    return ray.get_runtime_context().get_node_id()

address, location = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
task = ray.remote(work)
first = ray.get([task.options(num_cpus=1, **_RETRIES).remote(location) for _ in range(4)])
later = ray.get([task.options(num_cpus=1, max_retries=0).remote(location) for _ in range(4)])
print(*first, *later)
"""


def test_a_node_that_does_not_see_the_storage_takes_no_more_work(bucket, s3_server, monkeypatch):
    """The node joins late, and another server answers at its address of the storage."""

    def answer(environ, start_response):
        start_response("404 Not Found", [("Content-Length", "0")])
        return [b""]

    empty = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=empty.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_server[0]}")
    (bucket.root / MARK).write(b"")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    sees = cluster.add_node(num_cpus=1)
    other = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{empty.port}"}
    cluster.add_node(num_cpus=1, env_vars=other)
    try:
        command = [sys.executable, "-c", CHECKS, cluster.address, f"s3://{bucket.name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [sees.node_id] * 8
    finally:
        cluster.shutdown()
        empty.shutdown()
        empty.server_close()


def num_ended() -> int:
    path = Path("results/s/trials.parquet")
    if not path.exists():
        return 0
    # Read the file once. By its path, pandas would open it twice, and it may change in between.
    table = pd.read_parquet(io.BytesIO(path.read_bytes()))
    return int((table["state"] != "unfinished").sum())


@ray.remote(num_cpus=0)
class Creator:
    """An actor that reserves cores until it is killed."""

    def reserve(self, num_groups: int) -> list[str]:
        return [placement_group([{"CPU": 1}]).id.hex() for _ in range(num_groups)]


def test_groups_of_a_dead_actor_are_removed_and_those_of_the_driver_stay(two_cpus):
    """An actor creates three groups on two cores, so at least one of them is pending."""
    own = placement_group([{"CPU": 1}])
    ray.get(own.ready())
    creator = Creator.remote()
    others = ray.get(creator.reserve.remote(3))

    ray.kill(creator)

    def states(groups: list[str]) -> set[str]:
        table = placement_group_table()
        return {table[group]["state"] for group in groups}

    wait_for(lambda: states(others) == {"REMOVED"}, 60, lambda: str(placement_group_table()))
    assert states([own.id.hex()]) == {"CREATED"}
    remove_placement_group(own)
