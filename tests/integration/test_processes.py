"""Several processes on the CPU through the real programs: killed, resumed, started by hand, by hydra."""

import itertools
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import helpers
import pytest
import torch

pytestmark = pytest.mark.real_programs


def _checkpoint(path):
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    from fairseq_rope import compat

    compat.apply()  # torch>=2.6 loads fairseq's checkpoints only with the mends
    return load_checkpoint_to_cpu(str(path))


def _until(process, pattern, seconds=120):
    """Read ``process``'s output up to the first line with ``pattern``; the rest is read in the background."""
    alarm = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    alarm.start()
    try:
        seen = list(itertools.takewhile(lambda line: pattern not in line, process.stdout))
    finally:
        alarm.cancel()
    assert process.poll() is None, "".join(seen[-40:])
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return "".join(seen)


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _ranks_of(process):
    """Process ids of the ranks that ``process`` (torchrun) started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if _parent(pid) == process.pid:
                found.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def _long_run(data, save_dir, *extra, updates):
    """Dropout and Adam, so that a resumed run needs every part of the state; saved every 30 updates only."""
    return helpers.train_args(
        data, save_dir, "transformer_tiny", "--max-tokens", "100", "--save-interval-updates", "30",
        "--save-interval", "100000", "--num-workers", "0", *extra, updates=updates,
    )  # fmt: skip


def _gone(pid, seconds):
    for _ in range(seconds * 10):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} lived on for {seconds} s")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_killed_and_resumed(digits, tmp_path):
    """torchrun killed in mid-epoch and resumed: bit for bit what one unbroken command computes."""
    broken = tmp_path / "broken"
    run = helpers.spawn(
        "torchrun", "--nproc_per_node", "2", helpers.script("fairseq-train"),
        *_long_run(digits, broken, updates=100000),
    )  # fmt: skip
    _until(run, "Saved checkpoint")
    ranks = _ranks_of(run)
    assert len(ranks) == 2
    run.kill()
    run.wait(timeout=10)
    for rank in ranks:  # none trains on, unseen, in the folder of the next run
        _gone(rank, seconds=30)
    done = _checkpoint(broken / "checkpoint_last.pt")
    updates = done["optimizer_history"][-1]["num_updates"]
    position = done["extra_state"]["train_iterator"]
    assert position["epoch"] > 1 and position["iterations_in_epoch"] > 0

    resumed = helpers.run_program(
        "torchrun", "--nproc_per_node", "2", "-m", "fairseq_cli.train",
        *_long_run(digits, broken, updates=updates + 10),
    )  # fmt: skip
    assert re.search(rf"Loaded checkpoint .* @ {updates} updates", resumed.out)
    straight = tmp_path / "straight"
    unbroken = helpers.run_program(
        "fairseq-train", *_long_run(digits, straight, "--distributed-world-size", "2", updates=updates + 10)
    )
    assert unbroken.out.count("training on 2 devices") == 1
    expected, found = (_checkpoint(folder / "checkpoint_last.pt") for folder in (straight, broken))
    assert found["optimizer_history"][-1]["num_updates"] == updates + 10
    for name, value in expected["model"].items():
        assert torch.equal(found["model"][name], value), f"{name} differs after resuming"


def test_by_hand_and_a_dead_rank(digits, tmp_path):
    """One process a rank, as in stock; when one is killed the other ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = (
        "--distributed-world-size", "2", "--distributed-init-method", f"tcp://127.0.0.1:{port}",
        "--distributed-no-spawn", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp",
    )  # fmt: skip
    first, second = (
        helpers.spawn(
            "fairseq-train",
            *_long_run(digits, tmp_path / "run", *shared, "--distributed-rank", rank, updates=100000),
        )
        for rank in (0, 1)
    )
    threading.Thread(target=second.stdout.read, daemon=True).start()
    try:
        assert "training on 2 devices" in _until(first, "train_inner")
        second.kill()
        assert first.wait(timeout=60) != 0
    finally:
        for process in (first, second):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def test_hydra_under_torchrun(digits, tmp_path):
    """fairseq-hydra-train loads a user directory late; its ranks still make one run."""
    result = helpers.run_program(
        "torchrun", "--nproc_per_node", "2", helpers.script("fairseq-hydra-train"),
        "--config-dir", Path(helpers.USER_DIR) / "config", "model=roformer_tiny", "task=translation",
        f"task.data={digits}", "task.source_lang=en", "task.target_lang=de", "criterion=cross_entropy",
        "optimizer=adam", "lr_scheduler=fixed", "common.cpu=true", f"common.user_dir={helpers.USER_DIR}",
        "dataset.max_tokens=400", "dataset.num_workers=0", "optimization.max_update=2",
        "optimization.lr=[0.001]", f"checkpoint.save_dir={tmp_path / 'run'}", cwd=tmp_path,
    )  # fmt: skip
    assert result.out.count("training on 2 devices") == 1
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()
