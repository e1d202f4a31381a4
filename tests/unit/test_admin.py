"""ADMIN's measurement and its life cycle, against a loop in float64 and by what a checkpoint must survive."""

import copy
import math

import models
import pytest
import torch

from fairseq_rope.errors import UserError
from fairseq_rope.residual import Measurement, is_unmeasured

SOURCE = models.batch([7, 3, 12])
TARGET = models.batch([6, 9, 2], bos=2, left=False)


def run(model):
    return model(SOURCE, SOURCE.ne(1).sum(1), TARGET)[0]


def omegas(model, stack):
    """ω of each block in order of execution, after checking that each is one number repeated."""
    blocks = ("self_attn", "ffn") if stack == "encoder" else ("self_attn", "encoder_attn", "ffn")
    vectors = [
        getattr(layer, f"{block}_omega") for layer in getattr(model, stack).layers.children() for block in blocks
    ]
    assert all(bool((vector == vector[0]).all()) for vector in vectors)
    return [float(vector[0]) for vector in vectors]


# --- the recurrence, written once more without any of the package's layers ---


def _norm(x, p, name):
    return torch.nn.functional.layer_norm(x, (x.size(-1),), p[f"{name}.weight"], p[f"{name}.bias"])


def _linear(x, p, name):
    return x @ p[f"{name}.weight"].t() + p[f"{name}.bias"]


def _attention(x, memory, keep, p, name, heads=4):
    def split(y):
        return y.view(y.size(0), y.size(1), heads, -1).transpose(1, 2)

    q, k, v = (split(_linear(y, p, f"{name}.{m}_proj")) for y, m in ((x, "q"), (memory, "k"), (memory, "v")))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
    weights = scores.masked_fill(~keep, float("-inf")).softmax(-1)
    return _linear((weights @ v).transpose(1, 2).flatten(2), p, f"{name}.out_proj")


def reference_profile(model):
    """ω by stack, from the formula: ω_1 = 1, ω_{i+1}^2 = Var(ω_i x) + Var(f_i(x)); float64, no dropout."""
    p = {name: value.detach().double() for name, value in model.state_dict().items()}
    result, memory = {}, None
    for stack, tokens in (("encoder", SOURCE), ("decoder", TARGET)):
        positions = getattr(model, stack).embed_positions.embed(tokens, tokens.size(1)).double()
        x = p[f"{stack}.embed_tokens.weight"][tokens] * 8 + positions  # sqrt(64) = 8
        pads = tokens.eq(1)
        keep = ~pads[:, None, None, :]
        if stack == "encoder":
            x = x.masked_fill(pads[:, :, None], 0)
        else:
            keep = torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool).tril()[None, None]
        blocks = ["self_attn", "encoder_attn", "final"] if stack == "decoder" else ["self_attn", "final"]
        ratio, profile = 1.0, []
        for layer in range(2):
            name = f"{stack}.layers.{layer}"
            for block in blocks:
                if block == "final":
                    branch = _linear(_linear(x, p, f"{name}.fc1").relu(), p, f"{name}.fc2")
                elif block == "encoder_attn":
                    branch = _attention(x, memory, SOURCE.ne(1)[:, None, None, :], p, f"{name}.encoder_attn")
                else:
                    branch = _attention(x, x, keep, p, f"{name}.self_attn")
                shortcut = ratio * x
                profile.append(ratio)
                ratio = math.sqrt(shortcut.numpy().var() + branch.numpy().var())
                x = _norm(shortcut + branch, p, f"{name}.{block}_layer_norm")
        result[stack] = profile
        memory = x
    return result


def test_first_training_pass_measures_by_the_recurrence():
    model = models.unmeasured(dropout=0.0)
    want = reference_profile(model)
    assert is_unmeasured(model.encoder.layers) and is_unmeasured(model.decoder.layers)
    run(model)
    assert not is_unmeasured(model.encoder.layers) and not is_unmeasured(model.decoder.layers)
    for stack, blocks in (("encoder", 4), ("decoder", 6)):
        got = omegas(model, stack)
        assert len(got) == blocks and got[0] == 1.0
        assert got == pytest.approx(want[stack], rel=2e-6)
        assert got == sorted(got) and got[-1] > 1.3


