"""Run a command of ``tune/`` as a Ray job on a cluster that ``ray up`` has started.

The commands call ``cpaan.cli.cluster.run_on_cluster`` with a `ClusterCommand`. The jobs API
listens on the head's loopback address only; ``ray dashboard`` forwards a port to it by ssh.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, run
from typing import NamedTuple

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from cpaan.core.provenance import TEST_READS, commit, take_over_test_reads
from cpaan.data.split_files import copy_split
from cpaan.study.cluster import RAY
from cpaan.study.ray_internals import is_port_of_ssh
from cpaan.study.study import CONFIG
from cpaan.training.drive import Progress

_PROJECT = Path(__file__).parents[2]  # paths in cluster files are relative to it
_CONNECTION_LOST = (aiohttp.ClientError, requests.RequestException, RuntimeError, TimeoutError)
_WORK = "~/cpaan-studies"  # on the head; Ray deletes the folder in which it starts a job


class ClusterCommand(NamedTuple):
    """A command of ``tune/`` to run on a cluster."""

    script: str
    study_name: str
    arguments: Sequence[str]
    files: Mapping[str, Sequence[str]]  # to upload, by option; the job gets their paths on the head
    begins: bool = False  # whether it creates a study: runs once, even with other arguments
    repeats: bool = False  # whether the same command runs again after it has succeeded

    @property
    def labels(self) -> dict[str, str]:
        """Metadata that a repeated command uses to find its job."""
        # The same study on the same cluster may be named with or without the cluster's file.
        others = re.sub(r" ?--cluster[= ]\S+", "", " ".join(self.arguments))
        arguments = "" if self.begins else others
        return {"script": self.script, "study": self.study_name, "arguments": arguments}

    def stage(self, folder: Path) -> str:
        """Copy the code and the files to a folder, and return the shell command to run there."""
        for name in ("cpaan", "tune"):
            shutil.copytree(_PROJECT / name, folder / name)
        words = [f'python "$SENT"/tune/{self.script}', shlex.join(self.arguments)]
        for option, paths in self.files.items():
            words.append(option)
            for number, path in enumerate(paths):
                name = f"{option.strip('-')}-{number}-{Path(path).name}"
                if Path(path).is_dir():  # a split may lie in the folder of its images
                    copy_split(path, folder / name)
                else:
                    shutil.copy(path, folder / name)
                words.append(f'"$SENT"/{shlex.quote(name)}')
        # The last value of an option counts: an empty --cluster runs the command on the head.
        return f"export SENT=$PWD && mkdir -p {_WORK} && cd {_WORK} && {' '.join(words)} --cluster="


class ClusterJob:
    """The job of a command on the cluster that a file describes; `start` sets its name."""

    def __init__(self, config: Path, command: ClusterCommand) -> None:
        self._config, self._command, self._num_written = str(config.absolute()), command, 0
        self.home = TEST_READS.parent / command.study_name  # here, and in _WORK on the head
        text = re.sub(r"(^|\s)#.*", "", config.read_text())  # without comments
        if unset := sorted(set(re.findall(r"\bSET-[A-Z-]+", text))):
            raise ValueError(f"{config} still has {', '.join(unset)}; see cluster/README.md")
        self._port = (re.findall(r"--dashboard-port[= ](\d+)", text) or ["8265"])[0]
        # Each cluster has a token of its own, which `ray up` copies to its machines.
        mounted = re.findall(r"auth_token: *(\S+)", text) or ["~/.ray/auth_token"]
        path = os.environ.get("RAY_AUTH_TOKEN_PATH", mounted[0])
        token = Path(path).expanduser()
        if not token.is_file() or token.stat().st_mode & 0o077:
            raise ValueError(
                f"{path} must be a token file with mode 600; create one with: "
                f"(umask 077; openssl rand -hex 32 > {path})"
            )
        self._headers = {"Authorization": f"Bearer {token.read_text().strip()}"}

    @contextmanager
    def connect(self) -> Iterator[JobSubmissionClient]:
        """Forward a free port to the jobs API on the head, and yield a client that has the token.

        Raises:
            ValueError: If the cluster has no head.
            TimeoutError: If the head cannot be reached.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config, ports = self._config, [f"--port={port}", f"--remote-port={self._port}"]
        command = [*RAY, "dashboard", config, *ports]
        client, deadline = None, time.monotonic() + 60
        with tempfile.NamedTemporaryFile() as log:
            tunnel = Popen(
                command, cwd=_PROJECT, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
            )  # a new session, so that Ctrl-C does not reach ssh
            try:
                while client is None and tunnel.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.2)
                    if is_port_of_ssh(port):  # no other process may receive the token
                        # Ray would use an address of the environment instead of an argument.
                        os.environ["RAY_API_SERVER_ADDRESS"] = url = f"http://127.0.0.1:{port}"
                        with suppress(OSError, AuthenticationError):  # the API does not answer yet
                            client = JobSubmissionClient(url, headers=self._headers)
                said = "" if client else Path(log.name).read_text()
                if re.search("ead node .*not found", said):
                    raise ValueError(
                        f"{config} has no running head; start it with: ray up {config}"
                    )
                if client is None:
                    raise TimeoutError(f"cannot connect to the head of {config}: {said[-300:]}")
                yield client
            finally:
                with suppress(ProcessLookupError):  # the tunnel has already ended
                    os.killpg(tunnel.pid, signal.SIGTERM)
                tunnel.wait()

    def find(self, client: JobSubmissionClient) -> JobDetails | None:
        """Return the command's running job, or the study's last job if it was the same command."""
        labels, last = self._command.labels, None
        for job in sorted(client.list_jobs(), key=lambda job: job.start_time or 0):
            metadata = job.metadata or {}
            if metadata.get("study") != self._command.study_name:
                continue
            if metadata["script"] == self._command.script and not job.status.is_terminal():
                return job
            is_done = labels.items() <= metadata.items() and job.status == JobStatus.SUCCEEDED
            last = job if is_done and not self._command.repeats else None
        return last

    def start(self) -> bool:
        """Submit the command unless `find` finds it; return whether it was submitted."""
        with self.connect() as client, tempfile.TemporaryDirectory() as folder:
            if job := self.find(client):
                self.name = str(job.submission_id)
                return False
            if self._command.begins and (self.home / CONFIG).exists():
                resume = f"--resume {self.home.name}"
                raise ValueError(f"{self.home} already exists; resume it with: {resume}")
            variables = {"CPAAN_COMMIT": commit(), "PYTHONUNBUFFERED": "1"}
            self.name = client.submit_job(
                entrypoint=self._command.stage(Path(folder)),
                metadata=self._command.labels,
                runtime_env={"working_dir": folder, "env_vars": variables},
            )
        return True

    def stop(self) -> None:
        """Stop the job and wait for its end."""
        with self.connect() as client:
            job = self.find(client)
            if job is None or job.status.is_terminal():
                raise ValueError(f"the cluster has no running job for {self._command.study_name}")
            self.name = str(job.submission_id)
            client.stop_job(self.name)
            while not client.get_job_status(self.name).is_terminal():
                time.sleep(0.5)

    def follow(self, write: Progress, say: Progress, pause: float = 5.0) -> JobDetails:
        """Write the job's output until it ends; reconnect ``pause`` seconds after a loss."""
        is_lost = False
        while True:
            try:
                with self.connect() as client:
                    say("reconnected" if is_lost else "connected")
                    is_lost = False
                    client.get_job_info(self.name)
                    asyncio.run(self._tail(client, write))
                    details = client.get_job_info(self.name)
                    if details.status.is_terminal():
                        return details
            except _CONNECTION_LOST as error:
                if "status code 404" in str(error):
                    raise ValueError(f"the cluster no longer has job {self.name}") from error
                if not is_lost:
                    say(f"connection lost ({error!r}); the job keeps running; reconnecting")
                is_lost = True
            time.sleep(pause)

    async def _tail(self, client: JobSubmissionClient, write: Progress) -> None:
        """Write the output that earlier connections have not written."""
        position = 0
        async for text in client.tail_job_logs(self.name):
            write(text[max(0, self._num_written - position) :])
            position += len(text)
            self._num_written = max(self._num_written, position)

    def download(self) -> Path:
        """Copy the study's folder and the log of test-phase reads from the head."""
        with tempfile.TemporaryDirectory() as folder:
            new, reads = Path(folder) / "study", Path(folder) / TEST_READS.name
            self._copy(f"{self.home}/", f"{new}/")
            configs = [path for path in (new / CONFIG, self.home / CONFIG) if path.exists()]
            if len({str(json.loads(path.read_text())["runs"][0]) for path in configs}) > 1:
                raise ValueError(f"{self.home} is not the study on the cluster; move or rename it")
            shutil.copytree(new, self.home, dirs_exist_ok=True)
            with suppress(ValueError):  # no log: the test phase was not read there
                self._copy(str(TEST_READS), str(reads))
                take_over_test_reads(reads)
        return self.home

    def _copy(self, source: str, target: str) -> None:
        paths = [self._config, f"{_WORK}/{source}", target]
        done = run(
            [*RAY, "rsync-down", *paths], cwd=_PROJECT, stdout=PIPE, stderr=STDOUT, text=True
        )
        if done.returncode:
            raise ValueError(f"cannot download {_WORK}/{source}: {done.stdout[-300:]}")
