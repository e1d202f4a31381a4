"""RealFormer (He et al. 2021): score streams against a hand-unrolled stack in float64, and what they go through."""

import copy
import math

import models
import pytest
import torch
from fairseq.modules import LayerDropModuleList

from fairseq_rope.attention import MultiheadAttention, attend

SMALL = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_layers": 3,
    "decoder_layers": 3,
}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}


def small(mode, **flags):
    """A model of width 16 with three layers a stack and ``--residual-attention mode``."""
    return models.build("realformer_tiny", **{**SMALL, "residual_attention": mode, **flags})


class Reference:
    """A stack in float64, written from the formulas: S_l = QK^T scale, C_l = S_l + C_(l-1), softmax(C_l or C_l/(l+1)).

    Args:
        model: a copy of its parameters in float64 is what is computed with; they collect gradients of their own.
    """

    def __init__(self, model, mode, rope=False, pre_norm=False):
        self.model = copy.deepcopy(model).double()
        self.p = dict(self.model.named_parameters())
        self.mode, self.rope, self.pre_norm = mode, rope, pre_norm

    def linear(self, x, name):
        return x @ self.p[f"{name}.weight"].t() + self.p[f"{name}.bias"]

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / deviation * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def heads(self, x, name):
        return self.linear(x, name).unflatten(-1, (2, 8)).transpose(1, 2)

    def turned(self, x):
        """RoPE of (…, length, 8)."""
        theta = torch.tensor([10000 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64)
        angle = torch.arange(x.size(-2), dtype=torch.float64)[:, None] * theta
        pairs = torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def attention(self, x, source, name, keep, carried, depth, bias):
        """(batch, queries, 16) and C_l; x + this is the block."""
        q, k, v = self.heads(x, f"{name}.q_proj"), *(self.heads(source, f"{name}.{proj}_proj") for proj in "kv")
        crosses = name.endswith("encoder_attn")
        if self.rope and not crosses:
            q, k = self.turned(q), self.turned(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(8 if bias is None or crosses else 16)
        carried = scores if carried is None else scores + carried
        logits = {"none": scores, "sum": carried, "mean": carried / (depth + 1)}[self.mode]
        if bias is not None and not crosses:
            logits = logits + bias
        e = (logits - logits.max()).exp() * keep
        weights = e / e.sum(-1, keepdim=True).clamp(min=1e-300)
        return self.linear((weights @ v).transpose(1, 2).flatten(-2), f"{name}.out_proj"), carried

    def block(self, x, norm, branch):
        return x + branch(self.norm(x, norm)) if self.pre_norm else self.norm(x + branch(x), norm)

    def stack(self, name, x, layers, keep, bias=None, encoder_out=None, encoder_keep=None):
        """Output and, layer by layer, the streams [(self, cross or None)]."""
        own = cross = None
        streams = []
        for depth, layer in enumerate(layers):
            prefix = f"{name}.layers.{layer}"

            def self_attention(y, prefix=prefix, depth=depth):
                nonlocal own
                out, own = self.attention(y, y, f"{prefix}.self_attn", keep, own, depth, bias)
                return out

            def cross_attention(y, prefix=prefix, depth=depth):
                nonlocal cross
                attn = f"{prefix}.encoder_attn"
                out, cross = self.attention(y, encoder_out, attn, encoder_keep, cross, depth, None)
                return out

            def feed_forward(y, prefix=prefix):
                return self.linear(self.linear(y, f"{prefix}.fc1").relu(), f"{prefix}.fc2")

            x = self.block(x, f"{prefix}.self_attn_layer_norm", self_attention)
            if encoder_out is not None:
                x = self.block(x, f"{prefix}.encoder_attn_layer_norm", cross_attention)
            x = self.block(x, f"{prefix}.final_layer_norm", feed_forward)
            streams.append((own, cross))
        return (self.norm(x, f"{name}.layer_norm") if self.pre_norm else x), streams

    def encoder(self, tokens, layers=(0, 1, 2)):
        """(batch, src_len, 16) and streams."""
        real = tokens.ne(1)
        x = (self.model.encoder.forward_embedding(tokens)[0] * real[..., None]).detach()
        bias = self.model.encoder.embed_positions.score_bias(tokens, tokens.size(1))
        return self.stack("encoder", x, layers, real[:, None, None, :], bias)

    def decoder(self, tokens, encoder_out, source, layers=(0, 1, 2)):
        """(batch, tgt_len, 16) and streams; a pad sees itself and the tokens before it."""
        length = tokens.size(1)
        x = self.model.decoder.forward_embedding(tokens, length).detach()
        bias = self.model.decoder.embed_positions.score_bias(tokens, length)
        keep = tokens.ne(1)[:, None, None, :] & torch.ones(length, length, dtype=torch.bool).tril()
        keep = keep | torch.eye(length, dtype=torch.bool)
        return self.stack("decoder", x, layers, keep, bias, encoder_out, source.ne(1)[:, None, None, :])


def layer_calls(stack):
    """A list that fills with (layer, tensors and divisor, results) of every layer that ``stack`` goes through."""
    calls = []
    for index, layer in enumerate(stack.layers.children()):
        layer.register_forward_hook(
            lambda _, args, kwargs, output, index=index: calls.append((index, (*args, kwargs["divisor"]), output)),
            with_kwargs=True,
        )
    return calls


def compare(got, want, tolerance=2e-5):
    ok, difference = models.close(got.double(), want, tolerance)
    assert ok, difference


def compare_gradients(model, reference, names):
    for name, parameter in model.named_parameters():
        if names in name:
            grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in (parameter, reference.p[name])]
            difference = float((grads[0].double() - grads[1]).abs().max())
            assert difference <= 2e-4 * max(float(grads[1].abs().max()), 1e-2), name


CASES = [
    *((mode, {"position_encoding": p}) for mode in ("none", "sum", "mean") for p in ("sinusoidal", "rope", "tupe-r")),
    ("sum", PRE_NORM),
    ("mean", {**PRE_NORM, "position_encoding": "tupe-r"}),
]


@pytest.mark.parametrize("mode, flags", CASES)
def test_encoder_equals_hand_unrolled_reference(mode, flags):
    """Three layers, left pads and a sentence of pads only: output, raw streams, gradients of every layer's parameters
    and of the position scores."""
    model = small(mode, **flags)
    calls = layer_calls(model.encoder)
    reference = Reference(model, mode, flags.get("position_encoding") == "rope", flags.keys() >= PRE_NORM.keys())
    source = models.batch([7, 3, 1, 5])
    source[3] = 1
    real = source.ne(1)
    want, streams = reference.encoder(source)
    got = model.encoder(source)["encoder_out"][0].transpose(0, 1)
    compare(got[real], want[real])

    assert [index for index, _, _ in calls] == [0, 1, 2]
    for depth, (_, args, output) in enumerate(calls):
        carried, stream = args[4], output[1]
        if mode == "none":
            assert carried is None and stream is None
            continue
        assert stream.dtype == torch.float32 and stream.shape == (4, 2, 7, 7)
        compare(stream, streams[depth][0])  # everywhere, pads included: nothing is masked
        assert carried is None if depth == 0 else torch.equal(carried, calls[depth - 1][2][1])

    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(0)) * real[..., None]
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    compare_gradients(model, reference, "encoder.layers")
    compare_gradients(model, reference, "encoder.embed_positions")


