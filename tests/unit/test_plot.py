"""fairseq-rope-plot: the parser on fairseq's own lines, resumed logs, and the picture."""

import struct
from pathlib import Path

import helpers
import pytest

from fairseq_rope.cli.plot import default_labels, draw
from fairseq_rope.errors import UserError
from fairseq_rope.training_log import TrainingLog, read_training_log

INNER = "2026-01-01 00:00 | INFO | train_inner | "
SIMPLE = (
    INNER + "epoch 001:      2 / 4 loss=4.633, nll_loss=4.5, ppl=24.81, num_updates={u}, lr=0.005, wall=1\n",
    "2026-01-01 00:00 | INFO | {s} | epoch 001 | valid on '{s}' subset | loss 3.536 | nll_loss 3.4 | ppl 11.6 | "
    "num_updates {u} | best_loss 3.1\n",
    "2026-01-01 00:00 | INFO | train | epoch 001 | loss 4.326 | nll_loss 4.2 | num_updates {u} | lr 0.005\n",
)
JSON = (
    INNER + '{{"epoch": 1, "update": 0.5, "loss": "4.633", "nll_loss": "4.5", "num_updates": "{u}"}}\n',
    '2026-01-01 00:00 | INFO | {s} | {{"epoch": 1, "{s}_loss": "3.536", "{s}_nll_loss": "3.4", '
    '"{s}_num_updates": "{u}", "{s}_best_loss": "3.1"}}\n',
    '2026-01-01 00:00 | INFO | train | {{"epoch": 1, "train_loss": "4.326", "train_num_updates": "{u}"}}\n',
)


def inner(update, loss):
    return SIMPLE[0].format(u=update).replace("4.633", str(loss))


def read(folder, text):
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8")
    return read_training_log(path)


@pytest.mark.parametrize("lines", [SIMPLE, JSON], ids=["simple", "json"])
@pytest.mark.parametrize("subset", ["valid", "dev"])
def test_both_formats(tmp_path, lines, subset):
    text = "".join(line.format(u=2, s=subset) for line in lines)
    assert read(tmp_path, text) == TrainingLog(train={2: 4.633}, valid={2: 3.536})


@pytest.mark.parametrize("lines", [SIMPLE, JSON], ids=["simple", "json"])
def test_other_logging_forms(tmp_path, lines):
    text = "".join(line.format(u=2, s="valid") for line in lines)
    python = text.replace("2026-01-01 00:00 | INFO | ", "INFO:").replace("train_inner | ", "train_inner:")
    hydra = text.replace("2026-01-01 00:00 | INFO | ", "[2026-01-01 00:00,123][")
    for tag in ("train_inner", "valid", "train"):
        hydra = hydra.replace(f"[{tag} | ", f"[{tag}][INFO] - ")
    assert read(tmp_path, python).train == read(tmp_path, hydra).train == {2: 4.633}
    assert read(tmp_path, hydra).valid == {2: 3.536}


def test_epoch_averages_only_where_nothing_finer_is_logged(tmp_path):
    assert read(tmp_path, SIMPLE[2].format(u=4)).train == {4: 4.326}


def test_first_of_several_subsets(tmp_path):
    text = SIMPLE[1].format(u=2, s="valid") + SIMPLE[1].format(u=2, s="valid1").replace("3.536", "9.9")
    assert read(tmp_path, text).valid == {2: 3.536}


def test_resumed_log(tmp_path):
    before = [inner(update, 5) for update in (10, 20, 30)]
    after = [inner(update, 4) for update in (20, 25)]
    assert read(tmp_path, "".join(before + ["Killed\n"] + after)).train == {10: 5, 20: 4, 25: 4}
    assert read(tmp_path, "".join(before + [inner(10, 3)])).train == {10: 3}


def test_damaged_lines_are_passed_over(tmp_path):
    path = tmp_path / "train.log"
    cut = [
        SIMPLE[0].format(u=9)[:60],
        JSON[0].format(u=9)[:70],
        INNER + "epoch 001: loss=x, num_updates=3",
        "\xff",
    ]
    not_finite = [inner(6, "nan"), inner(7, "inf")]
    path.write_bytes("\n".join([inner(2, 5), *cut, *not_finite, inner(8, 4)]).encode("latin-1"))
    assert read_training_log(path).train == {2: 5, 8: 4}


