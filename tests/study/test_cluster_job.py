"""Test cluster commands without a connection; `test_cluster_up.py` runs them on a cluster."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from cpaan.core.provenance import TEST_READS, count_test_reads, take_over_test_reads
from cpaan.data.split_files import read_split
from cpaan.study import cluster_job
from cpaan.study.cluster_job import ClusterCommand, ClusterJob
from helpers.studies import report, search

ROOT = Path(__file__).parents[2]
SEARCH = ClusterCommand("search.py", "mine", ["--study", "mine"], {}, begins=True)
NAMED_LATER = SEARCH._replace(arguments=["--study", "mine", "--study", "mine"])
RESUME = ClusterCommand("search.py", "mine", ["--resume", "mine"], {}, repeats=True)
REPORT = ClusterCommand("report.py", "mine", ["mine"], {})
REPORT_ON_C = REPORT._replace(arguments=["mine", "--cluster", "c.yaml"])


@pytest.fixture
def token(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    return path


@pytest.fixture
def job(token, tmp_path) -> ClusterJob:
    (tmp_path / "c.yaml").write_text("a: b # whatever begins with SET-\n")
    return ClusterJob(tmp_path / "c.yaml", SEARCH)


class Client:
    """A client of a cluster's jobs API, where every job that is submitted succeeds at once."""

    def __init__(self, *outputs: Sequence[str | RuntimeError]) -> None:
        self.jobs, self.entrypoints, self._outputs = [], list[str](), iter(outputs)
        self.details = SimpleNamespace(status=JobStatus.SUCCEEDED, driver_exit_code=0)

    def list_jobs(self) -> list[SimpleNamespace]:
        return self.jobs

    def submit_job(self, entrypoint: str, **_: object) -> str:
        self.entrypoints.append(entrypoint)
        return "job"

    def get_job_info(self, name: str) -> SimpleNamespace:
        return self.details

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        """Yield the output of the next connection, which an error ends."""
        for piece in next(self._outputs, ()):
            if isinstance(piece, RuntimeError):
                raise piece
            yield piece


@pytest.fixture
def client(job, monkeypatch) -> Client:
    """Return the client that all commands get."""
    client = Client()
    monkeypatch.setattr(ClusterJob, "connect", lambda job: nullcontext(client))
    monkeypatch.setattr(ClusterJob, "download", lambda job: job.home)
    return client


def test_a_cluster_file_must_be_complete_and_the_token_private(job, token, tmp_path):
    (tmp_path / "new.yaml").write_text("a: SET-USER\nb: s3://SET-BUCKET/x # SET-NOT\n")
    with pytest.raises(ValueError, match=r"still has SET-BUCKET, SET-USER; see cluster/README.md"):
        ClusterJob(tmp_path / "new.yaml", SEARCH)
    for change in (lambda: token.chmod(0o644), token.unlink):
        change()
        with pytest.raises(ValueError, match="must be a token file with mode 600; create one"):
            ClusterJob(tmp_path / "c.yaml", SEARCH)


