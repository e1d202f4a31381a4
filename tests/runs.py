"""Short training and generation runs in this process, and what the tests read from their results."""

import re

import helpers
import torch

# Sizes of baseline_tiny, as flags for stock's own `transformer`.
STOCK_TINY = [
    "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-embed-dim", 64, "--encoder-ffn-embed-dim", 128,
    "--encoder-attention-heads", 4, "--decoder-attention-heads", 4,
]  # fmt: skip

# For runs that are compared bit for bit.
DROPOUT = ["--dropout", 0.2, "--attention-dropout", 0.1, "--activation-dropout", 0.1, "--encoder-layerdrop", 0.2]
QUIET = ["--disable-validation", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 3, "--clip-norm", 1.0]


def train(data, folder, arch, *flags, updates=2, check=True):
    """Train ``updates`` updates into ``folder``, without data workers; the program's Result.

    ``transformer`` gets the sizes of ``_tiny``. A repeated flag overrides an earlier one.
    """
    sizes = STOCK_TINY if arch == "transformer" else []
    flags = ["--num-workers", 0, *sizes, *flags]
    return helpers.run("fairseq-train", *helpers.train_args(data, folder, arch, *flags, updates=updates), check=check)


def generate(data, path, *flags, beam=2, check=True):
    """fairseq-generate of the set ``test`` with the checkpoint (or folder of one) ``path``; the program's Result."""
    path = path / "checkpoint_last.pt" if hasattr(path, "is_dir") and path.is_dir() else path
    return helpers.run(
        "fairseq-generate", data, "--user-dir", helpers.USER_DIR, "--path", path, "--cpu", "--beam", beam,
        "--max-len-a", 0, "--max-len-b", 12, "--num-workers", 0, "--no-progress-bar", *flags,
        check=check,
    )  # fmt: skip


def checkpoint(folder, name="checkpoint_last.pt"):
    """The saved state of a run."""
    return torch.load(folder / name, weights_only=True)


def parameters(folder):
    """{name: tensor} of a run's last checkpoint."""
    return checkpoint(folder)["model"]


def losses(result):
    """Training losses of a run's epochs, in the order of the log."""
    return [float(value) for value in re.findall(r"\| train \| epoch \d+.*?\| loss ([-\d.naif]+)", result.log)]


def valid_losses(text):
    return [float(value) for value in re.findall(r"\| valid \| .*?\| loss ([-\d.naif]+)", text)]


def reason(result):
    """The message of a refused run; fails if it was not refused, or not with one of the program's own sentences."""
    assert result.code != 0, result.text[-2000:]
    assert type(result.error).__name__ == "UserError", result.log[-2000:]
    message = str(result.error)
    assert "\n" not in message
    return message


def assert_equal(a, b, where="state"):
    """Whether two saved states are the same, tensors bit for bit."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{index}]")
    else:
        assert a == b, where


def assert_close(ours, theirs, tolerance=1e-5):
    """Whether two state dicts have the same names and values, to ``tolerance`` of each tensor's largest value."""
    assert list(ours) == list(theirs)
    for name, want in theirs.items():
        difference = float((ours[name] - want).abs().max())
        assert difference <= tolerance * max(float(want.abs().max()), 1e-3), (name, difference)


def lines(text, kinds="HPA"):
    """Rows of fairseq-generate's output of the ``kinds`` (H, P, A, …), sorted by sentence: [(kind-id, [columns])]."""
    rows = [line.split("\t") for line in text.splitlines() if re.match(rf"[{kinds}]-\d+\t", line)]
    return sorted(((row[0], row[1:]) for row in rows), key=lambda row: (int(row[0][2:]), row[0][0]))


def assert_same_lines(ours, theirs, kinds="HPA", tolerance=2e-4):
    """Whether two outputs agree: words and hard alignments exactly, numbers to ``tolerance``."""
    ours, theirs = lines(ours, kinds), lines(theirs, kinds)
    assert [key for key, _ in ours] == [key for key, _ in theirs] and ours
    for (key, a), (_, b) in zip(ours, theirs, strict=True):
        a, b = [re.split(r"[ ,]", " ".join(columns)) for columns in (a, b)]
        assert len(a) == len(b), (key, a, b)
        for x, y in zip(a, b, strict=True):
            if x != y:
                assert abs(float(x) - float(y)) <= tolerance, (key, x, y)