def test_real_logs(digits, tmp_path):
    logs = {}
    for form in ("simple", "json"):
        extra = ["--log-format", form, "--validate-interval-updates", 2, "--no-save"]
        result = helpers.run(
            "fairseq-train", *helpers.train_args(digits, tmp_path, "transformer_tiny", *extra, updates=4)
        )
        logs[form] = read(tmp_path, result.log)
    assert logs["simple"] == logs["json"]
    assert list(logs["simple"].train) == [2, 3, 4] or list(logs["simple"].train) == [1, 2, 3, 4]
    assert {2, 4} <= set(logs["simple"].valid)
    assert all(1 < loss < 10 for loss in [*logs["simple"].train.values(), *logs["simple"].valid.values()])


def test_drawn_values():
    logs = [TrainingLog({1: 5.0, 2: 4.0}, {2: 4.5}), TrainingLog({}, {3: 3.0, 4: 2.0})]
    (axes,) = draw(logs, ["a", "_b"]).axes
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert drawn == {
        "a, training": ([1, 2], [5.0, 4.0]),
        "a, validation": ([2], [4.5]),
        "b, validation": ([3, 4], [3.0, 2.0]),
    }
    assert axes.get_xlabel() == "update" and axes.get_ylabel() == "loss (bits per target token)"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(drawn)


@pytest.mark.parametrize(("only", "want"), [("training", [[3.0, 2.0]] * 2), ("validation", [[1.0]] * 2)])
def test_one_of_the_two_losses(only, want):
    """Five runs and both losses would be ten lines."""
    logs = [TrainingLog(train={1: 3.0, 2: 2.0}, valid={2: 1.0})] * 2
    lines = draw(logs, ["a", "b"], only).axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == want
    assert [line.get_label() for line in lines] == [f"a, {only}", f"b, {only}"]


def test_labels():
    assert default_labels(["x/a/train.log", "x/b/train.log"]) == ["a", "b"]
    assert default_labels(["a/1.log", "a/2.log", "b/1.log"]) == ["a/1.log", "a/2.log", "b"]
    assert default_labels(["train.log"]) == [Path.cwd().name]


def test_program_writes_a_picture(tmp_path):
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "train.log").write_text(inner(2, 5) + inner(4, 4) + SIMPLE[1].format(u=4, s="valid"))
    out = tmp_path / "loss.png"
    result = helpers.run("fairseq-rope-plot", tmp_path / "one/train.log", tmp_path / "two/train.log", "--out", out)
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 600 and height > 400
    assert result.out.splitlines()[:2] == [
        f"{run}: training 4.000 at update 4, best validation 3.536 at update 4" for run in ("one", "two")
    ]
    assert result.log == ""


@pytest.mark.parametrize(
    "log, arguments, message",
    [
        ("nothing here\n", [], "holds no losses"),
        ("", [], "holds no losses"),
        (inner(1, "nan"), [], "holds no losses"),
        (None, [], "cannot read"),
        (inner(1, 2), ["--label", "a", "b"], "2 labels for 1 logs"),
        (inner(1, 2), ["--out", "loss.jpeg"], "must end in .png, .pdf, .svg"),
        (inner(1, 2), ["--out", "none/loss.png"], "there is no folder none"),
        (inner(1, 2), ["--only", "validation"], "train.log holds no validation loss"),
    ],
)
def test_refusals(tmp_path, monkeypatch, log, arguments, message):
    monkeypatch.chdir(tmp_path)
    if log is not None:
        (tmp_path / "train.log").write_text(log)
    (tmp_path / "loss.png").write_text("old")
    result = helpers.run("fairseq-rope-plot", "train.log", "--out", "loss.png", *arguments, check=False)
    (line,) = result.log.splitlines()
    assert result.code in (1, 2) and line.startswith("fairseq-rope-plot: error: ") and message in line
    assert (tmp_path / "loss.png").read_text() == "old"


def test_library_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        read_training_log(tmp_path)
