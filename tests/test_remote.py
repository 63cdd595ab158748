"""What happens on the way to a cluster; tests/test_cluster_up.py has what happens there."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cpaan.cli.remote import _entrypoint
from cpaan.cli.report import main as report
from cpaan.cli.search import main as search
from cpaan.provenance import TEST_READS, count_test_reads, take_over_test_reads
from cpaan.study import cluster
from cpaan.study.cluster import HEAD, NODES, Cluster
from cpaan.study.config import StudyConfig
from cpaan.study.remote import Jobs, RemoteCluster

ROOT = Path(__file__).parent.parent


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a token."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret\n")
    (tmp_path / ".ray" / "auth_token").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_cluster_file_must_be_there_and_complete(home, tmp_path):
    with pytest.raises(ValueError, match=r"there is no cluster file .*absent.yaml"):
        RemoteCluster(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match=r"still has SET-BUCKET, SET-USER: see cluster/README.md"):
        RemoteCluster(write(tmp_path / "c.yaml", "a: SET-USER\nb: s3://SET-BUCKET/x # SET-NOT\n"))

    RemoteCluster(write(tmp_path / "c.yaml", "a: b # all that begins with SET-\n"))


def test_the_token_must_be_there_and_ones_own(home, tmp_path):
    file, token = write(tmp_path / "c.yaml", "a: b\n"), home / ".ray" / "auth_token"

    token.chmod(0o644)
    with pytest.raises(ValueError, match=r"others can read the token: chmod 600 .*auth_token"):
        RemoteCluster(file)
    token.unlink()
    with pytest.raises(ValueError, match=r"no token in .*: ray get-auth-token --generate"):
        RemoteCluster(file)


def test_a_cluster_that_is_not_up_is_an_error_of_one_line(home, tmp_path, capsys):
    text = (ROOT / "cluster" / "local.yaml").read_text()
    for number, name in enumerate(("ADDRESS-OF-THE-HEAD", "ADDRESS-OF-A-WORKER", "USER")):
        text = text.replace(f"SET-{name}", f"127.0.0.7{number}")
    text = text.replace("SET-FOLDER-THAT-ALL-MACHINES-SHARE", "/x")
    text = text.replace("cpaan-local", f"cpaan-absent-{os.getpid()}")
    file = write(tmp_path / "c.yaml", text)

    try:
        status = search(["--cluster", str(file), "--study", "mine"])
    finally:
        for left in Path("/tmp/ray").glob(f"cluster-cpaan-absent-{os.getpid()}.*"):
            left.unlink()

    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"python tune/search.py: error: {file} has no running head: ray up {file}"


def test_the_command_there_has_the_same_arguments_and_its_files(tmp_path, monkeypatch):
    """The shell of the head is a real one here, and its python tells what it was given."""
    sent = tmp_path / "sent it"
    (sent / "inputs").mkdir(parents=True)
    points = write(tmp_path / "my points.json", "[]")
    told = tmp_path / "told"
    python = write(tmp_path / "python", f'#!/bin/sh\nprintf "%s\\n" "$@" > "{told}"\n')
    python.chmod(0o755)

    entrypoint, files = _entrypoint(
        "search.py", ["--set", "a=b c", "--points", str(points)], {"--points": [str(points)]}
    )
    for name, path in files.items():
        shutil.copy(path, sent / "inputs" / name)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SENT": str(sent)}
    subprocess.run(entrypoint, shell=True, check=True, env=environment)

    script, *arguments = told.read_text().splitlines()
    assert script == f"{sent}/tune/search.py"
    assert arguments[:5] == ["--set", "a=b c", "--points", str(points), "--points"]
    assert Path(arguments[5]).read_text() == "[]"
    assert Path(arguments[5]).parent == sent / "inputs"
    assert arguments[6:] == ["--cluster="]


def test_what_travels_is_the_package_and_the_commands_and_nothing_else():
    class Client:
        def submit_job(self, entrypoint, metadata, runtime_env):
            folder = Path(runtime_env["working_dir"])
            self.names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
            return "job"

    client = Client()

    assert Jobs(client).submit("true", {}, {"a.json": ROOT / "pyproject.toml"}) == "job"
    assert {name.split("/")[0] for name in client.names} == {"cpaan", "tune", "inputs"}
    assert {"tune/search.py", "cpaan/study/remote.py", "inputs/a.json"} <= client.names
    assert not any("__pycache__" in name for name in client.names)


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (search, ["--stop"], "--stop needs --cluster"),
        (report, ["--stop"], "--stop needs --cluster"),
        (search, ["--features", "x.parquet"], "x.parquet is a file of this machine: give an add"),
        (search, ["--study", "a/b"], "a study's name has letters"),
        (search, ["--points", "absent.json"], "there is no file absent.json"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    home, tmp_path, capsys, command, arguments, said, monkeypatch
):
    class Reached:
        def __init__(self, config):
            pass

        def connect(self):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def running(self, labels):
            return None

        succeeded = running

        def submit(self, *arguments):
            raise AssertionError("nothing is sent")

    monkeypatch.setattr("cpaan.cli.remote.RemoteCluster", Reached)
    file = [] if "--stop" in arguments else ["--cluster", "c.yaml"]

    assert command([*arguments, *file]) == 2
    assert said in capsys.readouterr().err


def test_reads_of_the_test_phase_are_taken_over_once(tmp_path):
    lines = [json.dumps({"time": str(n), "features": "f"}) for n in range(3)]
    TEST_READS.parent.mkdir()
    TEST_READS.write_text(f"{lines[0]}\n{lines[1]}\n")
    other = write(tmp_path / "other.jsonl", f"{lines[1]}\n{lines[2]}\n")

    take_over_test_reads(other)
    take_over_test_reads(other)

    assert TEST_READS.read_text().splitlines() == lines
    assert count_test_reads("f") == 3


def test_machines_that_come_when_they_are_needed_count(monkeypatch):
    monkeypatch.setenv(NODES, '[{"count": 3, "CPU": 4, "GPU": 1}]')
    head = {"CPU": 0.0, **HEAD}

    here = Cluster("x", (head, *cluster._coming_nodes()))

    assert here.num_gpus == 3
    assert here.most_trials_at_once(StudyConfig(gpus_per_worker=0.5)) == 6
    assert here.most_trials_at_once(StudyConfig()) == 12
    here.check(StudyConfig(workers_per_trial=3, gpus_per_worker=1.0))
    with pytest.raises(ValueError, match=r"needs 4 workers .* but Ray has room for 3"):
        here.check(StudyConfig(workers_per_trial=4, gpus_per_worker=1.0))


@pytest.mark.parametrize("text", ["8", "[8]", '[{"CPU": 1}]', '[{"count": "many"}]', "{"])
def test_machines_that_cannot_be_understood_are_refused(monkeypatch, text):
    monkeypatch.setenv(NODES, text)

    with pytest.raises(ValueError, match="CPAAN_NODES is no list of machines"):
        cluster._coming_nodes()


def test_a_clusters_own_storage_is_the_default(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CPAAN_STORAGE", str(tmp_path / "shared"))

    assert search(["--study", "mine", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["storage"] == str(tmp_path / "shared" / "mine")
