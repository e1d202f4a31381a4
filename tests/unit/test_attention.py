"""Attention against a float64 reference, its returned weights, and a position encoding that is one new class."""

import math

import models
import pytest
import torch

from fairseq_rope.attention import MultiheadAttention, attend
from fairseq_rope.errors import UserError
from fairseq_rope.positions import PositionEncoding


def reference(q, k, v, keep=None, bias=None):
    """Attention of the formula, one query at a time, in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    out, all_weights = (
        torch.zeros(*q.shape[:-1], v.size(-1)).double(),
        torch.zeros(*q.shape[:-1], k.size(2)).double(),
    )
    for b in range(q.size(0)):
        for h in range(q.size(1)):
            for t in range(q.size(2)):
                allowed = [s for s in range(k.size(2)) if keep is None or bool(keep[b, h, t, s])]
                if not allowed:
                    continue
                scores = [float(q[b, h, t] @ k[b, h, s]) / math.sqrt(q.size(-1)) for s in allowed]
                if bias is not None:
                    scores = [score + float(bias[b, h, t, s]) for score, s in zip(scores, allowed, strict=True)]
                top = max(scores)
                exponentials = [math.exp(score - top) for score in scores]
                for s, e in zip(allowed, exponentials, strict=True):
                    all_weights[b, h, t, s] = e / sum(exponentials)
                    out[b, h, t] += all_weights[b, h, t, s] * v[b, h, s]
    return out, all_weights


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 7), (5, 5), (4, 9)])
@pytest.mark.parametrize("kind", ["none", "pads", "causal", "bias", "bias and causal", "everything masked"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attend_equals_reference(queries, keys, kind, need_weights):
    if "causal" in kind and queries != keys:
        return
    generator = torch.Generator().manual_seed(queries * keys)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator) for n in (queries, keys, keys))
    keep = bias = mask = None
    causal = "causal" in kind
    if causal:
        keep = torch.ones(queries, keys, dtype=torch.bool).tril().expand(2, 3, queries, keys)
    elif kind == "pads":
        mask = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        mask[1, ..., keys // 2 + 1 :] = False
        keep = mask.expand(2, 3, queries, keys)
    elif kind == "everything masked":
        mask = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        mask[1] = False
        keep = mask.expand(2, 3, queries, keys)
    if "bias" in kind:
        bias = torch.randn(1, 3, queries, keys, generator=generator)
    want, want_weights = reference(q, k, v, keep, None if bias is None else bias.expand(2, -1, -1, -1))
    out, weights, _ = attend(q, k, v, mask, causal, 8**-0.5, bias, need_weights=need_weights)
    assert torch.allclose(out.double(), want, atol=1e-5)
    if need_weights:
        assert torch.allclose(weights.double(), want_weights, atol=1e-6)
    else:
        assert weights is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_paths_agree_in_half_precision(dtype):
    q, k, v = (torch.randn(2, 2, 6, 16, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(3))
    fused, _, _ = attend(q, k, v, None, True, 0.25)
    plain, weights, _ = attend(q, k, v, None, True, 0.25, need_weights=True)
    assert fused.dtype == plain.dtype == dtype and weights.dtype == torch.float32
    assert torch.allclose(fused.float(), plain.float(), atol=8 * torch.finfo(dtype).eps)


def test_gradients_of_both_paths_agree():
    q, k, v = (torch.randn(2, 2, 6, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    grads = []
    for need_weights in (False, True):
        out, _, _ = attend(q, k, v, None, True, 0.25, need_weights=need_weights)
        grads.append(torch.autograd.grad(out.square().sum(), (q, k, v)))
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-6)  # the plain path takes its softmax in float32


def test_dropout_drops_weights_in_training_only():
    attention = MultiheadAttention(16, 2, dropout=0.5, self_attention=True)
    x = torch.randn(6, 2, 16)
    torch.manual_seed(0)
    a, b = attention(x)[0], attention(x)[0]
    assert not torch.allclose(a, b)
    attention.eval()
    assert torch.equal(attention(x)[0], attention(x)[0])
    attention.dropout_module.apply_during_inference = True  # --retain-dropout
    assert not torch.allclose(attention(x)[0], attention(x)[0])


def test_weights_of_the_last_layer_are_returned():
    """Asked for by evaluation or by an alignment argument; rows sum to 1 and pads get nothing."""
    model = models.variant("roformer")
    source, target = models.batch([7, 3]), models.batch([5, 4], bos=2, left=False)
    arguments = (source, source.ne(1).sum(1), target)
    with torch.no_grad():
        attn = model(*arguments)[1]["attn"][0]
        assert attn.shape == (2, 5, 7)
        assert torch.allclose(attn.sum(-1), torch.ones(2, 5), atol=1e-5)
        assert (attn[1, :, :4] == 0).all()  # left pads of the second source
        first = model(*arguments, alignment_layer=0)[1]["attn"][0]
        one_head = model(*arguments, alignment_heads=1)[1]["attn"][0]
        assert not torch.allclose(first, attn) and not torch.allclose(one_head, attn)
        logits = model(*arguments)[0]
        model.train()
        assert model(*arguments)[1]["attn"][0] is None
        assert model(*arguments, alignment_layer=1)[1]["attn"][0].shape == (2, 5, 7)
        model.eval()
        model.make_generation_fast_(need_attn=False)
        out, extra = model(*arguments)
        assert extra["attn"][0] is None and models.close(out, logits)[0]


class LinearBias(PositionEncoding):
    """ALiBi (Press et al. 2022): a new method is one class with one hook."""

    def score_bias(self, tokens, query_len):
        keys = tokens.size(1)
        distance = torch.arange(keys)[None, :] - torch.arange(keys - query_len, keys)[:, None]
        slopes = torch.tensor([2.0**-i for i in range(1, 5)])
        return (slopes[:, None, None] * -distance.abs())[None]

    def score_scale(self, head_dim):
        return (2 * head_dim) ** -0.5


def test_a_new_position_encoding_is_one_class():
    """Bias and scale reach every self-attention, in a full pass as in decoding, with pads, and no cross-attention."""
    model = models.variant("none")
    before = models.logits(model, models.batch([7, 3]), models.batch([6, 4], bos=2, left=False))
    model.encoder.embed_positions = LinearBias()
    model.decoder.embed_positions = LinearBias()
    source = models.batch([7, 3])
    for left in (False, True):
        target = models.batch([6, 4], bos=2, left=left)
        full = models.logits(model, source, target)
        assert not torch.allclose(full, before)
        encoder_out, state = model.encoder(source, None), {}
        for step in range(1, 7):
            with torch.no_grad():
                row = model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)[0][:, 0]
            real = target[:, step - 1].ne(1)
            assert models.close(row[real], full[:, step - 1][real])[0]
    attention = model.encoder.layers[0].self_attn
    x = torch.randn(7, 1, 64)
    bias = LinearBias().score_bias(torch.ones(1, 7), 7)
    out, weights, _ = attention(x, score_bias=bias, scale=LinearBias().score_scale(16), need_weights=True)
    q, k = (attention._split_heads(proj(x).transpose(0, 1)) for proj in (attention.q_proj, attention.k_proj))
    want = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(32) + bias, -1)
    assert torch.allclose(weights.transpose(0, 1), want, atol=1e-5)
    assert torch.allclose(out, attention(x, score_bias=bias, scale=LinearBias().score_scale(16))[0], atol=1e-5)


def test_torchscript_is_refused_in_words():
    for module in (
        models.variant("roformer"),
        models.variant("baseline").encoder,
        models.variant("none").decoder,
    ):
        with pytest.raises(UserError, match="does not support TorchScript"):
            torch.jit.script(module)