def test_dropout_is_part_of_what_is_measured():
    profiles = []
    for seed in (1, 2):
        model = models.unmeasured(dropout=0.3)
        torch.manual_seed(seed)
        run(model)
        profiles.append(omegas(model, "encoder"))
    assert profiles[0][1] != profiles[1][1]


def test_the_measuring_pass_already_computes_with_the_measured_values():
    model = models.unmeasured(dropout=0.0)
    measured, again = run(model), run(model)
    assert torch.equal(measured, again)
    assert models.close(model.eval()(SOURCE, SOURCE.ne(1).sum(1), TARGET)[0], again)[0]


def test_measured_once():
    model = models.unmeasured(dropout=0.0)
    run(model)
    before = omegas(model, "decoder")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7)
    run(model)
    assert omegas(model, "decoder") == before


def test_an_unmeasured_model_evaluates_with_omega_one():
    admin = models.unmeasured()
    plain = models.build("baseline_tiny", ffn_init="xavier")
    plain.load_state_dict({k: v for k, v in admin.state_dict().items() if "_omega" not in k})
    assert torch.equal(models.logits(admin.eval(), SOURCE, TARGET), models.logits(plain.eval(), SOURCE, TARGET))
    assert is_unmeasured(admin.encoder.layers)


def test_a_plain_checkpoint_counts_as_measured_with_omega_one():
    """Fine-tuning: the function stays that of the plain model, and the first update does not change it."""
    plain = models.build("baseline_tiny", seed=5)
    admin = models.unmeasured(dropout=0.0)
    admin.load_state_dict(plain.state_dict())
    assert omegas(admin, "encoder") == [1.0] * 4 and omegas(admin, "decoder") == [1.0] * 6
    run(admin)
    assert omegas(admin, "encoder") == [1.0] * 4
    assert torch.equal(models.logits(admin.eval(), SOURCE, TARGET), models.logits(plain, SOURCE, TARGET))


def test_only_a_whole_plain_layer_counts_as_measured():
    """Loading an embedding, or a layer whose ω got lost, must not switch the measurement off."""
    model = models.unmeasured(dropout=0.0)
    model.load_state_dict({"encoder.embed_tokens.weight": torch.randn(44, 64)}, strict=False)
    assert is_unmeasured(model.encoder.layers) and is_unmeasured(model.decoder.layers)
    state = models.build("admin_tiny").state_dict()
    del state["encoder.layers.1.ffn_omega"]
    with pytest.raises(UserError, match=r"lacks encoder\.layers\.1\.ffn_omega"):
        model.load_state_dict(state)
    closed_form = models.build("admin_tiny", residual_init="admin-torch").state_dict()
    with pytest.raises(UserError, match=r"lacks encoder\.layers\.0\.self_attn_omega"):
        model.load_state_dict(closed_form)


def test_a_small_offset_has_an_effect_in_bfloat16():
    """ω + offset is not rounded to the model's precision, where 8.8 + 0.02 would be 8.8."""
    model = models.unmeasured(dropout=0.0)
    run(model)
    layer = model.encoder.layers[1].to(torch.bfloat16)
    layer.ffn_omega.fill_(8.8)
    x = torch.full((1, 1, 64), 1.7, dtype=torch.bfloat16)
    want = layer.scaled_shortcut("ffn", x, x)
    with torch.no_grad():
        layer.ffn_omega_offset.fill_(0.03)
    moved = layer.scaled_shortcut("ffn", x * 4, x)
    assert moved.dtype == torch.bfloat16
    assert torch.equal(moved, ((8.8 + float(torch.tensor(0.03).bfloat16())) * x.float() * 4).bfloat16())
    assert not torch.equal(moved, want * 4)


