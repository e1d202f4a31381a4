"""TUPE against its formulas in float64, its parameters, its memory, and what it refuses."""

import math
from argparse import Namespace

import models
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_rope.errors import UserError
from fairseq_rope.positions import TupePositions

PAD, EOS = 1, 2
EMBED, HEADS = 8, 2
RESETS = [("none", "separate"), *((reset, form) for reset in ("first", "eos") for form in ("separate", "joint"))]
BATCHES = {
    "no pads": [[5, 6, 7, 8, 2], [2, 9, 4, 4, 5]],
    "left pads": [[1, 1, 5, 6, 2], [7, 8, 9, 4, 2], [1, 1, 1, 2, 6]],
    "right pads": [[5, 6, 2, 1, 1], [7, 8, 9, 4, 2], [2, 6, 1, 1, 1]],
    "both sides": [[1, 5, 6, 2, 1], [1, 1, 2, 4, 1]],
    "pads between": [[5, 1, 6, 1, 2], [7, 8, 9, 4, 2], [1, 5, 1, 1, 2]],
    "a sentence of pads": [[1, 1, 1, 1], [5, 6, 7, 2], [5, 2, 1, 1]],
    "nothing but pads": [[1, 1, 1]],
    "one token": [[2], [7]],
    "one token and pads": [[1, 2], [7, 1]],
    "several </s>": [[5, 2, 6, 2], [2, 2, 7, 8]],
    "longer than every bucket": [[5, 6, 7, 8, 9, 4, 5, 6, 7, 2]],
}
# 8 buckets up to a distance of 6, by hand: floor(2 log(n/2) / log 3) and floor(4 log(n/4) / log 1.5) from the exact
# ones on.
BEHIND_OF_EIGHT = {True: [0, 1, 2, 2, 3, 3, 3, 3, 3, 3], False: [0, 1, 2, 3, 4, 6, 7, 7, 7, 7]}
# 32 buckets up to 128, the first distances.
BEHIND_OF_32 = {True: [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 9], False: list(range(13))}


