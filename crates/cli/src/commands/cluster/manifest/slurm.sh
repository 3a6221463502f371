#!/bin/bash
# Written by `rloom cluster manifest slurm`. Submit it with `sbatch` from a folder that all nodes see.
#SBATCH --job-name={{name}}
#SBATCH --partition={{partition}}
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={{cpus}}
#SBATCH --gpus-per-node={{gpus}}
#SBATCH --mem={{memory}}G
#SBATCH --time={{time}}
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# SIGTERM comes 120 s before the time limit; the run is saved and the job is put into the queue again.
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH {{hetjob}}
#SBATCH --nodes={{cpu_nodes}}
#SBATCH --ntasks-per-node={{cpu_tasks}}
#SBATCH --cpus-per-task={{cpu_cores}}
set -euo pipefail

# Daemons and the controller prove to each other that they know the token. It is in the environment alone.
RLOOM_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RLOOM_TOKEN

# One daemon on each node of the job. A daemon that ends is started again, until the job ends and SLURM kills the pause.
controller=$(hostname):{{port}}
srun --ntasks-per-node=1 --cpus-per-task={{cpus}} --kill-on-bad-exit=0 \
  bash -c "while :; do rloom node --controller $controller; sleep 5 || exit; done" &
daemons=("$!")
# The {{cpu_nodes}} further nodes are for rewards and environments. Their numbers follow those of the first nodes.
srun --het-group=1 --ntasks-per-node={{cpu_tasks}} --cpus-per-task={{cpu_cores}} --kill-on-bad-exit=0 \
  bash -c "while :; do rloom node --controller $controller --index \$(({{cpu_first}} + SLURM_NODEID)); sleep 5 || exit; done" &
daemons+=("{{cpu_job}}")

# This script runs on the first node, and the controller with it.
rloom train {{files}} \
  {{overrides}} \
  --set cluster.launcher=wait \
  --set "cluster.nodes={{node_count}}" \
  --set cluster.cpu_nodes={{cpu_nodes}} \
  --set cluster.bind=0.0.0.0:{{port}} \
  --set run.resume=auto &
train=$!

# `wait` returns when a signal arrives, also if the run has not ended.
trap 'kill -TERM "$train" 2> /dev/null || true' TERM
status=0
wait "$train" || status=$?
while kill -0 "$train" 2> /dev/null; do
  status=0
  wait "$train" || status=$?
done
kill "${daemons[@]}" 2> /dev/null || true
wait "${daemons[@]}" || true

# 130: the run was interrupted and is saved. A cancelled job is not running any more.
if [ "$status" -eq 130 ] && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T | sort --unique)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
