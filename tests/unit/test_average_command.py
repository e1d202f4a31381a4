"""Averaging: which files are chosen, what is refused, and that a stopped run leaves nothing half-written."""

import os
import re
import resource
import signal
import stat
from pathlib import Path

import pytest
import torch
from averaging_cases import average, bits, checkpoint, model, write

from fairseq_rope.averaging import ModelMean, average_checkpoints, check_weights
from fairseq_rope.checkpoint_files import choose
from fairseq_rope.errors import UserError

# ---- choosing ----


@pytest.fixture
def folder(tmp_path):
    for name in [
        *(f"checkpoint{n}.pt" for n in (1, 2, 9, 10, 11)),
        *(f"checkpoint_{e}_{u}.pt" for e, u in ((1, 500), (1, 1000), (2, 1500))),
        "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint10.pt.tmp", "checkpoint.avg5.pt", "xcheckpoint9.pt",
    ]:  # fmt: skip
        (tmp_path / name).touch()
    return tmp_path


def names(paths):
    return [os.path.basename(path) for path in paths]


def test_last_epochs(folder):
    assert names(choose([folder], epochs=3)) == ["checkpoint11.pt", "checkpoint10.pt", "checkpoint9.pt"]
    assert names(choose([folder], epochs=2, upper_bound=9)) == ["checkpoint9.pt", "checkpoint2.pt"]


def test_last_updates(folder):
    assert names(choose([folder], updates=2)) == ["checkpoint_2_1500.pt", "checkpoint_1_1000.pt"]
    assert names(choose([folder], updates=1, upper_bound=1499)) == ["checkpoint_1_1000.pt"]


@pytest.mark.parametrize("metric, expected", [("nll_loss", ["9.5000", "10.2501"]), ("bleu", ["30.1112", "10.2501"])])
def test_best(tmp_path, metric, expected):
    paths = write(
        tmp_path,
        *[checkpoint(model(), metric=metric)] * 3,
        names=[f"checkpoint.best_{metric}_{value}.pt" for value in ("30.1112", "10.2501", "9.5000")],
    )
    wanted = [f"checkpoint.best_{metric}_{value}.pt" for value in expected]
    load = lambda path: torch.load(path, weights_only=True)  # noqa: E731
    assert names(choose([tmp_path], best=2, load=load)) == wanted
    assert names(choose(paths, best=2, load=load)) == wanted


@pytest.mark.parametrize(
    "options, message",
    [
        ({"epochs": 6}, "6 epoch checkpoints were asked for but 5 found in"),
        (
            {"epochs": 4, "upper_bound": 9},
            "4 epoch checkpoints were asked for but 3 found in .* up to epoch 9",
        ),
        ({"updates": 4}, "4 update checkpoints were asked for but 3 found"),
        ({"best": 1}, "1 best checkpoints were asked for but 0 found"),
        ({"epochs": 0}, "--num-epoch-checkpoints must be at least 1, not 0"),
        ({"upper_bound": 5}, "--checkpoint-upper-bound needs"),
        ({"best": 1, "upper_bound": 5}, "--checkpoint-upper-bound needs"),
        ({"epochs": 1, "best": 1}, "exclude one another"),
        ({}, "is a folder: say which"),
    ],
)
def test_choices_that_are_refused(folder, options, message):
    with pytest.raises(UserError, match=message):
        choose([folder], **options)


def test_choosing_among_files_is_refused(folder):
    with pytest.raises(UserError, match="needs one folder"):
        choose([folder / "checkpoint1.pt", folder / "checkpoint2.pt"], epochs=1)
    with pytest.raises(UserError, match=r"is not named checkpoint\.best_METRIC_VALUE\.pt"):
        choose([folder / "checkpoint_best.pt"], best=1)


def test_best_by_two_metrics_is_refused(tmp_path):
    for metric in ("loss", "bleu"):
        (tmp_path / f"checkpoint.best_{metric}_1.0000.pt").touch()
    with pytest.raises(UserError, match=r"different metrics \(bleu, loss\)"):
        choose([tmp_path], best=1)


# ---- the command ----


def test_command_prints_what_it_averaged(tmp_path):
    write(tmp_path, *[checkpoint(model(n), n, 10 * n, 4 - n / 10) for n in (1, 2, 3)])
    out = tmp_path / "mean.pt"
    result = average("--inputs", tmp_path, "--output", out, "--num-epoch-checkpoints", 2, "--weights", 3, 1)
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["file", "epoch", "update", "valid", "weight"]
    assert lines[1] == ["checkpoint3.pt", "3", "30", "loss", "3.700", "0.7500"]
    assert lines[2] == ["checkpoint2.pt", "2", "20", "loss", "3.800", "0.2500"]
    assert "the mean of 2 checkpoints" in result.out
    assert "averaging" in result.log and "2/2" in result.log  # progress, on standard error
    expected = (
        0.75 * model(3)["encoder.layers.0.fc1.weight"].double()
        + 0.25 * model(2)["encoder.layers.0.fc1.weight"].double()
    ).float()
    assert torch.equal(torch.load(out, weights_only=True)["model"]["encoder.layers.0.fc1.weight"], expected)


