"""Several processes on the CPU through the real programs: one joint run, killed, resumed.

This file is also the program that :func:`test_ranks_are_one_run` starts under torchrun (see ``_rank``): it
trains and validates several times in one process group, since each start of fairseq costs seconds.
"""

import itertools
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import helpers

pytestmark = pytest.mark.real_programs

RUNS = ("pytorch_ddp", "legacy_ddp", "no_c10d", "unsummable", "update_freq")
NO_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")


def _train(data, save_dir, *extra, updates):
    # plain SGD: Adam would blow up the rounding noise of gradients that are zero (key biases) to its step
    return helpers.train_args(
        data, save_dir, "transformer_tiny", *NO_DROPOUT, "--optimizer", "sgd", "--lr", "0.5",
        "--required-batch-size-multiple", "1", "--num-workers", "0", *extra, updates=updates,
    )  # fmt: skip


def _rank(few, digits, out):
    """What each rank does under torchrun: train once for each of RUNS, then validate; saves parameters."""
    import fairseq_cli.train
    import fairseq_cli.validate
    from fairseq import checkpoint_utils
    from fairseq.criterions import register_criterion
    from fairseq.criterions.label_smoothed_cross_entropy import (
        LabelSmoothedCrossEntropyCriterion,
        LabelSmoothedCrossEntropyCriterionConfig,
    )
    from fairseq.trainer import Trainer

    @register_criterion("unsummable", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
    class Unsummable(LabelSmoothedCrossEntropyCriterion):
        @staticmethod
        def logging_outputs_can_be_summed():
            return False

    trainers = []
    stock = Trainer.train_step
    Trainer.train_step = lambda self, *args: (trainers.append(self), stock(self, *args))[1]
    out, rank = Path(out), os.environ["RANK"]
    for name in RUNS:
        extra = ["--ddp-backend", name] if name in RUNS[:3] else []
        extra += ["--criterion", name] if name == "unsummable" else []
        if name == "update_freq":
            arguments = _train(digits, out / name, "--max-sentences", "16", *extra, updates=6)
        else:
            arguments = _train(few, out / name, "--max-sentences", "4", *extra, updates=3)
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        sys.argv = ["fairseq-train", *map(str, arguments)]
        fairseq_cli.train.cli_main()
        assert (trainers[-1]._grad_norm_buf > 0).all()  # both ranks' gradient norms were compared
        torch.save(trainers[-1].get_model().state_dict(), out / f"{name}.rank{rank}.pt")
    # validate's own log tells how many sentences and tokens the joint loss is over
    sys.argv = ["fairseq-validate", *map(str, _validate(digits, out / "update_freq" / "checkpoint_last.pt"))]
    fairseq_cli.validate.cli_main()


def _validate(data, checkpoint):
    # 20 sentences in 3 batches: the second rank's share is one batch short
    return [
        data, "--user-dir", helpers.USER_DIR, "--task", "translation", "--path", checkpoint, "--cpu",
        "--max-sentences", "8", "--num-workers", "0", "--no-progress-bar",
    ]  # fmt: skip


def _model(path):
    return torch.load(path, map_location="cpu", weights_only=True)


def _checkpoint(path):
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    from fairseq_rope import compat

    compat.apply()  # torch>=2.6 loads fairseq's checkpoints only with the mends
    return load_checkpoint_to_cpu(str(path))


def _close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


def _losses(text):
    return [float(loss) for loss in re.findall(r"train_inner.*? loss=([\d.]+)", text)]


def _valid(text):
    return re.findall(r"valid on 'valid' subset \| (.*)", text)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Eight training sentences: one update's worth, however they are split into batches of four."""
    folder = tmp_path_factory.mktemp("eight")
    text = helpers.write_digits(folder / "text", splits=(("train", 8), ("valid", 5), ("test", 5)))
    return helpers.binarize(text, folder / "bin")


def test_ranks_are_one_run(eight, digits, tmp_path):
    """Equal parameters on both ranks, which are those of one process with the whole batch."""
    result = helpers.run_program("torchrun", "--nproc_per_node", "2", Path(__file__).resolve(), eight, digits, tmp_path)
    for name in RUNS:
        first, second = (_model(tmp_path / f"{name}.rank{rank}.pt") for rank in (0, 1))
        for key in first:
            assert torch.equal(first[key], second[key]), f"{name}: the ranks disagree on {key}"
        saved = _checkpoint(tmp_path / name / "checkpoint_last.pt")
        assert all(torch.equal(first[key], saved["model"][key]) for key in first)
        assert saved["cfg"]["distributed_training"]["distributed_world_size"] == 2
        assert saved["cfg"]["distributed_training"]["distributed_backend"] == "gloo"
        assert sorted(os.listdir(tmp_path / name)) == ["checkpoint_best.pt", "checkpoint_last.pt"]
    assert result.out.count("training on 2 devices") == len(RUNS)  # one log

    whole = helpers.run("fairseq-train", *_train(eight, tmp_path / "one", "--max-sentences", "8", updates=3))
    one = _checkpoint(tmp_path / "one" / "checkpoint_last.pt")["model"]
    for name in RUNS[:4]:
        _close(_model(tmp_path / f"{name}.rank0.pt"), one)
    freq = ("--max-sentences", "16", "--update-freq", "2")
    accumulated = helpers.run("fairseq-train", *_train(digits, tmp_path / "two", *freq, updates=6))
    _close(
        _model(tmp_path / "update_freq.rank0.pt"),
        _checkpoint(tmp_path / "two" / "checkpoint_last.pt")["model"],
    )
    expected = _losses(whole.text) * 4 + _losses(accumulated.text)
    assert len(expected) == 4 * 3 + 6
    assert _losses(result.out) == pytest.approx(expected, abs=0.0021)
    assert "bsz=8," in result.out  # the global batch is the sum of the ranks'

    checkpoint = tmp_path / "update_freq" / "checkpoint_last.pt"
    [alone] = _valid(helpers.run("fairseq-validate", *_validate(digits, checkpoint)).text)
    [joint] = _valid(result.out[result.out.rindex("loading model(s) from") :])
    assert joint == alone
    assert "bsz 20" in joint  # all sentences, though the second rank's share is one batch short


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


if __name__ == "__main__":
    _rank(*sys.argv[1:])