@pytest.mark.parametrize("mode, flags", CASES)
@pytest.mark.parametrize("left_pad_target", [False, True])
def test_decoder_equals_hand_unrolled_reference(mode, flags, left_pad_target):
    """Causal self-attention and cross-attention, each with a stream of its own that holds future tokens' scores too."""
    model = small(mode, **flags)
    calls = layer_calls(model.decoder)
    reference = Reference(model, mode, flags.get("position_encoding") == "rope", flags.keys() >= PRE_NORM.keys())
    source, target = models.batch([6, 2, 4]), models.batch([5, 1, 3], bos=2, left=left_pad_target)
    real = target.ne(1)
    encoder_out = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(1))
    given = {"encoder_out": [encoder_out.transpose(0, 1)], "encoder_padding_mask": [source.eq(1)]}
    want, streams = reference.decoder(target, encoder_out.double(), source)
    got = model.decoder(target, encoder_out=given, features_only=True)[0]
    compare(got[real], want[real])

    for depth, (_, args, output) in enumerate(calls):
        carried, passed_on = args[6:8], output[2:4]
        if mode == "none":
            assert carried == passed_on == (None, None)
            continue
        assert [tuple(stream.shape) for stream in passed_on] == [(3, 2, 5, 5), (3, 2, 5, 6)]
        pairs = (real[:, None, :, None] & real[:, None, None, :]).expand(-1, 2, -1, -1)  # future keys included
        compare(passed_on[0][pairs], streams[depth][0][pairs])
        rows = real[:, None, :].expand(-1, 2, -1)  # the source's pads included
        compare(passed_on[1][rows], streams[depth][1][rows])
        if depth == 0:
            assert carried == (None, None)  # nothing comes from the encoder
        else:
            assert all(a is b or torch.equal(a, b) for a, b in zip(carried, calls[depth - 1][2][2:4], strict=True))

    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(0)) * real[..., None]
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    compare_gradients(model, reference, "decoder.layers")
    compare_gradients(model, reference, "decoder.embed_positions")


