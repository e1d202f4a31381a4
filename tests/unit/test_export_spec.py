"""What CTranslate2 computes with an exported model is what the trained model computes, or the export is refused."""

import json
from argparse import Namespace

import models
import pytest
import torch

from fairseq_rope.deploy.export import convert, exportable_options
from fairseq_rope.errors import UserError

ctranslate2 = pytest.importorskip("ctranslate2")

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
ROPE = {"position_encoding": "rope"}
NARROW = {"encoder_embed_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 8}

# name: (architecture, flags)
EXPORTED = {
    "baseline": ("baseline_tiny", {}),
    "pre-norm": ("baseline_tiny", PRE_NORM),
    "pre-norm without the last LayerNorm": ("roformer_tiny", {**PRE_NORM, "no_decoder_final_norm": True}),
    "pre-norm encoder": ("baseline_tiny", {"encoder_normalize_before": True}),
    "pre-norm decoder": ("roformer_tiny", {"decoder_normalize_before": True}),
    "rope": ("roformer_tiny", {}),
    "rope, base": ("roformer_tiny", {"rope_base": 500.0}),
    "rope, linear": ("roformer_tiny", {"rope_scaling": "linear", "rope_scaling_factor": 3.0, **PRE_NORM}),
    "learned": ("baseline_tiny", {"position_encoding": "learned"}),
    "learned encoder": ("baseline_tiny", {"encoder_learned_pos": True, "max_source_positions": 33}),
    "none": ("baseline_tiny", {"position_encoding": "none"}),
    "embeddings normalised": ("roformer_tiny", {"layernorm_embedding": True}),
    "untied": ("baseline_tiny", {"untied_embeddings": True}),
    "decoder tied": ("roformer_tiny", {"share_decoder_input_output_embed": True}),
    "unscaled embeddings": ("baseline_tiny", {"no_scale_embedding": True}),
    "admin": ("admin_tiny", {}),
    "admin, rope": ("admin_tiny", {**ROPE, "layernorm_embedding": True}),
    "admin-torch": ("baseline_tiny", {"residual_init": "admin-torch"}),
    "admin-torch, rope": ("roformer_tiny", {"residual_init": "admin-torch"}),
    "deepnorm": ("baseline_tiny", {"residual_init": "deepnorm"}),
    "deepnorm, rope": ("roformer_tiny", {"residual_init": "deepnorm"}),
    "other widths": ("baseline_tiny", {**NARROW, "encoder_ffn_embed_dim": 48, "encoder_layers": 3}),
    "other widths, rope": ("roformer_tiny", {**NARROW, "decoder_layers": 1}),
    "heads of 15 channels": ("baseline_tiny", {"encoder_embed_dim": 60, "decoder_embed_dim": 60}),
    "both projections": ("roformer_tiny", {"decoder_input_dim": 48, "decoder_output_dim": 40}),
    "input projection": ("baseline_tiny", {"decoder_input_dim": 48, "decoder_output_dim": 64}),
    "output projection": ("baseline_tiny", {"decoder_input_dim": 64, "decoder_output_dim": 40}),
    "gelu": ("roformer_tiny", {"activation_fn": "gelu"}),
    "gelu_accurate": ("roformer_tiny", {"activation_fn": "gelu_accurate"}),
    "tanh": ("roformer_tiny", {"activation_fn": "tanh"}),
    "regularised": (
        "roformer_tiny",
        {
            "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "activation_dropout": 0.4, "attention_dropout": 0.3,
            "dropout": 0.5, "checkpoint_activations": True, "offload_activations": True, "ffn_init": "xavier",
        },
    ),
    # fairseq's pruning needs the layers of both stacks named
    "encoder pruned": ("baseline_tiny", {"encoder_layers": 3, "keep": {"encoder": "0,2", "decoder": "0,1"}}),
    "both pruned, rope": ("roformer_tiny", {"decoder_layers": 4, "keep": {"encoder": "1", "decoder": "0,1,3"}}),
}  # fmt: skip
HALVES = {"half precision": torch.float16, "bfloat16": torch.bfloat16}


def checkpoint(arch, task=None, keep=None, change=None, **flags):
    """A checkpoint's dictionary of a small model with every parameter away from its start, as fairseq saves it.

    Args:
        keep: {stack: layers} to record as ``--encoder-layers-to-keep``.
        change: function of the dictionary, which it changes.
    """
    built = models.build(arch, task, **flags)
    state = {name: x.fill_(1) if name.endswith("0.self_attn_omega") else x for name, x in built.state_dict().items()}
    kept = {f"{stack}_layers_to_keep": layers for stack, layers in (keep or {}).items()}
    result = {"cfg": {"model": Namespace(arch=arch, _name=arch, **flags, **kept)}, "model": state, "extra_state": {}}
    if change is not None:
        change(result)
    return result


def trained_model(arch, state, task, keep=None, **flags):
    """The model that fairseq would make of the checkpoint, in float32."""
    kept = {f"{stack}_layers_to_keep": layers for stack, layers in (keep or {}).items()}
    model = models.build(arch, task, **flags, **kept)
    model.load_state_dict(dict(state["model"]), model_cfg=Namespace(arch=arch, **kept))
    return model.eval()


def saved(converted, folder, quantization="float32"):
    converted.spec.optimize(quantization)
    folder.mkdir(exist_ok=True)
    converted.spec.save(str(folder))
    return folder


def forced(model, folder, lengths=((1, 1), (3, 9), (14, 2), (30, 25)), seed=5):
    """Largest difference of log-probabilities of random translations of random sentences, token by token."""
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    source, target = model.encoder.dictionary, model.decoder.dictionary
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for lengths_of_pair in lengths:
        pairs.append([
            torch.randint(3, len(dictionary), (length,), generator=generator).tolist()  # with <unk>
            for length, dictionary in zip(lengths_of_pair, (source, target), strict=True)
        ])  # fmt: skip
    words = [([source[i] for i in s], [target[i] for i in t]) for s, t in pairs]
    found = translator.score_batch([s for s, _ in words], [t for _, t in words], max_input_length=0)
    worst = 0
    for (s, t), result in zip(pairs, found, strict=True):
        tokens, output = torch.tensor([[*s, 2]]), torch.tensor([*t, 2])
        logits = models.logits(model, tokens, torch.tensor([[2, *t]]))[0]
        expected = logits.log_softmax(-1).gather(1, output[:, None])[:, 0]
        worst = max(worst, float((torch.tensor(result.log_probs) - expected).abs().max()))
    return worst


@pytest.mark.parametrize("case", EXPORTED)
def test_log_probabilities(tmp_path, case):
    arch, flags = EXPORTED[case]
    task = models.Task(40, 53) if case in ("learned", "untied", "other widths", "admin, rope") else models.Task(40)
    state = checkpoint(arch, task, **flags)
    converted = convert(state, "made.pt", task.source_dictionary, task.target_dictionary)
    assert forced(trained_model(arch, state, task, **flags), saved(converted, tmp_path)) < 2e-5
    positions = flags.get("position_encoding") or ("rope" if arch.startswith("roformer") else "sinusoidal")
    limit = None if positions == "rope" else 1024
    assert converted.limits == {"source": flags.get("max_source_positions", limit), "target": limit}
    assert converted.folded == (flags.get("residual_init") or ("admin" if arch.startswith("admin") else None))


@pytest.mark.parametrize("name", HALVES)
def test_half_precision(tmp_path, name):
    def change(state):
        state["model"] = {key: x if key.endswith("_omega") else x.to(HALVES[name]) for key, x in state["model"].items()}

    task = models.Task()
    state = checkpoint("admin_tiny", task, change=change, **ROPE)
    converted = convert(state, "made.pt", task.source_dictionary, task.target_dictionary)
    assert forced(trained_model("admin_tiny", state, task, **ROPE), saved(converted, tmp_path)) < 2e-5


def test_long_sentences(tmp_path):
    """RoPE has no limit; sinusoids are written up to the model's own, and not a token further."""
    task = models.Task()
    state = checkpoint("roformer_tiny", task)
    folder = saved(convert(state, "made.pt", task.source_dictionary, task.target_dictionary), tmp_path / "rope")
    assert forced(trained_model("roformer_tiny", state, task), folder, [(1500, 1500)]) < 1e-4
    flags = {"max_source_positions": 1100, "max_target_positions": 50}
    state = checkpoint("baseline_tiny", task, **flags)
    converted = convert(state, "made.pt", task.source_dictionary, task.target_dictionary)
    assert converted.limits == {"source": 1100, "target": 1100}
    folder = saved(converted, tmp_path / "sinusoidal")
    translator = ctranslate2.Translator(str(folder))
    translate = {"max_input_length": 0, "max_decoding_length": 1, "beam_size": 1}
    assert translator.translate_batch([["w1"] * 1099], **translate)
    with pytest.raises(RuntimeError, match="1100"):
        translator.translate_batch([["w1"] * 1100], **translate)


# what CTranslate2 may differ by, by type: it computes on this CPU with what it supports of it
@pytest.mark.parametrize(
    "quantization, difference",
    [
        ("float16", 0.02), ("bfloat16", 0.2), ("int16", 0.2), ("int8", 0.5), ("int8_float32", 0.5),
        ("int8_float16", 0.5), ("int8_bfloat16", 0.6),
    ],
)  # fmt: skip
def test_quantized(tmp_path, quantization, difference):
    task = models.Task()
    state = checkpoint("roformer_tiny", task)
    before = {name: x.clone() for name, x in state["model"].items()}
    converted = convert(state, "made.pt", task.source_dictionary, task.target_dictionary)
    folder = saved(converted, tmp_path, quantization)
    assert all(torch.equal(x, state["model"][name]) for name, x in before.items())
    worst = forced(trained_model("roformer_tiny", state, task), folder)
    assert 2e-5 < worst < difference
    plain = saved(convert(state, "made.pt", task.source_dictionary, task.target_dictionary), tmp_path / "plain")
    assert (folder / "model.bin").stat().st_size < 0.62 * (plain / "model.bin").stat().st_size


def test_special_symbols(tmp_path):
    task = models.Task(3)
    converted = convert(checkpoint("roformer_tiny", task), "made.pt", task.source_dictionary, task.target_dictionary)
    folder = saved(converted, tmp_path)
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())
    assert vocabulary == ["<s>", "<blank>", "</s>", "<unk>", "w0", "w1", "w2"]
    config = (folder / "config.json").read_text()
    assert '"decoder_start_token": "</s>"' in config and '"add_source_eos": true' in config


