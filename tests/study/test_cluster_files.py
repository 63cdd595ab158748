"""Test that cluster files are valid for Ray, KubeRay and Kubernetes, locked, and secure."""

import copy
import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from cpaan.cli import main
from cpaan.cli.command import Parser
from cpaan.cli.study_parsers import STUDY_COMMANDS
from cpaan.study.cluster_job import ClusterCommand, ClusterJob

search = partial(main, command="search")

ROOT = Path(__file__).parents[2]
CLOUDS = ["gpu", "gcp"]
ALL = [*CLOUDS, "local"]
SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())
KUBERNETES = "1.28"  # KubeRay 1.6 uses its types


def text_of(name: str) -> str:
    return (ROOT / "cluster" / name).read_text()


def file_of(name: str) -> dict[str, Any]:
    return yaml.safe_load(text_of(f"{name}.yaml"))


def locked(package: str) -> str:
    (version,) = re.findall(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    return version


def start_command(name: str, kind: str) -> tuple[str, dict[str, str]]:
    """Return the command that starts Ray on the head or a worker, and its exported variables."""
    command = file_of(name)[f"{kind}_start_ray_commands"][-1]
    words = re.findall(r"(\w+)=('[^']*'|\S+)", command.partition(";")[0])
    return command, {key: value.strip("'") for key, value in words}


@pytest.mark.parametrize("name", ALL)
def test_ray_accepts_the_file_and_would_refuse_a_misspelt_field(name, monkeypatch):
    monkeypatch.chdir(ROOT)  # file mounts are relative to it
    config = prepare_config(file_of(name))
    validate_config(config)
    assert config["head_node_type"] in config["available_node_types"]

    with pytest.raises(Exception, match="idle_timeout"):
        validate_config(prepare_config({**file_of(name), "idle_timeout": 10}))
    with pytest.raises(ValueError, match=r"still has SET-[A-Z-]+.*; see cluster/README.md"):
        ClusterJob(ROOT / "cluster" / f"{name}.yaml", ClusterCommand("search.py", "mine", [], {}))


@pytest.mark.parametrize("name", ALL)
def test_every_node_installs_the_project_from_its_lock_file_and_asks_for_a_token(name):
    content = file_of(name)
    (install,) = [each for each in content["setup_commands"] if "install" in each]
    assert re.search(r"--constraint \S*constraints.txt", install)
    assert not any("torch" in each for each in content["setup_commands"])  # it is in the lock file
    assert locked("torch")
    for source in content["file_mounts"].values():
        assert not re.search(r"results|cache|\.venv|\.git$", source)
        assert source.startswith("~") or (ROOT / source).exists()

    assert "chmod 600 ~/.ray/auth_token" in content["setup_commands"]
    for kind in ("head", "worker"):
        assert start_command(name, kind)[1]["RAY_AUTH_MODE"] == "token"
    assert "--dashboard-host=127.0.0.1" in start_command(name, "head")[0]


@pytest.mark.parametrize("name", CLOUDS)
def test_in_a_cloud_the_head_does_not_train_and_workers_start_on_demand(name):
    content = file_of(name)
    kinds = content["available_node_types"]
    assert f"FROM {content['docker']['image']}\n" in text_of("Dockerfile")
    command, variables = start_command(name, "head")
    assert kinds["head"]["resources"] == {"CPU": 0}
    assert "--num-cpus=0" in command
    spot, on_demand = kinds["gpu-spot"], kinds["gpu-on-demand"]
    assert {spot["min_workers"], on_demand["min_workers"]} == {0}
    assert spot["priority"] > on_demand["priority"]
    assert spot["resources"] == on_demand["resources"]
    assert json.loads(variables["CPAAN_NODES"]) == [
        {"count": content["max_workers"], **spot["resources"]}
    ]


def test_all_files_fix_the_same_ports_and_the_readme_lists_them():
    page = text_of("README.md")
    fixed, *others = (re.findall(r"-port=(\d+)", text_of(f"{name}.yaml")) for name in ALL)

    assert all(each == fixed for each in others)
    listed = re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)
    assert set(fixed) <= {*listed, "8265", "20000", "29999"}
    assert "20000 to 29999" in page


def test_on_aws_ssh_is_open_to_one_range_and_disks_are_encrypted():
    content = file_of("gpu")
    for kind in content["available_node_types"].values():
        machine = kind["node_config"]
        assert machine["MetadataOptions"]["HttpTokens"] == "required"
        assert all(disk["Ebs"]["Encrypted"] for disk in machine["BlockDeviceMappings"])
        profile = f"cpaan-node-{content['provider']['region']}"  # its name in the stack
        assert machine["IamInstanceProfile"] == {"Name": profile}
        # A security group that Ray creates opens ssh to all addresses.
        assert machine["SecurityGroupIds"] == ["SET-SECURITY-GROUP-ID"]
    assert "security_group" not in content["provider"]

    account = text_of("aws-account.yaml")
    allowed = re.search(r"AllowedPattern: '(.*)'", account)[1]
    assert not re.search(r"^\s+Default:", account, flags=re.MULTILINE)
    assert re.findall(r"CidrIp: (.*)}", account) == ["!Ref SshFrom"]
    assert re.fullmatch(allowed, "203.0.113.7/32")
    for refused in ("0.0.0.0/0", "10.0.0.0/8", "", "SET-RANGE", "203.0.113.7"):
        assert not re.fullmatch(allowed, refused)


JOB = file_of("kuberay-job")
CLUSTER = JOB["spec"]["rayClusterSpec"]


