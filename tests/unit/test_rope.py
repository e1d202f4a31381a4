"""RoPE against its formula in float64, complex numbers, and HF transformers' RoFormer."""

import cmath

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.positions import RopeScaling, RotaryPositions
from fairseq_rope.positions.rope import from_half_split, phases, rotate, to_half_split


def rotary(head_dim, **scaling):
    return RotaryPositions(RopeScaling(head_dim=head_dim, **scaling), padding_idx=1)


def turn(x, first=0, base=10000.0):
    """Turn x (batch, heads, length, head_dim) from position ``first`` on, by the package."""
    positions = torch.arange(first, first + x.size(2))
    return rotate(x, phases(positions, RopeScaling(head_dim=x.size(-1), base=base).frequencies()))


def reference_rotate(vector, position, base=10000.0):
    """RoFormer eq. 34 in Python floats: y[2i] = x[2i] cos - x[2i+1] sin; y[2i+1] = x[2i+1] cos + x[2i] sin."""
    dim = len(vector)
    out = []
    for i in range(dim // 2):
        turned = complex(vector[2 * i], vector[2 * i + 1]) * cmath.exp(1j * position * base ** (-2 * i / dim))
        out += [turned.real, turned.imag]
    return out


@pytest.mark.parametrize("head_dim", [2, 4, 6, 16, 64])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rotation_is_the_paper_s_formula(head_dim, base):
    x = torch.randn(2, 3, 7, head_dim, generator=torch.Generator().manual_seed(head_dim))
    got = turn(x, first=1000, base=base)
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(7)).tolist():
        want = torch.tensor(reference_rotate(x[b, h, t].tolist(), 1000 + t, base))
        assert torch.allclose(got[b, h, t], want, atol=2e-6), (b, h, t)


def test_gradients_are_the_inverse_rotation():
    """R is orthogonal, so the gradient of y = R x is R^T g = R^-1 g."""
    x = torch.randn(1, 2, 5, 8, requires_grad=True)
    y = turn(x, first=3)
    g = torch.randn_like(y)
    y.backward(g)
    want = rotate(g, phases(torch.arange(3, 8), RopeScaling(head_dim=8).frequencies()).conj())
    assert torch.allclose(x.grad, want, atol=1e-6)
    # and by finite differences of the float64 formula
    step = 1e-6
    row = x.detach()[0, 0, 2].tolist()
    for channel in range(8):
        up, down = list(row), list(row)
        up[channel] += step
        down[channel] -= step
        pairs = zip(reference_rotate(up, 5), reference_rotate(down, 5), g[0, 0, 2].tolist(), strict=True)
        want = sum((a - b) / (2 * step) * weight for a, b, weight in pairs)
        assert abs(float(x.grad[0, 0, 2, channel]) - want) < 1e-5


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 16).map(lambda n: 2 * n),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.integers(-3000, 3000),
    st.integers(0, 2**31 - 1),
)
def test_scores_see_only_distances(head_dim, m, n, shift, seed):
    """(R_m q)·(R_n k) = (R_(m+s) q)·(R_(n+s) k), and norms stay, in float64 to 1e-10."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, head_dim // 2, generator=generator, dtype=torch.complex128)
    theta = RopeScaling(head_dim=head_dim).frequencies()

    def score(m, n):
        a = q * torch.polar(torch.ones_like(theta), m * theta)
        b = k * torch.polar(torch.ones_like(theta), n * theta)
        return (a * b.conj()).real.sum()

    assert abs(score(m, n) - score(m + shift, n + shift)) < 1e-10 * max(1, float(q.norm() * k.norm())) * head_dim
    x = torch.view_as_real(q).flatten()[None, None, None].float()
    assert torch.allclose(turn(x, first=m).norm(), x.norm(), rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.integers(0, 9), st.integers(0, 9), st.integers(0, 10**6))
def test_model_is_invariant_to_padding_and_shift(length, left, right, seed):
    """Any number of pads on either side of a source leaves the encoder's output as it is."""
    model = ENCODER
    words = models.batch([length], seed=seed)
    padded = torch.nn.functional.pad(words, (left, right), value=1)
    with torch.no_grad():
        want = model.encoder(words)["encoder_out"][0][:, 0]
        got = model.encoder(padded)["encoder_out"][0][left : left + length, 0]
    ok, difference = models.close(got, want)
    assert ok, difference


ENCODER = models.variant("roformer")


def test_it_matters_where_a_word_stands():
    """Without positions an encoder's output only permutes with its words; with RoPE it changes."""
    words = models.batch([8])
    swapped = words.clone()
    swapped[0, [1, 5]] = words[0, [5, 1]]
    for name, moves in (("roformer", True), ("none", False)):
        encoder = models.variant(name).encoder
        with torch.no_grad():
            a, b = (encoder(tokens)["encoder_out"][0][0, 0] for tokens in (words, swapped))
        assert models.close(a, b)[0] != moves