def randomize(encoding, seed=0):
    """Parameters of order 1 instead of TUPE's small start, where a term that is left out would not show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7 + 0.2)


def tupe(relative, reset="none", form="separate", bidirectional=True, rows=12):
    """A small TUPE encoding in float64, 8 buckets up to a distance of 6."""
    buckets = 8 if relative else 0
    encoding = TupePositions(EMBED, HEADS, rows, PAD, EOS, reset, form, buckets, 6, bidirectional)
    randomize(encoding)
    return encoding.double()


def leaves(encoding):
    """Copies of the parameters in float64 that collect gradients of their own."""
    return {name: value.detach().double().clone().requires_grad_() for name, value in encoding.named_parameters()}


def normalized(vector, p):
    """LN of one vector."""
    centred = vector - vector.sum() / len(vector)
    deviation = (centred.square().sum() / len(vector) + 1e-5).sqrt()
    return centred / deviation * p["pos_ln.weight"] + p["pos_ln.bias"]


def projected(vector, p, which, heads):
    """LN(p_i) U of each head."""
    out = p[f"pos_{which}_linear.weight"] @ normalized(vector, p) + p[f"pos_{which}_linear.bias"]
    return out.chunk(heads)


def reference_scores(p, tokens, heads, reset, form, behind, bidirectional):
    """{(sentence, head, i, j): score} of TUPE's eq. 7-11, one entry at a time, for tokens i and j that are no pads.

    In a decoder only for j ≤ i; ``behind`` lists the bucket of each distance to a key behind the query.
    """
    width = p["pos.weight"].size(1)
    scale = math.sqrt(2 * width // heads)
    length = len(tokens[0])
    q, k = ([projected(p["pos.weight"][i], p, which, heads) for i in range(length)] for which in "qk")
    relative = p.get("relative_attention_bias.weight")
    theta = []
    for row in range(2 if reset != "none" else 0):
        a, b = (projected(p["reset_pos.weight"][row], p, which, heads) for which in "qk")
        theta.append([(a[h] * b[h]).sum() / scale for h in range(heads)])
        if relative is not None and form == "separate":
            theta[row] = [theta[row][h] + p["reset_bias.weight"][row, h] for h in range(heads)]

    scores = {}
    for s, sentence in enumerate(tokens):
        columns = [column for column, token in enumerate(sentence) if token != PAD]
        special = [reset == "first" and rank == 0 for rank in range(len(columns))]
        if reset == "eos":
            special = [sentence[column] == EOS for column in columns]
        for a, i in enumerate(columns):
            for b, j in enumerate(columns):
                if b > a and not bidirectional:
                    continue
                for h in range(heads):
                    if special[a]:
                        value = theta[0][h]
                    elif special[b]:
                        value = theta[1][h]
                    else:
                        value = (q[a][h] * k[b][h]).sum() / scale
                        if relative is not None:
                            ahead = relative.size(0) // 2 if b > a else 0
                            value = value + relative[behind[abs(b - a)] + ahead, h]
                    scores[s, h, i, j] = value
    return scores


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize("relative", [False, True], ids=["tupe-a", "tupe-r"])
@pytest.mark.parametrize("reset, form", RESETS)
def test_matrix_and_gradients_equal_the_formula(relative, bidirectional, reset, form):
    for name, rows in BATCHES.items():
        encoding = tupe(relative, reset, form, bidirectional)
        p = leaves(encoding)
        want = reference_scores(p, rows, HEADS, reset, form, BEHIND_OF_EIGHT[bidirectional], bidirectional)
        got = encoding.score_bias(torch.tensor(rows), len(rows[0]))
        assert torch.isfinite(got).all(), name
        assert got.size(0) in (1, len(rows)) and got.shape[1:] == (HEADS, len(rows[0]), len(rows[0]))
        if not want:
            continue
        expanded = got.expand(len(rows), -1, -1, -1)
        index = tuple(torch.tensor(list(want)).t())
        want = torch.stack(list(want.values()))
        assert torch.allclose(expanded[index], want, rtol=0, atol=1e-12), name

        weight = torch.randn(len(want), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (expanded[index] * weight).sum().backward()
        (want * weight).sum().backward()
        for key, parameter in encoding.named_parameters():
            grads = (torch.zeros_like(x) if x.grad is None else x.grad for x in (parameter, p[key]))
            assert torch.allclose(*grads, rtol=1e-9, atol=1e-11), (name, key)


@pytest.mark.parametrize("relative", [False, True], ids=["tupe-a", "tupe-r"])
@pytest.mark.parametrize("reset, form", RESETS)
def test_some_queries_see_the_rows_of_all(relative, reset, form):
    """One query a step against the row of the full pass, whatever was decoded before; also the last three queries."""
    encoding = tupe(relative, reset, form, bidirectional=False)
    for name, rows in BATCHES.items():
        tokens = torch.tensor(rows)
        full = encoding.score_bias(tokens, tokens.size(1)).expand(len(rows), -1, -1, -1)
        for end in range(1, tokens.size(1) + 1):
            for queries in {1, min(3, end)}:
                some = encoding.score_bias(tokens[:, :end], queries).expand(len(rows), -1, -1, -1)
                real = tokens[:, :end].ne(PAD)
                seen = real[:, None, end - queries :, None] & real[:, None, None, :]
                seen = seen.expand_as(some) & torch.ones(end, end, dtype=torch.bool).tril()[end - queries :]
                rows_of_all = full[:, :, end - queries : end, :end]
                assert torch.allclose(some[seen], rows_of_all[seen], rtol=0, atol=1e-12), (name, end, queries)


@pytest.mark.parametrize("relative", [False, True], ids=["tupe-a", "tupe-r"])
@pytest.mark.parametrize("reset, form", RESETS)
def test_decoding_with_a_memo_equals_the_full_pass(relative, reset, form, monkeypatch):
    """Step by step with one memo, rows reordered and dropped on the way; where a later pad comes before a token too."""
    monkeypatch.setattr("fairseq_rope.positions.tupe._MEMO_ROWS", 3)
    encoding = tupe(relative, reset, form, bidirectional=False)
    for name, rows in BATCHES.items():
        memo, tokens = {}, torch.tensor(rows)
        for end in range(1, tokens.size(1) + 1):
            if end == 3:
                tokens = tokens.flip(0)[: max(1, len(rows) - 1)]
            full = encoding.score_bias(tokens, tokens.size(1)).detach().expand(len(tokens), -1, -1, -1)
            with torch.no_grad():
                step = encoding.score_bias(tokens[:, :end], 1, memo=memo).expand(len(tokens), -1, -1, -1)
            real = tokens[:, :end].ne(PAD)
            seen = (real[:, None, -1:, None] & real[:, None, None, :]).expand_as(step)
            assert torch.allclose(step[seen], full[:, :, end - 1 : end, :end][seen], rtol=0, atol=1e-12), (name, end)


def test_a_memo_saves_the_projections_and_holds_no_graph():
    """One projection of all positions in 64 steps; none of it used with gradients, or by another batch."""
    encoding = TupePositions(EMBED, HEADS, 200, PAD, EOS, "first", buckets=8, max_distance=6, bidirectional=False)
    randomize(encoding)
    calls, memo = [], {}
    encoding.pos_k_linear.register_forward_hook(lambda *_: calls.append(1))
    tokens = torch.full((2, 200), 5)
    with torch.no_grad():
        for end in range(1, 65):
            encoding.score_bias(tokens[:, :end], 1, memo=memo)
    assert len(calls) == 2  # the positions' and the reset vectors'
    kept = [x for entry in memo.values() for x in entry.values() if isinstance(x, torch.Tensor)]
    assert kept and not any(x.requires_grad for x in kept)

    with torch.no_grad():
        encoding.pos.weight.mul_(3)
        new, old = (encoding.score_bias(tokens[:, :9], 1, memo=m) for m in ({}, memo))
        assert not torch.allclose(new, old)
        memo.clear()
        for end in (150, 200, 66, 67):  # a memo from the middle on, beyond what it keeps, and back
            step = encoding.score_bias(tokens[:, :end], 1, memo=memo)
            assert torch.allclose(step, encoding.score_bias(tokens[:, :end], 1), atol=1e-5)
    with_gradient = encoding.score_bias(tokens[:, :9], 1, memo=memo)
    assert with_gradient.requires_grad and torch.allclose(with_gradient, new, atol=1e-5)


def recorded(model, *arguments):
    """Arguments and result of every attention in a forward pass, {name: (args, kwargs, output)}."""
    calls, handles = {}, []
    for name, module in model.named_modules():
        if name.endswith("_attn"):

            def hook(module, args, kwargs, output, name=name):
                calls[name] = args, kwargs, output

            handles.append(module.register_forward_hook(hook, with_kwargs=True))
    with torch.no_grad():
        model(*arguments)
    for handle in handles:
        handle.remove()
    return calls


def reference_attention(attention, x, source, keep, divisor, position_scores):
    """Attention of x (tgt_len, batch, embed_dim) to ``source``, one sentence, head and query at a time.

    Args:
        keep: keep(sentence, i, j) tells whether query i may look at key j.
        divisor: of q·k.
        position_scores: {(sentence, head, i, j): score} that is added, or None.
    """
    q, k, v = (
        torch.nn.functional.linear(y, proj.weight, proj.bias)
        for y, proj in ((x, attention.q_proj), (source, attention.k_proj), (source, attention.v_proj))
    )
    dim = attention.head_dim
    out = torch.zeros_like(x)
    for b in range(x.size(1)):
        for i in range(x.size(0)):
            seen = [j for j in range(source.size(0)) if keep(b, i, j)]
            if not seen:
                continue
            for h in range(attention.num_heads):
                part = slice(h * dim, (h + 1) * dim)
                scores = [q[i, b, part] @ k[j, b, part] / divisor for j in seen]
                if position_scores is not None:
                    scores = [s + position_scores[b, h, i, j] for s, j in zip(scores, seen, strict=True)]
                weights = torch.stack(scores).exp()
                out[i, b, part] = (weights / weights.sum()) @ v[seen, b, part]
    return torch.nn.functional.linear(out, attention.out_proj.weight, attention.out_proj.bias)


@pytest.mark.parametrize(
    "arch, flags",
    [
        ("tupe_a_tiny", {}),
        ("tupe_r_tiny", {"tupe_reset": "first"}),
        ("tupe_r_tiny", {"tupe_reset": "eos", "tupe_reset_form": "joint"}),
    ],
)
@pytest.mark.parametrize("left_pad_target", [False, True])
def test_attention_of_a_model_equals_the_formula(arch, flags, left_pad_target):
    """Every attention of encoder and decoder: 1/sqrt(2 head_dim) and the position scores in self-attention only."""
    model = models.build(arch, **flags)
    for stack in (model.encoder, model.decoder):
        randomize(stack.embed_positions, seed=7)
    model.double()
    model.decoder.need_attn = False  # returned weights are taken in float32
    source, target = models.batch([7, 3]), models.batch([5, 2], bos=2, left=left_pad_target)
    calls = recorded(model, source, None, target)
    assert len(calls) == 6
    for name, (args, _, output) in calls.items():
        attention = model.get_submodule(name)
        decoder, cross = name.startswith("decoder"), "encoder_attn" in name
        x = args[0]
        y = args[1] if cross else x
        queries, keys = target if decoder else source, target if decoder and not cross else source
        scores, divisor = None, math.sqrt(16)
        if not cross:
            encoding = (model.decoder if decoder else model.encoder).embed_positions
            reset, form = flags.get("tupe_reset", "none"), flags.get("tupe_reset_form", "separate")
            behind, divisor = BEHIND_OF_32[not decoder], math.sqrt(2 * 16)
            scores = reference_scores(leaves(encoding), queries.tolist(), 4, reset, form, behind, not decoder)

        def keep(b, i, j, queries=queries, keys=keys, causal=decoder and not cross):
            return queries[b, i] != PAD and keys[b, j] != PAD and not (causal and j > i)

        with torch.no_grad():
            want = reference_attention(attention, x, y, keep, divisor, scores)
        real = queries.ne(PAD).t()
        assert torch.allclose(output[0][real], want[real], rtol=0, atol=1e-10), name


@pytest.mark.parametrize("flags", [{}, {"residual_attention": "sum"}])
def test_pads_alone_stay_finite(flags):
    """A source of pads, a target of pads, both: outputs and all gradients are finite numbers."""
    model = models.build("tupe_r_tiny", tupe_reset="first", **flags).train()
    source, target = models.batch([4, 6]), models.batch([3, 5], bos=2, left=False)
    source[0] = PAD
    target[1] = PAD
    for sources, targets in ((source, target), (source[:1], target), (source[:1], target[1:])):
        out = model(sources.expand(len(targets), -1), None, targets)[0]
        assert torch.isfinite(out).all()
        model.zero_grad()
        out.square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("relative", [False, True], ids=["tupe-a", "tupe-r"])
def test_one_matrix_serves_all_sentences_where_no_pad_stands_before_a_token(relative):
    right = torch.tensor([[2, 5, 6, 7], [2, 5, 1, 1], [2, 1, 1, 1]])  # a decoder's input: </s> first
    left = torch.tensor([[5, 6, 7, 2], [1, 1, 5, 2]])
    for reset in ("none", "first", "eos"):
        for bidirectional in (True, False):
            encoding = tupe(relative, reset, bidirectional=bidirectional)
            for tokens in (right, right[:, :1], left[:1].expand(5, -1)):
                width = tokens.size(1)
                assert encoding.score_bias(tokens, width).shape == (1, HEADS, width, width)
                assert encoding.score_bias(tokens, 1).shape == (1, HEADS, 1, width)
            assert encoding.score_bias(left, 4).shape == (2, HEADS, 4, 4)


def count_calls(monkeypatch):
    """Record the shapes of all that TUPE's encodings return."""
    shapes, score_bias = [], TupePositions.score_bias

    def counted(self, tokens, query_len, memo=None):
        bias = score_bias(self, tokens, query_len, memo)
        shapes.append(("encoder" if self.bidirectional else "decoder", *bias.shape))
        return bias

    monkeypatch.setattr(TupePositions, "score_bias", counted)
    return shapes


