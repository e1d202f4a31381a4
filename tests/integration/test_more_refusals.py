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
    arguments = [data, "--user-dir", helpers.USER_DIR, "--path", path, "--cpu", "--max-len-b", 12, *extra]
    return helpers.run("fairseq-generate", *arguments, check=False)


@pytest.fixture(scope="module")
def roformer(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roformer")
    helpers.run("fairseq-train", *helpers.train_args(digits, folder, "roformer_tiny", updates=8))
    return folder


def test_diverse_groups_do_not_depend_on_the_batch(digits, roformer):
    """fairseq-generate hands sentence ids to the search, which stock takes for rows of the batch."""
    flags = ["--beam", 4, "--nbest", 4, "--diverse-beam-groups", 2, "--diverse-beam-strength", 1]
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
        "this run has sinusoidal",
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
    refused(
        result,
        "5 source and 5 target tokens",
        "at most 4 and 1024 are allowed",
        "--skip-invalid-size-inputs-valid-test",
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--model-overrides", "{bad"], ["--model-overrides {bad", "not a Python dict"]),
        (["--model-overrides", "{'rope_bsae': 5000}"], ["no option 'rope_bsae'", "'rope_base'"]),
        (["--model-overrides", "{'rope_base': '5000'}"], ["--rope-base must be a number, not '5000'"]),
        (["--beam", "0"], ["--beam must be at least 1, not 0"]),
        (["--lm-path", "nosuch.pt", "--lm-weight", "0.1"], ["--lm-path nosuch.pt", "no such file"]),
        (["--bpe", "subword_nmt", "--bpe-codes", "nosuch"], ["--bpe-codes nosuch", "no such file"]),
    ],
)
def test_generation_values(digits, roformer, flags, words):
    refused(generate(digits, roformer / "checkpoint_last.pt", *flags), *words)


def test_path_is_a_folder_and_several_for_validate(digits, roformer):
    refused(generate(digits, roformer), "is a folder", "checkpoint_best.pt")
    path = f"{roformer}/checkpoint_last.pt:{roformer}/checkpoint_last.pt"
    arguments = [digits, "--user-dir", helpers.USER_DIR, "--task", "translation", "--path", path, "--cpu"]
    refused(helpers.run("fairseq-validate", *arguments, check=False), "fairseq-validate takes one checkpoint")


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--encoder-layers", "0"], ["--encoder-layers must be at least 1, not 0"]),
        (["--decoder-embed-dim", "0"], ["--decoder-embed-dim must be at least 1, not 0"]),
        (["--dropout", "2"], ["--dropout 2.0 is no probability"]),
        (["--rope-base", "inf"], ["--rope-base must be above 1 and finite, not inf"]),
        (["--rope-train-length", "100"], ["--rope-train-length 100 has no effect with --rope-scaling none"]),
        (["--tupe-reset", "first"], ["--tupe-reset first has no effect with --position-encoding rope", "tupe-a"]),
        (["--log-file", ""], ["--log-file"]),
        (["--max-tokens", "3"], ["--max-tokens is too small", "3"]),
    ],
)
def test_training_values(digits, tmp_path, flags, words):
    if "--log-file" in flags:
        (tmp_path / "file").touch()
        flags = ["--log-file", tmp_path / "file" / "x.log"]
    arguments = helpers.train_args(digits, tmp_path / "save", "roformer_tiny", *flags)
    refused(helpers.run("fairseq-train", *arguments, check=False), *words)


def test_scaling_without_rope(digits, tmp_path):
    flags = ["--rope-scaling", "linear", "--rope-scaling-factor", 4]
    result = helpers.run("fairseq-train", *helpers.train_args(digits, tmp_path, "baseline_tiny", *flags), check=False)
    refused(result, "--rope-scaling linear has no effect with --position-encoding sinusoidal", "read by rope")


def test_average_refuses_another_encoding_under_the_same_architecture(digits, roformer, tmp_path):
    sinusoidal = helpers.train_args(digits, tmp_path / "a", "baseline_tiny", updates=1)
    rotary = helpers.train_args(digits, tmp_path / "b", "baseline_tiny", "--position-encoding", "rope", updates=1)
    for arguments in (sinusoidal, rotary):
        helpers.run("fairseq-train", *arguments)
    inputs = [tmp_path / name / "checkpoint_last.pt" for name in "ab"]
    out = tmp_path / "mean.pt"
    result = helpers.run("fairseq-rope-average", "--inputs", *inputs, "--output", out, check=False)
    assert result.code != 0 and "position-encoding" in result.text and not out.exists()


def test_layers_to_keep_is_for_loading(digits, roformer, tmp_path):
    arguments = helpers.train_args(digits, tmp_path, "roformer_tiny", "--encoder-layers-to-keep", "1")
    refused(helpers.run("fairseq-train", *arguments, check=False), "--encoder-layers-to-keep 1", "--model-overrides")
    both = "{'encoder_layers_to_keep': '1', 'decoder_layers_to_keep': '0'}"
    pruned = generate(digits, roformer / "checkpoint_last.pt", "--model-overrides", both)
    assert pruned.code == 0 and len(helpers.hypotheses(pruned.out)) == 20
