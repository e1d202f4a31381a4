"""A pairwise covering set of the three axes goes through the programs: train, resume, average, generate."""

import helpers
import models
import pytest
import runs
import torch

from fairseq_rope.config import POSITION_ENCODINGS, RESIDUAL_ATTENTIONS, RESIDUAL_INITS

# Pre-norm exists with the default initialisation only.
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
RUNS = [(*axes, False) for axes in models.COVER] + [
    (position, RESIDUAL_ATTENTIONS[i % 3], "default", True) for i, position in enumerate(POSITION_ENCODINGS)
]
MORE = {"tupe-a": ["--tupe-reset", "first"], "tupe-r": ["--tupe-reset", "eos", "--tupe-reset-form", "joint"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The digits with eight test sentences: each is translated alone, too, in every run."""
    folder = tmp_path_factory.mktemp("eight")
    splits = (("train", 200), ("valid", 20), ("test", 8))
    return helpers.binarize(helpers.write_digits(folder / "text", splits), folder / "bin")


def test_the_set_covers_all_pairs():
    for a, b in ((0, 1), (0, 2), (1, 2)):
        values = (POSITION_ENCODINGS, RESIDUAL_ATTENTIONS, RESIDUAL_INITS)
        assert len({(row[a], row[b]) for row in models.COVER}) == len(values[a]) * len(values[b])


@pytest.mark.parametrize(("position", "attention", "init", "pre_norm"), RUNS)
def test_train_resume_average_generate(data, tmp_path, position, attention, init, pre_norm):
    flags = ["--position-encoding", position, "--residual-attention", attention, "--residual-init", init]
    flags += [*MORE.get(position, []), *(PRE_NORM if pre_norm else []), *runs.DROPOUT, *runs.QUIET]
    flags += ["--encoder-layerdrop", 0]  # so that every parameter moves; test_resume.py has it
    # Two updates, a new start and another one are three updates.
    runs.train(data, tmp_path / "whole", "baseline_tiny", *flags, updates=3)
    runs.train(data, tmp_path / "halves", "baseline_tiny", *flags, updates=2)
    half = runs.checkpoint(tmp_path / "halves")
    result = runs.train(data, tmp_path / "halves", "baseline_tiny", *flags, updates=3)
    assert "@ 2 updates)" in result.log and "ADMIN: measured" not in result.log
    whole, halves = (runs.checkpoint(tmp_path / folder) for folder in ("whole", "halves"))
    runs.assert_equal(halves["model"], whole["model"])
    runs.assert_equal(halves["last_optimizer_state"], whole["last_optimizer_state"])
    for name, value in whole["model"].items():
        moved = not torch.equal(value, half["model"][name])
        trained = not name.endswith(("version", "_omega"))
        # A key's bias adds the same to all scores of a query, so the softmax cancels it; Adam still moves it by noise.
        assert moved == trained or name.endswith("k_proj.bias"), name

    # The mean of copies is the checkpoint, and that of two checkpoints loads.
    last = tmp_path / "whole" / "checkpoint_last.pt"
    helpers.run("fairseq-rope-average", "--inputs", last, last, last, "--output", tmp_path / "same.pt")
    runs.assert_equal(dict(runs.checkpoint(tmp_path, "same.pt")["model"]), dict(whole["model"]))
    torch.save(half, tmp_path / "half.pt")
    helpers.run("fairseq-rope-average", "--inputs", tmp_path / "half.pt", last, "--output", tmp_path / "mean.pt")

    # One sentence at a time or all at once: the same hypotheses.
    one, all_ = (
        runs.generate(data, tmp_path / "mean.pt", "--batch-size", size, "--max-len-b", 8, beam=3).out
        for size in (1, 64)
    )
    assert len(helpers.hypotheses(one)) == 8
    runs.assert_same_lines(all_, one, kinds="HP")