@pytest.mark.parametrize("arch", ["tupe_a_tiny", "tupe_r_tiny"])
@pytest.mark.parametrize("residual_attention", ["none", "mean"])
def test_computed_once_a_pass_and_one_row_a_step(arch, residual_attention, monkeypatch):
    model = models.build(arch, encoder_layers=3, tupe_reset="eos", residual_attention=residual_attention)
    source, target = models.batch([6, 6]), models.batch([5, 3], bos=2, left=False)
    shapes = count_calls(monkeypatch)
    calls = recorded(model, source, None, target)
    assert shapes == [("encoder", 1, 4, 6, 6), ("decoder", 1, 4, 5, 5)]
    for stack, width in (("encoder", 6), ("decoder", 5)):
        # score_bias is the fifth argument: one tensor, not a copy a layer, and one for all sentences.
        biases = [args[4] for name, (args, _, _) in calls.items() if name.startswith(stack) and "self_attn" in name]
        assert len(biases) == (3 if stack == "encoder" else 2) and all(bias is biases[0] for bias in biases)
        assert biases[0].shape == (1, 4, width, width)
    assert all(not kwargs.get("score_bias") for name, (_, kwargs, _) in calls.items() if "encoder_attn" in name)

    shapes.clear()
    with torch.no_grad():
        encoder_out, state = model.encoder(source, None), {}
        for step in range(1, 6):
            model.decoder(models.batch([5, 5], bos=2)[:, :step], encoder_out=encoder_out, incremental_state=state)
    assert shapes == [("encoder", 1, 4, 6, 6), *(("decoder", 1, 4, 1, step) for step in range(1, 6))]


