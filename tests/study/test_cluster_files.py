"""Test that cluster files are valid for Ray, KubeRay and Kubernetes, locked, and secure."""

import copy
import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.docker import docker_start_cmds
from ray.autoscaler._private.util import prepare_config, validate_config

from cpaan.cli.parsers import parse
from cpaan.study.cluster_job import ClusterCommand, ClusterJob
from cpaan.study.trial import _Gauges
from helpers.commands import output_of
from helpers.studies import search

ROOT = Path(__file__).parents[2]
CLOUDS = ["gpu", "gcp"]
ALL = [*CLOUDS, "local"]
SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())
KUBERNETES = "1.28"  # KubeRay 1.6 uses its types


def text_of(name: str) -> str:
    return (ROOT / "cluster" / name).read_text()


def file_of(name: str) -> dict[str, Any]:
    return next(yaml.safe_load_all(text_of(f"{name}.yaml")))


def locked(package: str) -> str:
    (version,) = re.findall(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    return version


def variables_of(name: str, home: Path) -> dict[str, str]:
    """Return the variables of every shell: those of the container, or those of ``~/.bashrc``."""
    content = file_of(name)
    if name in CLOUDS:
        docker = content["docker"]
        options = [docker["container_name"], docker["run_options"], content["cluster_name"]]
        command = docker_start_cmds("any", docker["image"], {}, *options, "/home/ray", "docker")
        words = pairwise(shlex.split(command))
        return dict(value.split("=", 1) for option, value in words if option == "--env")
    (home / "cpaan").mkdir()
    writes = [command for command in content["setup_commands"] if "environment.sh" in command]
    # As in ray.autoscaler._private.command_runner. Twice, as by a second `ray up`.
    for command in [*(f"({command})" for command in 2 * writes), ". ~/.bashrc; env"]:
        shown = subprocess.check_output(["bash", "-c", command], env={"HOME": str(home)}, text=True)
    assert (home / ".bashrc").read_text().count("\n") == 1
    return dict(line.split("=", 1) for line in shown.splitlines())


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
def test_every_shell_has_the_storage_the_token_and_the_machines(name, tmp_path):
    content, variables = file_of(name), variables_of(name, tmp_path)
    assert (variables["RAY_AUTH_MODE"], variables["RAY_ADDRESS"]) == ("token", "auto")
    assert "SET-" in variables["CPAAN_STORAGE"]
    assert int(variables["RAY_worker_maximum_startup_concurrency"]) > 1
    (machines,) = json.loads(variables["CPAAN_NODES"])
    assert machines["count"] == content["max_workers"]

    default = f"{tmp_path}/.ray/auth_token"
    path = variables.get("RAY_AUTH_TOKEN_PATH", default).replace(str(tmp_path), "~")
    assert content["file_mounts"][path] == f"~/.ray/{name}.token"  # each cluster has its own
    assert f"chmod 600 {path}" in content["setup_commands"]
    assert "--dashboard-host=127.0.0.1" in content["head_start_ray_commands"][-1]


def test_your_own_machines_get_the_commands_and_the_locked_versions():
    content = file_of("local")
    (install,) = [command for command in content["setup_commands"] if "pip install" in command]
    assert "--constraint constraints.txt" in install
    assert locked("torch")
    for there, here in content["file_mounts"].items():
        assert here.startswith("~") or (here == Path(there).name and (ROOT / here).exists())
    assert {"cpaan", "tune"} <= set(content["file_mounts"].values())


@pytest.mark.parametrize("name", CLOUDS)
def test_in_a_cloud_workers_start_on_demand_and_nothing_is_downloaded(name, tmp_path):
    content = file_of(name)
    commands = [command for key, lists in content.items() if "commands" in key for command in lists]
    assert not [command for command in commands if re.search(r"\b(pip|curl|wget|git)\b", command)]
    kinds = content["available_node_types"]
    assert kinds["head"]["resources"] == {"CPU": 0}, "the head does not train"
    assert "--num-cpus=0" in content["head_start_ray_commands"][-1]
    spot, on_demand = kinds["gpu-spot"], kinds["gpu-on-demand"]
    assert {spot["min_workers"], on_demand["min_workers"]} == {0}
    assert spot["priority"] > on_demand["priority"]
    assert spot["resources"] == on_demand["resources"]
    (machines,) = json.loads(variables_of(name, tmp_path)["CPAAN_NODES"])
    assert machines == {"count": content["max_workers"], **spot["resources"]}


def test_all_files_fix_the_same_ports_and_the_readme_lists_them():
    page = text_of("README.md")
    fixed, *others = (re.findall(r"-port=(\d+)", text_of(f"{name}.yaml")) for name in ALL)

    assert all(ports == fixed for ports in others)
    listed = re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)
    assert set(fixed) <= {*listed, "8265", "20000", "29999"}
    assert "20000 to 29999" in page


