"""Runs that stock starts or breaks, and that end here with one line, or work."""

import helpers
import pytest

from fairseq_rope.errors import UserError


def refused(result, *words):
    assert result.code != 0
    assert isinstance(result.error, UserError), result.text[-2000:]
    message = str(result.error)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def generate(data, path, *extra):
    arguments = [data, "--user-dir", helpers.USER_DIR, "--path", path, "--cpu", *extra]
    return helpers.run("fairseq-generate", *arguments, check=False)


@pytest.fixture(scope="module")
def roformer(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roformer")
    helpers.run("fairseq-train", *helpers.train_args(digits, folder, "roformer_tiny", updates=8))
    return folder


def test_diverse_groups_do_not_depend_on_the_batch(digits, roformer):
    """fairseq-generate hands sentence ids to the search, which stock takes for rows of the batch."""
    flags = ["--beam", 4, "--nbest", 4, "--diverse-beam-groups", 2, "--diverse-beam-strength", 1, "--max-len-b", 12]
    rows = []
    for size in (1, 7, 64):
        result = generate(digits, roformer / "checkpoint_last.pt", *flags, "--batch-size", size)
        assert result.code == 0, result.text[-2000:]
        rows.append(sorted(line.split("\t")[0::2] for line in result.out.splitlines() if line.startswith("H-")))
    assert len(rows[0]) == 4 * 20
    assert rows[0] == rows[1] == rows[2]


def test_another_position_encoding_is_not_resumed(digits, roformer, tmp_path):
    """The parameters of both fit by name and shape; going on would be silently wrong."""
    arguments = helpers.train_args(digits, roformer, "baseline_tiny", updates=9)
    before = (roformer / "checkpoint_last.pt").read_bytes()
    refused(
        helpers.run("fairseq-train", *arguments, check=False),
        "--position-encoding rope",
        "not given",
        "--finetune-from-model",
    )
    assert (roformer / "checkpoint_last.pt").read_bytes() == before
    heads = helpers.train_args(digits, roformer, "roformer_tiny", "--decoder-attention-heads", 2, updates=9)
    refused(helpers.run("fairseq-train", *heads, check=False), "--decoder-attention-heads 4", "has 2")
    fresh = helpers.train_args(
        digits, tmp_path, "baseline_tiny", "--finetune-from-model", roformer / "checkpoint_last.pt", updates=1
    )
    assert helpers.run("fairseq-train", *fresh).code == 0


def test_fp16_on_the_cpu(digits, tmp_path):
    refused(helpers.run("fairseq-train", *helpers.train_args(digits, tmp_path, "roformer_tiny", "--fp16"), check=False),
            "--fp16 needs a GPU", "--bf16")  # fmt: skip


def test_adaptive_softmax_with_another_criterion(digits, tmp_path):
    flags = ["--adaptive-softmax-cutoff", "10,20"]
    result = helpers.run("fairseq-train", *helpers.train_args(digits, tmp_path, "roformer_tiny", *flags), check=False)
    refused(result, "--adaptive-softmax-cutoff", "--criterion adaptive_loss")


def test_long_sentence(digits, roformer):
    result = generate(digits, roformer / "checkpoint_last.pt", "--max-source-positions", 4)
    refused(result, "a sentence is too long", "max_positions=(4, 1024)", "--skip-invalid-size-inputs-valid-test")
