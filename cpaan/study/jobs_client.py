"""A client of a cluster's jobs API, over a port that ``ray dashboard`` forwards by ssh."""

import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen

from ray._private.services import psutil  # type: ignore[attr-defined]  # Ray includes it
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from cpaan.study.cluster import RAY

PROJECT = Path(__file__).parents[2]
"""Folder of the project; paths in cluster files are relative to it."""


@contextmanager
def jobs_client(
    config: str, remote_port: str, headers: dict[str, str]
) -> Iterator[JobSubmissionClient]:
    """Forward a free port to the head of a cluster, and yield a client that sends the headers.

    Raises:
        ValueError: If the cluster has no head.
        TimeoutError: If the head cannot be reached.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*RAY, "dashboard", config, f"--port={port}", f"--remote-port={remote_port}"]
    client, deadline = None, time.monotonic() + 60
    with tempfile.NamedTemporaryFile() as log:
        tunnel = Popen(
            command, cwd=PROJECT, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
        )  # a new session, so that Ctrl-C does not reach ssh
        try:
            while client is None and tunnel.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
                if has_ssh(port):  # the headers have the token, which no other process may receive
                    # Ray would use an address of the environment instead of an argument.
                    os.environ["RAY_API_SERVER_ADDRESS"] = url = f"http://127.0.0.1:{port}"
                    with suppress(OSError, AuthenticationError):  # the API does not answer yet
                        client = JobSubmissionClient(url, headers=headers)
            said = "" if client else Path(log.name).read_text()
            if re.search("ead node .*not found", said):
                raise ValueError(f"{config} has no running head; start it with: ray up {config}")
            if client is None:
                raise TimeoutError(f"cannot connect to the head of {config}: {said[-300:]}")
            yield client
        finally:
            with suppress(ProcessLookupError):  # the tunnel has already ended
                os.killpg(tunnel.pid, signal.SIGTERM)
            tunnel.wait()


def has_ssh(port: int) -> bool:
    """Return whether an ssh process of this user listens on a port of this machine.

    It need not be a child of this one, because all connections to a machine share one process.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is not ours
            if process.name() == "ssh" and process.uids().real == os.getuid():
                connections = process.net_connections("tcp")
                if any(each.status == "LISTEN" and each.laddr.port == port for each in connections):
                    return True
    return False
