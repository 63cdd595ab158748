"""Test a real `ray up` of cluster/local.yaml, a study, the loss of a machine, and `ray down`."""

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import requests

from cpaan.study.cluster import RAY
from helpers.commands import output_of
from helpers.ray_environment import RAY_ENVIRONMENT
from helpers.ssh_machines import USER, Machines, ssh_machines, what_is_missing
from helpers.studies import SMALL_STUDY
from helpers.waiting import wait_for

ROOT = Path(__file__).parents[2]
HEAD, WORKER = "127.0.0.11", "127.0.0.12"
NAME = f"cpaan-test-{os.getpid()}"

pytestmark = pytest.mark.cluster


@dataclass
class Laptop:
    """The user's machine: a home folder with a token, where the commands run."""

    home: Path
    cluster: Path
    dashboard_port: int

    @property
    def on_cluster(self) -> list[str]:
        return ["--cluster", str(self.cluster)]

    @property
    def environment(self) -> dict[str, str]:
        paths = {"HOME": self.home, "RAY_AUTH_TOKEN_PATH": self.token_file, "PYTHONPATH": ROOT}
        variables = {name: str(path) for name, path in paths.items()}
        return {**os.environ, **variables, "RAY_UP_enable_autoscaler_v2": "0"}

    def ray(self, *arguments: str) -> str:
        settings = {"cwd": ROOT, "env": self.environment, "stdin": subprocess.DEVNULL}
        return output_of(*RAY, *arguments, **settings)

    @property
    def token_file(self) -> Path:
        return self.home / ".ray" / "local.token"

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def ask(self, path: str) -> requests.Response:
        """Send a request with the token to the dashboard on the head."""
        url = f"http://127.0.0.1:{self.dashboard_port}{path}"
        return requests.get(url, headers={"Authorization": f"Bearer {self.token}"})

    def nodes(self) -> list[str]:
        """Return the addresses of the machines that have joined."""
        summary = self.ask("/nodes?view=summary").json()["data"]["summary"]
        # A node that has just joined has no address yet.
        return [x["ip"] for x in summary if x["raylet"]["state"] == "ALIVE" and "ip" in x]

    @contextmanager
    def started(self, script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen, Path]]:
        """Start a command of ``tune/``; yield the process and the file with its output."""
        command = [sys.executable, ROOT / "tune" / script, *arguments]
        path = self.home / f"{secrets.token_hex(4)}.log"
        settings = {"cwd": self.home, "env": self.environment}
        with path.open("w") as log:
            process = subprocess.Popen(command, **settings, stdout=log, stderr=log)
        try:
            yield process, path
        finally:
            process.kill()
            process.wait()

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        """Run a command of ``tune/``; return its exit status and its output."""
        with self.started(script, *arguments) as (process, log):
            process.wait()
        return process.returncode, log.read_text()


@pytest.fixture(scope="module")
def machines():
    if missing := what_is_missing(HEAD, WORKER):
        pytest.skip(f"missing here: {missing}")
    with ssh_machines(HEAD, WORKER) as machines:
        bring_packages(machines)
        yield machines


@pytest.fixture(scope="module")
def laptop(machines, tmp_path_factory):
    home = tmp_path_factory.mktemp("laptop")
    cluster = home / "local.yaml"
    text, port = cluster_file(machines)
    cluster.write_text(text)
    laptop = Laptop(home, cluster, port)
    laptop.token_file.parent.mkdir()
    laptop.token_file.write_text(f"{secrets.token_hex(32)}\n")
    laptop.token_file.chmod(0o600)
    laptop.ray("up", "--yes", str(cluster))
    wait_for(lambda: len(laptop.nodes()) == 2, 600, lambda: str(laptop.nodes()))
    yield laptop
    for left in Path("/tmp/ray").glob(f"cluster-{NAME}.*"):
        left.unlink()


@pytest.fixture(scope="module")
def features(machines, study_features) -> list[str]:
    """Return options for small features in a folder that all machines share."""
    folder = machines.home / "data"
    shutil.copytree(study_features.parent, folder)
    machines.give_to_user(folder)
    return ["--features", str(folder / study_features.name)]


