"""Averaging: the mathematics, what is refused, and that a stopped run leaves nothing half-written."""

import os
import re
import resource
import signal
import stat
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import helpers
import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from fairseq_rope.averaging import ModelMean, average_checkpoints, check_weights, tied_groups
from fairseq_rope.checkpoint_files import choose, describe
from fairseq_rope.errors import UserError

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def model(seed=0, dtype=torch.float32, words=7, width=4, layers=1):
    generator = torch.Generator().manual_seed(seed)
    state = OrderedDict()
    state["encoder.embed_tokens.weight"] = torch.randn(words, width, generator=generator).to(dtype)
    for layer in range(layers):
        state[f"encoder.layers.{layer}.fc1.weight"] = torch.randn(width, width, generator=generator).to(dtype)
    state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    return state


def checkpoint(parameters, epoch=1, update=10, loss=3.25, arch="roformer_tiny", heads=4, metric="loss", **more):
    """A checkpoint as fairseq's trainer writes it at an epoch's end."""
    return {
        "args": None,
        "cfg": {
            "model": Namespace(arch=arch, encoder_attention_heads=heads, dropout=0.1 * epoch),
            "checkpoint": {
                "best_checkpoint_metric": metric,
                "maximize_best_checkpoint_metric": metric == "bleu",
            },
        },
        "model": parameters,
        "criterion": None,
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "num_updates": update}],
        "extra_state": {
            "train_iterator": {"version": 2, "epoch": epoch + 1, "iterations_in_epoch": 0},
            "val_loss": loss,
            **more,
        },
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.ones(50)}}},
    }


def write(folder, *states, names=None):
    """Save checkpoints as checkpoint1.pt, checkpoint2.pt, …; returns their paths."""
    names = names or [f"checkpoint{number}.pt" for number in range(1, len(states) + 1)]
    paths = [str(folder / name) for name in names]
    for path, state in zip(paths, states, strict=True):
        torch.save(state, path)
    return paths


def mean_of(models, weights=None, dtype=torch.float64):
    mean = ModelMean(weights or [1.0] * len(models), dtype)
    for number, parameters in enumerate(models):
        assert mean.differences(parameters) == []
        mean.add(dict(parameters), f"model {number}")
    return mean.result()


def bits(tensor):
    """The tensor's bytes: tells -0.0 from 0.0."""
    return tensor.contiguous().view(torch.uint8).tolist()


def average(*args, check=True):
    return helpers.run("fairseq-rope-average", *args, check=check)


# ---- the mathematics ----


@pytest.mark.parametrize("sums", [torch.float64, torch.float32])
@pytest.mark.parametrize("stored", FLOATS)
@pytest.mark.parametrize("copies", [1, 2, 3, 5, 7, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_of_copies_is_the_checkpoint(stored, sums, copies, weighted):
    info = torch.finfo(stored)
    values = torch.cat(
        [
            torch.randn(2000, generator=torch.Generator().manual_seed(copies), dtype=torch.float64),
            torch.tensor([0.0, -0.0, info.max, info.min, info.tiny, -info.tiny, info.smallest_normal / 4]),
            torch.tensor([float("inf"), float("-inf"), 1 / 3, 0.1]),
        ]
    ).to(stored)
    weights = [0.1 + 0.37 * number for number in range(copies)] if weighted else None
    result = mean_of([{"w": values.clone()} for _ in range(copies)], weights, sums)["w"]
    assert result.dtype is stored
    assert bits(result) == bits(values)


@hypothesis.given(
    value=st.floats(width=32, allow_nan=False),
    weights=st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=12).filter(any),
    stored=st.sampled_from(FLOATS),
    sums=st.sampled_from([torch.float64, torch.float32]),
)
@hypothesis.settings(deadline=None, max_examples=300)
def test_copies_with_any_weights(value, weights, stored, sums):
    tensor = torch.tensor([value]).to(stored)
    result = mean_of([{"w": tensor.clone()} for _ in weights], weights, sums)["w"]
    assert bits(result) == bits(tensor)


@pytest.mark.parametrize("stored", FLOATS)
def test_mean_is_that_of_float64_rounded_once(stored):
    models = [{"w": torch.randn(5000, generator=torch.Generator().manual_seed(seed)).to(stored)} for seed in range(4)]
    expected = (sum(m["w"].double() for m in models) / 4).to(stored)
    result = mean_of(models)["w"]
    if stored is torch.float64:
        torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-15)
    else:
        assert torch.equal(result, expected)


