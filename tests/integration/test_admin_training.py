"""ADMIN inside one fairseq-train command: measured once, kept in the checkpoint, whatever happens to the run."""

import json

import helpers
import pytest
import runs
import torch
from fairseq.trainer import Trainer

from fairseq_rope.compat import checkpoints

QUIET = ["--disable-validation"]
MEASURED = "ADMIN: measured the encoder's 4 shortcuts"


def omegas(folder, name="checkpoint_last.pt"):
    """{name: number} of the measured shortcuts in a checkpoint."""
    model = runs.checkpoint(folder, name)["model"]
    found = {key: value for key, value in model.items() if key.endswith("_omega")}
    assert len(found) == 10 and all(value.dtype == torch.float32 for value in found.values())
    assert all(bool((value == value[0]).all()) and value[0] >= 1 for value in found.values())
    return {key: float(value[0]) for key, value in found.items()}


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    result = runs.train(
        digits, folder, "admin_tiny", *QUIET, "--admin-profile-out", folder / "profile.json",
        "--save-interval-updates", 2, updates=4,
    )  # fmt: skip
    return folder, result.log


def test_one_command(trained):
    folder, log = trained
    assert log.count(MEASURED) == 1 and "wrote the profile" in log
    profile = json.loads((folder / "profile.json").read_text())
    got = omegas(folder)
    assert [got[f"encoder.layers.{i}.{b}_omega"] for i in range(2) for b in ("self_attn", "ffn")] == pytest.approx(
        profile["encoder"]["omega"], rel=1e-6
    )
    assert omegas(folder, "checkpoint_1_2.pt") == got
    model = runs.parameters(folder)
    offsets = [value for key, value in model.items() if key.endswith("_omega_offset")]
    assert len(offsets) == 8 and all(float(value.abs().max()) > 0 for value in offsets)


