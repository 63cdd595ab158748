"""Jobs on Kubernetes and Slurm: files that are taken, scripts that do what they say."""

import copy
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cpaan.cli.study_options import search_parser

from cpaan.cli.search import main as search
from helpers.studies import STUDY_SETTINGS
from helpers.waiting import wait_for

pytestmark = pytest.mark.usefixtures("builtin_cache")

ROOT = Path(__file__).parents[2]
JOB = yaml.safe_load((ROOT / "cluster" / "kuberay-job.yaml").read_text())
SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())
KUBERNETES = "1.28"  # whose types those of KubeRay 1.6 are
PLACEHOLDER = "SET-"


def pinned(name: str) -> str:
    (version,) = re.findall(rf"^{name}==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    return version


def pod_templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [job["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)]


def containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers, that of the autoscaler too, which has its settings elsewhere."""
    autoscaler = {"name": "autoscaler", **job["spec"]["rayClusterSpec"]["autoscalerOptions"]}
    return [
        *(each for pod in pod_templates(job) for each in pod["spec"]["containers"]),
        {name: autoscaler[name] for name in ("name", "resources", "securityContext")},
    ]


def problems_of(job: dict[str, Any]) -> list[str]:
    """Return why KubeRay or Kubernetes would refuse the job."""
    found = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(job))
    pods = [{"metadata": {}, **template} for template in pod_templates(job)]
    pods.append({"metadata": {}, "spec": {"containers": containers(job)}})
    for pod in pods:
        pod["metadata"] = {"name": "any", **pod["metadata"]}
        try:
            kubernetes_validate.validate(
                {"apiVersion": "v1", "kind": "Pod", **pod}, KUBERNETES, strict=True
            )
        except jsonschema.ValidationError as error:
            found.append(error)
    return [error.message for error in found]


def changed(path: str, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the job with one of its mappings changed."""
    job = copy.deepcopy(JOB)
    place: Any = job
    for part in path.split("/"):
        place = place[int(part) if part.isdigit() else part]
    change(place)
    return job


def test_kuberay_takes_the_job():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    assert problems_of(JOB) == []


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("spec", "backoffLimit", "backofLimit"),
        ("spec", "preRunningDeadlineSeconds", "preRunningDeadline"),
        ("spec/rayClusterSpec", "authOptions", "authOption"),
        ("spec/rayClusterSpec/autoscalerOptions", "idleTimeoutSeconds", "idleTimeoutMinutes"),
        ("spec/rayClusterSpec/autoscalerOptions/resources", "limits", "limit"),
        ("spec/rayClusterSpec/autoscalerOptions/securityContext", "capabilities", "capability"),
        ("spec/rayClusterSpec/headGroupSpec", "serviceType", "servicetype"),
        ("spec/rayClusterSpec/headGroupSpec/template/spec", "serviceAccountName", "account"),
        ("spec/rayClusterSpec/workerGroupSpecs/0", "minReplicas", "minimumReplicas"),
        ("spec/rayClusterSpec/workerGroupSpecs/0/template/spec", "tolerations", "toleration"),
        ("spec/submitterPodTemplate/spec/containers/0", "resources", "resource"),
        ("spec/submitterPodTemplate/spec/securityContext", "runAsNonRoot", "runAsNonroot"),
    ],
)
def test_a_misspelt_field_is_found(path, old, new):
    job = changed(path, lambda place: place.update({new: place.pop(old)}))

    assert any(new in problem for problem in problems_of(job))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/rayClusterSpec/authOptions/mode", "tokens"),
        ("spec/rayClusterSpec/headGroupSpec/rayStartParams/num-cpus", 0),
        ("spec/rayClusterSpec/workerGroupSpecs/0/maxReplicas", "8"),
        ("spec/rayClusterSpec/headGroupSpec/template/spec/restartPolicy", "Always"),
        ("spec/shutdownAfterJobFinishes", False),
    ],
)
def test_a_value_of_the_wrong_kind_is_found(path, value):
    path, _, name = path.rpartition("/")

    assert problems_of(changed(path, lambda place: place.update({name: value})))


