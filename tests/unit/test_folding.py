"""Folding: the function stays, in float64; which parameters change; what cannot be folded."""

import helpers  # noqa: F401  first, so that fairseq is imported quietly
import models
import pytest
import torch

from fairseq_rope.averaging import average_checkpoints
from fairseq_rope.errors import UserError
from fairseq_rope.folding import fold

SOURCE = models.batch([5, 9, 1, 3])
TARGET = models.batch([4, 1, 8, 6], left=False, bos=2)
REAL = TARGET.ne(1)  # what stands at pads is nobody's output
PLAIN = {"residual_init": "default", "residual_encoder_layers": None, "residual_decoder_layers": None}


def scaled(arch="admin_tiny", seed=1, **flags):
    """A model with scaled shortcuts away from their start, in float64; first blocks of ADMIN at 1."""
    model = models.build(arch, seed=seed, **flags)
    for name, buffer in model.named_buffers():
        if name.endswith("layers.0.self_attn_omega"):
            buffer.fill_(1.0)
    return model.double()


def logits(model):
    model.decoder.need_attn = False  # attention weights for an alignment are computed in float32
    return models.logits(model, SOURCE, TARGET)[REAL]


def plain(state, arch="admin_tiny", **flags):
    """The plain model of the folded parameters ``state``."""
    model = models.build(arch, seed=7, **{**flags, **PLAIN}).double()
    model.load_state_dict(state)
    return model


def difference(model, state, arch="admin_tiny", **flags):
    """Largest difference of the folded model's logits from the model's, relative to the largest logit."""
    before = logits(model)
    return float((before - logits(plain(state, arch, **flags))).abs().max() / before.abs().max())


def routes(blocks):
    return {block.name: block.route for block in blocks}


# ---- the same function ----

EXACT = {
    "sinusoidal": {},
    "rope": {"position_encoding": "rope"},
    "tupe-r": {"position_encoding": "tupe-r", "tupe_reset": "eos"},
    "layernorm-embedding": {"layernorm_embedding": True},
    "no-cross-attention": {"no_cross_attention": True},
    "other-widths": {"encoder_embed_dim": 32, "decoder_embed_dim": 48, "share_all_embeddings": False},
    "admin-torch": {"residual_init": "admin-torch", "layernorm_embedding": True},
    "admin-torch-2-3": {"residual_init": "admin-torch", "layernorm_embedding": True, "decoder_layers": 3},
    "deepnorm": {"residual_init": "deepnorm", "layernorm_embedding": True},
    "deepnorm-3-2": {"residual_init": "deepnorm", "layernorm_embedding": True, "encoder_layers": 3},
    "deepnorm-no-cross-attention": {
        "residual_init": "deepnorm", "no_cross_attention": True, "layernorm_embedding": True,
    },
    "map-of-quant-noise": {
        "residual_init": "admin-torch", "quant_noise_pq": 0.1, "layernorm_embedding": True, "position_encoding": "rope",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT)
def test_input_route_changes_nothing(case):
    flags = EXACT[case]
    model = scaled(**flags)
    state, blocks = fold(model.state_dict(), model.cfg)
    assert "output" not in routes(blocks).values()
    assert difference(model, state, **flags) < 1e-10
    assert not [key for key in state if "omega" in key]


@pytest.mark.parametrize("residual_attention", ["sum", "mean"])
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "tupe-a"])
def test_with_residual_attention(residual_attention, position_encoding):
    flags = {"residual_attention": residual_attention, "position_encoding": position_encoding}
    model = scaled(**flags)
    state, _ = fold(model.state_dict(), model.cfg)
    assert difference(model, state, **flags) < 1e-6  # the stream of scores is float32 in a float64 model too


@pytest.mark.parametrize("residual_init", ["admin-torch", "deepnorm"])
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "rope", "tupe-a"])
@pytest.mark.parametrize("no_cross_attention", [False, True])
def test_output_route_of_the_first_blocks(residual_init, position_encoding, no_cross_attention):
    flags = {
        "residual_init": residual_init,
        "position_encoding": position_encoding,
        "no_cross_attention": no_cross_attention,
    }
    model = scaled(**flags)
    state, blocks = fold(model.state_dict(), model.cfg)
    by_output = [name for name, route in routes(blocks).items() if route == "output"]
    assert by_output == ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn"]
    # LayerNorm's ε of 1e-5, against variances near 1.
    assert 1e-9 < difference(model, state, **flags) < 1e-5
    for module in [*model.modules(), *(folded := plain(state, **flags)).modules()]:
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.0
    before = logits(model)
    assert float((before - logits(folded)).abs().max() / before.abs().max()) < 1e-10  # ε is all there is to it


def test_deep_model_in_float32():
    flags = {"encoder_layers": 30, "decoder_layers": 8, "residual_init": "deepnorm", "position_encoding": "rope"}
    model = scaled(**flags).float()
    state, blocks = fold(model.state_dict(), model.cfg)
    assert len(blocks) == 30 * 2 + 8 * 3
    before = logits(model)
    assert float((before - logits(plain(state, **flags).float())).abs().max() / before.abs().max()) < 1e-5