def pod_templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [job["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)]


def containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers, including the settings of the autoscaler."""
    autoscaler = {"name": "autoscaler", **job["spec"]["rayClusterSpec"]["autoscalerOptions"]}
    return [
        *(each for pod in pod_templates(job) for each in pod["spec"]["containers"]),
        {name: autoscaler[name] for name in ("name", "resources", "securityContext")},
    ]


def problems_of(job: dict[str, Any]) -> list[str]:
    """Return the reasons why KubeRay or Kubernetes would refuse the job."""
    found = [each.message for each in jsonschema.Draft202012Validator(SCHEMA).iter_errors(job)]
    for pod in [*pod_templates(job), {"spec": {"containers": containers(job)}}]:
        metadata = {"name": "any", **pod.get("metadata", {})}
        content = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}
        try:
            kubernetes_validate.validate(content, KUBERNETES, strict=True)
        except jsonschema.ValidationError as error:
            found.append(error.message)
    return found


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("", "backofLimit", 3),
        ("", "shutdownAfterJobFinishes", False),
        ("rayClusterSpec/authOptions", "mode", "tokens"),
        ("rayClusterSpec/autoscalerOptions", "idleTimeoutMinutes", 5),
        ("rayClusterSpec/autoscalerOptions/resources", "limit", {}),
        ("rayClusterSpec/headGroupSpec", "servicetype", "ClusterIP"),
        ("rayClusterSpec/headGroupSpec/rayStartParams", "num-cpus", 0),
        ("rayClusterSpec/headGroupSpec/template/spec", "restartPolicy", "Always"),
        ("rayClusterSpec/workerGroupSpecs/0", "maxReplicas", "8"),
        ("rayClusterSpec/workerGroupSpecs/0/template/spec", "toleration", []),
        ("submitterPodTemplate/spec/securityContext", "runAsNonroot", True),
    ],
)
def test_kuberay_accepts_the_job_but_no_unknown_field_or_wrong_value(path, name, value):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert problems_of(JOB) == []

    job = copy.deepcopy(JOB)
    place: Any = job["spec"]
    for part in filter(None, path.split("/")):
        place = place[int(part) if part.isdigit() else part]
    place[name] = value

    assert problems_of(job)


def test_the_image_is_of_the_locked_versions_and_has_the_script_of_the_job():
    dockerfile, project = text_of("Dockerfile"), (ROOT / "pyproject.toml").read_text()
    (tag,) = re.findall(r"^FROM rayproject/ray:(\S+)$", dockerfile, re.M)
    ray, python, cuda = tag.split("-")
    assert ray == locked("ray") == CLUSTER["rayVersion"]
    assert f'"ray[default,train,tune]=={ray}"' in project
    assert f'requires-python = ">={python[2]}.{python[3:]}"' in project
    # PyPI's torch sets the version of CUDA. Update the tag together with torch.
    assert (cuda, locked("torch")) == ("cu130", "2.13.0")
    (image,) = {each["image"] for pod in pod_templates(JOB) for each in pod["spec"]["containers"]}
    assert image.endswith(f"/cpaan:{tag}")

    entrypoint = JOB["spec"]["entrypoint"]
    assert re.fullmatch(r"[\w ./-]+", entrypoint)  # KubeRay inserts it into a shell script
    bash, script, name, *options = shlex.split(entrypoint)
    (folder,) = re.findall(r"^WORKDIR (.+)$", dockerfile, re.M)
    assert bash == "bash"
    assert (ROOT / Path(script).relative_to(folder)).exists()
    parser = Parser()
    STUDY_COMMANDS["search"][1](parser)
    assert parser.parse_args(["--study", name, *options]).preset == "paper"


def test_the_job_is_closed_to_the_outside_and_runs_without_root():
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert CLUSTER["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert CLUSTER["headGroupSpec"]["enableIngress"] is False
    assert "headService" not in CLUSTER["headGroupSpec"]
    for pod in pod_templates(JOB):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert not re.search("hostNetwork|hostPID|hostIPC|hostPath|hostPort", json.dumps(pod))
    for container in containers(JOB):
        rights = container["securityContext"]
        assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(container["resources"][kind])


def head_variables() -> dict[str, str]:
    head = pod_templates(JOB)[1]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in head["env"]}


def test_gpus_are_started_on_demand_and_stopped_when_idle():
    (gpus,) = CLUSTER["workerGroupSpecs"]
    assert CLUSTER["enableInTreeAutoscaling"] is JOB["spec"]["shutdownAfterJobFinishes"] is True
    assert CLUSTER["autoscalerOptions"]["idleTimeoutSeconds"] > 0
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert (gpus["replicas"], gpus["minReplicas"]) == (0, 0)
    limits = gpus["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1
    assert json.loads(head_variables()["CPAAN_NODES"]) == [
        {"count": gpus["maxReplicas"], "CPU": int(limits["cpu"]), "GPU": 1}
    ]


@pytest.mark.usefixtures("builtin_cache")
def test_placeholders_are_neither_an_image_nor_a_storage(capsys):
    image_name = r"[a-z0-9._:-]+(/[a-z0-9._-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?"
    image = containers(JOB)[0]["image"]
    assert not re.fullmatch(image_name, image)
    assert re.fullmatch(image_name, re.sub(r"SET-[A-Z]+", "registry.example.org", image))

    storage = head_variables()["CPAAN_STORAGE"]
    assert "SET-" in storage
    assert search(["--study", "s", "--storage", storage]) == 2
    assert f"{storage}/s cannot be used" in capsys.readouterr().err
    assert not Path("results/s/config.json").exists()