def test_values_and_cross_attention_are_not_turned():
    """One key only: the output is its value, wherever the query stands; and cross-attention has no rotation."""
    model = models.variant("roformer")
    attention = model.decoder.layers[0].encoder_attn
    source, query = torch.randn(1, 1, 64), torch.randn(4, 1, 64)
    out, _, _ = attention(query, source)
    assert torch.allclose(out, attention.out_proj(attention.v_proj(source)).expand_as(out), atol=1e-6)
    own = model.encoder.layers[0].self_attn
    x = torch.randn(1, 1, 64)
    rotation = rotary(16).rotation(torch.tensor([[5]]), 1, causal=False)
    assert torch.allclose(own(x, rotation=rotation)[0], own.out_proj(own.v_proj(x)), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_angles(dtype):
    """The model in half precision has turns right to 1e-3 at position 4096, and neighbouring positions differ."""
    model = models.variant("roformer").to(dtype)
    tokens = torch.full((1, 4097), 5)
    rotation = model.encoder.embed_positions.rotation(tokens, 4097, causal=False)
    theta = torch.tensor([10000 ** (-2 * i / 16) for i in range(8)], dtype=torch.float64)
    want = torch.polar(torch.ones(8, dtype=torch.float64), 4096 * theta)
    assert (rotation.turns[4096] - want).abs().max() < 1e-3
    assert (rotation.turns[4096] - rotation.turns[4095]).abs().max() > 0.5
    # what is rotated in half precision is the float32 rotation, rounded once
    x = torch.randn(1, 1, 4097, 16).to(dtype)
    assert torch.equal(rotate(x, rotation.turns), rotate(x.float(), rotation.turns).to(dtype))


def test_no_parameters_and_no_buffers():
    assert not rotary(16).state_dict() and not list(rotary(16).buffers())


def test_hf_roformer_gives_the_same_encoder_output(monkeypatch):
    """The same weights in HF transformers' RoFormer, which is another implementation of the paper."""
    transformers = pytest.importorskip("transformers")
    # transformers would load torchaudio, whose build need not fit the torch at hand, for nothing that is used here.
    for module in (transformers.utils, transformers.utils.import_utils):
        monkeypatch.setattr(module, "is_torchaudio_available", lambda: False)
    model = models.build(
        "roformer_tiny",
        layernorm_embedding=True,
        no_scale_embedding=True,
        activation_fn="gelu",
        encoder_layers=3,
    )
    encoder = model.encoder
    config = transformers.RoFormerConfig(
        vocab_size=len(encoder.dictionary),
        embedding_size=64,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        type_vocab_size=1,
        pad_token_id=1,
    )
    other = transformers.RoFormerModel(config).eval()
    names = {
        "embeddings.word_embeddings": "embed_tokens",
        "embeddings.LayerNorm": "layernorm_embedding",
    }
    for i in range(3):
        ours, theirs = f"layers.{i}.", f"encoder.layer.{i}."
        names |= {
            theirs + "attention.self.query": ours + "self_attn.q_proj",
            theirs + "attention.self.key": ours + "self_attn.k_proj",
            theirs + "attention.self.value": ours + "self_attn.v_proj",
            theirs + "attention.output.dense": ours + "self_attn.out_proj",
            theirs + "attention.output.LayerNorm": ours + "self_attn_layer_norm",
            theirs + "intermediate.dense": ours + "fc1",
            theirs + "output.dense": ours + "fc2",
            theirs + "output.LayerNorm": ours + "final_layer_norm",
        }
    weights = encoder.state_dict()
    state = {
        f"{theirs}.{kind}": weights[f"{ours}.{kind}"]
        for theirs, ours in names.items()
        for kind in ("weight", "bias")
        if f"{ours}.{kind}" in weights
    }
    state["embeddings.token_type_embeddings.weight"] = torch.zeros(1, 64)
    missing, unexpected = other.load_state_dict(state, strict=False)
    assert not unexpected and all("embed_positions" in name or "pooler" in name for name in missing), (
        missing,
        unexpected,
    )
    tokens = models.batch([11, 3, 8], left=False)
    with torch.no_grad():
        got = encoder(tokens)["encoder_out"][0].transpose(0, 1)
        want = other(tokens, attention_mask=tokens.ne(1).long())[0]
    real = tokens.ne(1)
    ok, difference = models.close(got[real], want[real])
    assert ok, difference


def test_half_split_layout_computes_the_same_scores():
    """Permuted projections under the half-split formula of GPT-NeoX: the same scores."""
    heads, dim, length = 2, 8, 5
    generator = torch.Generator().manual_seed(1)
    w_q, w_k, x = (torch.randn(*shape, generator=generator) for shape in ((16, 12), (16, 12), (length, 12)))

    def split(w):
        return (x @ w.T).view(length, heads, dim).transpose(0, 1)[None]

    want = turn(split(w_q)) @ turn(split(w_k)).transpose(-1, -2)
    theta = torch.tensor([10000 ** (-2 * i / dim) for i in range(dim // 2)])
    angles = torch.arange(length)[:, None] * theta.repeat(2)

    def neox(x):
        a, b = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()

    halves = [neox(split(to_half_split(w, heads))) for w in (w_q, w_k)]
    assert torch.allclose(halves[0] @ halves[1].transpose(-1, -2), want, atol=1e-4)
    assert torch.equal(from_half_split(to_half_split(w_q, heads), heads), w_q)
    assert torch.equal(from_half_split(to_half_split(w_q[:, 0], heads), heads), w_q[:, 0])
