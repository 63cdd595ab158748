"""Machines that one reaches by ssh, as far as one machine can be several.

Each has an address of the loopback network, and processes and a /tmp that no other sees; home
folders are shared, as by NFS. Nothing outside of them is seen from within: whatever ends all
processes of such a machine ends no others.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "cpaan-test"
_NEEDED = ("sshd", "ssh", "ssh-keygen", "rsync", "unshare", "useradd", "userdel", "runuser", "ss")
_SPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
_PATH = "/usr/local/bin:/usr/bin:/bin"  # as ssh has it for a user
_SECONDS = 20.0


def what_is_missing(*addresses: str) -> str | None:
    """Return what this machine lacks to be several, at some addresses; None if it lacks nothing."""
    if os.geteuid() != 0:
        return "root, who makes a user and starts ssh servers"
    if absent := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"{', '.join(absent)} (Debian: apt-get install openssh-server rsync iproute2)"
    if subprocess.run([*_SPACES, "true"], capture_output=True).returncode:
        return "the right to make namespaces (unshare)"
    for address in addresses:
        with socket.socket() as server:
            try:
                server.bind((address, 22))
            except OSError:
                return f"port 22 of {address}, which another ssh server has"
    command = [shutil.which("runuser"), "-u", "nobody", "--", "python3", "-m", "pip", "--version"]
    if subprocess.run(command, capture_output=True, cwd="/", env={"PATH": _PATH}).returncode:
        return "a python3 with pip that every user can run (Debian: apt-get install python3-pip)"
    return None


class Machine:
    """One of them."""

    def __init__(self, address: str, folder: Path, host_key: Path) -> None:
        self.address = address
        self._folder = folder / address
        (self._folder / "tmp").mkdir(parents=True)
        (self._folder / "tmp").chmod(0o1777)
        (self._folder / "sshd_config").write_text(
            f"ListenAddress {address}\nHostKey {host_key}\nPidFile none\nUsePAM no\n"
            "PasswordAuthentication no\nMaxStartups 100\nMaxSessions 100\n"
        )
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Let it come up."""
        sshd = f"exec {shutil.which('sshd')} -D -e -f {self._folder}/sshd_config"
        command = [*_SPACES, "sh", "-c", f"mount --bind {self._folder}/tmp /tmp && {sshd}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _SECONDS
        while not any("listener" in command for command in self.commands().values()):
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """End all its processes at once, as of a machine that is taken away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def commands(self) -> dict[int, str]:
        """Return its processes and their command lines."""
        if self._process is None:
            return {}
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        first = children.read_text().split()
        return _in_namespace(os.readlink(f"/proc/{first[0]}/ns/pid")) if first else {}


def _in_namespace(name: str) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if os.readlink(folder / "ns/pid") == name:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found[int(folder.name)] = line
            except OSError:
                continue  # it has ended
    return {pid: line for pid, line in found.items() if line}


class Machines:
    """Several, with a user who may come in by a key."""

    def __init__(self, folder: Path, addresses: list[str]) -> None:
        self.home = folder / "home"
        self.key = folder / "user_key"
        host_key = folder / "host_key"
        for key in (self.key, host_key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        # A locked account may not come in, and "*" is no password that anyone could give.
        make = ["useradd", "--home-dir", self.home, "--create-home", "--shell", "/bin/bash"]
        subprocess.run([*make, "--password", "*", USER], check=True, capture_output=True)
        (self.home / ".ssh").mkdir(mode=0o700)
        shutil.copy(f"{self.key}.pub", self.home / ".ssh" / "authorized_keys")
        self.own(self.home / ".ssh")
        Path("/run/sshd").mkdir(exist_ok=True)  # a folder that sshd insists on
        self.each = [Machine(address, folder, host_key) for address in addresses]

    def own(self, path: Path) -> None:
        """Give a file or folder to the user."""
        subprocess.run(["chown", "-R", f"{USER}:", path], check=True)

    def own_folders(self, path: Path) -> None:
        """Give a folder and those in it to the user, but no files: they may have other links."""
        command = ["find", path, "-type", "d", "-exec", "chown", f"{USER}:", "{}", "+"]
        subprocess.run(command, check=True)

    def run(self, *command: str) -> str:
        """Run a command as the user, on no machine in particular, and return what it prints."""
        return subprocess.run(
            [shutil.which("runuser"), "-u", USER, "--", *command],
            check=True,
            capture_output=True,
            text=True,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": _PATH},
        ).stdout


@contextmanager
def ssh_machines(*addresses: str) -> Iterator[Machines]:
    """Start machines at some loopback addresses; at the end, nothing of them is left."""
    folder = Path(tempfile.mkdtemp(prefix="cpaan-machines-", dir="/var/tmp"))
    folder.chmod(0o755)  # the user goes through it
    _remove_user()
    try:
        machines = Machines(folder, list(addresses))
        try:
            for machine in machines.each:
                machine.start()
            yield machines
        finally:
            for machine in machines.each:
                machine.kill()
    finally:
        _remove_user()
        shutil.rmtree(folder)


def _remove_user() -> None:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return
    subprocess.run(["userdel", "--force", USER], check=True, capture_output=True)