def start(arch, **flags):
    """A model as ``--arch`` builds it, with its own initialisation."""
    torch.manual_seed(1)
    args = Namespace(arch=arch, _name=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, models.Task())


ABSOLUTE = {
    "pos.weight": (1024, 64),
    "pos_ln.weight": (64,),
    "pos_ln.bias": (64,),
    "pos_q_linear.weight": (64, 64),
    "pos_q_linear.bias": (64,),
    "pos_k_linear.weight": (64, 64),
    "pos_k_linear.bias": (64,),
}
RELATIVE = {**ABSOLUTE, "relative_attention_bias.weight": (32, 4)}
VECTORS, SCALARS = {"reset_pos.weight": (2, 64)}, {"reset_bias.weight": (2, 4)}
PARAMETERS = [
    ("tupe_a_tiny", {}, ABSOLUTE),
    ("tupe_a_tiny", {"tupe_reset": "first"}, {**ABSOLUTE, **VECTORS}),
    ("tupe_a_tiny", {"tupe_reset": "eos", "tupe_reset_form": "joint"}, {**ABSOLUTE, **VECTORS}),
    ("tupe_r_tiny", {}, RELATIVE),
    ("tupe_r_tiny", {"tupe_reset_form": "joint"}, RELATIVE),
    ("tupe_r_tiny", {"tupe_reset": "eos"}, {**RELATIVE, **VECTORS, **SCALARS}),
    ("tupe_r_tiny", {"tupe_reset": "first", "tupe_reset_form": "joint"}, {**RELATIVE, **VECTORS}),
]