class Template(yaml.SafeLoader):
    """Reads a CloudFormation template, with its functions as text such as "!Ref Bucket"."""


Template.add_multi_constructor("!", lambda _, tag, node: f"!{tag} {node.value}")
ACCOUNT = yaml.load(text_of("aws-account.yaml"), Template)
STACK = {name: resource.get("Properties", {}) for name, resource in ACCOUNT["Resources"].items()}


def test_cloudformation_accepts_the_template():
    lint = Path(sys.executable).with_name("cfn-lint")
    assert output_of(lint, ROOT / "cluster" / "aws-account.yaml") == ""


def test_on_aws_ssh_is_open_to_one_range_and_disks_are_encrypted():
    content = file_of("gpu")
    for kind in content["available_node_types"].values():
        machine = kind["node_config"]
        assert machine["MetadataOptions"]["HttpTokens"] == "required"
        assert all(disk["Ebs"]["Encrypted"] for disk in machine["BlockDeviceMappings"])
        # A security group that Ray creates opens ssh to all addresses.
        assert machine["SecurityGroupIds"] == ["SET-SECURITY-GROUP-ID"]
    assert "security_group" not in content["provider"]

    assert not any("Default" in parameter for parameter in ACCOUNT["Parameters"].values())
    (ssh,) = STACK["SecurityGroup"]["SecurityGroupIngress"]
    assert ssh == {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "!Ref SshFrom"}
    allowed = ACCOUNT["Parameters"]["SshFrom"]["AllowedPattern"]
    assert re.fullmatch(allowed, "203.0.113.7/32")
    for refused in ("0.0.0.0/0", "10.0.0.0/8", "", "SET-RANGE", "203.0.113.7"):
        assert not re.fullmatch(allowed, refused)


@pytest.mark.parametrize("kind", ["head", "gpu-spot", "gpu-on-demand"])
def test_machines_have_the_role_of_a_head_or_of_a_worker(kind):
    role = "head" if kind == "head" else "worker"
    aws, google = (file_of(name)["available_node_types"][kind]["node_config"] for name in CLOUDS)
    region = file_of("gpu")["provider"]["region"]
    assert aws["IamInstanceProfile"] == {"Name": f"cpaan-{role}-{region}"}
    profile = STACK[f"{role.capitalize()}Profile"]
    assert profile["InstanceProfileName"] == f"!Sub cpaan-{role}-${{AWS::Region}}"
    assert profile["Roles"] == [f"!Ref {role.capitalize()}Role"]
    (account,) = google["serviceAccounts"]
    assert account["email"].startswith(f"cpaan-{role}@")


def test_workers_can_only_use_the_bucket_and_the_head_can_also_start_workers():
    worker, head = STACK["WorkerRole"], STACK["HeadRole"]
    assert worker["ManagedPolicyArns"] == head["ManagedPolicyArns"] == ["!Ref UseBucket"]
    assert "Policies" not in worker
    of_bucket, of_files = STACK["UseBucket"]["PolicyDocument"]["Statement"]
    assert of_bucket["Resource"] == "!GetAtt Bucket.Arn"
    assert of_bucket["Action"] == ["s3:ListBucket", "s3:GetBucketLocation"]
    assert of_files["Resource"] == "!Sub ${Bucket.Arn}/*"
    assert of_files["Action"] == ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]

    (policy,) = head["Policies"]
    statements = policy["PolicyDocument"]["Statement"]
    rights = {str(statement["Action"]): statement for statement in statements}
    assert [action for action in rights if "iam:" in action] == ["iam:PassRole"]
    assert rights["iam:PassRole"]["Resource"] == "!GetAtt WorkerRole.Arn"


