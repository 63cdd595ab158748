"""Cluster files: Ray accepts them, their versions are the locked ones, and nothing is left open."""

import json
import re
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from cpaan.study.cluster_job import ClusterCommand, ClusterJob

ROOT = Path(__file__).parents[2]
CLOUDS = ["gpu", "gcp"]
ALL = [*CLOUDS, "local"]


def file_of(name: str) -> dict:
    return yaml.safe_load((ROOT / "cluster" / f"{name}.yaml").read_text())


def locked(package: str) -> str:
    lock = (ROOT / "constraints.txt").read_text()
    return re.search(rf"^{package}==(\S+)$", lock, flags=re.MULTILINE)[1]


def start_command(name: str, kind: str) -> tuple[str, dict[str, str]]:
    """Return the command that starts Ray on the head or a worker, and the variables it exports."""
    command = file_of(name)[f"{kind}_start_ray_commands"][-1]
    words = re.findall(r"(\w+)=('[^']*'|\S+)", command.partition(";")[0])
    return command, {key: value.strip("'") for key, value in words}


@pytest.mark.parametrize("name", ALL)
def test_ray_accepts_the_file_and_would_refuse_a_misspelt_field(name, monkeypatch):
    monkeypatch.chdir(ROOT)  # files are mounted from there
    config = prepare_config(file_of(name))
    validate_config(config)
    assert config["head_node_type"] in config["available_node_types"]

    with pytest.raises(Exception, match="idle_timeout"):
        validate_config(prepare_config({**file_of(name), "idle_timeout": 10}))
    with pytest.raises(ValueError, match=r"still has SET-[A-Z-]+.*: see cluster/README.md"):
        ClusterJob(ROOT / "cluster" / f"{name}.yaml", ClusterCommand("search.py", "mine", [], {}))


@pytest.mark.parametrize("name", ALL)
def test_every_node_installs_the_project_from_its_lock_file_and_asks_for_a_token(name):
    content = file_of(name)
    (install,) = [each for each in content["setup_commands"] if "install" in each]
    assert re.search(r"--constraint \S*constraints.txt", install)
    assert not any("torch" in each for each in content["setup_commands"])  # the lock has it
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
    image = content["docker"]["image"]
    assert f"FROM {image}\n" in (ROOT / "cluster" / "Dockerfile").read_text()
    version, python = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d+)-cu\d+", image).groups()
    assert version == locked("ray")
    assert f'requires-python = ">=3.{python[1:]}"' in (ROOT / "pyproject.toml").read_text()

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
    page = (ROOT / "cluster" / "README.md").read_text()
    texts = [(ROOT / "cluster" / f"{name}.yaml").read_text() for name in ALL]
    fixed, *others = (re.findall(r"-port=(\d+)", text) for text in texts)

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
        profile = f"cpaan-node-{content['provider']['region']}"  # as the stack names it
        assert machine["IamInstanceProfile"] == {"Name": profile}
        # A group that Ray makes opens ssh to everyone.
        assert machine["SecurityGroupIds"] == ["SET-SECURITY-GROUP-ID"]
    assert "security_group" not in content["provider"]

    account = (ROOT / "cluster" / "aws-account.yaml").read_text()
    allowed = re.search(r"AllowedPattern: '(.*)'", account)[1]
    assert not re.search(r"^\s+Default:", account, flags=re.MULTILINE)
    assert re.findall(r"CidrIp: (.*)}", account) == ["!Ref SshFrom"]
    assert re.fullmatch(allowed, "203.0.113.7/32")
    for refused in ("0.0.0.0/0", "10.0.0.0/8", "", "SET-RANGE", "203.0.113.7"):
        assert not re.fullmatch(allowed, refused)