def bring_packages(machines: Machines) -> None:
    """Link the packages of this environment, so that `ray up` installs only this project."""
    environment = machines.home / "cpaan" / ".venv"
    environment.parent.mkdir()
    machines.give_to_user(environment.parent)
    machines.run("python3", "-m", "venv", "--without-pip", str(environment))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = environment / "lib" / version / "site-packages"
    if target.exists():  # a different Python needs different files
        shutil.rmtree(target)
        without = shutil.ignore_patterns("*cpaan*", "triton", "triton-*")
        source = sysconfig.get_path("purelib")
        shutil.copytree(source, target, symlinks=True, ignore=without, copy_function=link_or_copy)
        machines.give_to_user(target, "-type", "d")  # the files are links to this environment
        _, _, script = Path(sys.executable).with_name("ray").read_text().partition("\n")
        (environment / "bin" / "ray").write_text(f"#!{environment}/bin/python\n{script}")
        (environment / "bin" / "ray").chmod(0o755)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def cluster_file(machines: Machines) -> tuple[str, int]:
    """Return cluster/local.yaml for these machines, and the port of its dashboard.

    The machines share one network, so each needs its own address and ports.
    """
    text = (ROOT / "cluster" / "local.yaml").read_text()
    variables = {"RAY_ADDRESS": "auto", **RAY_ENVIRONMENT}
    for old, new in {
        "cluster_name: cpaan-local": f"cluster_name: {NAME}",
        "SET-ADDRESS-OF-THE-HEAD": HEAD,
        "SET-ADDRESS-OF-A-WORKER": WORKER,
        "SET-USER": USER,
        "~/.ssh/id_ed25519": str(machines.key),
        "SET-FOLDER-THAT-ALL-MACHINES-SHARE": str(machines.home / "shared"),
        '[{"count": 1, "CPU": 8, "GPU": 1}]': '[{"count": 1, "CPU": 1}]',
        "RAY_ADDRESS=auto": " ".join(f"{a}={b}" for a, b in variables.items()),
    }.items():
        assert old in text
        text = text.replace(old, new)
    of_head, of_worker = text.split("worker_start_ray_commands:")
    ports = free_ports()
    heads_port = next(ports)
    of_head = of_head.replace("--port=6379", f"--port={heads_port}")
    of_worker = of_worker.replace("HEAD_IP:6379", f"HEAD_IP:{heads_port}")
    pattern = r"(?<=[a-z]-port=)(\d{4})\b"
    of_head = re.sub(pattern, lambda _: str(next(ports)), of_head)
    of_worker = re.sub(pattern, lambda _: str(next(ports)), of_worker)
    of_worker = of_worker.replace("=20000", "=30000").replace("=29999", "=31999")
    of_head = of_head.replace("ray start", f"ray start --node-ip-address={HEAD} --num-cpus=1")
    of_worker = of_worker.replace("ray start", f"ray start --node-ip-address={WORKER} --num-cpus=1")
    # A worker without its head ends after ten more seconds instead of the default minute.
    reconnect = "RAY_gcs_rpc_server_reconnect_timeout_s=10"
    of_worker = of_worker.replace("setsid nohup", f"{reconnect} setsid nohup")
    dashboard = int(re.search(r"--dashboard-port=(\d+)", of_head)[1])
    return f"{of_head}worker_start_ray_commands:{of_worker}", dashboard


def free_ports() -> Iterator[int]:
    """Yield ports that are free on all addresses, and outside the range of Ray's workers."""
    for port in range(7000, 9999):
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("0.0.0.0", port))
            yield port


def test_the_head_answers_no_one_without_the_token(laptop, machines):
    address = f"http://127.0.0.1:{laptop.dashboard_port}"
    job = {"entrypoint": "touch /tmp/was-here"}

    for path in ("/api/jobs/", "/nodes?view=summary", "/api/cluster_status"):
        assert requests.get(f"{address}{path}").status_code == 401, path
    assert requests.post(f"{address}/api/jobs/", json=job).status_code == 401
    wrong = {"Authorization": "Bearer " + "0" * len(laptop.token)}
    assert requests.get(f"{address}/api/jobs/", headers=wrong).status_code in (401, 403)

    assert laptop.ask("/api/jobs/").json() == []
    there = machines.home / "cpaan" / "auth_token"
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    assert there.read_text().strip() == laptop.token


