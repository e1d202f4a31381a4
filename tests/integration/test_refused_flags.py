"""Flags that a model cannot have are refused when it is built, in one sentence with the values and what is valid."""

import re

import helpers
import pytest
import runs
from fairseq import options, tasks

from fairseq_rope.errors import UserError

BOTH = [  # flags, and what the message must say
    (
        ["--residual-init", "admin", "--encoder-normalize-before"],
        "--residual-init admin scales the shortcuts of a post-norm Transformer, but --encoder-normalize-before asks "
        "for pre-norm; drop it, or use --residual-init default",
    ),
    (["--residual-init", "deepnorm", "--decoder-normalize-before"], "--decoder-normalize-before asks for pre-norm"),
    (["--residual-encoder-layers", 6], "--residual-encoder-layers is read with --residual-init admin-torch and"),
    (["--residual-init", "deepnorm", "--residual-decoder-layers", 0], "--residual-decoder-layers must be at least 1"),
    (["--tupe-reset", "first"], "--tupe-reset first has no effect with --position-encoding"),
    (["--position-encoding", "tupe-a", "--relative-buckets", 16], "--relative-buckets 16 has no effect with"),
    (["--position-encoding", "tupe-r", "--relative-buckets", 7], "--relative-buckets must be even and at least 4"),
    (["--position-encoding", "tupe-r", "--relative-max-distance", 16], "--relative-max-distance must be above half"),
    (["--position-encoding", "tupe-a", "--cross-self-attention"], "so tupe-a cannot relate them; use"),
    (["--position-encoding", "tupe-r", "--encoder-learned-pos"], "says tupe-r; drop one of the two"),
    (
        ["--residual-init", "admin", "--admin-profile-in", "x", "--admin-profile-out", "y"],
        "--admin-profile-in replaces the measurement",
    ),
    (["--admin-profile-out", "x"], "--admin-profile-out needs --residual-init admin, but it is default"),
    (["--admin-profile-in", "x"], "--admin-profile-in needs --residual-init admin, but it is default"),
    (["--encoder-attention-heads", 5], "--encoder-attention-heads 5 does not divide --encoder-embed-dim 64"),
    (["--decoder-attention-heads", 7], "--decoder-attention-heads 7 does not divide --decoder-embed-dim 64"),
    (["--untied-embeddings", "--share-all-embeddings"], "--untied-embeddings contradicts --share-all-embeddings"),
    (["--adaptive-softmax-cutoff", "9", "--share-decoder-input-output-embed"], "the output cannot share embeddings"),
    (["--merge-src-tgt-embed"], "--merge-src-tgt-embed is not supported"),
    (["--encoder-xformers-att-config", "{}"], "--encoder-xformers-att-config is not supported"),
    (["--position-encoding", "learned", "--no-token-positional-embeddings"], "says learned, which adds some"),
    (["--position-encoding", "none", "--encoder-learned-pos"], "says none; drop one of the two"),
    (["--position-encoding", "rope", "--decoder-learned-pos"], "--decoder-learned-pos asks for learned positions"),
]
ROPE = [
    (["--cross-self-attention"], "use --position-encoding sinusoidal, learned or none"),
    (["--encoder-learned-pos"], "--encoder-learned-pos asks for learned positions, but --position-encoding"),
    (["--encoder-embed-dim", 36, "--decoder-embed-dim", 36], "the head size must be even, but it is 9"),
    (["--rope-base", 1], "--rope-base must be above 1 and finite, not 1.0"),
    (["--rope-scaling", "linear", "--rope-scaling-factor", 0.5], "--rope-scaling-factor must be at least 1, not 0.5"),
    (["--rope-scaling-factor", 2], "--rope-scaling-factor 2.0 has no effect with --rope-scaling none; choose linear"),
    (["--rope-scaling", "yarn"], "--rope-scaling yarn needs --rope-train-length"),
    (["--rope-scaling", "dynamic-ntk", "--rope-train-length", 0], "(at least 1), but it is 0"),
]
BASELINE = [
    (["--cross-self-attention", "--encoder-embed-dim", 32, "--decoder-embed-dim", 64], "of one width, not 32 and 64"),
]


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [("roformer_tiny", *row) for row in ROPE]
    + [("baseline_tiny", *row) for row in BASELINE]
    + [(("roformer_tiny", "baseline_tiny")[i % 2], *row) for i, row in enumerate(BOTH)],
)
def test_refused(digits, tmp_path, arch, flags, message):
    """fairseq-train's own way from flags to a model, without the rest of the program."""
    args = options.parse_args_and_arch(
        options.get_training_parser(), [str(arg) for arg in helpers.train_args(digits, tmp_path, arch, *flags)]
    )
    task = tasks.setup_task(args)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        task.build_model(args)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("arch", "flags", "message"), [("roformer_tiny", *ROPE[0]), ("baseline_tiny", *BOTH[0])])
def test_refused_by_the_program(digits, tmp_path, arch, flags, message):
    result = runs.train(digits, tmp_path, arch, *flags, check=False)
    assert message in runs.reason(result)
    assert not list(tmp_path.glob("*.pt"))


def test_scalar_quantisation_noise_on_a_cpu(digits, tmp_path, monkeypatch):
    """fairseq's scalar quantisation calls CUDA: stock's `transformer` ends with torch's assertion about it."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = runs.train(digits, tmp_path, "roformer_tiny", "--quant-noise-scalar", 0.5, check=False)
    assert runs.reason(result).startswith("--quant-noise-scalar 0.5 needs a GPU")


@pytest.mark.parametrize("arch", ["roformer_tiny", "baseline_tiny"])
def test_one_matrix_for_two_dictionaries(digits_separate, tmp_path, arch):
    result = runs.train(digits_separate, tmp_path, arch, "--share-all-embeddings", check=False)
    message = runs.reason(result)
    assert "--share-all-embeddings needs one dictionary" in message and "--joined-dictionary" in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("{'position_encoding':'tupe-r','relative_buckets':5}", "--relative-buckets must be even and at least 4"),
        ("{'position_encoding':'rotary'}", "--position-encoding rotary: no such value; choose one of sinusoidal"),
        ("{'rope_scaling':'ntk','rope_scaling_factor':0.5}", "--rope-scaling-factor must be at least 1, not 0.5"),
    ],
)
def test_model_overrides_are_checked_too(trained, digits, override, message):
    """argparse has not seen these values."""
    assert message in runs.reason(runs.generate(digits, trained, "--model-overrides", override, check=False))


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    runs.train(digits, folder, "roformer_tiny", updates=1)
    return folder