def qkv(length=6, dtype=torch.float32, batch=2, scale=1.0):
    """q, k and v (batch, 2, length, 16)."""
    generator = torch.Generator().manual_seed(length)
    return [(torch.randn(batch, 2, length, 16, generator=generator) * scale).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("divisor", [1, 4])
def test_stream_is_what_comes_before_division_bias_mask_and_dropout(divisor):
    q, k, v = qkv()
    carried = torch.randn(2, 2, 6, 6)
    before = carried.clone()
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[0, ..., :4] = False
    mask[1] = False  # a sentence of pads only
    want = q.double() @ k.double().transpose(-1, -2) * 0.25 + carried.double()
    for causal, kept in ((False, None), (True, None), (False, mask)):
        for bias in (None, torch.randn(1, 2, 6, 6)):
            for dropout in (0.0, 0.5):
                for need_weights in (False, True):
                    rest = (bias, dropout, need_weights, carried, divisor)
                    out, weights, stream = attend(q, k, v, kept, causal, 0.25, *rest)
                    assert stream.dtype == torch.float32 and models.close(stream.double(), want, 1e-6)[0]
                    assert torch.isfinite(out).all()
                    assert (weights is not None) == need_weights
    assert torch.equal(carried, before)  # what an earlier layer keeps for its backward pass is not written to


def test_mean_is_sum_at_a_temperature_of_the_number_of_layers():
    q, k, v = qkv()
    streams = {"sum": None, "mean": None}
    for depth in range(5):
        _, _, streams["sum"] = attend(q, k, v, None, True, 0.25, stream=streams["sum"], divisor=1)
        rest = (None, 0.0, True, streams["mean"], depth + 1)
        _, weights, streams["mean"] = attend(q, k, v, None, True, 0.25, *rest)
        assert torch.equal(streams["sum"], streams["mean"])
        cold = (streams["sum"] / (depth + 1)).masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -math.inf)
        assert models.close(weights, cold.softmax(-1))[0]
        # The same scores in every layer: their mean stays that of one layer.
        assert models.close(weights, attend(q, k, v, None, True, 0.25, need_weights=True)[1])[0]


