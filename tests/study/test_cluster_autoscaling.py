"""Test that trials wait for the autoscaler's machines, and that idle machines are stopped."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import yaml

from helpers.commands import output_of
from helpers.studies import SMALL_STUDY

ROOT = Path(__file__).parents[2]
SPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net"]
HEAD = "ray.head.default"  # the only name that the provider accepts
HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"

pytestmark = pytest.mark.cluster

# Ray's provider for tests simulates two machines with one core as processes on this machine.
CLUSTER = {
    "cluster_name": "autoscaling",
    "max_workers": 2,
    "upscaling_speed": 2,
    "idle_timeout_minutes": 0.1,
    "provider": {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "head_node_id": HEAD_ID,
        "launch_multiple": True,
    },
    "available_node_types": {
        HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "worker": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
    "head_node_type": HEAD,
    **{f"{kind}_setup_commands": [] for kind in ("head", "worker")},
    **{f"{kind}_start_ray_commands": [] for kind in ("head", "worker")},
    **{f"{kind}_commands": [] for kind in ("setup", "initialization")},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
    "docker": {},
    "auth": {},
}
ENVIRONMENT = {
    "RAY_worker_maximum_startup_concurrency": "16",  # as in the cluster files
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}
WATCHING = """
    import sys, time
    import ray

    ray.init("127.0.0.1:6379", logging_level="ERROR", namespace="watching")
    with open(sys.argv[1], "w") as file:
        while True:
            workers = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
            print(len(workers), file=file, flush=True)
            time.sleep(0.5)
"""


def test_machines_are_started_for_trials_and_stopped_after_them(tmp_path, study_features):
    tools = shutil.which("unshare") and shutil.which("ip")
    if not tools or subprocess.run([*SPACES, "true"]).returncode:
        pytest.skip("missing here: ip, unshare (Debian: util-linux iproute2) or the right to it")
    (tmp_path / "ray").mkdir()
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(CLUSTER))
    (tmp_path / "watching.py").write_text(textwrap.dedent(WATCHING))
    ray = f"{sys.executable} -m ray.scripts.scripts"
    search = f"{sys.executable} {ROOT / 'tune' / 'search.py'} --address 127.0.0.1:6379"
    small = f"--study one --trials 2 --episodes 12 --features {study_features} "
    small += f"--no-early-stopping {' '.join(SMALL_STUDY)}"
    (tmp_path / "run.sh").write_text(
        f"""set -e
        mkdir -p /tmp/ray && mount --bind {tmp_path}/ray /tmp/ray
        ip link set lo up
        cd {tmp_path}
        env {" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())} \\
          {ray} start --head --port=6379 --node-ip-address=127.0.0.1 --num-cpus=0 \\
          --disable-usage-stats --autoscaling-config=cluster.yaml
        {sys.executable} watching.py nodes.txt &
        while ! test -s nodes.txt; do sleep 0.2; done
        CPAAN_NODES='[{{"count": 2, "CPU": 1}}]' {search} {small}
        for i in $(seq 60); do
          tail -n 1 nodes.txt | grep -qx 0 && exit 0
          sleep 0.5
        done
        exit 3
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}

    output_of(*SPACES, "bash", tmp_path / "run.sh", env=environment)

    counts = [int(line) for line in (tmp_path / "nodes.txt").read_text().split()]
    assert counts[0] == counts[-1] == 0
    assert max(counts) == 2
    trials = pd.read_parquet(tmp_path / "results" / "one" / "trials.parquet")
    assert trials["state"].tolist() == ["complete", "complete"]
