"""Every combination of the three axes builds, trains, decodes and is blind to padding, or is refused in words."""

import itertools

import models
import pytest
import torch

from fairseq_rope.config import POSITION_ENCODINGS, RESIDUAL_ATTENTIONS, RESIDUAL_INITS
from fairseq_rope.errors import UserError
from fairseq_rope.models import ARCHITECTURES

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
ALL = list(itertools.product(POSITION_ENCODINGS, RESIDUAL_ATTENTIONS, RESIDUAL_INITS))
BUILD = [(*axes, False) for axes in ALL] + [(*axes, True) for axes in ALL if axes[2] == "default"]
SOURCE, TARGET = models.batch([5, 9, 1]), models.batch([7, 1, 4], bos=2, left=False)


def flags_of(position, attention, init, pre_norm=False):
    flags = {"position_encoding": position, "residual_attention": attention, "residual_init": init}
    return {**flags, **(PRE_NORM if pre_norm else {})}


def test_how_many():
    assert (len(ALL), len(BUILD)) == (72, 90)


@pytest.mark.parametrize(("position", "attention", "init", "pre_norm"), BUILD)
def test_trains_and_decodes(position, attention, init, pre_norm):
    model = models.build("baseline_tiny", **flags_of(position, attention, init, pre_norm))
    # A training pass: a gradient for every parameter, all finite.
    model.train()
    loss = model(SOURCE, SOURCE.ne(1).sum(1), TARGET)[0][TARGET.ne(1)].log_softmax(-1)[:, 9].sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    model.eval()
    full = models.logits(model, SOURCE, TARGET)
    assert torch.isfinite(full).all()
    # Step by step.
    with torch.no_grad():
        encoder_out, state = model.encoder(SOURCE, SOURCE.ne(1).sum(1)), {}
        steps = [
            model.decoder(TARGET[:, :step], encoder_out=encoder_out, incremental_state=state)[0][:, -1]
            for step in range(1, TARGET.size(1) + 1)
        ]
    real = TARGET.ne(1)
    ok, difference = models.close(torch.stack(steps, 1)[real], full[real])
    assert ok, difference
    # Pads of either side change nothing.
    for left_source, left_target in ((False, True), (True, False)):
        source = models.batch([5, 9, 1], left=left_source, extra=3)
        target = models.batch([7, 1, 4], bos=2, left=left_target, extra=2)
        ok, difference = models.close(models.logits(model, source, target)[target.ne(1)], full[real])
        assert ok, difference


@pytest.mark.parametrize("init", RESIDUAL_INITS[1:])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("position", POSITION_ENCODINGS)
def test_scaled_shortcuts_need_post_norm(position, stack, init):
    with pytest.raises(UserError) as refused:
        models.build("baseline_tiny", **flags_of(position, "mean", init), **{f"{stack}_normalize_before": True})
    message = str(refused.value)
    assert f"--residual-init {init}" in message and f"--{stack}-normalize-before" in message
    assert "--residual-init default" in message and "\n" not in message


def test_families_are_presets_of_the_axes():
    axes = ("position_encoding", "residual_attention", "residual_init", "ffn_init")
    want = {
        "baseline": {},
        "roformer": {"position_encoding": "rope"},
        "tupe_a": {"position_encoding": "tupe-a"},
        "tupe_r": {"position_encoding": "tupe-r"},
        "realformer": {"residual_attention": "mean"},
        "admin": {"residual_init": "admin", "ffn_init": "xavier"},
        "realformer_admin": {"residual_attention": "mean", "residual_init": "admin", "ffn_init": "xavier"},
    }
    sizes = {"wmt", "wmt_big", "iwslt", "tiny"}
    deep = {"wmt_12l": (12, 12), "wmt_18l": (18, 18), "wmt_60l_12l": (60, 12)}
    names = {f"{family}_{size}" for family in want for size in sizes}
    names |= {f"{family}_{size}" for family in ("realformer", "admin", "realformer_admin") for size in deep}
    assert set(ARCHITECTURES) == names
    for name, preset in ARCHITECTURES.items():
        family = max((f for f in want if name.startswith(f + "_")), key=len)
        assert {axis: preset[axis] for axis in axes if axis in preset} == want[family]
        size = name[len(family) + 1 :]
        if size in deep:
            assert (preset["encoder_layers"], preset["decoder_layers"]) == deep[size]
            widths = ("embed_dim", "ffn_embed_dim", "attention_heads")
            assert [preset[f"{s}_{w}"] for s in ("encoder", "decoder") for w in widths] == [512, 2048, 8] * 2
            assert preset["dropout"] == 0.1


def test_a_flag_overrides_the_family():
    model = models.build("realformer_admin_tiny", residual_attention="sum", residual_init="default")
    assert model.encoder.cfg.residual_attention == "sum"
    assert not [name for name in model.state_dict() if "omega" in name]


NARROW = {
    f"{stack}_{name}": value
    for stack in ("encoder", "decoder")
    for name, value in {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2}.items()
}


@pytest.mark.parametrize(
    ("row", "dtype"), [(row, (torch.float16, torch.bfloat16)[i % 2]) for i, row in enumerate(models.COVER)]
)
def test_60_layers_in_half_precision(row, dtype):
    """Finite, and near what float32 computes with the same rounded weights."""
    model = models.build("baseline_tiny", encoder_layers=60, decoder_layers=12, **NARROW, **flags_of(*row)).to(dtype)
    half = models.logits(model, SOURCE, TARGET)
    full = models.logits(model.float(), SOURCE, TARGET)
    assert half.dtype == dtype and torch.isfinite(half).all()
    # Rounding of 72 layers adds up to several units; a term left out or doubled changes logits by their own size.
    ok, difference = models.close(half.float(), full, 32 * torch.finfo(dtype).eps)
    assert ok, difference
