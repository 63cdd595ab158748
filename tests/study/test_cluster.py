"""Test which Ray a command uses, and the number of trials that fit on a cluster."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from cpaan.study import cluster
from cpaan.study.cluster import HEAD, NODES, Cluster
from cpaan.study.config import StudyConfig
from cpaan.study.ray_internals import started_ray
from helpers.commands import output_of
from helpers.waiting import wait_for

ROOT = Path(__file__).parents[2]


def room(nodes: list[dict[str, float]], **settings: object) -> int:
    """Return the number of trials that fit, and check that a study is refused if none fits."""
    there = Cluster("http://127.0.0.1:8265", tuple(nodes))
    study = StudyConfig(**settings)
    count = there.most_trials_at_once(study)
    is_refused = nullcontext() if count else pytest.raises(ValueError, match="Ray has room for")
    with is_refused:
        there.check(study)
    return count


def test_room_is_counted_by_machines_and_by_cards():
    one_card = {"CPU": 16.0, "GPU": 1.0}

    assert room([{"CPU": 2.0}]) == 2
    assert room([{"CPU": 2.0}], workers_per_trial=3) == 0
    assert room([{"CPU": 0.0}, {"CPU": 1.0}, {"CPU": 1.0}], workers_per_trial=2) == 1
    assert room([one_card], gpus_per_worker=0.25) == 4
    assert room([one_card], gpus_per_worker=0.3) == 3
    assert room([{"CPU": 2.0, "GPU": 1.0}], gpus_per_worker=0.25, workers_per_trial=4) == 0
    assert room([{"CPU": 8.0, "GPU": 2.0}], gpus_per_worker=0.6, workers_per_trial=3) == 0
    assert room([one_card, one_card], gpus_per_worker=2.0) == 0
    assert room([one_card, one_card], gpus_per_worker=1.0, workers_per_trial=2) == 1


def test_machines_that_the_autoscaler_may_start_count(monkeypatch):
    monkeypatch.setenv(NODES, '[{"count": 3, "CPU": 4, "GPU": 1}]')
    here = Cluster("x", ({"CPU": 0.0, **HEAD}, *cluster._coming_nodes()))

    assert here.num_gpus == 3
    assert here.most_trials_at_once(StudyConfig(gpus_per_worker=0.5)) == 6
    assert here.most_trials_at_once(StudyConfig()) == 12
    here.check(StudyConfig(workers_per_trial=3, gpus_per_worker=1.0))
    with pytest.raises(ValueError, match=r"^--workers-per-trial 4 .* Ray has room for 3"):
        here.check(StudyConfig(workers_per_trial=4, gpus_per_worker=1.0))
    for text in ("8", "[8]", '[{"CPU": 1}]', '[{"count": "many"}]', "{"):
        monkeypatch.setenv(NODES, text)
        with pytest.raises(ValueError, match="CPAAN_NODES is not a list of machines"):
            cluster._coming_nodes()


def test_only_a_ray_of_this_user_that_answers_is_used(monkeypatch, tmp_path):
    """The real Ray is in the test below; here, its address is a closed port, or taken for one."""

    def choose(address: str | None = None) -> tuple[str | None, str]:
        """Return the choice, and the address that the user is told, if any."""
        said: list[str] = []
        choice = cluster._choose(address, said.append)
        (line,) = said
        return choice, "".join(re.findall(r"\S+:\d+", line))

    new, named, other = ("local", ""), ("host:6379",) * 2, ("other:6379",) * 2
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS")
    assert choose() == new
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    assert choose() == new  # a Ray that has ended
    monkeypatch.setattr(cluster, "_check_address", lambda address, defaults: None)
    assert choose() == (None, "127.0.0.1:1")
    assert (choose("local"), choose("host:6379")) == (new, named)
    monkeypatch.setenv("RAY_ADDRESS", "other:6379")
    assert (choose("local"), choose("host:6379"), choose()) == (new, named, other)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert choose() == new
    assert started_ray(os.getuid())[0] == "127.0.0.1:1"
    assert started_ray(-1) is None, "the file is another user's"


CONNECT = """
import sys
import ray
from ray.util.state import get_actor
from cpaan.study.cluster import ray_cluster

@ray.remote(num_cpus=0)
class Actor:
    def name(self):
        return ray.get_runtime_context().get_actor_id()

    def ask(self, other):  # as the cleaner of Ray Train does
        return get_actor(other, timeout=60)

with ray_cluster(sys.argv[1] or None, print):
    one, other = Actor.remote(), Actor.remote()
    actor = ray.get(other.ask.remote(ray.get(one.name.remote())))
    print(actor and actor.state)
    print(ray.get_runtime_context().gcs_address)
"""


@pytest.fixture
def environment(tmp_path) -> Iterator[dict[str, str]]:
    """Return the environment of a user with a token and without ``RAY_ADDRESS``."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # The paths of Ray's sockets have to be short. Processes of a killed Ray write for a moment.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        paths = {"HOME": str(tmp_path), "RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
        yield {**others, **paths}


@pytest.fixture
def running(environment) -> Iterator[str]:
    """Run ``ray start``; return the address."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
    command = [*cluster.RAY, "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats"]
    command += [f"--dashboard-port={ports[0]}", f"--port={ports[1]}"]
    file, log = (
        Path(environment["RAY_TMPDIR"]) / name for name in ("ray/ray_current_cluster", "log")
    )
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(file.exists, 300, log.read_text, is_over=lambda: process.poll() is not None)
        yield file.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.ray
def test_the_ray_of_this_machine_is_used_unless_another_is_named(environment, running):
    def connect(given: str = "") -> list[str]:
        return output_of(sys.executable, "-c", CONNECT, given, env=environment).splitlines()

    said = f"using the running Ray at {running} (--address local starts another)"
    assert connect() == [said, "ALIVE", running]
    said, state, started = connect("local")
    assert (said, state) == ("starting Ray on this machine", "ALIVE")
    assert started != running


SEARCH_WITHOUT_RAYLET = """
import contextlib, sys, threading, time
from ray._private.services import psutil
from cpaan.cli import main

def kill():
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet":
                    process.kill()
        time.sleep(0.1)

threading.Thread(target=kill, daemon=True).start()
sys.exit(main(sys.argv[1:], command="search"))
"""


@pytest.mark.ray
def test_a_ray_that_cannot_start_is_an_error_of_one_line(environment, study_features):
    options = ["--features", str(study_features), "--method", "copy", "--address", "local"]
    command = [sys.executable, "-c", SEARCH_WITHOUT_RAYLET, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("python tune/search.py: error: cannot start Ray: ")