def test_bfloat16_sums_do_not_lose_small_terms():
    # Summed in bfloat16, 256 + 1 is 256 again.
    models = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in [256, 1, 1, 1, 1]]
    assert mean_of(models)["w"].item() == 52


def test_weights_are_normalised():
    models = [{"w": torch.tensor([0.0, 8.0])}, {"w": torch.tensor([4.0, 0.0])}]
    assert mean_of(models, [3, 1])["w"].tolist() == [1.0, 6.0]
    assert mean_of(models, [0.75, 0.25])["w"].tolist() == [1.0, 6.0]
    assert mean_of(models, [300, 100], torch.float32)["w"].tolist() == [1.0, 6.0]


def test_equal_weights_are_no_weights():
    # 0.1 is not exact, and in bfloat16 a mean of four is often half-way between two numbers.
    models = [{"w": torch.randn(5000, generator=torch.Generator().manual_seed(seed)).bfloat16()} for seed in range(4)]
    assert torch.equal(mean_of(models, [0.1] * 4)["w"], mean_of(models)["w"])


def test_weight_zero_takes_no_part():
    models = [
        {"w": torch.tensor([float("inf")]), "n": torch.tensor([7])},
        {"w": torch.tensor([2.0]), "n": torch.tensor([5])},
    ]
    result = mean_of(models, [0, 2])
    assert result["w"].item() == 2.0 and result["n"].item() == 5


def test_integers_keep_their_type_and_round_down():
    big = 2**62
    models = [
        {"n": torch.tensor([1, -1, big], dtype=torch.int64), "u": torch.tensor([255], dtype=torch.uint8)},
        {"n": torch.tensor([2, -2, big + 2], dtype=torch.int64), "u": torch.tensor([254], dtype=torch.uint8)},
    ]
    result = mean_of(models)
    assert result["n"].dtype is torch.int64 and result["n"].tolist() == [1, -2, big + 1]
    assert result["u"].dtype is torch.uint8 and result["u"].tolist() == [254]
    assert mean_of(models, [1, 3])["n"].tolist()[:2] == [1, -2]  # 1.75 and -1.75


def test_booleans_must_agree():
    same = {"mask": torch.tensor([True, False])}
    assert mean_of([same, same])["mask"].tolist() == [True, False]
    with pytest.raises(UserError, match=r"model 1: cannot average mask: it is boolean and differs"):
        mean_of([same, {"mask": torch.tensor([True, True])}])


def test_key_order_empty_tensors_scalars_and_metadata_stay():
    first = OrderedDict(z=torch.tensor(3.0), a=torch.empty(0), m=torch.empty(0, 4), b=torch.tensor(5))
    first._metadata = {"": {"version": 2}}
    mean = ModelMean([1.0])
    mean.add(first, "first")
    result = mean.result()
    assert list(result) == ["z", "a", "m", "b"]
    assert result["z"].item() == 3.0 and result["b"].item() == 5 and result["m"].shape == (0, 4)
    assert result._metadata == {"": {"version": 2}}


def test_transposed_and_sliced_tensors():
    base = torch.arange(12.0).view(3, 4)
    result = mean_of([{"t": base.t(), "s": base[:, 1:3]}] * 2)
    assert torch.equal(result["t"], base.t()) and torch.equal(result["s"], base[:, 1:3])


# ---- tied tensors ----


def test_tied_tensors_share_memory_in_the_file(tmp_path):
    paths = write(tmp_path, *[checkpoint(model(seed, words=5000, width=40)) for seed in range(3)])
    out = tmp_path / "mean.pt"
    average("--inputs", *paths, "--output", out)
    loaded = torch.load(out, weights_only=True)["model"]
    encoder, decoder = loaded["encoder.embed_tokens.weight"], loaded["decoder.embed_tokens.weight"]
    assert encoder.data_ptr() == decoder.data_ptr()
    assert out.stat().st_size < 1.2 * encoder.numel() * 4


