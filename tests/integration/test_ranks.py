"""Two processes through torchrun are one run: parameters, losses, validation, and ADMIN's measurement.

This file is also the program that each rank runs (see :func:`_rank`): it trains ten times and validates in one
process group, since each start of fairseq costs seconds.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import helpers
import runs

pytestmark = pytest.mark.real_programs

NO_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")
# name -> flags. All but the last are one run with the same eight sentences, however they are shared.
PLAIN = {
    "pytorch_ddp": ["--ddp-backend", "pytorch_ddp"],
    "legacy_ddp": ["--ddp-backend", "legacy_ddp"],
    "no_c10d": ["--ddp-backend", "no_c10d"],
    "unsummable": ["--criterion", "unsummable"],
    "update_freq": [],
}
ADMIN = {  # all but the last two
    "admin_legacy_ddp": ["--ddp-backend", "legacy_ddp"],
    "admin_pytorch_ddp": ["--ddp-backend", "pytorch_ddp", "--checkpoint-activations"],
    "admin_no_c10d": ["--ddp-backend", "no_c10d"],
    "admin_bf16": ["--ddp-backend", "legacy_ddp", "--bf16"],
    "admin_layerdrop": ["--ddp-backend", "legacy_ddp", "--encoder-layerdrop", "0.7", "--decoder-layerdrop", "0.7"],
}


def _train(data, save_dir, arch, *flags, updates):
    # Plain SGD: Adam would blow up the rounding noise of gradients that are zero (key biases) to its step.
    return helpers.train_args(
        data, save_dir, arch, *NO_DROPOUT, "--optimizer", "sgd", "--required-batch-size-multiple", "1",
        "--num-workers", "0", *flags, updates=updates,
    )  # fmt: skip


def _plain(data, save_dir, *flags, updates=3):
    return _train(data, save_dir, "transformer_tiny", "--lr", "0.5", *flags, updates=updates)


def _admin(data, save_dir, *flags):
    flags = ("--lr", "0.1", "--disable-validation", "--position-encoding", "rope", *flags)
    return _train(data, save_dir, "realformer_admin_tiny", *flags, updates=2)


def _validate(data, checkpoint):
    # 20 sentences in 3 batches: the second rank's share is one batch short
    return [
        data, "--user-dir", helpers.USER_DIR, "--task", "translation", "--path", checkpoint, "--cpu",
        "--max-sentences", "8", "--num-workers", "0", "--no-progress-bar",
    ]  # fmt: skip


def _rank(eight, digits, even, out):
    """What each rank does under torchrun: train once for each of PLAIN and ADMIN, then validate; saves parameters."""
    import composing
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

    composing.install()
    trainers = []
    stock = Trainer.train_step
    Trainer.train_step = lambda self, *args: (trainers.append(self), stock(self, *args))[1]
    out, rank = Path(out), os.environ["RANK"]

    def train(name, arguments):
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        sys.argv = ["fairseq-train", *map(str, arguments)]
        fairseq_cli.train.cli_main()
        torch.save(trainers[-1].get_model().state_dict(), out / f"{name}.rank{rank}.pt")

    for name, flags in PLAIN.items():
        if name == "update_freq":
            train(name, _plain(digits, out / name, "--max-sentences", "16", *flags, updates=6))
        else:
            train(name, _plain(eight, out / name, "--max-sentences", "4", *flags))
        assert (trainers[-1]._grad_norm_buf > 0).all()  # both ranks' gradient norms were compared
    # validate's own log tells how many sentences and tokens the joint loss is over
    sys.argv = ["fairseq-validate", *map(str, _validate(digits, out / "update_freq" / "checkpoint_last.pt"))]
    fairseq_cli.validate.cli_main()
    for name, flags in ADMIN.items():
        profile = ["--admin-profile-out", out / f"{name}.json"]
        train(name, _admin(even, out / name, "--max-sentences", "4", *profile, *flags))


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Eight training sentences: one update's worth, however they are split into batches of four."""
    folder = tmp_path_factory.mktemp("eight")
    text = helpers.write_digits(folder / "text", splits=(("train", 8), ("valid", 5), ("test", 5)))
    return helpers.binarize(text, folder / "bin")


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """Eight sentences of one length: no pads, so statistics do not depend on how they are batched."""
    folder = tmp_path_factory.mktemp("even")
    for split in ("train", "valid", "test"):
        for side, words in (("en", "one two three four five six"), ("de", "eins zwei drei vier fünf sechs")):
            words = words.split()
            rows = [" ".join(words[(line + word) % 6] for word in range(5)) for line in range(8)]
            (folder / f"{split}.{side}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return helpers.binarize(folder, folder / "bin")


@pytest.fixture(scope="module")
def joint(eight, digits, even, tmp_path_factory):
    """Folder of what the ranks saved, and what the plain runs and the ADMIN runs printed."""
    folder = tmp_path_factory.mktemp("joint")
    program = Path(__file__).resolve()
    out = helpers.run_program("torchrun", "--nproc_per_node", "2", program, eight, digits, even, folder).out
    [validated] = re.finditer(r"valid on 'valid' subset \| .*\n", out[out.rindex("loading model(s) from") :])
    end = out.rindex("loading model(s) from") + validated.end()
    return folder, out[:end], out[end:]


def _ranks(folder, name):
    """What both ranks hold, which must be equal."""
    first, second = (torch.load(folder / f"{name}.rank{rank}.pt", weights_only=True) for rank in (0, 1))
    for key, value in first.items():
        assert torch.equal(value, second[key]), f"{name}: the ranks disagree on {key}"
    return first


def _checkpoint(path):
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    return load_checkpoint_to_cpu(str(path))


def _close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


def _losses(text):
    return [float(loss) for loss in re.findall(r"train_inner.*? loss=([\d.]+)", text)]


def _valid(text):
    return re.findall(r"valid on 'valid' subset \| (.*)", text)


def test_ranks_are_one_run(joint, eight, digits, tmp_path):
    """Equal parameters on both ranks, which are those of one process with the whole batch."""
    folder, out, _ = joint
    for name in PLAIN:
        first = _ranks(folder, name)
        saved = _checkpoint(folder / name / "checkpoint_last.pt")
        assert all(torch.equal(first[key], saved["model"][key]) for key in first)
        assert saved["cfg"]["distributed_training"]["distributed_world_size"] == 2
        assert saved["cfg"]["distributed_training"]["distributed_backend"] == "gloo"
        assert sorted(os.listdir(folder / name)) == ["checkpoint_best.pt", "checkpoint_last.pt"]
    assert out.count("training on 2 devices") == len(PLAIN)  # one log

    whole = helpers.run("fairseq-train", *_plain(eight, tmp_path / "one", "--max-sentences", "8"))
    one = runs.parameters(tmp_path / "one")
    for name in PLAIN:
        if name != "update_freq":
            _close(_ranks(folder, name), one)
    freq = ("--max-sentences", "16", "--update-freq", "2")
    accumulated = helpers.run("fairseq-train", *_plain(digits, tmp_path / "two", *freq, updates=6))
    _close(_ranks(folder, "update_freq"), runs.parameters(tmp_path / "two"))
    expected = _losses(whole.text) * 4 + _losses(accumulated.text)
    assert len(expected) == 4 * 3 + 6
    assert _losses(out) == pytest.approx(expected, abs=0.0021)
    assert "bsz=8," in out  # the global batch is the sum of the ranks'

    checkpoint = folder / "update_freq" / "checkpoint_last.pt"
    [alone] = _valid(helpers.run("fairseq-validate", *_validate(digits, checkpoint)).text)
    joined = _valid(out)[-1]
    assert joined == alone
    assert "bsz 20" in joined  # all sentences, though the second rank's share is one batch short


def test_admin_is_measured_by_all_ranks(joint, even, tmp_path):
    """Equal shortcuts on both ranks, which are those that one process measures on the whole batch."""
    folder, _, out = joint
    assert out.count("ADMIN: measured the encoder's") == len(ADMIN)  # one log
    helpers.run("fairseq-train", *_admin(even, tmp_path / "one", "--max-sentences", "8"))
    one = runs.parameters(tmp_path / "one")
    for name in ADMIN:
        first = _ranks(folder, name)
        profile = json.loads((folder / f"{name}.json").read_text())
        tolerance = 0.02 if name == "admin_bf16" else 1e-5
        for key, value in one.items():
            if key.endswith("_omega"):
                assert first[key].dtype == torch.float32
                assert torch.allclose(first[key], value, rtol=tolerance), (name, key)
            elif name not in ("admin_bf16", "admin_layerdrop"):
                torch.testing.assert_close(first[key], value, rtol=1e-4, atol=3e-6)
        assert float(first["encoder.layers.1.ffn_omega"][0]) == pytest.approx(profile["encoder"]["omega"][-1], rel=1e-6)
        assert float(first["encoder.layers.1.ffn_omega"][0]) > 1.2


if __name__ == "__main__":
    _rank(*sys.argv[1:])