def test_same_file_several_times_is_that_file(tmp_path):
    (path,) = write(tmp_path, checkpoint(model(4, torch.bfloat16)))
    out = tmp_path / "mean.pt"
    average("--inputs", path, path, path, "--output", out, "--dtype", "float32")
    for key, tensor in torch.load(out, weights_only=True)["model"].items():
        assert bits(tensor) == bits(model(4, torch.bfloat16)[key])


def test_file_has_ordinary_permissions_and_links_stay(tmp_path):
    paths = write(tmp_path, checkpoint(model()))
    (tmp_path / "link.pt").symlink_to("real.pt")
    before = os.umask(0o022)
    try:
        average("--inputs", *paths, "--output", tmp_path / "link.pt")
    finally:
        os.umask(before)
    assert (tmp_path / "link.pt").is_symlink()
    assert stat.S_IMODE((tmp_path / "real.pt").stat().st_mode) == 0o644


OTHER = {
    "architecture": (
        checkpoint(model(), arch="baseline_tiny"),
        r"--arch baseline_tiny instead of roformer_tiny",
    ),
    "heads": (checkpoint(model(), heads=2), r"--encoder-attention-heads 2 instead of 4"),
    "more keys": (checkpoint(model(layers=2)), r"it has besides encoder\.layers\.1\.fc1\.weight"),
    "fewer keys": (checkpoint(model(layers=0)), r"it lacks encoder\.layers\.0\.fc1\.weight"),
    "many keys": (checkpoint(model(layers=20)), r"encoder\.layers\.6\.fc1\.weight and 13 more"),
    "dictionary": (
        checkpoint(model(words=9)),
        r"encoder\.embed_tokens\.weight \(dictionary of 9 x 4 instead of 7 x 4\)",
    ),
    "width": (checkpoint(model(width=6)), r"encoder\.layers\.0\.fc1\.weight \(6 x 6 instead of 4 x 4\)"),
    "integers": (
        checkpoint(model() | {"encoder.layers.0.fc1.weight": torch.ones(4, 4, dtype=torch.int64)}),
        r"fc1\.weight \(torch\.int64 instead of torch\.float32\)",
    ),
    "not a number": (
        checkpoint(model() | {"encoder.layers.0.fc1.weight": torch.full((4, 4), float("nan"))}),
        r"checkpoint2\.pt: encoder\.layers\.0\.fc1\.weight holds a NaN",
    ),
    "no tensor": (
        checkpoint(model() | {"encoder.layers.0.fc1.weight": 3}),
        r"fc1\.weight, which is a int, not a tensor",
    ),
    "complex": (
        checkpoint(model() | {"encoder.layers.0.fc1.weight": torch.ones(4, 4, dtype=torch.complex64)}),
        r"torch\.complex64",
    ),
    "no model": ({"weights": model()}, r"checkpoint2\.pt .*model"),
    "a list": ([1, 2], r"checkpoint2\.pt .*list"),
}


@pytest.mark.parametrize("other", OTHER)
def test_checkpoints_that_do_not_belong_together(tmp_path, other):
    state, message = OTHER[other]
    paths = write(tmp_path, checkpoint(model()), state)
    out = tmp_path / "mean.pt"
    out.write_text("old")
    result = average("--inputs", *paths, "--output", out, check=False)
    refused(result, message)
    assert out.read_text() == "old" and sorted(names(tmp_path.iterdir())) == [
        "checkpoint1.pt",
        "checkpoint2.pt",
        "mean.pt",
    ]


def refused(result, message):
    """One line on standard error (after any progress bar), a non-zero exit, nothing on standard output."""
    lines = [line for line in result.log.replace("\r", "\n").splitlines() if line and not line.startswith("averaging:")]
    assert result.code in (1, 2) and result.out == ""
    assert len(lines) == 1 and lines[0].startswith("fairseq-rope-average: error: "), result.log
    assert re.search(message, lines[0]), lines[0]