def test_the_token_is_the_one_that_the_cluster_file_mounts(token, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "c.yaml"
    file.write_text("file_mounts:\n  ~/.ray/auth_token: ~/token\n")

    assert ClusterJob(file, SEARCH)._headers == {"Authorization": "Bearer secret"}

    token.unlink()
    with pytest.raises(ValueError, match=r"create one with: \(umask 077; .* > ~/token\)"):
        ClusterJob(file, SEARCH)


def test_a_cluster_that_is_not_up_is_an_error_of_one_line(token, tmp_path, capsys):
    text = (ROOT / "cluster" / "local.yaml").read_text().replace("SET-USER", "me")
    for number, name in enumerate(("ADDRESS-OF-THE-HEAD", "ADDRESS-OF-A-WORKER")):
        text = text.replace(f"SET-{name}", f"127.0.0.7{number}")
    text = text.replace("SET-FOLDER-THAT-ALL-MACHINES-SHARE", "/x")
    file = tmp_path / "c.yaml"
    file.write_text(text.replace("cpaan-local", f"cpaan-absent-{os.getpid()}"))

    status = search(["--cluster", str(file), "--study", "mine"])

    for left in Path("/tmp/ray").glob(f"cluster-cpaan-absent-{os.getpid()}.*"):
        left.unlink()
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    problem = f"{file} has no running head; start it with: ray up {file}"
    assert line == f"python tune/search.py: error: {problem}"


# Listens on the port of `ray dashboard ... --port=N`, and writes the first request beside itself.
LISTENER = """
import pathlib, socket, sys

path = pathlib.Path(__file__).with_name("request.txt")
(port,) = [word.removeprefix("--port=") for word in sys.argv if word.startswith("--port=")]
with socket.create_server(("127.0.0.1", int(port))) as server, path.open("wb") as file:
    server.settimeout(float(sys.argv[1]))
    try:
        with server.accept()[0] as connection:
            file.write(connection.recv(10_000))
    except TimeoutError:
        pass
"""


@pytest.mark.parametrize(
    ("name", "seconds", "is_sent"), [("ssh", "60", True), ("stranger", "3", False)]
)
def test_the_token_is_sent_to_ssh_only(job, name, seconds, is_sent, tmp_path, monkeypatch):
    """A process named like ssh, or another one, takes the port; it has no jobs API."""
    program, script = tmp_path / name, tmp_path / "listener.py"
    program.symlink_to(Path(sys.executable).resolve())
    script.write_text(LISTENER)
    monkeypatch.setattr(cluster_job, "RAY", (str(program), str(script), seconds))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")  # of another cluster

    with pytest.raises(TimeoutError, match=r"head of .+/c\.yaml"), job.connect():
        pass

    request = (tmp_path / "request.txt").read_bytes()
    assert (b"Bearer secret" in request) is is_sent
    assert bool(request) is is_sent


def test_the_job_runs_the_same_arguments_with_the_uploaded_files(tmp_path, monkeypatch):
    """Run the command in a real shell, with a ``python`` that prints its arguments."""
    split, python, sent = (tmp_path / name for name in ("my split.json", "python", "sent it"))
    split.write_text("{}")
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["--set", "a=b c", "--split", str(split)]

    entrypoint = SEARCH._replace(arguments=arguments, files={"--split": [str(split)]}).stage(sent)
    output = subprocess.check_output(entrypoint, shell=True, cwd=sent, text=True)

    uploaded = f"{sent}/split-0-my split.json"
    folder, script, *given = output.splitlines()
    assert (folder, script) == (f"{tmp_path}/cpaan-studies", f"{sent}/tune/search.py")
    assert given == [*arguments, "--split", uploaded, "--cluster="]
    assert Path(uploaded).read_text() == "{}"
    assert {path.name for path in sent.iterdir()} == {"cpaan", "tune", Path(uploaded).name}


def test_of_a_folder_with_lists_of_classes_only_the_split_is_uploaded(tmp_path):
    lists, sent = tmp_path / "lists", tmp_path / "sent"
    lists.mkdir()
    for name in ("train.csv", "test.csv", "image.jpg"):
        (lists / name).write_text(name)

    assert '"$SENT"/split-0-lists' in SEARCH._replace(files={"--split": [str(lists)]}).stage(sent)

    assert [path.name for path in (sent / "split-0-lists").iterdir()] == ["split.json"]
    assert read_split(sent / "split-0-lists") == read_split(lists)


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (search, ["--features", "x.parquet"], "x.parquet is a local path; use s3:"),
        (search, ["--study", "a/b"], "a study name can only have letters"),
        (search, ["--resume", ".."], "a study name can only have letters"),
        (report, ["a b"], "a study name can only have letters"),
        (search, ["--split", "absent.json"], "absent.json: No such file"),
        (search, ["--dry-run"], "--dry-run describes a run on this machine"),
        (search, ["--study", "mine"], "results/mine already exists; resume it with: --resume"),
        (search, ["--study", "other", "--stop"], "the cluster has no running job for other"),
        (search, ["--stop", "--cluster="], "--stop needs --cluster"),
        (report, ["--stop", "--cluster="], "--stop needs --cluster"),
    ],
)
def test_bad_input_is_refused_before_submission(client, capsys, command, arguments, said):
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/config.json").touch()

    assert command(["--cluster", "c.yaml", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not client.entrypoints


@pytest.mark.parametrize(
    ("command", "earlier", "expected"),
    [
        (SEARCH, [], None),
        (SEARCH, [(SEARCH, "RUNNING")], 0),
        (SEARCH, [(SEARCH, "SUCCEEDED")], 0),  # finished without a follower
        (NAMED_LATER, [(SEARCH, "SUCCEEDED")], 0),
        (SEARCH, [(SEARCH, "FAILED")], None),
        (RESUME, [(SEARCH, "RUNNING")], 0),
        (RESUME, [(RESUME, "SUCCEEDED")], None),
        (REPORT, [(SEARCH, "SUCCEEDED")], None),
        (REPORT, [(SEARCH, "SUCCEEDED"), (REPORT, "SUCCEEDED")], 1),
        (REPORT, [(REPORT, "SUCCEEDED"), (RESUME, "SUCCEEDED")], None),  # the study has changed
        (REPORT, [(REPORT._replace(study_name="other"), "RUNNING")], None),
        (REPORT, [(REPORT_ON_C, "SUCCEEDED")], 0),
        (REPORT_ON_C, [(REPORT, "SUCCEEDED")], 0),
    ],
)
def test_a_repeated_command_finds_its_job(job, tmp_path, command, earlier, expected):
    client = Client()
    for time, (other, status) in enumerate(earlier):
        about = {"metadata": other.labels, "status": JobStatus[status], "start_time": time}
        client.jobs.insert(0, SimpleNamespace(**about))

    job = ClusterJob(tmp_path / "c.yaml", command).find(client)

    assert (job and job.start_time) == expected


def test_output_is_written_once_and_a_lost_connection_is_reported(job, monkeypatch):
    """The first connection is lost within a line; the second one repeats the output."""
    lost = RuntimeError("the websocket was closed")
    client, written, said = Client(["one ", "two", lost], ["one two thr", "ee"]), [], []
    monkeypatch.setattr(job, "connect", lambda: nullcontext(client))
    job.name = "job"

    assert job.follow(written.append, said.append, pause=0.0) is client.details
    assert "".join(written) == "one two three"
    assert said[0] == "connected"
    assert said[1].startswith("connection lost (")
    assert said[2:] == ["reconnected"]


def test_a_study_remembers_its_cluster(client, tmp_path, capsys):
    assert search(["--cluster", "c.yaml", "--study", "mine"]) == 0
    said = capsys.readouterr().err
    assert "open the dashboard with: ray dashboard c.yaml" in said
    assert "using" not in said

    for command, arguments, sent in (
        (report, ["mine"], "report.py mine --cluster="),
        (report, ["--draws", "9"], "report.py mine --draws 9 --cluster="),
        (search, ["--resume", "mine"], "search.py --resume mine --resume mine --cluster="),
        (search, ["--resume"], "search.py --resume --resume mine --cluster="),
    ):
        assert command(arguments) == 0
        assert client.entrypoints[-1].endswith(sent)
        said = capsys.readouterr().err
        assert f"using {tmp_path}/c.yaml, the cluster of results/mine" in said
        assert f"ray dashboard {tmp_path}/c.yaml" in said
    (tmp_path / "other.yaml").touch()
    assert report(["--cluster", "other.yaml"]) == 0
    assert report(["mine"]) == 0
    assert f"using {tmp_path}/other.yaml, the cluster of" in capsys.readouterr().err
    assert len(client.entrypoints) == 7


def test_a_remembered_cluster_is_not_used_for_what_runs_here(client, tmp_path, capsys):
    assert search(["--cluster", "c.yaml", "--study", "mine"]) == 0
    capsys.readouterr()

    for command, arguments, problem in (
        (report, ["--address", "local"], "results/mine has no config.json"),
        (report, ["--redraw"], "results/mine"),
        (report, ["--cluster="], "results/mine has no config.json"),
        (search, ["--resume", "--address", "local"], "results/mine has no config.json"),
        (search, ["--resume", "--dry-run"], "results/mine has no config.json"),
        (search, ["--study", "mine"], "results/mine already exists; resume it with"),
    ):
        assert command(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()[-1:]
        assert problem in line
    (tmp_path / "c.yaml").unlink()
    for command, arguments in ((report, ["mine"]), (search, ["--resume", "--stop"])):
        assert command(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"whose file {tmp_path}/c.yaml no longer exists; name it with --cluster" in line
    assert len(client.entrypoints) == 1


def test_reads_of_the_test_phase_are_taken_over_once(tmp_path):
    lines = [json.dumps({"time": str(n), "features": "f"}) for n in range(3)]
    TEST_READS.parent.mkdir()
    TEST_READS.write_text(f"{lines[0]}\n{lines[1]}\n")
    (tmp_path / "other.jsonl").write_text(f"{lines[1]}\n{lines[2]}\n")

    for _ in range(2):
        take_over_test_reads(tmp_path / "other.jsonl")

    assert TEST_READS.read_text().splitlines() == lines
    assert count_test_reads("f") == 3


@pytest.mark.usefixtures("builtin_cache")
def test_a_clusters_own_storage_is_the_default(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CPAAN_STORAGE", str(tmp_path / "shared"))

    assert search(["--study", "mine", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["storage"] == str(tmp_path / "shared" / "mine")