@pytest.mark.parametrize("arch, flags, shapes", PARAMETERS)
def test_names_and_shapes_of_parameters(arch, flags, shapes):
    """Frozen: checkpoints depend on them. Nothing that is not read, no buffers, and one set a stack."""
    model = start(arch, **flags)
    baseline = start("baseline_tiny").state_dict()
    added = {name: tuple(x.shape) for name, x in model.state_dict().items() if name not in baseline}
    assert added == {
        f"{stack}.embed_positions.{name}": shape for stack in ("encoder", "decoder") for name, shape in shapes.items()
    }
    assert not set(baseline) - set(model.state_dict())
    assert added.keys() < dict(model.named_parameters()).keys()  # named once each: not shared
    for name in added:
        if name.startswith("encoder") and not name.endswith(("bias", "pos_ln.weight")):
            assert not torch.equal(model.state_dict()[name], model.state_dict()[name.replace("en", "de", 1)])


def test_every_parameter_that_exists_is_used():
    """A gradient reaches each: what is never read would be refused by stock's DDP."""
    for arch, flags, _ in PARAMETERS:
        model = models.build(arch, **flags).train()
        model(models.batch([6, 4]), None, models.batch([5, 3], bos=2, left=False))[0].square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (flags, name)
            # The same for every key, a key's bias changes no softmax but where a reset leaves some of them out.
            assert parameter.grad.abs().max() > 1e-4 or name.endswith(("k_proj.bias", "pos_k_linear.bias")), name