def test_untied_in_one_checkpoint():
    tied = model(0)
    equal = {key: tensor.clone() for key, tensor in model(1).items()}  # how fairseq saves from a GPU
    result = mean_of([tied, equal])
    assert len(tied_groups(result)) == 2
    torch.testing.assert_close(
        result["encoder.embed_tokens.weight"],
        (tied["encoder.embed_tokens.weight"] + equal["encoder.embed_tokens.weight"]) / 2,
    )

    different = dict(equal)
    different["decoder.embed_tokens.weight"] = equal["decoder.embed_tokens.weight"] + 1
    result = mean_of([tied, different])
    assert len(tied_groups(result)) == 3
    difference = result["decoder.embed_tokens.weight"] - result["encoder.embed_tokens.weight"]
    torch.testing.assert_close(difference, torch.full_like(difference, 0.5))


# ---- a checkpoint as a whole ----


def test_optimiser_state_goes_the_rest_is_the_first_ones(tmp_path):
    paths = write(tmp_path, checkpoint(model(0), 2, 20, 3.0), checkpoint(model(1), 1, 10, 4.0))
    state, infos = average_checkpoints(paths)
    assert "last_optimizer_state" not in state
    assert state["optimizer_history"][-1]["num_updates"] == 20
    assert state["extra_state"]["averaged"] == [
        {"file": "checkpoint1.pt", "epoch": 2, "update": 20, "weight": 1.0},
        {"file": "checkpoint2.pt", "epoch": 1, "update": 10, "weight": 1.0},
    ]
    assert [(info.epoch, info.update, info.value) for info in infos] == [(2, 20, 3.0), (1, 10, 4.0)]


def test_moving_average_restarts_from_the_mean(tmp_path):
    ema = {"ema": model(5), "ema_fp32_params": model(6)}
    state, _ = average_checkpoints(write(tmp_path, *[checkpoint(model(seed), **ema) for seed in (0, 1)]))
    assert "ema_fp32_params" not in state["extra_state"]
    for key, tensor in state["extra_state"]["ema"].items():
        assert tensor.data_ptr() == state["model"][key].data_ptr()


def test_only_one_checkpoint_is_in_memory():
    class Parameters(OrderedDict):
        alive = 0

        def __init__(self, *args):
            super().__init__(*args)
            Parameters.alive += 1

        def __del__(self):
            Parameters.alive -= 1

    seen = []

    def load(path):
        seen.append(Parameters.alive)
        return checkpoint(Parameters(model(int(path))))

    average_checkpoints([str(number) for number in range(5)], load=load)
    assert seen == [0] * 5  # none of the earlier ones is left when the next is loaded


def test_sums_are_the_only_other_memory():
    living, peaks = set(), []

    class Parameter(torch.Tensor):
        def __new__(cls, tensor):
            self = tensor.as_subclass(cls)
            living.add(id(self))
            return self

        def __del__(self):
            living.discard(id(self))

    def load(path):
        parameters = OrderedDict((f"p{n}", Parameter(torch.ones(4, 4) * n)) for n in range(10))
        peaks.append(len(living))
        return checkpoint(parameters)

    average_checkpoints("1234", load=load)
    assert max(peaks) == 10


def test_describe_reads_both_kinds_of_options():
    info = describe("x/checkpoint3.pt", checkpoint(model(), 3, 30, 21.5, metric="bleu"))
    assert (info.name, info.epoch, info.update, info.metric, info.value) == (
        "checkpoint3.pt",
        3,
        30,
        "bleu",
        21.5,
    )
    old = {
        "args": Namespace(arch="transformer", best_checkpoint_metric="nll_loss"),
        "extra_state": {"val_loss": None},
    }
    info = describe("old.pt", old)
    assert (info.epoch, info.update, info.metric, info.value) == (None, None, "nll_loss", None)
    within = checkpoint(model(), 3)
    within["extra_state"]["train_iterator"] = {"version": 2, "epoch": 3, "iterations_in_epoch": 5}
    assert describe("checkpoint_3_5.pt", within).epoch == 3


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
