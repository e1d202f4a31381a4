"""Three updates, a new start and three more are six updates, bit for bit, and checkpoints carry stock's names."""

import pytest
import runs
import torch

VARIANTS = {
    "baseline": ("baseline_tiny", []),
    "learned": ("baseline_tiny", ["--position-encoding", "learned"]),
    "none": ("baseline_tiny", ["--no-token-positional-embeddings"]),
    "roformer": ("roformer_tiny", []),
    "dynamic-ntk": (
        "roformer_tiny",
        ["--rope-scaling", "dynamic-ntk", "--rope-scaling-factor", 2, "--rope-train-length", 4],
    ),
    "tupe-a": ("tupe_a_tiny", []),
    "tupe-r": ("tupe_r_tiny", ["--tupe-reset", "first"]),
    "realformer": ("realformer_tiny", []),
    "admin": ("admin_tiny", []),
    "realformer-admin": ("realformer_admin_tiny", ["--checkpoint-activations"]),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_two_halves_are_the_whole(digits, tmp_path, name):
    arch, flags = VARIANTS[name]
    flags = [*flags, *runs.DROPOUT, *runs.QUIET]
    runs.train(digits, tmp_path / "whole", arch, *flags, updates=6)
    runs.train(digits, tmp_path / "halves", arch, *flags, updates=3)
    half = runs.checkpoint(tmp_path / "halves")
    result = runs.train(digits, tmp_path / "halves", arch, *flags, updates=6)
    assert "(epoch 1 @ 3 updates)" in result.log
    whole, halves = (runs.checkpoint(tmp_path / folder) for folder in ("whole", "halves"))
    # Not one epoch: the second half starts within the first epoch and ends in the second.
    assert half["extra_state"]["train_iterator"]["epoch"] == 1
    assert whole["extra_state"]["train_iterator"]["epoch"] == 2
    runs.assert_equal(halves["model"], whole["model"])
    runs.assert_equal(halves["last_optimizer_state"], whole["last_optimizer_state"])
    runs.assert_equal(halves["extra_state"]["train_iterator"], whole["extra_state"]["train_iterator"])
    assert halves["optimizer_history"][-1]["num_updates"] == whole["optimizer_history"][-1]["num_updates"] == 6
    assert not torch.equal(half["model"]["decoder.layers.1.fc1.bias"], whole["model"]["decoder.layers.1.fc1.bias"])


def test_names_in_checkpoints_are_stock_s(digits, tmp_path):
    """Stock's `transformer` and both families save the same names and shapes; learned positions add stock's two."""
    flags = ["--share-all-embeddings", "--disable-validation"]
    shapes = {}
    for name, arch, extra in (
        ("stock", "transformer", []),
        ("baseline", "baseline_tiny", []),
        ("roformer", "roformer_tiny", []),
        ("stock learned", "transformer", ["--encoder-learned-pos", "--decoder-learned-pos"]),
        ("learned", "roformer_tiny", ["--position-encoding", "learned"]),
    ):
        runs.train(digits, tmp_path / name, arch, *flags, *extra, updates=1)
        shapes[name] = {key: tuple(value.shape) for key, value in runs.parameters(tmp_path / name).items()}
    assert list(shapes["stock"].items()) == list(shapes["baseline"].items()) == list(shapes["roformer"].items())
    assert list(shapes["stock learned"].items()) == list(shapes["learned"].items())
    more = set(shapes["learned"]) - set(shapes["roformer"])
    assert more == {"encoder.embed_positions.weight", "decoder.embed_positions.weight"}
