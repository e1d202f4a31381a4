"""WMT'14 under SLURM: stock fairseq's arithmetic of ranks, and the recipes' jobs with stand-ins for srun, scontrol."""

import os
import shutil
import signal
import subprocess
import time

import helpers
import pytest
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

EXAMPLES = helpers.ROOT / "examples"


def bash(script, **env):
    """Run a script on an environment of ``env`` alone; the finished process, outputs joined."""
    return subprocess.run(
        ["bash", str(script)], env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def stand_in(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A function that reads a task's SLURM variables with stock's code, on a machine with 8 GPUs (or ``gpus``)."""
    stand_in(tmp_path / "bin", "scontrol", "printf 'node1\\nnode2\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def infer(gpus=8, world_size=None, port=-1, torchrun=None, **variables):
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.startswith("SLURM_") or name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"):
                    patch.delenv(name)
            for name, value in {"NODELIST": "node[1-2]", "NNODES": 2, **variables}.items():
                patch.setenv(f"SLURM_{'JOB_' if name == 'NODELIST' else ''}{name}", str(value))
            for name, value in (torchrun or {}).items():
                patch.setenv(name, str(value))
            patch.setattr("torch.cuda.device_count", lambda: gpus)
            patch.setattr("torch.cuda.set_device", lambda device: None)
            cfg = OmegaConf.structured(distributed_utils.DistributedTrainingConfig(tpu=False))
            cfg.distributed_world_size = gpus if world_size is None else world_size  # stock's default: the GPUs seen
            cfg.distributed_port = port
            distributed_utils.infer_init_method(cfg)
            return cfg

    return infer


def test_stock_with_one_task_a_machine(slurm):
    """Right with a port, and several GPUs a machine: the first rank is the machine's number times its GPUs."""
    for node in (0, 1):
        cfg = slurm(port=9218, NTASKS_PER_NODE=1, NODEID=node)
        assert (cfg.distributed_rank, cfg.distributed_world_size) == (8 * node, 16)
        assert cfg.distributed_init_method == "tcp://node1:9218" and cfg.distributed_num_procs == 8
    with pytest.raises(AssertionError, match="world size is 16 but have 8"):
        slurm(NTASKS_PER_NODE=1, NODEID=0)  # no --distributed-port
    for node in (0, 1):  # one GPU a machine: each is a run of its own
        cfg = slurm(gpus=1, port=9218, NTASKS_PER_NODE=1, NODEID=node)
        assert cfg.distributed_init_method is None and cfg.distributed_world_size == 1 and cfg.distributed_rank == 0


def test_stock_with_one_task_a_gpu(slurm):
    """Right only with --distributed-world-size, and where each task sees all GPUs of its machine."""
    task = {"NTASKS_PER_NODE": 8, "PROCID": 11, "LOCALID": 3}
    with pytest.raises(AssertionError, match="8, 8, 2"):
        slurm(port=9218, **task)
    cfg = slurm(port=9218, world_size=16, **task)
    assert (cfg.distributed_rank, cfg.device_id, cfg.distributed_world_size) == (11, 3, 16)
    assert cfg.distributed_init_method == "tcp://node1:9218" and cfg.distributed_no_spawn
    with pytest.raises(AssertionError, match="world size is 16 but have 8"):
        slurm(world_size=16, **task)  # no --distributed-port
    seen = slurm(gpus=1, port=9218, **task)  # --gpus-per-task=1: each task is a run of its own
    assert seen.distributed_init_method is None and seen.distributed_world_size == 1
    seen = slurm(gpus=1, port=9218, world_size=16, **task)
    assert seen.device_id == 3  # and with the world size given, a GPU that the task does not see


def test_torchrun_comes_before_slurm(slurm):
    """What the recipe relies on: under torchrun none of SLURM's variables is read."""
    torchrun = {"MASTER_ADDR": "node1", "MASTER_PORT": 29500, "WORLD_SIZE": 16, "RANK": 11}
    cfg = slurm(torchrun=torchrun, NTASKS_PER_NODE=1, NODEID=0)
    assert (cfg.distributed_rank, cfg.distributed_world_size, cfg.device_id) == (11, 16, 3)
    assert cfg.distributed_init_method == "env://" and cfg.distributed_no_spawn


@pytest.fixture
def job(tmp_path):
    """(environment, folder, record) of a job in which srun runs its command here, and run.sh only notes its call."""
    folder, record = tmp_path / "checkout", tmp_path / "record"
    for name in ("wmt14_en_de", "wmt14_en_fr"):
        shutil.copytree(EXAMPLES / name, folder / "examples" / name)
    shutil.copy(EXAMPLES / "wmt14_slurm.sh", folder / "examples")
    programs = tmp_path / "bin"
    stand_in(programs, "scontrol", f'echo "scontrol $*" >>"{record}"; [ "$1" != show ] || printf "node1\\nnode2\\n"')
    # srun: leaves its options out; one task a machine when asked for
    stand_in(
        programs,
        "srun",
        'case "$*" in *--ntasks-per-node=1*) nodes="0 1" ;; *) nodes=0 ;; esac\n'
        'while [ "${1#--}" != "$1" ]; do shift; done\n'
        'for SLURM_NODEID in $nodes; do export SLURM_NODEID; "$@" || exit; done',
    )
    for script in folder.glob("examples/*/run.sh"):
        script.write_text(
            f'echo "run.sh $* GPUS=$GPUS NODES=$NODES NODE_RANK=${{NODE_RANK:-}} $MASTER" >>"{record}"\n'
            f'[ -z "${{SLEEP:-}}" ] || [ "$1" != train ] || {{ sleep "$SLEEP"; echo slept >>"{record}"; }}\n',
            encoding="utf-8",
        )
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "45678",
    }  # fmt: skip
    return env, folder, record


@pytest.mark.parametrize("name", ["wmt14_en_de", "wmt14_en_fr"])
def test_a_job_trains_on_all_machines_and_does_the_rest_on_one(job, name):
    env, folder, record = job
    done = bash(folder / "examples" / name / "slurm.sbatch", **env)
    assert done.returncode == 0 and done.stdout == ""
    assert record.read_text().splitlines() == [
        "scontrol show hostnames node[1-2]",
        "run.sh prepare GPUS=8 NODES=2 NODE_RANK= node1:25678",
        "run.sh train GPUS=8 NODES=2 NODE_RANK=0 node1:25678",
        "run.sh train GPUS=8 NODES=2 NODE_RANK=1 node1:25678",
        "run.sh average generate score GPUS=8 NODES=2 NODE_RANK= node1:25678",
    ]
    text = (EXAMPLES / name / "slurm.sbatch").read_text()
    for line in ("--requeue", "--signal=B:USR1@120", "--ntasks-per-node=1", "--open-mode=append"):
        assert f"#SBATCH {line}\n" in text


def test_a_job_requeues_itself_and_waits(job):
    env, folder, record = job
    process = subprocess.Popen(
        ["bash", folder / "examples" / "wmt14_en_de" / "slurm.sbatch"], env={**env, "SLEEP": "0.4"}
    )
    deadline = time.time() + 30
    while "train" not in (record.read_text() if record.exists() else "") and time.time() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 0
    lines = record.read_text().splitlines()
    # at once, not after the training; SLURM then ends the job, and until it does the training goes on
    assert lines.index("scontrol requeue 45678") < lines.index("slept")
    assert lines[-1].startswith("run.sh average")


def test_a_failed_step_ends_the_job(job):
    env, folder, _ = job
    (folder / "examples" / "wmt14_en_de" / "run.sh").write_text("exit 3\n")
    assert bash(folder / "examples" / "wmt14_en_de" / "slurm.sbatch", **env).returncode == 3


@pytest.mark.parametrize("where, message", [("/nowhere", "call sbatch in the root"), ("", "only sbatch can")])
def test_a_job_from_elsewhere(job, where, message):
    env, folder, record = job
    done = bash(folder / "examples" / "wmt14_en_fr" / "slurm.sbatch", **{**env, "SLURM_SUBMIT_DIR": where})
    assert done.returncode == 1 and message in done.stdout and not record.exists()
