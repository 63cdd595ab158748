#!/usr/bin/env bash
#SBATCH --job-name=cpaan
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Run a study on Slurm: Ray on all nodes of the job, the study on the first one.
#
#   sbatch cluster/slurm.sh NAME --preset paper
#   sbatch --partition P --account A --nodes 4 cluster/slurm.sh NAME --preset paper
#
# Run it from the project's folder, after `make setup`, on a file system that all nodes share. The
# options after the name are those of tune/search.py. Run the same command again to resume the study.
# It also resumes when Slurm requeues the job: after a preemption, after a lost node, and five minutes
# before the time limit. `scancel JOB` stops it. CPAAN_FOLDER is the folder of results/ (default: the
# project's folder).
#
# It takes whole nodes (--exclusive), because `ray symmetric-run` refuses a node with another Ray, and
# its final `ray stop` would stop that one too.

set -euo pipefail

fail() {
  echo "cluster/slurm.sh: $*" >&2
  exit 2
}

most_restarts=20 # limit for a study that never ends
[[ -n ${SLURM_JOB_ID:-} ]] || fail "run it with: sbatch cluster/slurm.sh NAME --preset paper"
(($# > 0)) || fail "name the study: sbatch cluster/slurm.sh NAME --preset paper"
[[ -f tune/search.py ]] || fail "$PWD is not the project's folder; run sbatch there"
name=$1
shift

if [[ -z ${VIRTUAL_ENV:-} && -f .venv/bin/activate ]]; then
  # shellcheck source=/dev/null
  source .venv/bin/activate
fi
wanted=$(sed -n 's/^ray==//p' constraints.txt)
# The address at which other nodes reach this one, the first of the job. Its host name may resolve to
# a loopback address on the node itself.
read -r installed head < <(
  python -c 'import ray; print(ray.__version__, ray.util.get_node_ip_address())'
) || fail "this Python has no Ray; run make setup, or activate an environment with Ray"
[[ $installed == "$wanted" ]] || fail "Ray $installed is installed, but constraints.txt has $wanted; run make setup"

num_nodes=${SLURM_JOB_NUM_NODES:-1}
num_cpus=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
# srun does not inherit --cpus-per-task from sbatch.
on_all_nodes=(srun "--nodes=$num_nodes" --ntasks-per-node=1 "--cpus-per-task=$num_cpus")

export CPAAN_FOLDER=${CPAAN_FOLDER:-$PWD}
results=$CPAAN_FOLDER/results
mkdir -p "$results"
probe=$(mktemp "$results/.seen-by-all-nodes-XXXXXX")
token=$HOME/.ray/slurm-$SLURM_JOB_ID.token
trap 'rm -f "$probe" "$token"' EXIT
"${on_all_nodes[@]}" test -e "$probe" ||
  fail "not all nodes see $results: it must be on a file system that they share"

# Without a token, anyone who can reach a node can run code as you. Each job has its own.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token
mkdir -p "$HOME/.ray"
rm -f "$token" # of the same job before it was requeued
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$token")

# Ports and folder are specific to this job, so that it does not join another Ray on the same machine.
# The ports are below the system's ephemeral ports and above Ray's defaults.
port=$((20000 + SLURM_JOB_ID % 3000 * 4))
export RAY_TMPDIR=/tmp/cpaan-$SLURM_JOB_ID
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 # for nodes that start slowly
export RAY_worker_maximum_startup_concurrency=16  # a trial has many small processes
unset RAY_ADDRESS
start=(
  --address "$head:$port" --min-nodes "$num_nodes" --num-cpus "$num_cpus"
  --dashboard-host 127.0.0.1 --dashboard-port $((port + 1))
  --ray-client-server-port $((port + 2)) --dashboard-agent-listen-port $((port + 3))
  --min-worker-port 0 --max-worker-port 0 # any free ports
  --disable-usage-stats
)
if [[ -n ${SLURM_GPUS_ON_NODE:-} ]]; then
  start+=(--num-gpus "$SLURM_GPUS_ON_NODE") # Ray fails if it sees fewer
fi

requeue() {
  is_signalled=yes
  if ((${SLURM_RESTART_COUNT:-0} < most_restarts)); then
    echo "cluster/slurm.sh: time limit reached; Slurm restarts the job, which resumes $name"
    scontrol requeue "$SLURM_JOB_ID" || true
  fi
}
trap requeue USR1

"${on_all_nodes[@]}" --kill-on-bad-exit=1 ray symmetric-run "${start[@]}" -- \
  env "RAY_ADDRESS=$head:$port" bash cluster/study.sh "$name" "$@" &
step=$!
is_signalled=yes
while [[ $is_signalled == yes ]]; do # a signal ends the wait, not the step
  is_signalled=no
  status=0
  wait "$step" || status=$?
done
((status == 0)) || exit "$status"
# symmetric-run also exits with 0 if Ray could not start.
if [[ ! -e $results/$name/report/report.json ]]; then
  echo "cluster/slurm.sh: Ray did not start, or $name has no report; see the messages above" >&2
  exit 1
fi
