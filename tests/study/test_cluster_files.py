"""Cluster files: Ray takes them, they are of the lock file's versions, and nothing is left open."""

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


def text_of(name: str) -> str:
    return (ROOT / "cluster" / f"{name}.yaml").read_text()


def file_of(name: str) -> dict:
    return yaml.safe_load(text_of(name))


def locked(package: str) -> str:
    lock = (ROOT / "constraints.txt").read_text()
    return re.search(rf"^{package}==(\S+)$", lock, flags=re.MULTILINE)[1]


def start_commands(name: str) -> dict[str, str]:
    """Return the commands that start Ray on the head and on workers."""
    content = file_of(name)
    return {kind: content[f"{kind}_start_ray_commands"][-1] for kind in ("head", "worker")}


def exported(command: str) -> dict[str, str]:
    """Return the variables that a command exports first."""
    words = re.findall(r"(\w+)=('[^']*'|\S+)", command.partition(";")[0])
    return {name: value.strip("'") for name, value in words}


@pytest.mark.parametrize("name", ALL)
def test_ray_takes_the_file(name, monkeypatch):
    monkeypatch.chdir(ROOT)  # files are mounted from there
    config = prepare_config(file_of(name))

    validate_config(config)

    assert config["head_node_type"] in config["available_node_types"]


def test_rays_validator_would_say_if_a_word_were_wrong(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = prepare_config({**file_of("gpu"), "idle_timeout": 10})

    with pytest.raises(Exception, match="idle_timeout"):
        validate_config(config)


@pytest.mark.parametrize("name", CLOUDS)
def test_images_are_of_the_locked_ray_and_the_projects_python(name):
    image = file_of(name)["docker"]["image"]

    assert f"FROM {image}\n" in (ROOT / "cluster" / "Dockerfile").read_text()
    version, python = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d+)-cu\d+", image).groups()
    assert version == locked("ray")
    wanted = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert python == f"3{wanted}"


@pytest.mark.parametrize("name", ALL)
def test_the_project_is_installed_from_its_lock_file_on_every_node(name):
    content = file_of(name)

    (install,) = [each for each in content["setup_commands"] if "install" in each]
    assert "--constraint" in install
    assert "constraints.txt" in install
    assert not any("torch" in each for each in content["setup_commands"])  # the lock has it
    assert locked("torch")
    for source in content["file_mounts"].values():
        assert not re.search(r"results|cache|\.venv|\.git$", source)
        assert source.startswith("~") or (ROOT / source).exists()


@pytest.mark.parametrize("name", CLOUDS)
def test_the_head_trains_nothing_and_workers_come_when_they_are_needed(name):
    content = file_of(name)
    kinds = content["available_node_types"]

    assert kinds["head"]["resources"] == {"CPU": 0}
    assert "--num-cpus=0" in start_commands(name)["head"]
    spot, on_demand = kinds["gpu-spot"], kinds["gpu-on-demand"]
    assert {spot["min_workers"], on_demand["min_workers"]} == {0}
    assert spot["priority"] > on_demand["priority"]
    assert spot["resources"] == on_demand["resources"]
    coming = json.loads(exported(start_commands(name)["head"])["CPAAN_NODES"])
    assert coming == [{"count": content["max_workers"], **spot["resources"]}]


@pytest.mark.parametrize("name", ALL)
def test_ray_asks_for_a_token_and_its_dashboard_answers_on_the_head_alone(name):
    for command in start_commands(name).values():
        assert exported(command)["RAY_AUTH_MODE"] == "token"
    assert "--dashboard-host=127.0.0.1" in start_commands(name)["head"]
    assert "chmod 600 ~/.ray/auth_token" in file_of(name)["setup_commands"]


def test_all_files_fix_the_same_ports_and_the_readme_lists_them():
    page = (ROOT / "cluster" / "README.md").read_text()
    listed = set(re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE))

    fixed = {name: re.findall(r"-port=(\d+)", text_of(name)) for name in ALL}

    assert fixed["gpu"] == fixed["gcp"] == fixed["local"]
    of_workers = {"20000", "29999"}
    assert set(fixed["gpu"]) - of_workers - {"8265"} <= listed
    assert "20000 to 29999" in page


def test_amazons_machines_are_closed_and_their_disks_encrypted():
    content = file_of("gpu")
    for kind in content["available_node_types"].values():
        machine = kind["node_config"]
        assert machine["MetadataOptions"]["HttpTokens"] == "required"
        assert all(disk["Ebs"]["Encrypted"] for disk in machine["BlockDeviceMappings"])
        profile = f"cpaan-node-{content['provider']['region']}"  # as the stack names it
        assert machine["IamInstanceProfile"] == {"Name": profile}
        # Of a group that Ray makes, ssh is open to everyone, whatever else it is told.
        assert machine["SecurityGroupIds"] == ["SET-SECURITY-GROUP-ID"]
    assert "security_group" not in content["provider"]


def test_ssh_comes_from_the_range_that_the_user_names_and_not_from_everywhere():
    account = (ROOT / "cluster" / "aws-account.yaml").read_text()
    allowed = re.search(r"AllowedPattern: '(.*)'", account)[1]

    assert not re.search(r"^\s+Default:", account, flags=re.MULTILINE)
    assert re.findall(r"CidrIp: (.*)}", account) == ["!Ref SshFrom"]
    assert re.fullmatch(allowed, "203.0.113.7/32")
    for refused in ("0.0.0.0/0", "10.0.0.0/8", "", "SET-RANGE", "203.0.113.7"):
        assert not re.fullmatch(allowed, refused)


@pytest.mark.parametrize("name", ALL)
def test_a_file_as_it_comes_is_refused_with_what_is_to_be_set(name):
    with pytest.raises(ValueError, match=r"still has SET-[A-Z-]+.*: see cluster/README.md"):
        ClusterJob(ROOT / "cluster" / f"{name}.yaml", ClusterCommand("search.py", "mine", [], {}))