def test_pruned_model_keeps_the_constants_of_its_training():
    flags = {"residual_init": "deepnorm", "residual_encoder_layers": 9, "residual_decoder_layers": 5}
    model = scaled(**flags)
    state, blocks = fold(model.state_dict(), model.cfg)
    assert blocks[0].smallest == pytest.approx(0.81 * (9**4 * 5) ** (1 / 16), rel=1e-12)
    assert blocks[-1].largest == pytest.approx(15**0.25, rel=1e-12)
    assert difference(model, state, residual_init="deepnorm") < 1e-5


def test_negative_factors():
    model = scaled()
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.ffn_omega_offset.sub_(4)
    state, blocks = fold(model.state_dict(), model.cfg)
    assert blocks[1].largest < 0
    assert difference(model, state) < 1e-10


# ---- parameters ----


def test_what_changes():
    model = scaled()
    before = model.state_dict()
    kept = {key: tensor.clone() for key, tensor in before.items()}
    state, blocks = fold(before, model.cfg)
    assert all(torch.equal(before[key], kept[key]) for key in kept) and len(before) == len(kept)  # not its argument

    def omega(block):
        return kept[f"{block}_omega"] + kept[f"{block}_omega_offset"].float()

    assert list(routes(blocks).values()) == ["none", *["input"] * 3, "none", *["input"] * 5]
    assert [block.stack for block in blocks] == ["encoder"] * 4 + ["decoder"] * 6
    changed = {key for key in state if not torch.equal(state[key], kept[key])}
    expected = {}
    for key, of, how in [
        ("encoder.layers.0.self_attn_layer_norm", "encoder.layers.0.ffn", "norm"),
        ("encoder.layers.0.fc1", "encoder.layers.0.ffn", "map"),
        ("encoder.layers.0.final_layer_norm", "encoder.layers.1.self_attn", "norm"),
        *((f"encoder.layers.1.self_attn.{x}_proj", "encoder.layers.1.self_attn", "map") for x in "qkv"),
        ("encoder.layers.1.self_attn_layer_norm", "encoder.layers.1.ffn", "norm"),
        ("encoder.layers.1.fc1", "encoder.layers.1.ffn", "map"),
        ("decoder.layers.0.self_attn_layer_norm", "decoder.layers.0.encoder_attn", "norm"),
        ("decoder.layers.0.encoder_attn.q_proj", "decoder.layers.0.encoder_attn", "map"),
        ("decoder.layers.0.encoder_attn_layer_norm", "decoder.layers.0.ffn", "norm"),
        ("decoder.layers.0.fc1", "decoder.layers.0.ffn", "map"),
        ("decoder.layers.0.final_layer_norm", "decoder.layers.1.self_attn", "norm"),
        *((f"decoder.layers.1.self_attn.{x}_proj", "decoder.layers.1.self_attn", "map") for x in "qkv"),
        ("decoder.layers.1.self_attn_layer_norm", "decoder.layers.1.encoder_attn", "norm"),
        ("decoder.layers.1.encoder_attn.q_proj", "decoder.layers.1.encoder_attn", "map"),
        ("decoder.layers.1.encoder_attn_layer_norm", "decoder.layers.1.ffn", "norm"),
        ("decoder.layers.1.fc1", "decoder.layers.1.ffn", "map"),
    ]:
        if how == "norm":
            expected |= {f"{key}.{part}": kept[f"{key}.{part}"] * omega(of) for part in ("weight", "bias")}
        else:
            expected[f"{key}.weight"] = kept[f"{key}.weight"] / omega(of)
    assert changed == set(expected)  # so neither the last LayerNorms, nor keys and values of the encoder, nor biases
    for key, want in expected.items():
        torch.testing.assert_close(state[key], want, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_back_in_float32(dtype):
    model = scaled().to(dtype)
    state = model.state_dict()
    assert state["encoder.layers.1.fc1.weight"].dtype == dtype
    assert state["encoder.layers.1.ffn_omega"].dtype == torch.float64  # what was measured is not rounded
    folded, _ = fold(state, model.cfg)
    assert {tensor.dtype for tensor in folded.values() if tensor.is_floating_point()} == {torch.float32}
    tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
    assert len({folded[key].data_ptr() for key in tied}) == 1
    wide = {key: tensor.double() for key, tensor in state.items()}
    exact, _ = fold(wide, model.cfg)
    for key, tensor in folded.items():
        assert torch.equal(tensor, exact[key].float()), key  # rounded once, from float64


def test_the_stored_type_stays():
    model = scaled().float()
    assert {tensor.dtype for tensor in fold(model.state_dict(), model.cfg)[0].values()} == {torch.float32}


def test_average_first_then_fold(tmp_path):
    paths = [tmp_path / "1.pt", tmp_path / "2.pt"]
    for seed, path in enumerate(paths):
        torch.save({"model": scaled(seed=seed).state_dict()}, path)
    averaged, _ = average_checkpoints(paths)
    model = scaled()
    model.load_state_dict(averaged["model"])
    state, _ = fold(averaged["model"], model.cfg)
    assert difference(model, state) < 1e-10


# ---- first blocks of other kinds ----


def first_block(values, **flags):
    """A model, and its state as pruning leaves it: a first layer that was not the first before."""
    model = scaled(**flags)
    state = model.state_dict()
    state["encoder.layers.0.self_attn_omega"] = torch.full((64,), 2.0, dtype=torch.float64)
    state["encoder.layers.0.self_attn_omega_offset"] = values.double()
    model.load_state_dict(state.copy())
    return model, state


def test_vector_in_a_first_block():
    values = torch.linspace(-0.5, 0.5, 64)
    model, state = first_block(values)
    with pytest.raises(UserError, match=r"^encoder\.layers\.0\.self_attn cannot .* differs by dimension \(1\.5 to 2"):
        fold(state, model.cfg)
    # --quant-noise-pq has a map of its own between the encoder's LayerNorm and its first block.
    for flags in (
        {"layernorm_embedding": True},
        {"quant_noise_pq": 0.1},
        {"layernorm_embedding": True, "quant_noise_pq": 0.1},
    ):
        model, state = first_block(values, **flags)
        assert difference(model, fold(state, model.cfg)[0], **flags) < 1e-10


def test_constant_vector_in_a_first_block():
    model, state = first_block(torch.full((64,), 0.25))
    folded, blocks = fold(state, model.cfg)
    assert blocks[0].route == "output" and blocks[0].smallest == 2.25
    assert difference(model, folded) < 1e-5
    model, state = first_block(torch.full((64,), -3.0))
    with pytest.raises(UserError, match="one positive number, but it is negative"):
        fold(state, model.cfg)


# ---- refusals ----


@pytest.mark.parametrize(
    "change, message",
    [
        ({"residual_init": "default"}, "nothing to fold.*--residual-init default.*admin, admin-torch, deepnorm"),
        ({"encoder.normalize_before": True}, "pre-norm.*--encoder-normalize-before"),
        ({"decoder.normalize_before": True}, "pre-norm.*--decoder-normalize-before"),
        ({"cross_self_attention": True}, "--cross-self-attention"),
        ({"quant_noise.scalar": 0.5}, r"--quant-noise-scalar 0\.5"),
        ({"decoder.layers_to_keep": "0,1"}, "--decoder-layers-to-keep 0,1"),
    ],
)
def test_models_that_cannot_be_folded(change, message):
    model = scaled()
    for name, value in change.items():
        group, _, field = name.rpartition(".")
        setattr(getattr(model.cfg, group) if group else model.cfg, field, value)
    with pytest.raises(UserError, match=message):
        fold(model.state_dict(), model.cfg)


KEY = "decoder.layers.1.encoder_attn"


@pytest.mark.parametrize(
    "key, change, message",
    [
        (f"{KEY}_omega", lambda x: x * 0, rf"not measured the model yet \({KEY}_omega is 0\)"),
        (f"{KEY}_omega_offset", lambda x: x * float("nan"), f"{KEY}_omega_offset holds .* no finite"),
        ("encoder.layers.0.fc1.bias", lambda x: x / 0, r"encoder\.layers\.0\.fc1\.bias holds .* no finite"),
        (f"{KEY}.q_proj.weight", None, rf"lacks {KEY}\.q_proj\.weight"),
        (f"{KEY}.q_proj.weight", lambda x: x[:, :10], r"q_proj\.weight has the shape \[64, 10\]"),
        (f"{KEY}.q_proj.weight", lambda x: x[0, 0], r"q_proj\.weight has the shape \[\]"),
        ("encoder.layers.0.final_layer_norm.bias", lambda x: x[1:], r"final_layer_norm\.bias has the shape \[63\]"),
        ("encoder.version", lambda x: "3", r"encoder\.version is a str"),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_folded(key, change, message):
    model = scaled()
    state = model.state_dict()
    tensor = state.pop(key)
    if change is not None:
        state[key] = change(tensor)
    with pytest.raises(UserError, match=message):
        fold(state, model.cfg)


@pytest.mark.parametrize("value", [0.0, 9e-4, -9e-4])
def test_factor_too_near_zero(value):
    model = scaled()
    state = model.state_dict()
    state[f"{KEY}_omega"] = torch.full((64,), 2.0)
    state[f"{KEY}_omega_offset"] = torch.zeros(64)
    state[f"{KEY}_omega_offset"][17] = value - 2
    with pytest.raises(UserError, match=rf"^{KEY} cannot be folded: .* in dimension 17, too near 0 .*at least 0\.001"):
        fold(state, model.cfg)
    state[f"{KEY}_omega_offset"][17] = 1.1e-3 - 2
    model.load_state_dict(state.copy())
    assert difference(model, fold(state, model.cfg)[0]) < 1e-9