def test_generates_and_resumes_from_elsewhere(trained, digits, tmp_path, monkeypatch):
    """With nothing but checkpoint and dictionary, from another folder, and with the profile gone."""
    folder, _ = trained
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["model"].admin_profile_out is None
    (tmp_path / "run").mkdir()
    torch.save(state, tmp_path / "run" / "checkpoint_last.pt")
    monkeypatch.chdir(tmp_path)
    assert len(helpers.hypotheses(runs.generate(digits, tmp_path / "run").out)) == 20
    result = runs.train(digits, tmp_path / "run", "admin_tiny", *QUIET, updates=6)
    assert "ADMIN: measured" not in result.log and "@ 4 updates)" in result.log
    assert omegas(tmp_path / "run") == omegas(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_profile_in_is_the_measurement(trained, digits, tmp_path):
    folder, _ = trained
    # A resumed run needs no file, so a missing one is noticed by the first update.
    result = runs.train(digits, tmp_path, "admin_tiny", *QUIET, "--admin-profile-in", tmp_path / "no.json", check=False)
    assert "no.json cannot be read" in runs.reason(result)
    assert not list(tmp_path.glob("checkpoint*"))
    flags = ["--admin-profile-in", folder / "profile.json", *QUIET]
    result = runs.train(digits, tmp_path, "admin_tiny", *flags, updates=4)
    assert "ADMIN: measured" not in result.log and "shortcuts from the profile" in result.log
    runs.assert_equal(runs.parameters(tmp_path), runs.parameters(folder))


@pytest.mark.parametrize(
    "flags",
    [
        ["--update-freq", 3],
        ["--bf16"],
        ["--checkpoint-activations", "--offload-activations", "--residual-attention", "sum"],
        ["--encoder-layerdrop", 0.6, "--decoder-layerdrop", 0.6],
        ["--residual-attention", "mean", "--position-encoding", "rope", "--amp"],
    ],
    ids=lambda flags: flags[0],
)
def test_with_other_ways_of_training(digits, tmp_path, flags):
    result = runs.train(digits, tmp_path, "admin_tiny", *flags, *QUIET, updates=3)
    assert result.log.count(MEASURED) == 1
    assert 0 < runs.losses(result)[0] < 12
    assert max(omegas(tmp_path).values()) > 1.3
    assert len(helpers.hypotheses(runs.generate(digits, tmp_path).out)) == 20


@pytest.mark.parametrize("flags", [[], ["--bf16", "--update-freq", 2]], ids=["fp32", "bf16"])
def test_moving_average(digits, tmp_path, flags):
    """--store-ema keeps a copy of the model; what is measured is copied, what is trained is averaged."""
    flags = [*QUIET, "--store-ema", "--ema-decay", 0.9, "--ema-fp32", *flags]
    runs.train(digits, tmp_path, "admin_tiny", *flags, updates=2)
    runs.train(digits, tmp_path, "admin_tiny", *flags, updates=4)
    state = runs.checkpoint(tmp_path)
    ema = state["extra_state"]["ema"]
    for name, value in state["model"].items():
        if name.endswith("_omega"):
            assert torch.equal(ema[name], value)
    name = "decoder.layers.1.ffn_omega_offset"
    assert 0 < float(ema[name].abs().max()) < float(state["model"][name].abs().max())


@pytest.mark.parametrize("how", ["--restore-file", "--finetune-from-model"])
def test_moving_average_of_a_run_without_one(trained, digits, tmp_path, how):
    """The average starts from the checkpoint's parameters, whether the run is resumed or fine-tuned."""
    folder, _ = trained
    flags = [*QUIET, how, folder / "checkpoint_last.pt", "--store-ema", "--ema-decay", 0.5, "--lr", 0]
    flags += ["--reset-optimizer"] if how == "--restore-file" else []
    runs.train(digits, tmp_path, "admin_tiny", *flags, updates=6)
    state = runs.checkpoint(tmp_path)
    before = runs.parameters(folder)
    assert set(state["extra_state"]["ema"]) == set(before)
    for name, value in state["extra_state"]["ema"].items():
        assert torch.allclose(value, before[name]), name


def test_moving_average_of_a_pre_norm_model(digits, tmp_path):
    """The copy keeps the LayerNorm after the last layer; stock takes it for a checkpoint from before there was one."""
    flags = ["--encoder-normalize-before", "--decoder-normalize-before", "--store-ema", "--ema-decay", 0.5]
    runs.train(digits, tmp_path, "roformer_tiny", *QUIET, *flags, updates=2)
    runs.train(digits, tmp_path, "roformer_tiny", *QUIET, *flags, updates=4)
    state = runs.checkpoint(tmp_path)
    assert list(state["extra_state"]["ema"]) == list(state["model"])
    assert "decoder.layer_norm.weight" in state["model"]
    assert float(state["extra_state"]["ema"]["decoder.version"]) == 3


class Killed(BaseException):
    """Ends a run in the middle, where no handler of fairseq catches it."""


def _kill_at(monkeypatch, update, after):
    """Let the trainer die in the given update (from 1), before or after it has been done."""
    stock = Trainer.train_step

    def train_step(self, *args, **kwargs):
        number = self.get_num_updates() + 1
        if number == update and not after:
            monkeypatch.setattr(self.optimizer, "backward", lambda loss: (_ for _ in ()).throw(Killed()))
        out = stock(self, *args, **kwargs)
        if number == update:
            raise Killed
        return out

    monkeypatch.setattr(Trainer, "train_step", train_step)


@pytest.mark.parametrize("after", [False, True])
def test_killed_in_the_first_update_and_started_again(digits, tmp_path, monkeypatch, after):
    flags = [*QUIET, "--save-interval-updates", 1, "--dropout", 0.2]
    runs.train(digits, tmp_path / "whole", "admin_tiny", *flags, updates=3)
    with monkeypatch.context() as patch:
        _kill_at(patch, 1, after)
        with pytest.raises(Killed):
            runs.train(digits, tmp_path / "killed", "admin_tiny", *flags, updates=3)
    assert not list((tmp_path / "killed").glob("*.pt"))
    runs.train(digits, tmp_path / "killed", "admin_tiny", *flags, updates=3)
    runs.assert_equal(runs.parameters(tmp_path / "killed"), runs.parameters(tmp_path / "whole"))
    with monkeypatch.context() as patch:  # and once more with a checkpoint there
        _kill_at(patch, 5, after)
        with pytest.raises(Killed):
            runs.train(digits, tmp_path / "killed", "admin_tiny", *flags, updates=6)
    result = runs.train(digits, tmp_path / "killed", "admin_tiny", *flags, updates=6)
    assert "ADMIN: measured" not in result.log and "@ 4 updates)" in result.log
    runs.train(digits, tmp_path / "whole", "admin_tiny", *flags, updates=6)
    runs.assert_equal(runs.parameters(tmp_path / "killed"), runs.parameters(tmp_path / "whole"))


def test_an_overflow_in_the_first_update(digits, tmp_path):
    """Updates whose gradients overflow are skipped; the measured values stay, and nothing is measured twice."""
    flags = [*QUIET, "--memory-efficient-fp16", "--fp16-init-scale", 2**26]
    result = runs.train(digits, tmp_path, "admin_tiny", *flags, updates=2)
    assert result.log.count(MEASURED) == 1 and result.log.count("gradient overflow detected") >= 2
    assert runs.checkpoint(tmp_path)["optimizer_history"][-1]["num_updates"] == 2
    assert max(omegas(tmp_path).values()) > 1.3


def test_fine_tuning_from_a_plain_model(digits, tmp_path):
    """A plain model's function is kept: its shortcuts count as measured, with ω = 1."""
    runs.train(digits, tmp_path / "plain", "baseline_tiny", *QUIET, updates=2)
    plain = tmp_path / "plain" / "checkpoint_last.pt"
    result = runs.train(
        digits, tmp_path / "tuned", "admin_tiny", *QUIET, "--finetune-from-model", plain, "--lr", 0, updates=1
    )
    assert "ADMIN: measured" not in result.log
    assert set(omegas(tmp_path / "tuned").values()) == {1.0}
    assert runs.generate(digits, tmp_path / "tuned").out == runs.generate(digits, tmp_path / "plain").out


def test_profiles_without_effect_are_named(trained, digits, tmp_path):
    """Where a checkpoint holds the shortcuts neither file is read or written, and the log says so."""
    folder, _ = trained
    out = tmp_path / "p.json"
    flags = [*QUIET, "--restore-file", folder / "checkpoint_last.pt"]
    result = runs.train(digits, tmp_path, "admin_tiny", *flags, "--admin-profile-out", out, updates=6)
    assert result.log.count("so --admin-profile-out has no effect") == 1 and not out.exists()


def test_fine_tuning_across_constants_is_refused(digits, tmp_path):
    """DeepNorm's and admin-torch's shortcuts are constants, which no parameter's name or shape would give away."""
    for init in ("default", "deepnorm", "admin-torch"):
        runs.train(digits, tmp_path / init, "baseline_tiny", *QUIET, "--residual-init", init, updates=1)
    for before, flags in (
        ("deepnorm", ["--residual-init", "default"]),
        ("deepnorm", ["--residual-init", "admin"]),
        ("admin-torch", ["--residual-init", "admin"]),
        ("default", ["--residual-init", "deepnorm"]),
        ("deepnorm", ["--residual-init", "deepnorm", "--residual-encoder-layers", 9]),
    ):
        checkpoint = tmp_path / before / "checkpoint_last.pt"
        result = runs.train(
            digits, tmp_path / "new", "baseline_tiny", *QUIET, *flags, "--finetune-from-model", checkpoint, check=False
        )
        message = runs.reason(result)
        assert f"they were trained with --residual-init {before}" in message
        assert ("fairseq-rope-fold" in message) == (before != "default")
    flags = ["--residual-init", "deepnorm", "--finetune-from-model", tmp_path / "deepnorm" / "checkpoint_last.pt"]
    runs.train(digits, tmp_path / "new", "baseline_tiny", *QUIET, *flags, updates=1)


def test_what_really_does_not_fit_is_named(digits, tmp_path):
    """A plain checkpoint lacks ω, which is completed; the reason for refusing it is something else."""
    runs.train(digits, tmp_path, "baseline_tiny", *QUIET, "--encoder-learned-pos", updates=1)
    checkpoint = tmp_path / "checkpoint_last.pt"
    result = runs.train(
        digits, tmp_path / "new", "admin_tiny", *QUIET, "--finetune-from-model", checkpoint, check=False
    )
    assert "the checkpoint has encoder.embed_positions.weight, which this model lacks" in runs.reason(result)


def test_resuming_with_another_axis_is_refused(trained, digits, tmp_path):
    folder, _ = trained
    for flags, name in (
        (["--residual-init", "default"], "--residual-init admin, this run has default"),
        (["--residual-init", "deepnorm"], "--residual-init admin, this run has deepnorm"),
        (["--residual-attention", "sum"], "--residual-attention none, this run has sum"),
    ):
        result = runs.train(
            digits, tmp_path, "admin_tiny", *QUIET, *flags, "--restore-file", folder / "checkpoint_last.pt", check=False
        )
        assert name in runs.reason(result)


def test_a_checkpoint_is_loaded_safely(trained):
    folder, _ = trained
    assert set(checkpoints.load_state(folder / "checkpoint_last.pt")) >= {"model", "cfg"}
