"""Test the help of every command, and Ctrl-C while it starts."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "-m cpaan": ["commands:", "represent  train a backbone"],
    "-m cpaan evaluate": ["examples:", "among the novel classes (LSL)"],
    "-m cpaan represent": ["examples:", "--holdout", "val/", "resume"],
    "-m cpaan spiral": ["--out", "diversity"],
    "-m cpaan methods": ["rows of the table"],
    "-m cpaan settings": ["--embed-set NAME=VALUE"],
    "tune/search.py": ["examples:", "python tune/search.py --", "--resume", "exit status"],
    "tune/report.py": ["examples:", "python tune/report.py results/mine", "--redraw"],
}


def start(command: str, *options: str) -> subprocess.Popen:
    """Start a command that names every module on the error stream when it has imported it."""
    words = command.replace("tune/", f"{ROOT}/tune/").split()
    python = [sys.executable, "-X", "importtime"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*python, *words, *options], text=True, **pipes)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_teaches_fits_a_terminal_and_does_not_import_torch_or_ray(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown, imported = start(command, "--help").communicate()

    assert [word for word in COMMANDS[command] if word not in shown] == []
    assert max(map(len, shown.splitlines())) <= 100
    assert not re.search(r"\| +(torch|ray|pandas|optuna)$", imported, re.M)


@pytest.mark.parametrize("module", ["cpaan.cli.options", "numpy"])
@pytest.mark.parametrize("command", ["-m cpaan evaluate", "tune/search.py", "tune/report.py"])
def test_ctrl_c_during_the_start_ends_without_a_traceback(command, module):
    with start(command) as process:
        while not process.stderr.readline().endswith(f" {module}\n"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "interrupted" in rest
