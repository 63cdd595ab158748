"""Test that a study survives killed processes and lost machines, with real processes."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray
from ray._private.node import Node
from ray._private.services import psutil
from ray.cluster_utils import Cluster
from ray.util import placement_group, placement_group_table, remove_placement_group
from werkzeug.serving import make_server

from cpaan.study.cluster import MARK
from cpaan.study.job import run_study_job
from cpaan.study.records import trial_table
from cpaan.study.searcher import OptunaSearcher, RowScheduler, RowSearch
from cpaan.study.study import Study, read_study
from cpaan.study.trial import to_metrics
from helpers.commands import output_of
from helpers.runs import Threads, threads
from helpers.studies import SMALL_STUDY, scores
from helpers.waiting import wait_for

pytestmark = pytest.mark.ray

ROOT, STUDY = Path(__file__).parents[2], Path("results/s")
NUM_ROUNDS = int(os.environ.get("CPAAN_FAULT_ROUNDS", "1"))

STARTED: list[subprocess.Popen] = []


def start_search(*arguments: str) -> subprocess.Popen:
    """Start the command as a user does, with its output in a file."""
    command = [sys.executable, str(ROOT / "tune" / "search.py"), *arguments]
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


def await_study(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait for a condition; fail with the output of the command."""
    wait_for(condition, seconds, Path("output.txt").read_text)