def test_tables_have_the_stack_s_own_sizes():
    flags = {"max_source_positions": 30, "max_target_positions": 20, "relative_buckets": 8, "relative_max_distance": 50}
    model = start("tupe_r_tiny", decoder_embed_dim=32, decoder_attention_heads=2, **flags)
    assert model.encoder.embed_positions.pos.weight.shape == (30, 64)
    assert model.decoder.embed_positions.pos.weight.shape == (20, 32)
    assert model.decoder.embed_positions.relative_attention_bias.weight.shape == (8, 2)
    assert model.max_positions() == (30, 20)


def test_initialisation():
    """N(0, 0.02) for tables and projections, zero biases, LN 1 and 0."""
    model = start("tupe_r_tiny", tupe_reset="eos")
    for stack in (model.encoder, model.decoder):
        for name, parameter in stack.embed_positions.named_parameters():
            if name == "pos_ln.weight":
                assert torch.equal(parameter, torch.ones(64))
            elif name.endswith("bias"):
                assert torch.equal(parameter, torch.zeros(64)), name
            else:
                n = parameter.numel()
                # Five standard errors of a normal sample's deviation and mean.
                assert abs(float(parameter.std()) / 0.02 - 1) < 5 / math.sqrt(2 * n), name
                assert abs(float(parameter.mean())) < 5 * 0.02 / math.sqrt(n), name


@pytest.mark.parametrize("arch", ["tupe_a_tiny", "tupe_r_tiny"])
@pytest.mark.parametrize("residual_attention", ["none", "mean"])
def test_a_sentence_beyond_the_table_is_refused_before_anything_is_computed(arch, residual_attention, monkeypatch):
    flags = {"max_source_positions": 6, "max_target_positions": 4, "residual_attention": residual_attention}
    model = models.build(arch, **flags)
    source, target = models.batch([6, 2]), models.batch([4, 2], bos=2, left=False)
    encoder_out, state = model.encoder(source, None), {}
    for step in range(1, 5):
        model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)

    embedded = []
    for stack in (model.encoder, model.decoder):
        monkeypatch.setattr(stack.embed_tokens, "forward", lambda tokens: embedded.append(tokens))
    for left in (False, True):
        with pytest.raises(UserError, match="a sequence of 7 tokens is longer than the 6 positions that TUPE"):
            model.encoder(models.batch([7, 2], left=left, extra=1), None)
        longer = models.batch([5, 2], bos=2, left=left)
        for incremental in (None, state):
            with pytest.raises(UserError, match="a sequence of 5 tokens is longer than the 4 positions that TUPE"):
                model.decoder(longer, encoder_out=encoder_out, incremental_state=incremental)
    assert not embedded


@pytest.mark.parametrize("arch", ["tupe_a_tiny", "tupe_r_tiny"])
def test_pads_do_not_count_towards_the_table(arch):
    """Batches wider than the table, whose sentences fit, compute what they compute without the pads."""
    model = models.build(arch, max_source_positions=6, max_target_positions=4, tupe_reset="first")
    source, target = models.batch([6]), models.batch([4], bos=2)
    alone = models.logits(model, source, target)[0]
    for left in (False, True):
        wide_source = models.batch([6], left=left, extra=5)
        wide_target = models.batch([4], bos=2, left=left, extra=9)
        got = models.logits(model, wide_source, wide_target)[wide_target.ne(PAD)]
        assert models.close(got, alone)[0]
    between = torch.tensor([[*source[0, :3], PAD, PAD, *source[0, 3:]]])
    assert models.close(models.logits(model, between, target)[0], alone)[0]
    assert torch.isfinite(models.logits(model, torch.full((2, 9), PAD), torch.full((2, 9), PAD))).all()


def test_printed_form_names_kind_and_reset():
    assert repr(tupe(False)).startswith("TupePositions(\n  absolute, reset none\n")
    assert "relative, 8 buckets to 6, reset eos (joint)" in repr(tupe(True, "eos", "joint"))
