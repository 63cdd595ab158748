"""A cluster that ``ray up`` has started, from afar: jobs are sent there, followed, brought home.

Everything goes by ssh, as Ray's own commands do: the jobs API answers on the head alone.
"""

import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import aiohttp
import requests
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

import cpaan
from cpaan.core.provenance import commit

WORK = "cpaan-studies"
"""Folder in the home of the head's user where commands run: jobs begin in copies of what was sent,
which are thrown away."""
INPUTS = "inputs"
"""Folder of files that travel with a job, in its working directory."""

_DASHBOARD_PORT = re.compile(r"--dashboard-port[= ](\d+)")
_PROJECT = Path(cpaan.__file__).parent.parent  # which the paths in cluster files begin from
_PLACEHOLDER = re.compile(r"\bSET-[A-Z-]+")
_SECONDS_TO_CONNECT = 60.0
_SECONDS_BETWEEN_TRIES = 5.0
_TALKATIVE = (  # loggers that would tell of each message
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
_LOST = (aiohttp.ClientError, requests.RequestException, ConnectionError, TimeoutError)


class NotThereError(ValueError):
    """The head, or the job on it, is not there."""


class RemoteCluster:
    """The cluster of a file that ``ray up`` has started."""

    def __init__(self, config: Path) -> None:
        """Look at the file.

        Raises:
            ValueError: If it is not there or still has placeholders; if there is no token, or one
                that others can read.
        """
        self._config = config
        if not config.is_file():
            raise ValueError(f"there is no cluster file {config}")
        text = _without_comments(config.read_text())
        if left := sorted(set(_PLACEHOLDER.findall(text))):
            raise ValueError(f"{config} still has {', '.join(left)}: see cluster/README.md")
        found = _DASHBOARD_PORT.search(text)
        self._dashboard_port = found[1] if found else "8265"  # which is Ray's own choice
        self._token = _read_token()

    @contextmanager
    def connect(self) -> Iterator["Jobs"]:
        """Open a way to the head, for as long as it is used.

        Raises:
            NotThereError: If the cluster has no head.
            ConnectionError: If the head does not answer.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ports = ["--port", str(port), "--remote-port", self._dashboard_port]
        command = _ray("dashboard", str(self._config.absolute()), *ports)
        with tempfile.TemporaryFile("w+") as output:
            # A group of its own: Ctrl-C is ours to answer, and ssh ends with what started it.
            tunnel = subprocess.Popen(
                command,
                cwd=_PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                address = f"http://127.0.0.1:{port}"
                headers = {"Authorization": f"Bearer {self._token}"}
                deadline = time.monotonic() + _SECONDS_TO_CONNECT
                while not _answers(f"{address}/api/version", headers):
                    if tunnel.poll() is not None or time.monotonic() > deadline:
                        output.seek(0)
                        self._raise_unreachable(output.read())
                    time.sleep(0.2)
                client = JobSubmissionClient(address, headers=headers)
                for name in _TALKATIVE:
                    logging.getLogger(name).setLevel(logging.WARNING)
                yield Jobs(client)
            finally:
                with suppress(ProcessLookupError):  # it may have ended by itself
                    os.killpg(tunnel.pid, signal.SIGTERM)
                tunnel.wait()

    def _raise_unreachable(self, output: str) -> NoReturn:
        if "not found" in output and "ead node" in output:
            raise NotThereError(f"{self._config} has no running head: ray up {self._config}")
        last = output.strip().splitlines()[-1:] or ["no answer"]
        raise ConnectionError(f"the head of {self._config} cannot be reached: {last[0]}")

    def follow(
        self, job: str, write: Callable[[str], None], say: Callable[[str], None]
    ) -> tuple[int | None, str]:
        """Pass on what a job prints until it ends, over as many connections as that takes.

        Args:
            job: Its name.
            write: Called with what it prints, every letter once.
            say: Called with a line when the connection is lost or found.

        Returns:
            The exit status of its program, None if it was stopped, died with its machine, or did
            not begin; and what Ray says of its end.

        Raises:
            NotThereError: If there is no such job any more.
        """
        num_written, is_lost = 0, False
        while True:
            try:
                with self.connect() as jobs:
                    if is_lost:
                        say("connected again")
                    is_lost = False
                    skip = num_written
                    for text in jobs.output(job):
                        write(text[skip:])
                        num_written += len(text[skip:])
                        skip = max(0, skip - len(text))
                    details = jobs.details(job)
                    if details.status.is_terminal():
                        return details.driver_exit_code, " ".join((details.message or "").split())
            except _LOST as error:
                if not is_lost:
                    reason = " ".join(str(error).split()) or type(error).__name__
                    say(f"the connection is lost ({reason}); the job goes on, and we try again")
                is_lost = True
            time.sleep(_SECONDS_BETWEEN_TRIES)

    def fetch(self, path: str, target: Path) -> None:
        """Bring a file of `WORK` home, or what is in a folder (with a slash at the end of both).

        Raises:
            ValueError: If it cannot be had.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        source, slash = f"~/{WORK}/{path}", "/" if path.endswith("/") else ""
        config, place = self._config.absolute(), f"{target.absolute()}{slash}"
        done = subprocess.run(
            _ray("rsync-down", str(config), source, place),
            cwd=_PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise ValueError(f"{source} could not be fetched: {' '.join(last)}")


@dataclass(frozen=True)
class Job:
    """A job of a cluster."""

    name: str
    labels: Mapping[str, str]
    has_ended: bool
    has_succeeded: bool
    """With the exit status 0."""
    start_time: int


class Jobs:
    """The jobs of a cluster, as long as there is a connection."""

    def __init__(self, client: JobSubmissionClient) -> None:
        self._client = client

    def submit(self, entrypoint: str, files: Mapping[str, Path], labels: Mapping[str, str]) -> str:
        """Send the project's code and some files, and let the head run a command with them.

        Args:
            entrypoint: For a shell, in `WORK`; ``$SENT`` has ``cpaan``, ``tune`` and `INPUTS`.
            files: Of this machine, by their names in `INPUTS`.
            labels: By which `running` and `last` find the job again.

        Returns:
            The job's name.
        """
        with tempfile.TemporaryDirectory() as folder:
            _stage(Path(folder), files)
            return self._client.submit_job(
                entrypoint=f"export SENT=$PWD && mkdir -p ~/{WORK} && cd ~/{WORK} && {entrypoint}",
                metadata=dict(labels),
                runtime_env={
                    "working_dir": folder,
                    # The copy has no history, and what it prints should not wait.
                    "env_vars": {"CPAAN_COMMIT": commit(), "PYTHONUNBUFFERED": "1"},
                },
            )

    def running(self, labels: Mapping[str, str]) -> str | None:
        """Return the job with these labels that has not ended, if there is one."""
        found = self._with_labels(labels)
        return next((job.name for job in found if not job.has_ended), None)

    def last(self, labels: Mapping[str, str]) -> "Job | None":
        """Return the job with these labels that was begun last, if there is one."""
        return next(iter(self._with_labels(labels)), None)

    def _with_labels(self, labels: Mapping[str, str]) -> list["Job"]:
        """Return all such jobs, the last one first."""
        found = [
            Job(
                details.submission_id,
                details.metadata or {},
                details.status.is_terminal(),
                details.status == JobStatus.SUCCEEDED,
                details.start_time or 0,
            )
            for details in self._client.list_jobs()
            if details.submission_id and labels.items() <= (details.metadata or {}).items()
        ]
        return sorted(found, key=lambda job: job.start_time, reverse=True)

    def details(self, job: str) -> JobDetails:
        """Return how a job stands.

        Raises:
            NotThereError: If there is none of that name: the head was started anew since.
        """
        try:
            return self._client.get_job_info(job)
        except RuntimeError as error:
            if "404" in str(error):
                raise NotThereError(f"the cluster knows no job {job} any more") from error
            raise ConnectionError(str(error)) from error

    def output(self, job: str) -> Iterator[str]:
        """Yield all that a job has printed and goes on to print, until it ends or we lose it."""
        self.details(job)
        pieces = self._client.tail_job_logs(job)
        with asyncio.Runner() as runner:
            while True:
                try:
                    yield runner.run(anext(pieces))  # type: ignore[arg-type]  # it is a coroutine
                except StopAsyncIteration:
                    return
                except RuntimeError as error:  # the websocket was closed by an error
                    raise ConnectionError(str(error)) from error

    def stop(self, job: str) -> None:
        """Let a job end, and wait until it has; what it kept stays."""
        self._client.stop_job(job)
        while not self.details(job).status.is_terminal():
            time.sleep(0.5)


def _stage(folder: Path, files: Mapping[str, Path]) -> None:
    """Copy what travels: the package, the two commands, and files; nothing else."""
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in ("cpaan", "tune"):
        shutil.copytree(_PROJECT / name, folder / name, ignore=without_caches)
    (folder / INPUTS).mkdir()
    for name, file in files.items():
        shutil.copy(file, folder / INPUTS / name)


def _ray(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ray.scripts.scripts", *arguments]


def _answers(url: str, headers: Mapping[str, str]) -> bool:
    try:
        return requests.get(url, headers=dict(headers), timeout=5).ok
    except requests.RequestException:
        return False


def _without_comments(text: str) -> str:
    return re.sub(r"(^|\s)#.*", "", text)


def _read_token() -> str:
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    if not path.is_file():
        raise ValueError(f"there is no token in {path}: ray get-auth-token --generate makes one")
    if path.stat().st_mode & 0o077:
        raise ValueError(f"others can read the token: chmod 600 {path}")
    return path.read_text().strip()