def test_one_layer_computes_what_a_plain_one_does():
    source, target = models.batch([7, 3]), models.batch([5, 2], bos=2, left=False)
    flags = {"encoder_layers": 1, "decoder_layers": 1}
    plain, summed, mean = (models.logits(small(mode, **flags), source, target) for mode in ("none", "sum", "mean"))
    assert models.close(summed, plain)[0] and torch.equal(summed, mean)
    deep = [models.logits(small(mode), source, target) for mode in ("none", "sum", "mean")]
    assert not any(models.close(deep[a], deep[b], 1e-2)[0] for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stream_stays_float32_in_half_precision(dtype):
    attention = MultiheadAttention(32, 2, self_attention=True).to(dtype).eval()
    x = torch.randn(6, 2, 32).to(dtype)
    with torch.no_grad():
        out, _, stream = attention(x, causal=True, divisor=1)
        assert out.dtype == dtype and stream.dtype == torch.float32
        out, _, longer = attention(x, causal=True, stream=stream, divisor=2)
        assert out.dtype == dtype and torch.equal(longer, 2 * stream)


def test_stream_stays_float32_with_amp():
    model = small("sum").train()
    calls = [layer_calls(stack) for stack in (model.encoder, model.decoder)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(models.batch([6, 2]), None, models.batch([5, 3], bos=2, left=False))[0]
    assert torch.isfinite(out).all()
    streams = [x for stack in calls for _, _, output in stack for x in output[1:] if x is not None]
    assert len(streams) == 9 and all(stream.dtype == torch.float32 for stream in streams)
    out.float().square().mean().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_tupe_s_bias_stays_outside_the_stream():
    """Otherwise it would be counted once a layer."""
    attention = MultiheadAttention(32, 2, self_attention=True).eval()
    x, bias = torch.randn(6, 2, 32), 3 * torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        plain, _, stream = attention(x, scale=32**-0.5, divisor=1)
        biased, _, same = attention(x, score_bias=bias, scale=32**-0.5, divisor=1)
        assert torch.equal(stream, same) and not models.close(plain, biased, 1e-2)[0]


def test_no_parameters_and_no_buffers_are_added():
    baseline = models.build("baseline_tiny").state_dict()
    for mode in ("sum", "mean"):
        state = models.build("realformer_tiny", residual_attention=mode).state_dict()
        assert {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in baseline.items()}


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_layerdrop_counts_the_layers_that_are_run(mode):
    """Whatever layers are left out, the others compute what a stack of them alone would."""
    flags = {"dropout": 0.0, "attention_dropout": 0.0, "encoder_layerdrop": 0.4, "decoder_layerdrop": 0.4}
    model = small(mode, **flags).train()
    assert isinstance(model.encoder.layers, LayerDropModuleList)
    calls = [layer_calls(stack) for stack in (model.encoder, model.decoder)]
    reference = Reference(model, mode)
    source, target = models.batch([6, 2]), models.batch([5, 3], bos=2, left=False)
    real = target.ne(1)
    met = [set(), set()]
    for seed in range(60):
        torch.manual_seed(seed)
        for stack_calls in calls:
            stack_calls.clear()
        with torch.no_grad():
            encoder_out = model.encoder(source)
            got = model.decoder(target, encoder_out=encoder_out, features_only=True)[0]
        run = [tuple(index for index, _, _ in stack_calls) for stack_calls in calls]
        for stack_calls in calls:
            divisors = [args[-1] for _, args, _ in stack_calls]
            assert divisors == ([1] * len(divisors) if mode == "sum" else list(range(1, len(divisors) + 1)))
        if run[0] in met[0] and run[1] in met[1]:
            continue
        with torch.no_grad():
            want = reference.encoder(source, run[0])[0]
            compare(encoder_out["encoder_out"][0].transpose(0, 1)[source.ne(1)], want[source.ne(1)])
            want = reference.decoder(target, want, source, run[1])[0]
            compare(got[real], want[real])
        for stack_met, layers in zip(met, run, strict=True):
            stack_met.add(layers)
    assert all((0, 2) in stack_met and (1, 2) in stack_met and (0, 1, 2) in stack_met for stack_met in met)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "flags",
    [
        {"residual_attention": "sum"},
        {"residual_attention": "mean", **PRE_NORM},
        {"residual_attention": "none", "position_encoding": "tupe-r", "tupe_reset": "eos"},
        {"residual_attention": "sum", "position_encoding": "tupe-r", "tupe_reset": "first"},
        {"residual_attention": "mean", "position_encoding": "tupe-a", "encoder_normalize_before": True},
        {"residual_attention": "mean", "position_encoding": "rope", "offload_activations": True},
    ],
)
def test_activation_checkpointing_changes_no_gradient(flags, dropout):
    """The gradient of early layers' scores flows back through the stream, that of the positions through the bias."""
    source, target = models.batch([6, 2]), models.batch([5, 3], bos=2, left=False)
    results = []
    for checkpoint in (False, True):
        dropouts = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout)
        own = {**SMALL, **flags, **dropouts, "checkpoint_activations": checkpoint}
        if not checkpoint:
            own.pop("offload_activations", None)
        model = models.build("realformer_tiny", **own).train()
        assert hasattr(model.encoder.layers[0], "precheckpoint_forward") == checkpoint
        torch.manual_seed(5)
        loss = model(source, None, target)[0].log_softmax(-1)[target.ne(1)][:, 7].sum()
        loss.backward()
        results.append((loss, {name: parameter.grad for name, parameter in model.named_parameters()}))
    (loss, plain), (checkpointed_loss, checkpointed) = results
    assert torch.equal(loss, checkpointed_loss)
    for name, gradient in plain.items():
        # The same for every key, a key's bias changes no softmax: rounding is all that its gradient is.
        assert gradient.abs().max() > 1e-4 or name.endswith(("k_proj.bias", "pos_k_linear.bias")), name
        assert torch.allclose(checkpointed[name], gradient, rtol=1e-4, atol=2e-6), name