def test_names_and_the_fixed_first_block():
    """One buffer a block; an offset for all but the first of each stack; nothing else."""
    admin = models.build("admin_tiny").state_dict()
    more = [name for name in admin if name not in models.build("baseline_tiny").state_dict()]
    want = set()
    for stack, blocks in (("encoder", ("self_attn", "ffn")), ("decoder", ("self_attn", "encoder_attn", "ffn"))):
        for layer in range(2):
            for block in blocks:
                name = f"{stack}.layers.{layer}.{block}_omega"
                want |= {name, f"{name}_offset"} - ({f"{name}_offset"} if (layer, block) == (0, "self_attn") else set())
    assert set(more) == want and len(more) == len(want)
    assert all(admin[name].shape == (64,) and admin[name].dtype == torch.float32 for name in more)
    assert list(models.build("realformer_admin_tiny").state_dict()) == list(admin)


def test_the_offset_s_gradient_is_that_of_omega():
    model = models.unmeasured(dropout=0.0)
    run(model)
    layer = model.decoder.layers[1]
    kept = {}
    layer.encoder_attn_layer_norm.register_forward_hook(lambda *args: kept.update(input=args[1][0]))
    layer.self_attn_layer_norm.register_forward_hook(lambda *args: kept.update(shortcut=args[2]))
    logits = run(model)
    kept["input"].retain_grad()
    logits[TARGET.ne(1)].log_softmax(-1)[:, 7].sum().backward()
    want = (kept["input"].grad * kept["shortcut"]).sum((0, 1))
    assert torch.allclose(layer.encoder_attn_omega_offset.grad, want, rtol=1e-4, atol=1e-6)
    assert float(want.abs().max()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_measured_values_survive_half_precision(dtype):
    model = models.unmeasured(dropout=0.0)
    run(model)
    before = {name: value.clone() for name, value in model.named_buffers() if name.endswith("_omega")}
    half = model.to(dtype)
    assert half.encoder.layers[1].ffn_omega_offset.dtype == dtype
    for name, value in half.named_buffers():
        if name.endswith("_omega"):
            assert value.dtype == torch.float32 and torch.equal(value, before[name])
    assert torch.isfinite(run(half)).all() and run(half).dtype == dtype
    unmeasured = models.unmeasured(dropout=0.0).to(dtype)
    run(unmeasured)
    assert omegas(unmeasured, "decoder") == pytest.approx(omegas(model, "decoder"), rel=0.02)


@pytest.mark.parametrize("where", ["encoder", "decoder"])
def test_a_pass_that_fails_leaves_the_model_unmeasured(where):
    model = models.unmeasured(dropout=0.0)
    stack = getattr(model, where)
    stack.layers[1].fc2.weight.data[3, 3] = float("inf")
    with pytest.raises(UserError, match=rf"in block \d of the {where} .* finite and not both 0"):
        run(model)
    assert is_unmeasured(model.encoder.layers) and is_unmeasured(model.decoder.layers)
    stack.layers[1].fc2.weight.data[3, 3] = 0.01
    run(model)
    assert not is_unmeasured(model.encoder.layers)


def test_layerdrop_drops_nothing_while_measuring():
    model = models.unmeasured(dropout=0.0, encoder_layerdrop=0.9, decoder_layerdrop=0.9)
    whole = models.unmeasured(dropout=0.0)
    run(model)
    run(whole)
    for stack in ("encoder", "decoder"):
        assert omegas(model, stack) == omegas(whole, stack)


@pytest.mark.parametrize("arch", ["admin_tiny", "realformer_admin_tiny"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_activation_checkpointing_measures_once_and_keeps_the_gradients(arch, dropout):
    results = []
    for checkpointed in (False, True):
        model = models.unmeasured(arch, dropout=dropout, checkpoint_activations=checkpointed)
        model.requires_grad_(True)
        torch.manual_seed(3)
        loss = run(model)[TARGET.ne(1)].log_softmax(-1)[:, 7].sum()
        profile = omegas(model, "encoder") + omegas(model, "decoder")
        loss.backward()  # with checkpointing the layers run once more here
        assert omegas(model, "encoder") + omegas(model, "decoder") == profile
        results.append((loss, profile, [parameter.grad for parameter in model.parameters()]))
    (loss, profile, gradients), (loss_again, profile_again, gradients_again) = results
    assert torch.equal(loss, loss_again) and profile == profile_again
    scale = max(float(g.abs().max()) for g in gradients)
    for a, b in zip(gradients, gradients_again, strict=True):
        assert torch.allclose(a, b, atol=1e-6 * scale)


def test_two_models_in_one_process():
    one, two = models.unmeasured(seed=1, dropout=0.0), models.unmeasured(seed=2, dropout=0.0)
    run(one)
    assert is_unmeasured(two.encoder.layers)
    run(two)
    assert omegas(one, "encoder") != omegas(two, "encoder")
    first = models.logits(one.eval(), SOURCE, TARGET)
    other = models.build("admin_tiny", seed=9)
    other.load_state_dict(two.state_dict())
    assert torch.equal(models.logits(other, SOURCE, TARGET), models.logits(two.eval(), SOURCE, TARGET))
    assert torch.equal(models.logits(one, SOURCE, TARGET), first)


def test_a_model_can_be_copied_while_its_graph_lives():
    """A moving average copies the model between forward and backward pass."""
    model = models.unmeasured(dropout=0.0)
    loss = run(model).sum()
    twin = copy.deepcopy(model)
    loss.backward()
    assert omegas(twin, "decoder") == omegas(model, "decoder")


@pytest.mark.parametrize("init", ["admin", "admin-torch"])
def test_a_model_pruned_of_its_first_layer_keeps_its_function(init):
    """The second layer's trained ω is there in a block that would have none as the first of its stack."""
    whole = models.build("admin_tiny", residual_init=init)
    state = {}
    for name, value in whole.state_dict().items():
        if ".layers.0." not in name:
            state[name.replace(".layers.1.", ".layers.0.")] = value
    depth = {"residual_encoder_layers": 2, "residual_decoder_layers": 2} if init == "admin-torch" else {}
    pruned = models.build("admin_tiny", residual_init=init, encoder_layers=1, decoder_layers=1, **depth)
    pruned.load_state_dict(state)
    del whole.encoder.layers[0], whole.decoder.layers[0]
    assert models.close(models.logits(pruned, SOURCE, TARGET), models.logits(whole, SOURCE, TARGET))[0]


def test_measured_with_the_method_that_is_trained():
    """RealFormer and RoPE change what the branches compute, so they change the profile."""
    profiles = {}
    for name, flags in (
        ("plain", {}),
        ("mean", {"residual_attention": "mean"}),
        ("sum", {"residual_attention": "sum"}),
        ("rope", {"position_encoding": "rope"}),
    ):
        model = models.unmeasured(dropout=0.0, **flags)
        run(model)
        profiles[name] = omegas(model, "encoder")
    assert len({tuple(profile) for profile in profiles.values()}) == 4
    assert profiles["plain"][:3] == profiles["mean"][:3]  # the first layer has no stream yet
    assert profiles["rope"][1] < profiles["plain"][1]  # no sinusoids in x_0 (SPECS 4.1)


def test_variances_are_of_all_elements():
    measurement = Measurement("encoder")
    layer = models.build("admin_tiny").encoder.layers[0]
    assert torch.equal(measurement.begin(layer, "self_attn"), torch.ones(64))
    shortcut, branch = torch.randn(5, 3, 64) + 2, torch.randn(5, 3, 64) * 3
    measurement.end(shortcut, branch)
    want = math.sqrt(shortcut.double().numpy().var() + branch.double().numpy().var())
    assert float(measurement.begin(layer, "ffn")[0]) == pytest.approx(want, rel=1e-7)
    assert measurement.shortcut_variances[0] == pytest.approx(shortcut.double().numpy().var(), rel=1e-12)
