"""Updates of several accumulated batches, some of them the fillers of a process that has no more data."""

import itertools

import pytest
import runs
import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer


@pytest.fixture(scope="module")
def trainer(digits, tmp_path_factory):
    """A trainer after one update, without dropout, whose updates are the gradients themselves; and two batches."""
    seen = {}
    stock = Trainer.train_step

    def train_step(self, samples, *args, **kwargs):
        seen.setdefault("samples", []).extend(samples)
        seen["trainer"] = self
        return stock(self, samples, *args, **kwargs)

    flags = ["--disable-validation", "--dropout", 0, "--optimizer", "sgd", "--lr", 1, "--max-tokens", 100]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", train_step)
        runs.train(digits, tmp_path_factory.mktemp("accumulation"), "roformer_tiny", *flags, updates=2)
    return seen["trainer"], seen["samples"][:2]


def step(trainer, samples):
    """Parameters after one update from the same state, and what it logged."""
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    try:
        with metrics.aggregate(new_root=True) as logged:
            trainer.train_step(samples)
        after = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    finally:
        trainer.model.load_state_dict(before)
    values = logged.get_smoothed_values()
    return after, {key: float(values[key]) for key in ("loss", "gnorm", "wpb", "bsz")}


def close(one, other):
    return all(torch.allclose(value, other[name], rtol=1e-5, atol=1e-7) for name, value in one.items())


def test_fillers_change_nothing(trainer):
    trainer, (first, second) = trainer
    expected, figures = step(trainer, [first, second])
    assert figures["bsz"] == len(first["id"]) + len(second["id"]) and figures["gnorm"] > 0
    assert not close(expected, step(trainer, [first])[0])
    for places in itertools.permutations([first, second, {}]):
        after, logged = step(trainer, [*places, {}])
        assert close(after, expected)
        assert logged == pytest.approx(figures, rel=1e-5)


def test_fillers_alone(trainer):
    """A process without data in an update adds nothing; alone it leaves the parameters as they are."""
    trainer, _ = trainer
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.zero_grad()
    trainer.train_step([{}, {}])
    runs.assert_equal(dict(trainer.model.state_dict()), before)