def test_what_listens_beyond_loopback_is_what_the_readme_lists(laptop, machines):
    page = (ROOT / "cluster" / "README.md").read_text()
    listed = {int(port) for port in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    original = (ROOT / "cluster" / "local.yaml").read_text()
    # The ports of this test replace those of the file, in the same order.
    ports = [
        re.findall(r"-port=(\d{4})\b", text.split("worker_start")[0])
        for text in (laptop.cluster.read_text(), original)
    ]
    stands_for = dict(zip(*ports, strict=True))
    workers = range(20000, 30000)

    head = machines.all[0]
    shown = subprocess.run(["ss", "-ltnpH"], check=True, capture_output=True, text=True).stdout
    listening = set()
    for line in shown.splitlines():
        pids = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        host, _, port = line.split()[3].rpartition(":")
        # On a real machine, ports at the machine's own address are reachable from outside.
        is_loopback = host.strip("[]").removeprefix("::ffff:") == "127.0.0.1"
        if pids & head.commands().keys() and not is_loopback:
            listening.add(int(stands_for.get(port, port)))
    assert 6379 in listening
    assert {port for port in listening if port not in workers} <= listed
    assert 8265 not in listening | listed


def test_a_storage_that_machines_do_not_share_is_refused_with_their_names(laptop):
    """Each machine has its own /tmp."""
    options = ["--study", "alone", "--storage", "/tmp/alone"]
    status, said = laptop.run("search.py", *laptop.on_cluster, *options)

    assert status == 2
    (line,) = [line for line in said.splitlines() if "error:" in line]
    assert "storage /tmp/alone/alone is not shared by all nodes: " in line
    assert f"({WORKER}): it cannot read files that other nodes write" in line
    assert f"({HEAD})" not in line


def test_a_study_outlives_a_machine_and_its_results_come_home(laptop, machines, features):
    head, worker = machines.all

    def trains(machine) -> bool:
        return any("RayTrainWorker" in command for command in machine.commands().values())

    command = ["search.py", "--study", "one", "--trials", "1", "--episodes", "40", *features]
    command += ["--workers-per-trial", "2", "--no-early-stopping", *SMALL_STUDY]
    command += laptop.on_cluster
    with laptop.started(*command) as (searching, log):
        wait_for(lambda: trains(head) and trains(worker), 600, log.read_text)
        worker.kill()
        lose_connection()
        wait_for(lambda: laptop.nodes() == [HEAD], 120, log.read_text)
        worker.start()
        wait_for(lambda: searching.poll() is not None, 900, log.read_text)
    said = log.read_text()
    assert searching.returncode == 0, said
    assert "checking that 2 nodes share" in said
    assert "connection lost (" in said
    assert "reconnected" in said
    assert said.count("trial 0 finished") == 1
    trials = pd.read_parquet(laptop.home / "results" / "one" / "trials.parquet")
    assert trials["state"].tolist() == ["complete"]
    assert trials["episodes"].tolist() == [40]
    config = json.loads((laptop.home / "results" / "one" / "config.json").read_text())
    assert config["storage"] == str(machines.home / "shared" / "one")


def test_a_stopped_job_has_copied_all_finished_trials_to_the_storage(laptop, machines, features):
    """Ray kills a job three seconds after ``--stop``. A row without training has short trials."""
    name = ["search.py", "--study", "stopped", *laptop.on_cluster]
    row = ["--method", "copy", "--head", "centroid", "--trials", "1000", "--set", "shots=1"]
    with laptop.started(*name, *row, *features) as (searching, log):
        wait_for(lambda: "trial 1 finished" in log.read_text(), 300, log.read_text)
        status, said = laptop.run(*name, "--stop")
        wait_for(lambda: searching.poll() is not None, 120, log.read_text)

    assert status == 0, said
    assert "the job ended without an exit status" in log.read_text()
    log_of_head = machines.home / "cpaan-studies" / "results" / "stopped" / "study.log"
    finished = set(map(int, re.findall(r"trial (\d+) finished", log_of_head.read_text())))
    with closing(sqlite3.connect(machines.home / "shared" / "stopped" / "optuna.db")) as copy:
        complete = {
            row[0] for row in copy.execute("SELECT number FROM trials WHERE state='COMPLETE'")
        }
    assert {0, 1} <= finished <= complete


def test_a_study_is_searched_by_ray_exec_and_reported_from_the_laptop(laptop, machines, features):
    """Use a row without training, so that only the transfers take time."""
    row = ["--method", "copy", "--head", "centroid", "--trials", "1", "--set", "shots=1,2"]
    short = ["--heads", "centroid", "--draws", "2", "--table-only"]
    search = shlex.join(["python", "tune/search.py", "--study", "two", *features, *row])

    said = laptop.ray("exec", str(laptop.cluster), f"cd cpaan && {search}")
    assert "checking that 2 nodes share" in said
    status, said = laptop.run("report.py", "two", *short, *laptop.on_cluster)

    assert status == 0, said
    assert "submitted to" in said
    # The study remembers its cluster, and the same command finds its job.
    status, said = laptop.run("report.py", "two", *short)
    assert status == 0, said
    assert f"using {laptop.cluster}, the cluster of results/two" in said
    assert f"found on {laptop.cluster}" in said
    config = json.loads((laptop.home / "results" / "two" / "config.json").read_text())
    assert config["storage"] == str(machines.home / "shared" / "two")
    assert (laptop.home / "results" / "two" / "report" / "report.md").exists()
    assert len((laptop.home / "results" / "test-reads.jsonl").read_text().splitlines()) == 1


def lose_connection() -> None:
    """Close the ssh connection to a machine that all other connections share."""
    folder = hashlib.sha256(NAME.encode()).hexdigest()[:10]  # Ray's name for it
    sockets = list(Path("/tmp").glob(f"ray_ssh_*/{folder}/*"))
    assert sockets
    for path in sockets:
        check = ["ssh", "-S", str(path), "-O", "check", "any"]
        answer = subprocess.run(check, capture_output=True, text=True).stderr
        if master := re.search(r"pid=(\d+)", answer):
            os.kill(int(master[1]), signal.SIGKILL)


def test_ray_down_leaves_nothing_running(laptop, machines):
    laptop.ray("down", "--yes", str(laptop.cluster))

    def left() -> list[str]:
        commands = [c for machine in machines.all for c in machine.commands().values()]
        return [command for command in commands if not command.startswith("sshd")]

    # On workers, Ray ends on its own some time after it has lost its head.
    wait_for(lambda: not left(), 400, lambda: "\n".join(left()))
