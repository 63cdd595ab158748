"""What happens on the way to a cluster; tests/test_cluster_up.py has what happens there."""

import json
import os
import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from cpaan.cli.remote import Command, _find
from cpaan.cli.report import main as report
from cpaan.cli.search import main as search
from cpaan.core.provenance import TEST_READS, count_test_reads, take_over_test_reads
from cpaan.study import cluster
from cpaan.study.cluster import HEAD, NODES, Cluster
from cpaan.study.config import StudyConfig
from cpaan.study.remote import Jobs, RemoteCluster

pytestmark = pytest.mark.usefixtures("builtin_cache")

ROOT = Path(__file__).parents[2]


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
    split = write(tmp_path / "my split.json", "[]")
    told = tmp_path / "told"
    python = write(tmp_path / "python", f'#!/bin/sh\nprintf "%s\\n" "$@" > "{told}"\n')
    python.chmod(0o755)

    arguments = ["--set", "a=b c", "--split", str(split)]
    command = Command("search.py", "mine", arguments, {"--split": [str(split)]})
    entrypoint, files = command.entrypoint()
    for name, path in files.items():
        shutil.copy(path, sent / "inputs" / name)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SENT": str(sent)}
    subprocess.run(entrypoint, shell=True, check=True, env=environment)

    script, *given = told.read_text().splitlines()
    assert script == f"{sent}/tune/search.py"
    assert given[:5] == [*arguments, "--split"]
    assert Path(given[5]).read_text() == "[]"
    assert Path(given[5]).parent == sent / "inputs"
    assert given[6:] == ["--cluster="]


def test_what_travels_is_the_package_and_the_commands_and_nothing_else():
    class Client:
        def submit_job(self, entrypoint, metadata, runtime_env):
            folder = Path(runtime_env["working_dir"])
            self.names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
            return "job"

    client = Client()

    assert Jobs(client).submit("true", {"a.json": ROOT / "pyproject.toml"}, {}) == "job"
    assert {name.split("/")[0] for name in client.names} == {"cpaan", "tune", "inputs"}
    assert {"tune/search.py", "cpaan/study/remote.py", "inputs/a.json"} <= client.names
    assert not any("__pycache__" in name for name in client.names)


class NoJobs:
    """A cluster that is up and has never done anything, to which nothing may be sent."""

    def __init__(self, config=None):
        pass

    def connect(self):
        return nullcontext(self)

    def running(self, labels):
        return None

    def last(self, labels):
        return None

    def submit(self, *arguments):
        raise AssertionError("nothing is sent")


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (search, ["--features", "x.parquet"], "x.parquet is a file of this machine: give an add"),
        (search, ["--study", "a/b"], "a study's name has letters"),
        (search, ["--resume", ".."], "a study's name has letters"),
        (report, ["a b"], "a study's name has letters"),
        (search, ["--split", "absent.json"], "there is no file absent.json"),
        (search, ["--dry-run"], "--dry-run shows what this machine would do"),
        (search, ["--study", "mine"], "results/mine exists: --resume mine goes on with it"),
        (search, ["--study", "other", "--stop"], "nothing runs there for other"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    capsys, command, arguments, said, monkeypatch
):
    monkeypatch.setattr("cpaan.cli.remote.RemoteCluster", NoJobs)
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/config.json").touch()

    assert command([*arguments, "--cluster", "c.yaml"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [search, report])
def test_what_runs_here_is_not_stopped_from_elsewhere(command, capsys):
    assert command(["--stop"]) == 2
    assert "--stop needs --cluster" in capsys.readouterr().err


def jobs_of(*entries: tuple[str, Command, str]) -> Jobs:
    """Return jobs by name, command and status, in the order in which they were begun."""

    class Client:
        def list_jobs(self):
            return [
                SimpleNamespace(
                    submission_id=name, metadata=each.labels, status=JobStatus[status], start_time=n
                )
                for n, (name, each, status) in enumerate(entries)
            ]

    return Jobs(Client())


SEARCH = Command("search.py", "mine", ["--study", "mine"], {}, begins=True)
NAMED_LATER = replace(SEARCH, arguments=["--study", "mine", "--study", "mine"])
GO_ON = Command("search.py", "mine", ["--resume", "mine"], {}, repeats=True)
REPORT = Command("report.py", "mine", ["mine"], {})


@pytest.mark.parametrize(
    ("command", "entries", "found"),
    [
        (SEARCH, [], None),
        (SEARCH, [("a", SEARCH, "RUNNING")], "a"),
        (SEARCH, [("a", SEARCH, "SUCCEEDED")], "a"),  # while nobody looked
        (NAMED_LATER, [("a", SEARCH, "SUCCEEDED")], "a"),
        (SEARCH, [("a", SEARCH, "FAILED")], None),
        (GO_ON, [("a", SEARCH, "RUNNING")], "a"),
        (GO_ON, [("a", GO_ON, "SUCCEEDED")], None),
        (REPORT, [("a", SEARCH, "SUCCEEDED")], None),
        (REPORT, [("a", SEARCH, "SUCCEEDED"), ("b", REPORT, "SUCCEEDED")], "b"),
        (REPORT, [("a", REPORT, "SUCCEEDED"), ("b", GO_ON, "SUCCEEDED")], None),  # it has changed
        (REPORT, [("a", replace(REPORT, study="other"), "RUNNING")], None),
    ],
)
def test_a_command_that_is_given_again_is_found(command, entries, found):
    assert _find(jobs_of(*entries), command) == found


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
