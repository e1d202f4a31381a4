"""RoPE against its formula in float64, complex numbers, and HF transformers' RoFormer."""

import cmath
import copy

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.positions import RopeScaling, RotaryPositions
from fairseq_rope.positions.rope import StaticRotation, from_half_split, phases, plain_rotate, rotate, to_half_split


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


def exact_turns(length, dim, sentences=None):
    """e^(imθ) in complex128, (length, dim / 2) or, each sentence at another start, (sentences, 1, length, dim / 2)."""
    positions = (
        torch.arange(length) if sentences is None else torch.arange(length) + 7 * torch.arange(sentences)[:, None]
    )
    angles = positions.double()[..., None] * RopeScaling(head_dim=dim).frequencies()
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns if sentences is None else turns[:, None]


def layouts(batch, heads, length, dim):
    """(batch, heads, length, dim) views of one tensor, in the ways in which memory can hold them."""
    count = batch * heads * length * dim
    memory = torch.randn(4 * count + 1, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    projected = memory[: 3 * count].view(length, batch, 3 * heads * dim)
    yield "a projection", memory[:count].view(length, batch, heads, dim).permute(1, 2, 0, 3)
    yield "of a fused one", projected[..., heads * dim : 2 * heads * dim].unflatten(2, (heads, dim)).permute(1, 2, 0, 3)
    yield "batch first", memory[:count].view(batch, length, heads, dim).transpose(1, 2)
    yield "contiguous", memory[:count].view(batch, heads, length, dim)
    yield "at an odd address", memory[1 : count + 1].view(batch, heads, length, dim)
    yield "channels apart", memory[: 2 * count].view(batch, heads, length, 2 * dim)[..., ::2]
    yield "channels last but one", memory[:count].view(batch, heads, dim, length).transpose(2, 3)
    yield "the same for all heads", memory[: count // heads].view(batch, 1, length, dim).expand(-1, heads, -1, -1)


# Turns and results are each rounded once: an ulp of the largest value and a half.
ROUNDING = {torch.float64: 2**-23, torch.float32: 2**-22, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("size", [(2, 3, 7, 6), (1, 1, 1, 2), (3, 2, 1, 4), (1, 4, 5, 8), (2, 2, 0, 4)], ids=str)
def test_values_and_gradients_equal_the_plain_formula(dtype, size):
    """Whatever the precision and the order in memory, against float64; with turns a sentence too."""
    for name, x in layouts(*size):
        for sentences in (None, size[0]):
            turns = exact_turns(size[2], size[3], sentences)
            mine = x.to(dtype).requires_grad_() if dtype != x.dtype else x.detach().requires_grad_()
            exact = mine.detach().double().clone(memory_format=torch.contiguous_format).requires_grad_()
            got, want = rotate(mine, turns.to(torch.complex64)), plain_rotate(exact, turns)
            assert got.dtype == dtype and got.shape == want.shape and got.is_contiguous(), name
            g = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(dtype).transpose(1, 2)
            g = g.contiguous().transpose(1, 2)  # as the attention kernel hands it back
            got.backward(g)
            want.backward(g.double())
            with torch.no_grad():
                assert torch.equal(rotate(mine, turns.to(torch.complex64)), got), name
            for a, b in ((got, want), (mine.grad, exact.grad)):
                bound = ROUNDING[dtype] * float(b.abs().max()) if b.numel() else 0
                assert torch.allclose(a.double(), b, rtol=0, atol=bound), (name, sentences)


def test_a_gradient_lies_as_the_projection_does():
    """So nothing is copied: before the projection's backward pass, or before the attention kernel."""
    for name, x in layouts(2, 3, 7, 6):
        mine = x.detach().float().requires_grad_() if name != "of a fused one" else x.float().requires_grad_()
        rotate(mine, exact_turns(7, 6).to(torch.complex64)).sum().backward()
        assert mine.grad.stride() == torch.empty_like(mine).stride(), name


def test_derivatives_of_higher_order():
    turns = exact_turns(3, 4).to(torch.complex64)
    x = torch.randn(2, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, turns), x, atol=1e-6)
    assert torch.autograd.gradgradcheck(lambda x: rotate(x, turns), x, atol=1e-6)
    (first,) = torch.autograd.grad(rotate(x, turns).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    exact = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(plain_rotate(exact, exact_turns(3, 4)).pow(3).sum(), exact, create_graph=True)
    (want,) = torch.autograd.grad(first.pow(2).sum(), exact)
    assert torch.allclose(second, want, rtol=1e-5, atol=1e-5)


def test_neither_input_nor_gradient_is_written_to():
    x = torch.randn(2, 3, 5, 4, requires_grad=True)
    g = torch.randn(2, 3, 5, 4)
    kept, rotation = (x.detach().clone(), g.clone()), StaticRotation(exact_turns(5, 4).to(torch.complex64))
    y = rotation.rotate(x)
    y.backward(g, retain_graph=True)
    once = x.grad.clone()
    y.backward(g)  # what the first pass kept is as it was
    assert torch.equal(x, kept[0]) and torch.equal(g, kept[1]) and torch.equal(x.grad, 2 * once)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_and_under_autocast(reentrant):
    rotation = StaticRotation(exact_turns(5, 4).to(torch.complex64))
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(1, 2, 5, 4, requires_grad=True)

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = rotation.rotate(x @ weight)  # projected in bfloat16
        assert y.dtype == torch.bfloat16
        return y.float()

    results = []
    for whole in (run, lambda x: torch.utils.checkpoint.checkpoint(run, x, use_reentrant=reentrant)):
        x.grad = weight.grad = None
        whole(x).square().sum().backward()
        results.append((x.grad, weight.grad))
        assert all(bool((g != 0).any()) for g in results[-1])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_table_grows_and_keeps_its_rows():
    """Whatever was asked before, the turns are those of a fresh table and of the formula, bit for bit."""
    positions = rotary(16, mode="yarn", factor=2.0, train_length=9)
    theta, magnitude = positions.scaling.frequencies(), positions.scaling.magnitude
    for keys, queries in ((1, 1), (5, 5), (2000, 1), (256, 256), (257, 3), (7, 2), (2000, 2000)):
        tokens = torch.full((2, keys), 5)
        got = positions.rotation(tokens, queries, causal=True).turns
        assert torch.equal(got, phases(torch.arange(keys - queries, keys), theta, magnitude)), (keys, queries)
        assert got.shape == (queries, 8)
    assert positions.table.size(0) == 2048


@pytest.mark.parametrize("scaling", [{}, {"mode": "dynamic-ntk", "factor": 2.0, "train_length": 300}])
def test_a_step_of_decoding_computes_no_angles(scaling, monkeypatch):
    calls = []
    monkeypatch.setattr("fairseq_rope.positions.rope.phases", lambda *_: calls.append(_) or phases(*_))
    positions = rotary(16, **scaling)
    for keys in range(1, 258):
        positions.rotation(torch.full((2, keys), 5), 1, causal=True)
    assert len(calls) == 2  # made for 256 positions, and grown


def test_the_table_of_an_inference_pass_serves_training_and_a_copy():
    positions = rotary(4)
    tokens = torch.full((1, 3), 5)
    with torch.inference_mode():
        positions.rotation(tokens, 3, causal=False)
    x = torch.randn(1, 1, 3, 4, requires_grad=True)
    for one in (positions, copy.deepcopy(positions)):
        one.rotation(tokens, 3, causal=False).rotate(x).sum().backward()
    assert torch.isfinite(x.grad).all() and not positions.state_dict()


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
