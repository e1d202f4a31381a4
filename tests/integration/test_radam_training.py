"""``--optimizer radam`` in fairseq's programs, with the recipes' learning-rate schedules."""

import re
from pathlib import Path

import fairseq
import pytest
import runs
import torch

import fairseq_rope  # noqa: F401  registers radam

RADAM = ["--optimizer", "radam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", 0.0]  # as the official recipes say it
WARM_UP = ["--lr-scheduler", "inverse_sqrt", "--warmup-init-lr", 1e-7, "--warmup-updates", 3]
LINEAR = ["--lr-scheduler", "polynomial_decay", "--warmup-updates", 2, "--power", 1]


def learning_rates(result):
    """{number of updates: the rate that the next one has} from a log with --log-interval 1."""
    found = re.findall(r"num_updates=(\d+), lr=([\d.e-]+)", result.log)
    return {int(updates): float(rate) for updates, rate in found}


@pytest.mark.parametrize("arch", ["roformer_tiny", "admin_tiny"])
def test_idle_updates_and_resume(digits, tmp_path, arch):
    """Five updates change no parameter; five and three more are eight, bit for bit, moments included."""
    flags = [*RADAM, *WARM_UP, "--weight-decay", 0.01, "--dropout", 0.2, "--disable-validation"]
    runs.train(digits, tmp_path / "one", arch, *flags, updates=1)
    runs.train(digits, tmp_path / "whole", arch, *flags, updates=8)
    runs.train(digits, tmp_path / "halves", arch, *flags, updates=5)
    five = runs.checkpoint(tmp_path / "halves")
    runs.train(digits, tmp_path / "halves", arch, *flags, updates=8)
    one, whole, halves = (runs.checkpoint(tmp_path / name) for name in ("one", "whole", "halves"))
    runs.assert_equal(five["model"], one["model"])
    moments = five["last_optimizer_state"]["state"]
    assert {state["step"] for state in moments.values()} == {5}
    assert all(state["exp_avg_sq"].abs().max() > 0 for state in moments.values())
    runs.assert_equal(halves["model"], whole["model"])
    runs.assert_equal(halves["last_optimizer_state"], whole["last_optimizer_state"])
    names = ["encoder.layers.1.fc1.weight", "decoder.layers.0.encoder_attn.q_proj.weight"]
    names += ["decoder.layers.1.ffn_omega_offset"] if arch == "admin_tiny" else []
    for name in names:
        assert not torch.equal(whole["model"][name], five["model"][name]), name
    group = whole["last_optimizer_state"]["param_groups"][0]
    assert list(group["betas"]) == [0.9, 0.98] and group["weight_decay"] == 0.01


def test_linear_decay_to_zero(digits, tmp_path):
    """RealFormer's schedule: up in two updates, then straight down to 0 at the last one."""
    flags = [*RADAM, *LINEAR, "--total-num-update", 10, "--lr", 0.004, "--disable-validation"]
    result = runs.train(digits, tmp_path / "run", "realformer_tiny", *flags, updates=10)
    want = {1: 0.002, 2: 0.004, 3: 0.0035, 4: 0.003, 5: 0.0025, 6: 0.002, 7: 0.0015, 8: 0.001, 9: 0.0005, 10: 0.0}
    assert learning_rates(result) == pytest.approx(want, abs=1e-9)
    state = runs.checkpoint(tmp_path / "run")["last_optimizer_state"]
    assert state["param_groups"][0]["lr"] == 0


def test_learns(digits, tmp_path):
    """The loss falls once the idle updates are over."""
    flags = [*RADAM, *WARM_UP, "--lr", 0.01, "--max-epoch", 6, "--disable-validation"]
    losses = runs.losses(runs.train(digits, tmp_path, "roformer_tiny", *flags, updates=0))
    assert losses[-1] < 0.8 * losses[0], losses


@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-fp16"])
def test_half_precision(digits, tmp_path, flag):
    """Masters or moments in fp32, and parameters that move after the idle updates."""
    flags = [*RADAM, *WARM_UP, "--disable-validation", flag, "--fp16-init-scale", 4]
    runs.train(digits, tmp_path, "admin_tiny", *flags, updates=5)
    five = runs.checkpoint(tmp_path)
    result = runs.train(digits, tmp_path, "admin_tiny", *flags, updates=7)
    assert "@ 5 updates)" in result.log and all(0 < loss < 20 for loss in runs.losses(result))
    seven = runs.checkpoint(tmp_path)
    for state in seven["last_optimizer_state"]["state"].values():
        assert state["step"] == 7 and state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    name = "encoder.layers.1.fc1.weight"
    assert torch.isfinite(seven["model"][name]).all()
    assert not torch.equal(seven["model"][name], five["model"][name])


def test_bad_values_end_in_one_line(digits, tmp_path):
    refused = runs.train(digits, tmp_path, "roformer_tiny", *RADAM, "--adam-betas", "(0.9, 1)", check=False)
    assert runs.reason(refused) == "--adam-betas (0.9, 1): both must be at least 0 and below 1"
    refused = runs.train(digits, tmp_path, "roformer_tiny", *RADAM, "--adam-eps", -1, check=False)
    assert runs.reason(refused) == "--adam-eps -1.0: it must be a finite number that is not negative"
    assert not list(tmp_path.iterdir())


def test_hydra_by_name(monkeypatch):
    """`fairseq-hydra-train +optimizer._name=radam`: hydra needs no file, as it composes before radam is registered."""
    from fairseq import optim
    from fairseq.dataclass.initialize import add_defaults, hydra_init
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore

    hydra_init("config")
    monkeypatch.delitem(ConfigStore.instance().repo["optimizer"], "radam.yaml")
    overrides = ["+optimizer._name=radam", "+optimizer.adam_betas=[0.9,0.98]", "optimization.lr=[0.25]"]
    with initialize_config_dir(str(Path(fairseq.__file__).parent / "config")):
        cfg = compose("config", overrides=["task=translation", "lr_scheduler=fixed", *overrides])
    add_defaults(cfg)
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    want = {"lr": 0.25, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.0}
    assert type(optimizer).__name__ == "FairseqRAdam" and optimizer.optimizer_config == want
