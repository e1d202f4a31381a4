"""The baseline computes what stock's Transformer computes, with the same names; RoPE adds no keys."""

from argparse import Namespace

import models
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

SIZES = {
    f"{stack}_{name}": value
    for stack in ("encoder", "decoder")
    for name, value in {"embed_dim": 64, "ffn_embed_dim": 128, "attention_heads": 4, "layers": 2}.items()
}


def stock(task, **flags):
    """Stock fairseq's own Transformer."""
    torch.manual_seed(1)
    args = Namespace(arch="transformer", _name="transformer", **{**SIZES, **flags})
    ARCH_CONFIG_REGISTRY["transformer"](args)
    return ARCH_MODEL_REGISTRY["transformer"].build_model(args, task).eval()


FLAGS = {
    "tied": {"share_all_embeddings": True},
    "decoder-tied": {"share_decoder_input_output_embed": True},
    "untied": {"untied_embeddings": True},
    "pre-norm": {
        "share_all_embeddings": True,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
    },
    "learned": {"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
    "one side learned": {"share_all_embeddings": True, "encoder_learned_pos": True},
    "no positions": {"share_all_embeddings": True, "no_token_positional_embeddings": True},
    "layernorm-embedding": {"share_all_embeddings": True, "layernorm_embedding": True},
    "no scale, gelu": {"share_all_embeddings": True, "no_scale_embedding": True, "activation_fn": "gelu"},
    "adaptive softmax": {"untied_embeddings": True, "adaptive_softmax_cutoff": [10, 20]},
    "cross-self-attention": {"share_all_embeddings": True, "cross_self_attention": True},
    "no cross-attention": {"share_all_embeddings": True, "no_cross_attention": True},
    "other widths": {
        "untied_embeddings": True,
        "decoder_embed_dim": 32,
        "decoder_output_dim": 48,
        "decoder_input_dim": 24,
    },
}


@pytest.mark.parametrize("name", FLAGS)
def test_baseline_equals_stock(name):
    """Same seed, same initial weights; same logits with pads, in a full pass and step by step; same gradients."""
    flags, task = FLAGS[name], models.Task()
    theirs = stock(task, **{key: value for key, value in flags.items() if key != "untied_embeddings"})
    ours = models.build("baseline_tiny", task, **flags)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    source, target = models.batch([7, 3, 12]), models.batch([6, 9, 2], bos=2, left=False)
    real = target.ne(1)
    a, b = models.logits(ours, source, target), models.logits(theirs, source, target)
    ok, difference = models.close(a[real], b[real])
    assert ok, difference
    states = [{}, {}]
    with torch.no_grad():
        encoded = [model.encoder(source, source.ne(1).sum(1)) for model in (ours, theirs)]
        for step in range(1, 7):
            out = [
                model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)
                for model, encoder_out, state in zip((ours, theirs), encoded, states, strict=True)
            ]
            rows = real[:, step - 1]
            assert models.close(out[0][0][rows], out[1][0][rows])[0], step
            if out[1][1]["attn"][0] is not None:
                assert torch.allclose(out[0][1]["attn"][0][rows], out[1][1]["attn"][0][rows], atol=1e-6)
    if "adaptive_softmax_cutoff" in flags:
        return
    for model in (ours, theirs):
        logits = model(source, source.ne(1).sum(1), target)[0]
        logits[real].float().log_softmax(-1)[:, 5].sum().backward()
    # Measured by the model's largest gradient: that of a key's bias is zero but for rounding.
    scale = max(float(q.grad.abs().max()) for q in theirs.parameters() if q.grad is not None)
    for (parameter_name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        if q.grad is None:
            assert p.grad is None, parameter_name
        else:
            assert torch.allclose(p.grad, q.grad, atol=2e-6 * scale), parameter_name


@pytest.mark.parametrize("name", ["tied", "untied", "learned", "pre-norm"])
def test_a_seed_gives_stock_s_initial_weights(name):
    flags = FLAGS[name]
    theirs = stock(models.Task(), **{key: value for key, value in flags.items() if key != "untied_embeddings"})
    torch.manual_seed(1)
    args = Namespace(arch="baseline_tiny", _name="baseline_tiny", **flags)
    ARCH_CONFIG_REGISTRY["baseline_tiny"](args)
    ours = ARCH_MODEL_REGISTRY["baseline_tiny"].build_model(args, models.Task())
    for (key, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert torch.equal(a, b), key


def test_training_mode_draws_the_same_dropout_as_stock():
    task = models.Task()
    theirs, ours = (
        stock(task, share_all_embeddings=True, dropout=0.3),
        models.build("baseline_tiny", task, dropout=0.3),
    )
    theirs.load_state_dict(ours.state_dict())
    source, target = models.batch([7, 3, 12]), models.batch([6, 9, 2], bos=2, left=False)
    results = []
    for model in (ours.train(), theirs.train()):
        torch.manual_seed(4)
        results.append(model(source, source.ne(1).sum(1), target)[0][target.ne(1)])
    assert models.close(*results)[0]


def test_rope_adds_no_keys_and_drops_none():
    rope = models.variant("roformer").state_dict()
    assert list(rope) == list(models.variant("none").state_dict())
    assert list(rope) == list(models.variant("baseline").state_dict())
    assert not [name for name, _ in models.variant("roformer").named_buffers() if not name.endswith("version")]


def test_names_are_frozen():
    """Checkpoints of every release name their parameters like this."""
    attention = [f"{p}.{kind}" for p in ("k_proj", "v_proj", "q_proj", "out_proj") for kind in ("weight", "bias")]

    def norms(*names):
        return [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]

    encoder = [f"self_attn.{n}" for n in attention] + norms("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")
    decoder = [f"self_attn.{n}" for n in attention] + norms("self_attn_layer_norm")
    decoder += [f"encoder_attn.{n}" for n in attention] + norms(
        "encoder_attn_layer_norm", "fc1", "fc2", "final_layer_norm"
    )
    want = ["encoder.version", "encoder.embed_tokens.weight"]
    want += [f"encoder.layers.{i}.{n}" for i in range(2) for n in encoder]
    want += ["decoder.version", "decoder.embed_tokens.weight"]
    want += [f"decoder.layers.{i}.{n}" for i in range(2) for n in decoder]
    want += ["decoder.output_projection.weight"]
    assert list(models.variant("roformer").state_dict()) == want
    learned = set(models.variant("learned").state_dict()) - set(want)
    assert learned == {"encoder.embed_positions.weight", "decoder.embed_positions.weight"}
    assert models.variant("roformer").decoder.layers[0].self_attn.num_heads == 4


@pytest.mark.parametrize("name", ["baseline", "learned", "roformer", "rope-dynamic-ntk"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_close(name, dtype):
    model = models.variant(name)
    source, target = models.batch([7, 3, 12]), models.batch([6, 9, 2], bos=2, left=False)
    full = models.logits(model, source, target)
    half = models.logits(model.to(dtype), source, target)
    assert half.dtype == dtype
    epsilon = torch.finfo(dtype).eps
    ok, difference = models.close(half.float()[target.ne(1)], full[target.ne(1)], 40 * epsilon)
    assert ok, difference


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sinusoids_stay_float32(dtype):
    positions = models.variant("baseline").to(dtype).encoder.embed_positions
    tokens = torch.full((1, 4097), 5)
    half = 32
    frequency = 10000 ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    want = torch.cat((torch.sin(4098 * frequency), torch.cos(4098 * frequency)))
    assert (positions.embed(tokens, 4097)[0, -1] - want).abs().max() < 1e-3