def processes(title: str, raylets: set[int]) -> list[int]:
    """Return the processes of these raylets whose command starts with the title."""
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended
            if process.ppid() in raylets and "".join(process.cmdline()).startswith(title):
                pids.append(process.pid)
    return pids


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Start a head without CPUs and two nodes with one CPU each.

    There is no dashboard, which Ray Train would use to release the resources of stopped trials.
    """
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def raylet_of(node: Node) -> int:
    return node.all_processes["raylet"][0].process.pid


def num_evaluations() -> int:
    """Return the number of evaluations that the search has recorded."""
    path = STUDY / "trials.parquet"
    if not path.exists():
        return 0
    # Read the file once. By its path, pandas would open it twice, and it may change in between.
    return sum(map(len, pd.read_parquet(io.BytesIO(path.read_bytes()))["curve"]))


class DisturbedStudy:
    """A study with ASHA on two nodes, where trials with two workers run one after the other."""

    WAYS = ("worker", "trial", "node", "driver", "storage", "waiting_trial")

    def __init__(self, cluster: Cluster, rng: np.random.Generator) -> None:
        self._cluster, self._rng = cluster, rng
        self._raylets = {raylet_of(node) for node in cluster.list_all_nodes()}
        self._of_lost_nodes: list[Path] = []
        self._storage = Path("storage").absolute()
        Path("files").mkdir()
        self._storage.symlink_to("files")

    def start(self, features: Path, num_trials: int) -> None:
        """Start the command, with evaluation steps at 20, 40, ..., 640 episodes."""
        sizes = ("--trials", str(num_trials), "--episodes", "640", "--set", "num_rungs=5")
        workers = ("--workers-per-trial", "2", "--storage", str(self._storage))
        address = ("--address", self._cluster.address)
        new = ("--study", "s", "--features", str(features), *SMALL_STUDY, *sizes, *workers)
        self._first, self._next = (*new, *address), ("--resume", "s", *address)
        self._driver = start_search(*self._first)

    def lose(self, way: str) -> None:
        """Wait for another evaluation or for a random time, kill or fail, and resume."""
        assert self._driver.poll() != 0, f"the study has ended before the loss of a {way}"
        if self._rng.random() < 0.5:
            before = num_evaluations()
            self._await(lambda: num_evaluations() > before)
        else:
            time.sleep(self._rng.uniform(0, 10))
        with Path("output.txt").open("a") as output:
            output.write(f"{time.strftime('%X')}: loss of a {way}\n")
        getattr(self, f"_lose_{way}")()
        self._resume_if_ended()

    def finish(self) -> None:
        """Wait for the end of the study, and resume it if the command fails."""
        for _ in range(5):
            if self._driver.wait() == 0:
                return
            self._resume_if_ended()
        raise AssertionError(Path("output.txt").read_text())

    def assert_nothing_is_left(self) -> None:
        titles = ("ray::RayTrainWorker", "ray::ImplicitFunc", "ray::TrainController")
        await_study(lambda: not any(self._find(title) for title in titles))
        await_study(lambda: not any(folder.exists() for folder in self._of_lost_nodes))
        await_study(lambda: {group["state"] for group in self._groups()} == {"REMOVED"})
        with read_study(STUDY).locked():
            pass

    def _resume_if_ended(self) -> None:
        if self._driver.poll() not in (None, 0):
            is_known = (STUDY / "config.json").exists()
            self._driver = start_search(*(self._next if is_known else self._first))

    def _await(self, condition: Callable[[], object]) -> bool:
        """Wait for a condition; return whether it is true, or the command has ended before."""
        await_study(lambda: condition() or self._driver.poll() is not None)
        return self._driver.poll() is None

    def _find(self, title: str) -> list[int]:
        return processes(title, self._raylets)

    def _groups(self) -> Collection[dict]:
        return self._cluster.global_state.placement_group_table().values()

    def _lose_process(self, title: str) -> None:
        if self._await(lambda: self._find(title)):
            with suppress(IndexError, ProcessLookupError):  # it may have ended in between
                kill(self._rng.permutation(self._find(title))[0])

    def _lose_worker(self) -> None:
        self._lose_process("ray::RayTrainWorker")

    def _lose_trial(self) -> None:
        self._lose_process("ray::ImplicitFunc")

    def _lose_node(self, *, is_noticed: bool = False) -> None:
        """Kill a node, and start another one."""
        nodes = sorted(self._cluster.worker_nodes, key=raylet_of)
        node = nodes[self._rng.integers(len(nodes))]
        lost = processes("ray::", {raylet_of(node)})
        self._of_lost_nodes += [Path(f"/proc/{pid}") for pid in lost]
        self._cluster.remove_node(node, allow_graceful=False)
        if is_noticed:
            self._await(lambda: "PENDING" in {group["state"] for group in self._groups()})
            self._lose_trial()
        self._raylets.add(raylet_of(self._cluster.add_node(num_cpus=1)))

    def _lose_waiting_trial(self) -> None:
        """Kill a node and then the trial, while the trial waits for the cores of two nodes."""
        self._lose_node(is_noticed=True)

    def _lose_driver(self) -> None:
        if self._driver.poll() is None:
            kill(self._driver.pid)
            self._driver.wait()

    def _lose_storage(self) -> None:
        """Let all reads and writes of the storage fail for some seconds."""
        for target in ("/dev/null", "files"):
            Path("next").symlink_to(target)
            Path("next").replace(self._storage)
            time.sleep(self._rng.uniform(0, 5))


def undisturbed(study: Study) -> pd.DataFrame:
    """Search the study in threads of this process, and return its table of trials."""
    (row,) = study.rows
    search = RowSearch(replace(study, folder=Path("plain"), shared=None), row)
    searcher, scheduler = OptunaSearcher([search]), RowScheduler([search])

    def run(name: str) -> None:
        config, results, decisions = searcher.suggest(name), [], []
        trial = SimpleNamespace(trial_id=name, config=config)
        scheduler.on_trial_add(None, trial)

        def work(workers: Threads) -> None:
            for report in run_study_job(config["job"], workers=workers):
                if workers.rank == 0:
                    results.append(to_metrics(report, row.config))
                    searcher.on_trial_result(name, results[-1])
                    decisions.append(scheduler.on_trial_result(None, trial, results[-1]))
                workers.barrier.wait()
                if scheduler.STOP in decisions:
                    return

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, threads(2)))
        searcher.on_trial_complete(name, results[-1])

    for number in range(row.config.num_trials):
        run(str(number))
    content = trial_table(search.trials, row.config).to_parquet(index=False)
    return pd.read_parquet(io.BytesIO(content))


@pytest.mark.timeout(900 * NUM_ROUNDS)
def test_lost_processes_nodes_and_storage_change_no_result_and_leave_nothing(
    study_features, cluster
):
    """Each way once in every round; by hand, ``CPAAN_FAULT_ROUNDS=5`` has 30 losses.

    A single round leaves out the last way, which is the loss of a node and that of a trial.
    """
    rng, num_trials = np.random.default_rng(NUM_ROUNDS), 3 * NUM_ROUNDS - 1
    disturbed = DisturbedStudy(cluster, rng)
    disturbed.start(study_features, num_trials)
    ways = disturbed.WAYS if NUM_ROUNDS > 1 else disturbed.WAYS[:-1]
    for way in [way for _ in range(NUM_ROUNDS) for way in rng.permutation(ways)]:
        disturbed.lose(way)
    disturbed.finish()

    table, plain = pd.read_parquet(STUDY / "trials.parquet"), undisturbed(read_study(STUDY))
    assert [scores(curve) for curve in table["curve"]] == [*map(scores, plain["curve"])]
    varying = ["curve", "seconds", "worker_seconds", "gpu_seconds"]
    pd.testing.assert_frame_equal(table.drop(columns=varying), plain.drop(columns=varying))
    assert json.loads((STUDY / "best.json").read_text())["num_trials"] == num_trials
    disturbed.assert_nothing_is_left()


CREATOR = """
import ray
from ray.util import placement_group

