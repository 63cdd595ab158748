"""Test the Slurm scripts, and that a study resumes after the loss of its node."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.studies import SMALL_STUDY
from helpers.waiting import wait_for

ROOT = Path(__file__).parents[2]


def write_command(folder: Path, name: str, script: str) -> None:
    """Write an executable script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project folder as in a job, a home folder, and Slurm commands for one node."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("cluster", "tune", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    commands = tmp_path / "commands"
    # The only node of the job is this machine.
    write_command(commands, "srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"')
    write_command(commands, "scontrol", f'echo "$*" >> {tmp_path}/scontrol.txt')
    for name, value in {
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": sys.prefix,
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "2",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("RAY_ADDRESS", "CPAAN_STORAGE", "SLURM_GPUS_ON_NODE", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", *command], capture_output=True, text=True, **options)


def write_ray(commands: Path, does: str) -> None:
    """Write a `ray` command that records its arguments and then runs a script."""
    write_command(commands, "ray", f'printf "%s\\n" "$@" > {commands}/called.txt\n{does}')


REPORT = "$CPAAN_FOLDER/results/mine/report"
REPORTS = f"mkdir -p {REPORT}; touch {REPORT}/report.json"


@pytest.mark.slow
def test_slurm_reports_what_is_missing(project):
    script, commands = str(project / "cluster" / "slurm.sh"), project.parent / "commands"

    def problem(*arguments: str, cwd: Path = project, **environment: str) -> str:
        done = run(script, *arguments, cwd=cwd, env={**os.environ, **environment})
        assert done.returncode == 2
        return done.stderr

    assert "cluster/slurm.sh: name the study" in problem()
    assert "run it with: sbatch" in problem("mine", SLURM_JOB_ID="")
    assert "this Python has no Ray" in problem("mine", PATH="/usr/bin:/bin")
    assert "is not the project's folder" in problem("mine", cwd=project.parent)
    write_command(commands, "srun", "exit 1")
    assert f"not all nodes see {project}/results" in problem("mine")
    (project / "constraints.txt").unlink()
    (project / "constraints.txt").write_text("ray==2.0.0\n")
    assert re.search(r"Ray [\d.]+ is installed, but constraints.txt has 2.0.0", problem("mine"))


@pytest.mark.slow
def test_slurm_starts_ray_with_a_token_and_ports_of_its_own(project, monkeypatch):
    commands = project.parent / "commands"
    token = '"$RAY_AUTH_TOKEN_PATH"'
    print_token = f'echo -n "$(stat --format %a {token}) $(cat {token})" > {commands}/token.txt'
    write_ray(commands, f'{REPORTS}; env > "{commands}/environment.txt"; {print_token}')
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(project / "of-another-cluster"))
    folder, ports, tokens = project.parent / ".ray", [], []
    for job in ("4711", "4712"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        done = run("cluster/slurm.sh", "mine", "--preset", "paper")
        assert done.returncode == 0, done.stderr
        called = (commands / "called.txt").read_text().splitlines()
        mark = called.index("--")
        words = [word for word in called[1:mark] if word != "--disable-usage-stats"]
        options = dict(zip(words[::2], words[1::2], strict=True))
        ports.append(int(options["--address"].rpartition(":")[2]))
        for name in ("dashboard", "ray-client-server", "dashboard-agent-listen"):
            ports.append(int(options[f"--{name}-port"]))
        assert options["--dashboard-host"] == "127.0.0.1"
        assert options["--min-worker-port"] == options["--max-worker-port"] == "0"
        assert (options["--num-cpus"], options["--num-gpus"]) == ("2", "4")
        assert options["--min-nodes"] == "1"
        environment = (commands / "environment.txt").read_text()
        assert "RAY_AUTH_MODE=token\n" in environment
        assert f"RAY_AUTH_TOKEN_PATH={folder}/slurm-{job}.token\n" in environment
        tokens.append((commands / "token.txt").read_text())
        assert f"RAY_TMPDIR=/tmp/cpaan-{job}\n" in environment
        assert called[0] == "symmetric-run"
        assert called[mark + 1 :] == shlex.split(
            f"env RAY_ADDRESS={options['--address']} bash cluster/study.sh mine --preset paper"
        )

    assert len(set(ports)) == len(ports)
    assert all(20000 <= port < 32768 for port in ports)
    assert all(re.fullmatch("600 [0-9a-f]{64}", token) for token in tokens)
    assert tokens[0] != tokens[1]
    assert not list(folder.iterdir())  # the tokens are deleted at the end
    assert [path.name for path in (project / "results").iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_slurm_job_has_the_exit_status_of_its_study(project):
    for does, status, message in (
        ("exit 0", 1, "Ray did not start, or mine has no report"),
        ("exit 3", 3, ""),
        (f"{REPORTS}; exit 1", 1, ""),
    ):
        write_ray(project.parent / "commands", does)
        done = run("cluster/slurm.sh", "mine")
        assert done.returncode == status
        assert message in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("restarts", "requeued"), [("3", True), ("20", False)])
def test_slurm_requeues_the_job_before_its_time_is_over(project, monkeypatch, restarts, requeued):
    commands, asked = project.parent / "commands", project.parent / "scontrol.txt"
    write_ray(commands, f'until [[ -e "{commands}/over" ]]; do sleep 0.1; done; {REPORTS}')
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    job = subprocess.Popen(["bash", "cluster/slurm.sh", "mine"], stdout=subprocess.DEVNULL)
    wait_for((commands / "called.txt").exists, 60, lambda: "Ray was not started")
    job.send_signal(signal.SIGUSR1)
    if requeued:
        wait_for(asked.exists, 60, lambda: "Slurm was not asked")
    assert job.poll() is None, "the study runs until Slurm ends it"
    (commands / "over").touch()

    assert job.wait(timeout=60) == 0
    assert (asked.read_text() == "requeue 4711\n") if requeued else not asked.exists()


NEW, RESUMED = "search.py --study mine --trials 3", "search.py --resume mine"
REPORTED = "report.py mine"


@pytest.mark.parametrize(
    ("exists", "status_of_search", "has_best", "status", "calls"),
    [
        (False, 0, True, 0, [NEW, REPORTED]),
        (True, 0, True, 0, [RESUMED, REPORTED]),
        (True, 1, True, 0, [RESUMED, REPORTED]),
        (True, 1, False, 1, [RESUMED]),
        (False, 2, False, 2, [NEW]),
        (True, 130, True, 130, [RESUMED]),
    ],
)
def test_a_study_is_started_or_resumed_and_then_reported(
    project, exists, status_of_search, has_best, status, calls
):
    commands, study = project.parent / "commands", project / "results" / "mine"
    search_ends = f"*--dry-run*) exit {0 if exists else 2};; *search.py*) status={status_of_search}"
    record = f'echo "$*" >> {commands}/calls.txt; exit "$status"'
    write_command(commands, "python", f'status=0; case "$*" in {search_ends};; esac; {record}')
    study.mkdir(parents=True)
    if has_best:
        (study / "best.json").touch()

    assert run("cluster/study.sh", "mine", "--trials", "3").returncode == status
    called = (commands / "calls.txt").read_text().splitlines()
    assert called == [f"{project}/tune/{call}" for call in calls]

    if REPORTED in calls:  # a report is repeated only after the best trial has changed
        (study / "report").mkdir()
        (study / "report" / "report.json").touch()
        for best_time, num_reports in ((1, 1), (2**33, 2)):
            os.utime(study / "best.json", (best_time, best_time))
            run("cluster/study.sh", "mine")
            assert (commands / "calls.txt").read_text().count(REPORTED) == num_reports


@pytest.mark.cluster
def test_a_study_on_slurm_resumes_after_its_node_was_lost(project, monkeypatch, study_features):
    (project / "tune").unlink()
    (project / "tune").mkdir()
    (project / "tune" / "search.py").symlink_to(ROOT / "tune" / "search.py")
    (project / "tune" / "report.py").write_text(  # a short report
        "import sys; from cpaan.cli import main; "
        "short = '--table-only --draws 2 --heads centroid'.split(); "
        "sys.exit(main([*sys.argv[1:], *short], command='report'))"
    )
    job_id = str(os.getpid())
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    # `ray symmetric-run` stops all visible Ray processes, so a namespace hides all others.
    apart = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--pid", "--fork"]
    apart += ["--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"]).returncode:
        pytest.skip("missing here: unshare, or the right to use it")
    command = [*apart, "bash", "cluster/slurm.sh", "mine", "--trials", "1"]
    command += ["--episodes", "200", "--no-early-stopping", "--features", str(study_features)]
    command += SMALL_STUDY
    study, log = project / "results" / "mine", project / "log.txt"

    def start() -> subprocess.Popen[bytes]:
        with log.open("a") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    try:
        with start() as first:
            try:
                wait_for(lambda: [*study.rglob("*-seed0.pt")], 400, log.read_text)
            finally:
                first.kill()
        assert not (study / "best.json").exists()
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        with start() as second:
            assert second.wait() == 0, log.read_text()
    finally:
        shutil.rmtree(f"/tmp/cpaan-{job_id}", ignore_errors=True)

    started, resumed = json.loads((study / "config.json").read_text())["runs"]
    assert "--study mine" in started["command"]
    assert resumed["command"].endswith("--resume mine")
    assert (study / "report" / "report.json").exists()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has just ended
            assert f"/tmp/cpaan-{job_id}/" not in process.read_bytes().decode()