def test_gradient_reaches_the_first_layer_through_the_stream_alone():
    """C_1 = S_1 + S_0, so even where the first layer's output is cut off, its queries have a gradient."""
    first, second = (MultiheadAttention(32, 2, self_attention=True) for _ in range(2))
    x = torch.randn(6, 2, 32)
    out, _, stream = first(x, divisor=1)
    second(out.detach(), stream=stream, divisor=1)[0].square().sum().backward()
    assert first.q_proj.weight.grad.abs().sum() > 0 and first.v_proj.weight.grad is None


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_returned_weights_are_probabilities(mode):
    model = small(mode)
    source, target = models.batch([7, 3]), models.batch([5, 4], bos=2, left=False)
    with torch.no_grad():
        for layer in range(3):
            attn = model(source, None, target, alignment_layer=layer)[1]["attn"][0]
            assert attn.shape == (2, 5, 7) and (attn >= 0).all()
            assert torch.allclose(attn.sum(-1), torch.ones(2, 5), atol=1e-5)
            assert (attn[1, :, :4] == 0).all()  # left pads of the second source


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_decoding_caches_nothing_of_the_stream(mode):
    model = small(mode)
    source, target = models.batch([7, 3]), models.batch([4, 4], bos=2, left=False)
    full = models.logits(model, source, target)
    with torch.no_grad():
        encoder_out, state, calls = model.encoder(source), {}, layer_calls(model.decoder)
        for step in range(1, 5):
            calls.clear()
            row = model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)[0][:, 0]
            assert models.close(row, full[:, step - 1])[0]
            for _, _, output in calls:  # built anew, layer by layer, for one query
                assert [tuple(stream.shape) for stream in output[2:4]] == [(2, 2, 1, step), (2, 2, 1, 7)]
    pools = model.decoder.get_incremental_state(state, "decoding").pools
    assert len(pools) == 6
    for pool in pools.values():  # keys and values, nothing else
        tensors = {name: value for name, value in vars(pool).items() if torch.is_tensor(value)}
        assert set(tensors) == {"keys", "values"}
        assert all(x[:, :, : pool.length].shape in ((2, 2, 4, 8), (2, 2, 7, 8)) for x in tensors.values())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_beams_that_share_their_keys(mode):
    """The scores of beams that share keys, and so the streams, are laid out a sentence; equal beams are one row."""
    model, beam = small(mode), 3
    source = models.batch([4, 9])
    target = models.batch([5] * 6, bos=2, left=False)
    full = models.logits(model, source.repeat_interleave(beam, dim=0), target)
    calls = layer_calls(model.decoder)
    with torch.no_grad():
        order, state = torch.arange(2).repeat_interleave(beam), {}
        encoder_out = model.encoder.reorder_encoder_out(model.encoder(source), order)
        for step in range(1, 6):
            calls.clear()
            row = model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)[0][:, 0]
            assert models.close(row, full[:, step - 1])[0]
            width = 1 if step == 1 else beam
            for _, _, output in calls:
                assert output[2].shape == (2, 2, width, 1 + beam * (step - 1))
                assert output[3].shape == (2, 2, width, 9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sum_over_60_layers_keeps_the_digits_of_each(dtype):
    """Each layer's scores are rounded once; a sum kept in ``dtype`` would be rounded by its own size each time."""
    stream, exact, rounding = None, torch.zeros(1), torch.zeros(1)
    for layer in range(60):
        generator = torch.Generator().manual_seed(layer)
        q, k, v = ((1 + torch.randn(1, 2, 6, 16, generator=generator)).to(dtype) for _ in range(3))
        out, _, stream = attend(q, k, v, None, True, 0.25, stream=stream, divisor=1)
        scores = q.double() @ k.double().transpose(-1, -2) * 0.25
        exact, rounding = exact + scores, rounding + scores.abs() * torch.finfo(dtype).eps / 2
        assert torch.isfinite(out).all()
    assert ((stream - exact).abs() <= 1.05 * rounding + 1e-3).all()


def test_sum_beyond_the_range_of_float16():
    q, k, v = qkv(dtype=torch.float16, scale=30)
    stream = None
    for _ in range(60):
        out, weights, stream = attend(q, k, v, None, True, 0.25, None, 0.0, True, stream, 1)
    assert float(stream.abs().max()) > torch.finfo(torch.float16).max
    assert torch.isfinite(out).all() and torch.isfinite(stream).all()
    assert models.close(weights.sum(-1), torch.ones(2, 2, 6))[0]


DEEP = {**SMALL, "encoder_layers": 60, "decoder_layers": 12}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "flags",
    [
        {"residual_attention": "sum"},
        {"residual_attention": "mean"},
        {"residual_attention": "none", "position_encoding": "tupe-r", "tupe_reset": "eos"},
        {"residual_attention": "sum", "position_encoding": "tupe-r"},
    ],
)
def test_60_layers_in_half_precision(flags, dtype):
    """Finite, and near what float32 computes with the same rounded weights."""
    model = models.build("realformer_tiny", **DEEP, **flags).to(dtype)
    calls = layer_calls(model.encoder)
    source, target = models.batch([9, 4]), models.batch([7, 3], bos=2, left=False)
    half = models.logits(model, source, target)
    half_stream = calls[-1][2][1]
    model.float()
    full = models.logits(model, source, target)
    full_stream = calls[-1][2][1]
    tolerance = 10 * torch.finfo(dtype).eps
    assert half.dtype == dtype and torch.isfinite(half).all()
    assert models.close(half.float(), full, tolerance)[0]
    if flags["residual_attention"] != "none":
        assert half_stream.dtype == torch.float32 and torch.isfinite(half_stream).all()
        assert models.close(half_stream, full_stream, tolerance)[0]
