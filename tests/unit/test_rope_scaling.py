"""Frequencies beyond the training length against the formulas, and dynamic NTK row by row."""

import math

import models
import pytest
import torch

from fairseq_rope.errors import UserError
from fairseq_rope.positions import RopeScaling
from fairseq_rope.positions.rope import phases, rotate


def plain(head_dim, base=10000.0):
    return [base ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def test_plain_linear_and_ntk_are_their_formulas():
    assert torch.allclose(RopeScaling(8).frequencies(), torch.tensor(plain(8), dtype=torch.float64))
    linear = RopeScaling(8, mode="linear", factor=4.0).frequencies()
    assert torch.allclose(linear, torch.tensor([f / 4 for f in plain(8)], dtype=torch.float64))
    ntk = RopeScaling(8, mode="ntk", factor=4.0).frequencies()
    assert torch.allclose(ntk, torch.tensor(plain(8, 10000 * 4 ** (8 / 6)), dtype=torch.float64))


def test_ntk_interpolates_the_slowest_pair_by_the_factor_and_keeps_the_fastest():
    ntk, usual = RopeScaling(64, mode="ntk", factor=8.0).frequencies(), plain(64)
    assert ntk[0] == 1.0
    assert math.isclose(float(ntk[-1]), usual[-1] / 8, rel_tol=1e-9)


@pytest.mark.parametrize("head_dim, length, low, high", [(128, 4096, 20, 46), (64, 512, 3, 16)])
def test_yarn_ramp(head_dim, length, low, high):
    """SPECS 6: pairs up to `low` are kept, from `high` on interpolated, linear in the index between."""
    factor = 8.0
    yarn, usual = (
        RopeScaling(head_dim, mode="yarn", factor=factor, train_length=length).frequencies(),
        plain(head_dim),
    )
    for i, theta in enumerate(usual):
        interpolated = min(max((i - low) / (high - low), 0), 1)
        want = interpolated * theta / factor + (1 - interpolated) * theta
        assert math.isclose(float(yarn[i]), want, rel_tol=1e-9), i


def test_yarn_sharpens_scores_and_survives_a_tiny_training_length():
    scaling = RopeScaling(16, mode="yarn", factor=4.0, train_length=3)
    assert torch.isfinite(scaling.frequencies()).all()
    assert math.isclose(scaling.magnitude, 0.1 * math.log(4) + 1)
    turns = phases(torch.arange(5), scaling.frequencies(), scaling.magnitude)
    assert torch.allclose(turns.abs(), torch.full((5, 8), scaling.magnitude))
    assert RopeScaling(16, mode="yarn", train_length=3).magnitude == 1


def test_dynamic_ntk_bases():
    scaling = RopeScaling(8, mode="dynamic-ntk", factor=2.0, train_length=10)
    got = scaling.frequencies_at(torch.tensor([1, 10, 11, 40]))
    for row, growth in enumerate((1.0, 1.0, 2 * 11 / 10 - 1, 2 * 40 / 10 - 1)):
        want = torch.tensor(plain(8, 10000 * growth ** (8 / 6)), dtype=torch.float64)
        assert torch.allclose(got[row], want), row


def reference_self_attention(attention, x, scaling, pads):
    """Causal attention in float64, one query at a time, each with the base of the tokens up to it."""
    attention = attention.double()
    q, k, v = (
        attention._split_heads(proj(x.double()).transpose(0, 1))
        for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    out = torch.zeros_like(v)
    for b in range(q.size(0)):
        for t in range(q.size(2)):
            seen = [j for j in range(t + 1) if not pads[b, j]]
            if pads[b, t]:
                continue
            growth = max(scaling.factor * len(seen) / scaling.train_length - (scaling.factor - 1), 1.0)
            theta = torch.tensor(plain(16, scaling.base * growth ** (16 / 14)), dtype=torch.float64)
            for h in range(q.size(1)):
                scores = []
                for j in seen:
                    pairs = torch.view_as_complex(torch.stack((q[b, h, t].view(-1, 2), k[b, h, j].view(-1, 2))))
                    turn = torch.polar(torch.ones_like(theta), (t - j) * theta)
                    scores.append((pairs[0] * turn * pairs[1].conj()).real.sum() / 4)
                weights = torch.softmax(torch.stack(scores), 0)
                out[b, h, t] = (weights[:, None] * v[b, h, seen]).sum(0)
    return attention.out_proj(out.permute(2, 0, 1, 3).flatten(2))


@pytest.mark.parametrize("left", [False, True])
def test_dynamic_ntk_decoder_attention_equals_reference(left):
    model = models.variant("rope-dynamic-ntk")
    decoder, attention = model.decoder, model.decoder.layers[0].self_attn
    tokens = models.batch([14, 5, 9], bos=2, left=left)
    x = torch.randn(14, 3, 64, generator=torch.Generator().manual_seed(2))
    rotation = decoder.embed_positions.rotation(tokens, 14, causal=True)
    causal, mask = decoder._self_attention_mask(tokens, 14, False, None, None)
    with torch.no_grad():
        got, _, _ = attention(x, None, mask, rotation, causal=causal)
        weighted, weights, _ = attention(x, None, mask, rotation, causal=causal, need_weights=True)
        want = reference_self_attention(attention, x, decoder.embed_positions.scaling, tokens.eq(1))
    real = tokens.ne(1).T
    for result in (got, weighted):
        ok, difference = models.close(result[real].double(), want[real])
        assert ok, difference
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_dynamic_ntk_encoder_depends_on_the_sentence_s_length_only():
    """Within the training length nothing changes; beyond it the base follows the sentence, not the padded batch."""
    dynamic, usual = models.variant("rope-dynamic-ntk"), models.variant("roformer")
    for length, same in ((5, True), (6, True), (7, False), (20, False)):
        words = models.batch([length])
        with torch.no_grad():
            a, b = (model.encoder(words)["encoder_out"][0] for model in (dynamic, usual))
            c = dynamic.encoder(torch.nn.functional.pad(words, (9, 0), value=1))["encoder_out"][0][9:]
        assert models.close(a, b)[0] == same, length
        assert models.close(a, c)[0], length


def test_four_times_the_training_length():
    """A RoPE model has no limit of its own."""
    for name in ("roformer", "rope-linear", "rope-ntk", "rope-yarn", "rope-dynamic-ntk"):
        model = models.variant(name)
        assert model.max_positions() == (10**9, 10**9)
        source, target = models.batch([1500, 30]), models.batch([24, 17], bos=2, left=False)
        assert torch.isfinite(models.logits(model, source, target)).all(), name


@pytest.mark.parametrize(
    "values, words",
    [
        ({"head_dim": 5}, "head size must be even, but it is 5"),
        ({"base": 1.0}, "--rope-base must be above 1 and finite, not 1.0"),
        ({"mode": "linear", "factor": 0.5}, "--rope-scaling-factor must be at least 1, not 0.5"),
        ({"mode": "linear", "factor": float("nan")}, "must be at least 1, not nan"),
        ({"factor": 2.0}, "has no effect with --rope-scaling none"),
        ({"mode": "yarn"}, "needs --rope-train-length"),
        ({"mode": "dynamic-ntk", "train_length": 0}, "needs --rope-train-length"),
        ({"mode": "ntk", "head_dim": 2}, "needs a head size of at least 4, not 2"),
    ],
)
def test_refused_values(values, words):
    with pytest.raises(UserError, match=words):
        RopeScaling(**{"head_dim": 8, **values})


def test_scaling_does_not_change_the_rotation_of_position_zero():
    x = torch.randn(1, 1, 1, 8)
    assert torch.allclose(rotate(x, phases(torch.zeros(1), RopeScaling(8).frequencies())), x)