@ray.remote(num_cpus=0)
class Creator:
    def reserve(self):
        while True:
            placement_group([{"CPU": 1000}])
"""
"""The groups need more cores than exist, so that none is created. If its creator dies while Ray
(2.60) creates a group, its cores are never released, and the tests that follow wait for them."""
DRIVER = f"""{CREATOR}
import sys

@ray.remote(num_cpus=0)
class Trial:
    def run(self):
        self.creator = Creator.remote()
        ray.get(self.creator.reserve.remote())

ray.init(sys.argv[1])
ray.get([Trial.remote().run.remote() for _ in range(4)])
"""
"""As in a search, groups are created by actors of actors, which live a little longer."""


@pytest.mark.parametrize("is_driver_killed", [False, True])
def test_groups_of_dead_actors_are_removed_and_those_of_the_driver_stay(two_cpus, is_driver_killed):
    """An actor or its driver is killed. Ray learns of the actor's last groups after its death."""
    of_driver = placement_group([{"CPU": 1}])
    ray.get(of_driver.ready())
    before = set(placement_group_table())

    def states() -> list[str]:
        groups = placement_group_table().items()
        return [group["state"] for name, group in groups if name not in before]

    if is_driver_killed:
        address = ray.get_runtime_context().gcs_address
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, address])
    else:
        exec(CREATOR, here := dict[str, Any]())
        creator = here["Creator"].remote()
        creator.reserve.remote()
    wait_for(lambda: states().count("PENDING") > 2, 60, lambda: str(states()))
    if is_driver_killed:
        driver.kill()
        driver.wait()
    else:
        ray.kill(creator)

    wait_for(lambda: set(states()) == {"REMOVED"}, 60, lambda: str(states()))
    assert placement_group_table()[of_driver.id.hex()]["state"] == "CREATED"
    remove_placement_group(of_driver)


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
print("nodes:", *first, *later)
"""


@pytest.mark.parametrize("is_back", [False, True])
def test_a_node_takes_no_more_work_if_it_does_not_see_the_storage_that_the_head_sees(
    bucket, s3_server, monkeypatch, is_back
):
    """Another server answers at the node's address of the storage, or fails until the head asks."""
    _, requests, _ = s3_server

    def answer(environ, start_response):
        is_found = is_back and ("HEAD", environ["PATH_INFO"]) in requests
        start_response("200 OK" if is_found else "404 Not Found", [("Content-Length", "0")])
        return [b""]

    empty = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=empty.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_server[0]}")
    (bucket.root / MARK).write(b"")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    other = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{empty.port}"}
    works = cluster.add_node(num_cpus=1, env_vars=other)
    if not is_back:
        works = cluster.add_node(num_cpus=1)
    try:
        arguments = (cluster.address, f"s3://{bucket.name}")
        said = output_of(sys.executable, "-c", CHECKS, *arguments, timeout=600)
        (line,) = [line for line in said.splitlines() if line.startswith("nodes:")]
        assert line.split()[1:] == [works.node_id] * 8
    finally:
        cluster.shutdown()
        empty.shutdown()
        empty.server_close()