def test_dropout_and_folders_may_differ(tmp_path):
    first, second = checkpoint(model(0)), checkpoint(model(1))
    second["cfg"]["model"].dropout, second["cfg"]["model"].data = 0.3, "elsewhere"
    average("--inputs", *write(tmp_path, first, second), "--output", tmp_path / "mean.pt")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--num-epoch-checkpoints", "5"], "5 epoch checkpoints were asked for but 2 found"),
        (["--num-epoch-checkpoints", "x"], "invalid int value: 'x'"),
        (["--num-epoch-checkpoints", "1", "--num-best-checkpoints", "1"], "not allowed with"),
        (["--num-epoch-checkpoints", "2", "--weights", "1"], r"1 weights \(1\) for 2 checkpoints"),
        (["--num-epoch-checkpoints", "2", "--weights", "1", "-1"], "not negative: 1 -1"),
        (["--num-epoch-checkpoints", "2", "--weights", "0", "0"], "at least one weight must be above 0"),
        (["--num-epoch-checkpoints", "2", "--weights", "nan", "1"], "finite"),
        (["--num-epoch-checkpoints", "2", "--dtype", "float16"], "invalid choice: 'float16'"),
        ([], "is a folder"),
    ],
)
def test_arguments_that_are_refused(tmp_path, arguments, message):
    write(tmp_path, checkpoint(model(0)), checkpoint(model(1)))
    result = average("--inputs", tmp_path, "--output", tmp_path / "mean.pt", *arguments, check=False)
    refused(result, message)
    assert not (tmp_path / "mean.pt").exists()


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "foreign", "forbidden"])
def test_damaged_input(tmp_path, damage):
    good, bad = write(tmp_path, checkpoint(model(0)), checkpoint(model(1)))
    if damage == "missing":
        os.remove(bad)
    elif damage == "truncated":
        os.truncate(bad, 500)
    elif damage == "empty":
        os.truncate(bad, 0)
    elif damage == "foreign":
        with open(bad, "w") as file:
            file.write("not a checkpoint\n")
    else:
        torch.save(checkpoint(model(1)) | {"x": pytest.Config}, bad)
    refused(average("--inputs", good, bad, "--output", tmp_path / "mean.pt", check=False), "checkpoint2.pt")
    assert not (tmp_path / "mean.pt").exists()


def test_output_that_cannot_be_written(tmp_path):
    (path,) = write(tmp_path, checkpoint(model()))
    before = Path(path).read_bytes()
    refused(average("--inputs", path, "--output", path, check=False), "is one of the checkpoints to average")
    (tmp_path / "other.pt").symlink_to(path)
    refused(average("--inputs", path, "--output", tmp_path / "other.pt", check=False), "is one of the checkpoints")
    refused(average("--inputs", path, "--output", tmp_path / "no" / "x.pt", check=False), "there is no folder")
    refused(average("--inputs", path, "--output", tmp_path, check=False), "it is a folder")
    assert Path(path).read_bytes() == before


def test_full_disk(tmp_path):
    (path,) = write(tmp_path, checkpoint(model(words=20000, width=10)))
    out = tmp_path / "mean.pt"
    out.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
    try:
        result = average("--inputs", path, "--output", out, check=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.code == 1 and "error: cannot write" in result.log
    assert out.read_text() == "old" and sorted(names(tmp_path.iterdir())) == ["checkpoint1.pt", "mean.pt"]


@pytest.mark.parametrize("stop, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_writing(tmp_path, monkeypatch, stop, code):
    paths = write(tmp_path, checkpoint(model()))
    out = tmp_path / "mean.pt"
    out.write_text("old")
    handler = signal.getsignal(signal.SIGTERM)

    def half(state, file):
        file.write(b"PK half")
        file.flush()
        assert len(os.listdir(tmp_path)) == 3  # the temporary file is in the same folder
        os.kill(os.getpid(), stop)

    monkeypatch.setattr(torch, "save", half)
    result = average("--inputs", *paths, "--output", out, check=False)
    assert result.code == code
    assert out.read_text() == "old" and sorted(names(tmp_path.iterdir())) == ["checkpoint1.pt", "mean.pt"]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_killed_while_writing(tmp_path, monkeypatch):
    paths = write(tmp_path, checkpoint(model()))
    out = tmp_path / "mean.pt"

    def half(state, file):
        file.write(b"PK half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(torch, "save", half)
    child = os.fork()
    if child == 0:
        try:
            average("--inputs", *paths, "--output", out, check=False)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not out.exists()
    monkeypatch.undo()
    average("--inputs", *paths, "--output", out)  # what it left behind is in nobody's way
    assert torch.load(out, weights_only=True)["model"]


def test_no_checkpoints_and_weights_as_a_library():
    with pytest.raises(UserError, match="no checkpoint"):
        average_checkpoints([])
    assert check_weights(None, 2) == [1.0, 1.0]
    with pytest.raises(ValueError, match="1 models added for 2 weights"):
        mean = ModelMean([1, 1])
        mean.add(model(), "first")
        mean.result()
