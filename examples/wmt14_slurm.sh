# shellcheck shell=bash
# What a slurm.sbatch of WMT'14 does, on the first machine of its allocation: prepare, then train on all machines, then
# average, generate and score. Before the time limit ends the job it puts it back into the queue, and the next start goes
# on from checkpoint_last.pt. A file slurm.sbatch sources this after setting SCRIPT, the recipe's run.sh; both are looked
# for from the folder that sbatch was called in, since SLURM runs a copy of the sbatch file from elsewhere.
#
# One task a machine, and torchrun (in run.sh) starts a process a GPU there. fairseq-train can read SLURM's variables
# itself (fairseq/distributed/utils.py, _infer_slurm_init), but not in every job:
#   one task a machine: right (rank = SLURM_NODEID x GPUs) with --distributed-port given; without it the run
#       fails. Where each machine has one GPU, the default --distributed-world-size is 1, SLURM's variables are
#       never read, and every machine trains alone into the same folder.
#   one task a GPU: fails unless --distributed-world-size is the total, since its default is the GPUs that one task sees
#       (with --gpus-per-task=1, again: 1, and every task trains alone); then rank = SLURM_PROCID is right, but
#       device = SLURM_LOCALID does not exist where a task sees only its own GPU.
# torchrun's variables are looked for first, so none of that is reached. tests/unit/test_wmt14_slurm.py checks all this.

export NODES=$SLURM_JOB_NUM_NODES
if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then export GPUS=$SLURM_GPUS_ON_NODE; fi
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER=${MASTER%%$'\n'*}:$((20000 + SLURM_JOB_ID % 20000)) # the first machine

# --signal=B:USR1@120 sends USR1 to this shell alone, two minutes before the time limit.
requeue() {
    echo "the time limit is near: back into the queue"
    scontrol requeue "$SLURM_JOB_ID" || echo "this job may not be requeued: submit it again, it goes on from its last checkpoint"
}
trap requeue USR1

# step COMMAND...: srun COMMAND and wait, in a way that lets the trap run at once.
step() {
    local pid code
    srun "$@" &
    pid=$!
    while true; do
        code=0
        wait "$pid" || code=$?
        kill -0 "$pid" 2>/dev/null || return "$code"
    done
}

step --nodes=1 --ntasks=1 bash "$SCRIPT" prepare
# shellcheck disable=SC2016  # SLURM_NODEID is another one on each machine
step --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec bash "$0" train' "$SCRIPT"
step --nodes=1 --ntasks=1 bash "$SCRIPT" average generate score