def test_word_called_blank(tmp_path):
    task = models.Task(3)
    task.source_dictionary.add_symbol("<blank>")
    with pytest.raises(UserError, match="the symbol '<blank>' twice"):
        convert(checkpoint("roformer_tiny", task), "made.pt", task.source_dictionary, task.target_dictionary)


# name: (architecture, flags, message)
REFUSED = {
    "tupe-a": ("tupe_a_tiny", {}, "--position-encoding tupe-a: .* it can: sinusoidal, learned, none, rope"),
    "tupe-r": ("tupe_r_tiny", {}, "--position-encoding tupe-r"),
    "realformer": ("realformer_tiny", {}, "--residual-attention mean: .* it can: none"),
    "sum": ("roformer_tiny", {"residual_attention": "sum"}, "--residual-attention sum"),
    "ntk": ("roformer_tiny", {"rope_scaling": "ntk", "rope_scaling_factor": 2.0}, "--rope-scaling ntk: .* none and l"),
    "dynamic-ntk": ("roformer_tiny", {"rope_scaling": "dynamic-ntk", "rope_scaling_factor": 2.0}, "dynamic-ntk"),
    "yarn": ("roformer_tiny", {"rope_scaling": "yarn", "rope_scaling_factor": 2.0}, "--rope-scaling yarn"),
    "activation": ("baseline_tiny", {"activation_fn": "linear"}, "--activation-fn linear; it can: relu, gelu"),
    "adaptive softmax": ("baseline_tiny", {"adaptive_softmax_cutoff": "9,20"}, "--adaptive-softmax-cutoff"),
    "cross-self": ("baseline_tiny", {"cross_self_attention": True}, "--cross-self-attention True: "),
    "no cross-attention": ("baseline_tiny", {"no_cross_attention": True}, "--no-cross-attention True: "),
    "quantisation noise": ("baseline_tiny", {"quant_noise_pq": 0.1}, "--quant-noise-pq 0.1: "),
    "scalar noise": ("baseline_tiny", {"quant_noise_scalar": 0.1}, "--quant-noise-scalar 0.1: "),
    "stock": ("transformer", {}, "--arch transformer is not one of .* ct2-fairseq-converter"),
    "no architecture": (None, {}, "--arch None is not one of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_ctranslate2_cannot_compute(case):
    arch, flags, message = REFUSED[case]
    state = {"cfg": {"model": Namespace(arch=arch, _name=arch, **flags)}, "model": {}}
    with pytest.raises(UserError, match=message) as caught:
        exportable_options(state)
    assert "\n" not in str(caught.value)


def damaged(key, change):
    def apply(state):
        state["model"][key] = change(state["model"][key])

    return apply


def unmeasured(state):
    for name, value in state["model"].items():
        if name.endswith("_omega"):
            value.zero_()


@pytest.mark.parametrize(
    "arch, change, symbols, message",
    [
        ("admin_tiny", unmeasured, 40, "ADMIN has not measured"),
        ("roformer_tiny", damaged("encoder.layers.0.fc1.bias", lambda x: x / 0), 40, "fc1.bias holds .* no finite"),
        ("roformer_tiny", damaged("decoder.layers.1.fc2.weight", lambda x: x * float("nan")), 40, "no finite numbers"),
        ("roformer_tiny", damaged("encoder.layers.0.fc1.bias", lambda x: 3), 40, "is a int, not a tensor"),
        ("roformer_tiny", damaged("encoder.layers.0.fc1.bias", lambda x: x[1:]), 40, r"fc1.bias has the shape \[127\]"),
        ("roformer_tiny", lambda s: s["model"].pop("encoder.layers.0.fc1.bias"), 40, "lacks encoder.layers.0.fc1"),
        ("roformer_tiny", lambda s: s["model"].pop("encoder.embed_tokens.weight"), 40, "cannot be built as its config"),
        ("roformer_tiny", None, 41, "source dictionary is not the one .* 45 symbols, and the model 44 embeddings"),
        ("roformer_tiny", lambda s: s.pop("cfg"), 40, "holds no configuration"),
        ("admin_tiny", lambda s: setattr(s["cfg"]["model"], "encoder_layers_to_keep", "0"), 40, "layers-to-keep 0"),
    ],
)
def test_damaged_checkpoints(arch, change, symbols, message):
    dictionary = models.dictionary(symbols)
    with pytest.raises(UserError, match=message) as caught:
        convert(checkpoint(arch, change=change), "made.pt", dictionary, dictionary)
    assert "\n" not in str(caught.value)


def test_two_dictionaries_for_a_model_of_one():
    other = models.dictionary(39)
    other.add_symbol("another")
    with pytest.raises(UserError, match=r"one dictionary for source and target .* differ"):
        convert(checkpoint("roformer_tiny", share_all_embeddings=True), "made.pt", models.dictionary(40), other)
