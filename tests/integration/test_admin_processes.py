"""ADMIN measured by two processes together, through torchrun. This file is also the program that each rank runs."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import helpers
import runs

pytestmark = pytest.mark.real_programs

NO_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")
# name -> flags; all but the last two are one run with the same sentences, however they are shared
RUNS = {
    "legacy_ddp": ["--ddp-backend", "legacy_ddp"],
    "pytorch_ddp": ["--ddp-backend", "pytorch_ddp", "--checkpoint-activations"],
    "no_c10d": ["--ddp-backend", "no_c10d"],
    "bf16": ["--ddp-backend", "legacy_ddp", "--bf16"],
    "layerdrop": ["--ddp-backend", "legacy_ddp", "--encoder-layerdrop", "0.7", "--decoder-layerdrop", "0.7"],
}


def _train(data, folder, *flags):
    # Plain SGD: Adam would blow up the rounding noise of gradients that are zero (key biases) to its step.
    return helpers.train_args(
        data, folder, "realformer_admin_tiny", *NO_DROPOUT, "--optimizer", "sgd", "--lr", "0.1", "--disable-validation",
        "--required-batch-size-multiple", "1", "--num-workers", "0", "--position-encoding", "rope", *flags, updates=2,
    )  # fmt: skip


def _rank(data, out):
    """What each rank does: train once for each of RUNS, and save what it holds."""
    import fairseq_cli.train
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    trainers = []
    stock = Trainer.train_step
    Trainer.train_step = lambda self, *args: (trainers.append(self), stock(self, *args))[1]
    out, rank = Path(out), os.environ["RANK"]
    for name, flags in RUNS.items():
        profile = ["--admin-profile-out", out / f"{name}.json"]
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        arguments = _train(data, out / name, "--max-sentences", "4", *profile, *flags)
        sys.argv = ["fairseq-train", *map(str, arguments)]
        fairseq_cli.train.cli_main()
        torch.save(trainers[-1].get_model().state_dict(), out / f"{name}.rank{rank}.pt")


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


def test_two_processes_measure_as_one(even, tmp_path):
    result = helpers.run_program("torchrun", "--nproc_per_node", "2", Path(__file__).resolve(), even, tmp_path)
    assert result.out.count("ADMIN: measured the encoder's") == len(RUNS)  # one log
    helpers.run("fairseq-train", *_train(even, tmp_path / "one", "--max-sentences", "8"))
    one = runs.parameters(tmp_path / "one")
    for name in RUNS:
        first, second = (torch.load(tmp_path / f"{name}.rank{rank}.pt", weights_only=True) for rank in (0, 1))
        for key, value in first.items():
            assert torch.equal(value, second[key]), f"{name}: the ranks disagree on {key}"
        profile = json.loads((tmp_path / f"{name}.json").read_text())
        tolerance = 0.02 if name == "bf16" else 1e-5
        for key, value in one.items():
            if key.endswith("_omega"):
                assert first[key].dtype == torch.float32
                assert torch.allclose(first[key], value, rtol=tolerance), (name, key)
            elif name in ("legacy_ddp", "pytorch_ddp", "no_c10d"):
                torch.testing.assert_close(first[key], value, rtol=1e-4, atol=3e-6)
        assert float(first["encoder.layers.1.ffn_omega"][0]) == pytest.approx(profile["encoder"]["omega"][-1], rel=1e-6)
        assert float(first["encoder.layers.1.ffn_omega"][0]) > 1.2


if __name__ == "__main__":
    _rank(*sys.argv[1:])
