"""Test that the token of a cluster is sent only over the tunnel of this user."""

import sys
from pathlib import Path

import pytest

from cpaan.study import jobs_client

# Listens on the port of `ray dashboard ... --port=N`, and writes the first request to a file.
LISTENER = """
import socket, sys

(port,) = [word.removeprefix("--port=") for word in sys.argv if word.startswith("--port=")]
with socket.create_server(("127.0.0.1", int(port))) as server, open("request.txt", "wb") as file:
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
def test_the_token_is_sent_to_ssh_only(name, seconds, is_sent, tmp_path, monkeypatch):
    """A process named like ssh, or another one, takes the port; it has no jobs API."""
    program, script = tmp_path / name, tmp_path / "listener.py"
    program.symlink_to(Path(sys.executable).resolve())
    script.write_text(LISTENER)
    monkeypatch.setattr(jobs_client, "RAY", (str(program), str(script), seconds))
    monkeypatch.setattr(jobs_client, "PROJECT", tmp_path)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")  # of another cluster
    headers = {"Authorization": "Bearer secret"}

    with (
        pytest.raises(TimeoutError, match=r"head of c\.yaml"),
        jobs_client.jobs_client("c.yaml", "8265", headers),
    ):
        pass

    request = (tmp_path / "request.txt").read_bytes()
    assert (b"Bearer secret" in request) is is_sent
    assert bool(request) is is_sent
