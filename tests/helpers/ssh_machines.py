"""Simulate several machines with ssh servers on one machine.

Each has an address of the loopback network, its own process namespace and its own /tmp. They share
the home folder, as with NFS. Killing all processes of one machine does not affect the others.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from helpers.waiting import wait_for

USER = "cpaan-test"
_NEEDED = ("sshd", "ssh", "ssh-keygen", "rsync", "unshare", "useradd", "userdel", "runuser", "ss")
_NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
_PATH = "/usr/local/bin:/usr/bin:/bin"  # the PATH of a user who logs in by ssh


def what_is_missing(*addresses: str) -> str | None:
    """Return the missing requirements to simulate machines at some addresses, or None."""
    if os.geteuid() != 0:
        return "root, who makes a user and starts ssh servers"
    if absent := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"{', '.join(absent)} (Debian: apt-get install openssh-server rsync iproute2)"
    if subprocess.run([*_NAMESPACES, "true"], capture_output=True).returncode:
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
    """One simulated machine."""

    def __init__(self, address: str, folder: Path, host_key: Path) -> None:
        self._folder = folder / address
        (self._folder / "tmp").mkdir(parents=True)
        (self._folder / "tmp").chmod(0o1777)
        (self._folder / "sshd_config").write_text(
            f"ListenAddress {address}\nHostKey {host_key}\nPidFile none\nUsePAM no\n"
            "PasswordAuthentication no\nMaxStartups 100\nMaxSessions 100\n"
        )
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        sshd = f"exec {shutil.which('sshd')} -D -e -f {self._folder}/sshd_config"
        command = [*_NAMESPACES, "sh", "-c", f"mount --bind {self._folder}/tmp /tmp && {sshd}"]
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_for(lambda: "listener" in " ".join(self.commands().values()), 60, log.read_text)

    def kill(self) -> None:
        """Kill all processes of the machine at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def commands(self) -> dict[int, str]:
        """Return the command lines of the machine's processes by process id."""
        if self._process is None:
            return {}
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        first = children.read_text().split()
        namespace = os.readlink(f"/proc/{first[0]}/ns/pid") if first else None
        commands = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns/pid") == namespace:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    commands[int(folder.name)] = line.decode().strip()
            except OSError:
                continue  # the process has ended
        return {pid: line for pid, line in commands.items() if line}


class Machines:
    """Several machines, and a user who logs in with a key."""

    def __init__(self, folder: Path, addresses: tuple[str, ...]) -> None:
        self.home, self.key, host_key = folder / "home", folder / "user_key", folder / "host_key"
        for key in (self.key, host_key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        # sshd refuses a locked account, and no password matches "*".
        make = ["useradd", "--home-dir", self.home, "--create-home", "--shell", "/bin/bash"]
        subprocess.run([*make, "--password", "*", USER], check=True, capture_output=True)
        (self.home / ".ssh").mkdir(mode=0o700)
        shutil.copy(f"{self.key}.pub", self.home / ".ssh" / "authorized_keys")
        self.give_to_user(self.home / ".ssh")
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd does not start without it
        self.all = [Machine(address, folder, host_key) for address in addresses]

    def give_to_user(self, path: Path, *only: str) -> None:
        """Make the user the owner of a folder and its contents; ``-type d`` means folders only."""
        command = ["find", path, *only, "-exec", "chown", f"{USER}:", "{}", "+"]
        subprocess.run(command, check=True)

    def run(self, *command: str) -> None:
        """Run a command as the user, outside the machines."""
        subprocess.run(
            [shutil.which("runuser"), "-u", USER, "--", *command],
            check=True,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": _PATH},
        )


@contextmanager
def ssh_machines(*addresses: str) -> Iterator[Machines]:
    """Start machines at loopback addresses, and remove all their files and users at the end."""
    remove_user = ["userdel", "--force", USER]
    subprocess.run(remove_user, capture_output=True)  # left by a killed test
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cpaan-machines-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, folder)
        folder.chmod(0o755)  # it contains the user's home
        stack.callback(subprocess.run, remove_user, capture_output=True)
        machines = Machines(folder, addresses)
        for machine in machines.all:
            stack.callback(machine.kill)
            machine.start()
        yield machines