def test_the_bucket_keeps_old_versions_and_names_who_may_write():
    bucket, policy = STACK["Bucket"], STACK["BucketPolicy"]["PolicyDocument"]
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    days = [
        rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
        for rule in bucket["LifecycleConfiguration"]["Rules"]
    ]
    assert min(days) >= 1
    assert all(bucket["PublicAccessBlockConfiguration"].values())

    encrypted, others = policy["Statement"]
    assert {statement["Effect"] for statement in policy["Statement"]} == {"Deny"}
    assert encrypted["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert (others["Principal"], others["NotAction"]) == ("*", "s3:GetObject*")
    writers = ["!Ref Writer", "!GetAtt HeadRole.Arn", "!GetAtt WorkerRole.Arn"]
    assert others["Condition"] == {"ArnNotEquals": {"aws:PrincipalArn": writers}}
    allowed = ACCOUNT["Parameters"]["Writer"]["AllowedPattern"]
    user = "arn:aws:iam::123456789012:user/me"
    assert re.fullmatch(allowed, user)
    session = user.replace("iam", "sts").replace("user/", "assumed-role/role/")
    for refused in ("*", "arn:aws:iam::123456789012:root", session):
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
        *(container for pod in pod_templates(job) for container in pod["spec"]["containers"]),
        {name: autoscaler[name] for name in ("name", "resources", "securityContext")},
    ]


def problems_of(job: dict[str, Any]) -> list[str]:
    """Return the reasons why KubeRay or Kubernetes would refuse the job."""
    problems = [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(job)]
    for pod in [*pod_templates(job), {"spec": {"containers": containers(job)}}]:
        metadata = {"name": "any", **pod.get("metadata", {})}
        content = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}
        try:
            kubernetes_validate.validate(content, KUBERNETES, strict=True)
        except jsonschema.ValidationError as error:
            problems.append(error.message)
    return problems


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

    entrypoint = JOB["spec"]["entrypoint"]
    assert re.fullmatch(r"[\w ./-]+", entrypoint)  # KubeRay inserts it into a shell script
    bash, script, name, *options = shlex.split(entrypoint)
    (folder,) = re.findall(r"^WORKDIR (.+)$", dockerfile, re.M)
    assert bash == "bash"
    assert (ROOT / Path(script).relative_to(folder)).exists()
    assert parse(["--study", name, *options], "search")[0].preset == "paper"


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
    return {variable["name"]: variable["value"] for variable in head["env"]}


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


def test_the_image_is_named_by_its_digest_and_not_by_a_tag_that_can_move():
    fixed = r"[a-z0-9.:-]+(/[a-z0-9._-]+)*@sha256:[0-9a-f]{64}"
    pods = [pod["spec"]["containers"] for pod in pod_templates(JOB)]
    images = [container["image"] for containers in pods for container in containers]
    (image,) = {*images, *(file_of(name)["docker"]["image"] for name in CLOUDS)}

    filled = image.replace("SET-REGISTRY", "registry.example.org")
    assert re.fullmatch(fixed, filled.replace("SET-DIGEST", "0" * 64))
    for refused in (image, filled, "registry.example.org/cpaan:latest", "cpaan:2.60.0"):
        assert not re.fullmatch(fixed, refused)
    assert image in text_of("README.md")  # in the command that replaces it


def test_only_pods_of_the_study_and_the_operator_reach_its_pods():
    _, policy = yaml.safe_load_all(text_of("kuberay-job.yaml"))
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    assert policy["kind"] == "NetworkPolicy"
    pods = policy["spec"]["podSelector"]
    for pod in pod_templates(JOB):
        assert pods["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    of_study, of_operator = policy["spec"]["ingress"]
    assert of_study == {"from": [{"podSelector": pods}]}
    assert of_operator["ports"] == [{"port": 8265, "protocol": "TCP"}]


def test_the_dashboard_of_grafana_shows_metrics_that_trials_export():
    exported = {f"ray_cpaan_{name}" for name in (*_Gauges("PN", 0)._gauges, "loss")}
    panels = json.loads(text_of("grafana.json"))["panels"]
    shown = {target["expr"] for panel in panels for target in panel["targets"]}
    assert {"ray_cpaan_score", "ray_cpaan_loss"} <= shown <= exported


@pytest.mark.usefixtures("builtin_cache")
def test_a_placeholder_is_not_a_storage(capsys):
    storage = head_variables()["CPAAN_STORAGE"]
    assert "SET-" in storage
    assert search(["--study", "s", "--storage", storage]) == 2
    assert f"{storage}/s cannot be used" in capsys.readouterr().err
    assert not Path("results/s/config.json").exists()