def test_the_image_is_of_the_pinned_versions():
    dockerfile = (ROOT / "cluster" / "Dockerfile").read_text()
    (base,) = re.findall(r"^FROM (\S+)$", dockerfile, re.M)
    (tag,) = re.findall(r"^rayproject/ray:(.+)$", base)
    ray, python, cuda = tag.split("-")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert ray == pinned("ray") == JOB["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray[default,train,tune]=={ray}" in settings["dependencies"]
    assert settings["requires-python"] == f">={python[2]}.{python[3:]}"
    # PyPI's torch decides the version of CUDA: with another torch, look at the tag again.
    assert (cuda, pinned("torch")) == ("cu130", "2.13.0")
    for pod in pod_templates(JOB):
        for container in pod["spec"]["containers"]:
            assert container["image"].endswith(f"/cpaan:{tag}")


def test_the_image_has_the_script_where_the_job_looks_for_it():
    """And the line is one that KubeRay can paste into its shell as it is."""
    entrypoint = JOB["spec"]["entrypoint"]
    assert re.fullmatch(r"[\w ./-]+", entrypoint)
    bash, script, name, *options = shlex.split(entrypoint)
    (folder,) = re.findall(r"^WORKDIR (.+)$", (ROOT / "cluster" / "Dockerfile").read_text(), re.M)

    assert bash == "bash"
    assert (ROOT / Path(script).relative_to(folder)).exists()
    parsed = search_parser().parse_args(["--study", name, *options])
    assert parsed.preset == "paper"


def test_nothing_of_the_job_is_seen_from_outside_and_nobody_is_root():
    cluster = JOB["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["enableIngress"] is False
    assert "headService" not in cluster["headGroupSpec"]
    for pod in pod_templates(JOB):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"])
        assert "hostPath" not in json.dumps(pod)
        assert "hostPort" not in json.dumps(pod)
    for container in containers(JOB):
        rights = container["securityContext"]
        assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(container["resources"][kind])


def test_gpus_come_when_they_are_wanted_and_go_when_they_are_idle():
    cluster = JOB["spec"]["rayClusterSpec"]
    (gpus,) = cluster["workerGroupSpecs"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["idleTimeoutSeconds"] > 0
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert (gpus["replicas"], gpus["minReplicas"]) == (0, 0)
    limits = gpus["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1
    assert json.loads(head_variables()["CPAAN_NODES"]) == [
        {"count": gpus["maxReplicas"], "CPU": int(limits["cpu"]), "GPU": 1}
    ]
    assert JOB["spec"]["shutdownAfterJobFinishes"] is True


def head_variables() -> dict[str, str]:
    head = pod_templates(JOB)[1]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in head["env"]}


def test_placeholders_can_be_taken_for_nothing(capsys):
    image_name = r"[a-z0-9._:-]+(/[a-z0-9._-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?"
    images = {each["image"] for pod in pod_templates(JOB) for each in pod["spec"]["containers"]}
    assert len(images) == 1
    assert not any(re.fullmatch(image_name, image) for image in images)
    assert re.fullmatch(image_name, re.sub(r"SET-[A-Z]+", "registry.example.org", images.pop()))

    storage = head_variables()["CPAAN_STORAGE"]
    assert PLACEHOLDER in storage
    assert search(["--study", "s", "--storage", storage]) == 2
    assert f"{storage}/s cannot be used" in capsys.readouterr().err
    assert not Path("results/s/config.json").exists()


def write_command(folder: Path, name: str, script: str) -> None:
    """Put a command on the path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)


SRUN = 'while [[ $1 == --* ]]; do shift; done\nexec "$@"'
"""The job's only node is this machine."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's folder as a job has it, a home, and commands of Slurm for a single node."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("cluster", "tune", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    commands = tmp_path / "commands"
    write_command(commands, "srun", SRUN)
    write_command(commands, "scontrol", f'echo "$*" >> {tmp_path}/scontrol.txt')
    monkeypatch.setenv("PATH", f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    for name in ("RAY_ADDRESS", "CPAAN_STORAGE", "SLURM_GPUS_ON_NODE", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *command], capture_output=True, text=True, check=False, timeout=60, **options
    )


def ray_that(commands: Path, does: str) -> None:
    """Put a Ray on the path that notes how it was called, and then does something else."""
    write_command(commands, "ray", f'printf "%s\\n" "$@" > {commands}/called.txt\n{does}')


REPORT = "$CPAAN_FOLDER/results/mine/report"
REPORTS = f"mkdir -p {REPORT}; touch {REPORT}/report.json"


def started_with(commands: Path) -> dict[str, str]:
    """Return the options of the last start of Ray."""
    called = (commands / "called.txt").read_text().splitlines()
    assert called[0] == "symmetric-run"
    options = [each for each in called[1 : called.index("--")] if each != "--disable-usage-stats"]
    return dict(zip(options[::2], options[1::2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ([], {}, "the study has no name"),
        (["mine"], {"SLURM_JOB_ID": ""}, "it is for sbatch"),
        (["mine"], {"PATH": "/usr/bin:/bin"}, "python has no Ray"),
    ],
)
def test_slurm_says_what_is_missing(project, arguments, environment, message):
    done = run("cluster/slurm.sh", *arguments, env={**os.environ, **environment})

    assert done.returncode == 2
    assert f"cluster/slurm.sh: {message}" in done.stderr


@pytest.mark.slow
def test_slurm_wants_the_projects_folder_the_pinned_ray_and_a_folder_that_all_nodes_see(project):
    script = str(project / "cluster" / "slurm.sh")
    assert "is not the project's folder" in run(script, "mine", cwd=project.parent).stderr

    write_command(project.parent / "commands", "srun", "exit 1")
    assert f"not all nodes see {project}/results" in run(script, "mine").stderr

    (project / "constraints.txt").unlink()
    (project / "constraints.txt").write_text("ray==2.0.0\n")
    done = run(script, "mine")
    assert done.returncode == 2
    assert f"Ray is {pinned('ray')}, but constraints.txt has 2.0.0" in done.stderr


@pytest.mark.slow
def test_slurm_starts_ray_with_a_token_and_ports_of_its_own(project, monkeypatch):
    commands = project.parent / "commands"
    ray_that(commands, f'{REPORTS}; env > "{commands}/environment.txt"')
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    ports = []
    for job in ("4711", "4712"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        done = run("cluster/slurm.sh", "mine", "--preset", "paper")
        assert done.returncode == 0, done.stderr
        options = started_with(commands)
        ports.append(int(options["--address"].rpartition(":")[2]))
        for name in ("dashboard", "ray-client-server", "dashboard-agent-listen"):
            ports.append(int(options[f"--{name}-port"]))
        assert options["--dashboard-host"] == "127.0.0.1"
        assert options["--min-worker-port"] == options["--max-worker-port"] == "0"
        assert (options["--num-cpus"], options["--num-gpus"]) == ("2", "4")
        assert options["--min-nodes"] == "1"
        environment = (commands / "environment.txt").read_text()
        assert "RAY_AUTH_MODE=token\n" in environment
        assert f"RAY_TMPDIR=/tmp/cpaan-{job}\n" in environment
        called = (commands / "called.txt").read_text().splitlines()
        address = options["--address"]
        assert called[called.index("--") + 1 :] == shlex.split(
            f"env RAY_ADDRESS={address} bash cluster/study.sh mine --preset paper"
        )

    assert len(set(ports)) == len(ports)
    assert all(20000 <= port < 32768 for port in ports)
    token = project.parent / ".ray" / "auth_token"
    assert f"RAY_AUTH_TOKEN_PATH={token}\n" in environment
    assert re.fullmatch("[0-9a-f]{64}", token.read_text())
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]
    assert [path.name for path in (project / "results").iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "status", "message"),
    [
        ("exit 0", 1, "Ray did not start, or mine has no report"),
        ("exit 3", 3, ""),
        (f"{REPORTS}; exit 1", 1, ""),
    ],
)
def test_a_job_of_slurm_fails_as_its_study_does(project, does, status, message):
    ray_that(project.parent / "commands", does)

    done = run("cluster/slurm.sh", "mine")

    assert done.returncode == status
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("restarts", "requeued"), [("3", True), ("20", False)])
def test_slurm_begins_again_when_the_time_is_nearly_over(project, monkeypatch, restarts, requeued):
    commands = project.parent / "commands"
    ray_that(commands, f'until [[ -e "{commands}/over" ]]; do sleep 0.1; done; {REPORTS}')
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    job = subprocess.Popen(["bash", "cluster/slurm.sh", "mine"], stdout=subprocess.DEVNULL)
    wait_for((commands / "called.txt").exists, 30, lambda: "Ray was not started")
    job.send_signal(signal.SIGUSR1)
    asked = project.parent / "scontrol.txt"
    if requeued:
        wait_for(asked.exists, 30, lambda: "Slurm was not asked")
    assert job.poll() is None, "the study goes on until Slurm ends it"
    (commands / "over").touch()

    assert job.wait(timeout=30) == 0
    assert (asked.read_text() == "requeue 4711\n") if requeued else not asked.exists()


@pytest.mark.parametrize(
    ("exists", "status_of_search", "has_best", "status", "calls"),
    [
        (False, 0, True, 0, ["--study mine --trials 3", "report"]),
        (True, 0, True, 0, ["--resume mine", "report"]),
        (True, 1, True, 0, ["--resume mine", "report"]),
        (True, 1, False, 1, ["--resume mine"]),
        (False, 2, False, 2, ["--study mine --trials 3"]),
        (True, 130, True, 130, ["--resume mine"]),
    ],
)
def test_a_study_begins_or_goes_on_and_reports_what_it_found(
    project, exists, status_of_search, has_best, status, calls
):
    commands = project.parent / "commands"
    write_command(
        commands,
        "python",
        f"""case "$*" in
  *--dry-run*) exit {0 if exists else 2};;
  *search.py*) status={status_of_search};;
  *report.py*) status=0;;
esac
echo "$*" >> {commands}/calls.txt
exit "$status" """,
    )
    (project / "results" / "mine").mkdir(parents=True)
    if has_best:
        (project / "results" / "mine" / "best.json").touch()

    done = run("cluster/study.sh", "mine", "--trials", "3")

    tune = f"{project}/tune"
    expected = [
        f"{tune}/report.py mine" if call == "report" else f"{tune}/search.py {call}"
        for call in calls
    ]
    assert (commands / "calls.txt").read_text().splitlines() == expected
    assert done.returncode == status


def test_a_report_of_what_has_not_changed_is_not_made_again(project):
    commands = project.parent / "commands"
    write_command(commands, "python", f'echo "$*" >> {commands}/calls.txt')
    study = project / "results" / "mine"
    (study / "report").mkdir(parents=True)
    (study / "best.json").touch()
    (study / "report" / "report.json").touch()

    for best_time, called in ((1, False), (2**33, True)):
        os.utime(study / "best.json", (best_time, best_time))
        assert run("cluster/study.sh", "mine").returncode == 0
        assert ("report.py" in (commands / "calls.txt").read_text()) == called


def set_apart() -> list[str]:
    """Return a command that runs another one where it sees no processes but its own.

    ``ray symmetric-run`` looks at all processes, and ends every Ray that it finds.
    """
    as_root = ["--user", "--map-root-user"] if os.getuid() else []
    command = ["unshare", *as_root, "--pid", "--fork", "--mount-proc", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("processes cannot be set apart here, and ray symmetric-run ends every Ray")
    return command


# Two starts of Ray, and a report.
@pytest.mark.timeout(900)
@pytest.mark.cluster
def test_a_study_on_slurm_is_lost_with_its_node_and_goes_on_when_it_is_requeued(
    project, monkeypatch, study_features
):
    """With a report that is short: its pictures are not what this is about."""
    (project / "tune").unlink()
    (project / "tune").mkdir()
    (project / "tune" / "search.py").symlink_to(ROOT / "tune" / "search.py")
    (project / "tune" / "report.py").write_text(
        "import sys; from cpaan.cli.report import main; "
        "sys.exit(main([*sys.argv[1:], '--table-only', '--draws', '2']))"
    )
    job_id = str(os.getpid())
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    command = [*set_apart(), "bash", "cluster/slurm.sh", "mine", "--trials", "1", "--no-ray-train"]
    command += ["--episodes", "200", "--no-early-stopping", "--features", str(study_features)]
    command += [f"--set={name}={value}" for name, value in STUDY_SETTINGS.items()]
    study, log = project / "results" / "mine", project / "log.txt"

    def start() -> subprocess.Popen[bytes]:
        with log.open("a") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    try:
        first = start()
        wait_for(
            (study / "trials" / "0000-seed0.pt").exists,
            240,
            log.read_text,
            is_over=lambda: first.poll() is not None,
        )
        first.kill()
        first.wait()
        assert not (study / "best.json").exists()

        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        second = start()
        try:
            assert second.wait() == 0, log.read_text()
        finally:
            second.kill()
    finally:
        shutil.rmtree(f"/tmp/cpaan-{job_id}", ignore_errors=True)

    begun, gone_on = json.loads((study / "config.json").read_text())["runs"]
    assert "--study mine" in begun["command"]
    assert gone_on["command"].endswith("--resume mine")
    assert (study / "report" / "report.json").exists()
    assert stat.S_IMODE((project.parent / ".ray" / "auth_token").stat().st_mode) == 0o600
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert f"/tmp/cpaan-{job_id}/" not in process.read_bytes().decode()
        except OSError:  # it has just ended
            continue
