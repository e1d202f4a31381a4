"""A Transformer of this package as CTranslate2's description of one: the same function, weight by weight.

CTranslate2 (https://github.com/OpenNMT/CTranslate2) computes what a *specification* says: which blocks a layer has and
in which order they normalise. Where fairseq differs from its conventions:

* the padding symbol is called ``<blank>`` there;
* fairseq's decoder starts from ``</s>``, and its sources end in ``</s>``: both are set in the model's configuration;
* positions count from the first token, without fairseq's offset of ``padding_idx + 1``;
* a stack without rotary, relative or explicit positions gets CTranslate2's own sinusoids, so that a stack without any
  positions (``--position-encoding none``) is given vectors of zero; a rotary stack must have none at all;
* RoPE pairs neighbouring channels, as here, with ``rotary_interleave``; ``rotary_dim=0`` turns the whole head.
"""

import numpy as np
from torch import Tensor, nn

from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.errors import UserError
from fairseq_rope.positions import LearnedPositions, NoPositions, RotaryPositions
from fairseq_rope.positions.sinusoidal import sinusoidal_table

# fairseq's --activation-fn -> the member of ctranslate2.specs.common_spec.Activation
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_accurate": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "tanh": "Tanh",
}
POSITIONS = ("sinusoidal", "learned", "none", "rope")


def check_exportable(cfg: RopeTransformerConfig):
    """Raise a UserError, in a sentence, if CTranslate2 cannot compute what a model of this configuration computes.

    Scaled shortcuts (``--residual-init``) are no obstacle: :func:`fairseq_rope.folding.fold` removes them before.
    """
    for stack in ("encoder", "decoder"):
        positions = cfg.position_encoding_of(stack)
        if positions not in POSITIONS:
            raise UserError(
                f"CTranslate2 cannot compute --position-encoding {positions}: it has no position scores beside those "
                f"of the words; it can: {', '.join(POSITIONS)}"
            )
        if positions == "rope" and cfg.rope_scaling not in ("none", "linear"):
            raise UserError(
                f"CTranslate2 cannot compute --rope-scaling {cfg.rope_scaling}: of fairseq_rope's scalings it has "
                "none and linear"
            )
    if cfg.residual_attention != "none":
        raise UserError(
            f"CTranslate2 cannot compute --residual-attention {cfg.residual_attention}: its layers do not hand their "
            "attention scores on; it can: none"
        )
    if cfg.activation_fn not in ACTIVATIONS:
        raise UserError(
            f"CTranslate2 cannot compute --activation-fn {cfg.activation_fn}; it can: {', '.join(ACTIVATIONS)}"
        )
    obstacles = {
        "--adaptive-softmax-cutoff": (cfg.adaptive_softmax_cutoff, "it knows one softmax over the whole vocabulary"),
        "--cross-self-attention": (cfg.cross_self_attention, "its decoder attends to source and target apart"),
        "--no-cross-attention": (cfg.no_cross_attention, "its translation models always attend to the source"),
        "--quant-noise-pq": (cfg.quant_noise.pq, "such a model has a linear map after the embeddings, which it lacks"),
        "--quant-noise-scalar": (cfg.quant_noise.scalar, "its weights are rounded while it runs"),
    }
    for flag, (value, why) in obstacles.items():
        if value:
            raise UserError(f"CTranslate2 cannot compute a model with {flag} {value}: {why}")


def translation_spec(model, source_symbols: list[str], target_symbols: list[str], rows: int):
    """CTranslate2's specification of a translation model, with its weights.

    Args:
        model: a :class:`~fairseq_rope.models.TranslationTransformer` in float32 whose configuration passes
            :func:`check_exportable` and that has no scaled shortcuts.
        source_symbols, target_symbols: symbols of the dictionaries in order of their ids.
        rows: longest sentence in tokens that sinusoidal positions are written for; learned ones have their own limit.

    Returns:
        ``ctranslate2.specs.TransformerSpec``, to be validated, optimised (quantised) and saved.
    """
    from ctranslate2 import specs

    cfg = model.decoder.cfg
    encoder = specs.transformer_spec.TransformerEncoderSpec(**_options(cfg, "encoder", model.encoder))
    projects = model.decoder.project_in_dim is not None or model.decoder.project_out_dim is not None
    decoder = specs.transformer_spec.TransformerDecoderSpec(
        **_options(cfg, "decoder", model.decoder), project_in_out=projects
    )
    spec = specs.TransformerSpec(encoder, decoder)
    _fill_stack(encoder, encoder.embeddings[0], model.encoder, rows)
    _fill_stack(decoder, decoder.embeddings, model.decoder, rows)
    _fill_linear(decoder.projection, model.decoder.output_projection)
    for name, module, width in (
        ("project_in", model.decoder.project_in_dim, model.decoder.embed_dim),
        ("project_out", model.decoder.project_out_dim, model.decoder.output_embed_dim),
    ):
        if projects:  # both or none there, so that the missing one is an identity
            getattr(decoder, name).weight = np.eye(width, dtype=np.float32) if module is None else _array(module.weight)
    for layer_spec, layer in zip(encoder.layer, model.encoder.layers, strict=True):
        _fill_layer(layer_spec, layer)
    for layer_spec, layer in zip(decoder.layer, model.decoder.layers, strict=True):
        _fill_layer(layer_spec, layer)
        _fill_cross_attention(layer_spec.attention, layer)

    spec.register_source_vocabulary(vocabulary(source_symbols, model.encoder.padding_idx))
    spec.register_target_vocabulary(vocabulary(target_symbols, model.decoder.padding_idx))
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    return spec


def vocabulary(symbols: list[str], padding_idx: int) -> list[str]:
    """Symbols of a dictionary as CTranslate2 knows them.

    Raises:
        UserError: the dictionary has a symbol twice, or a word that is called as CTranslate2's padding is.
    """
    named = ["<blank>" if index == padding_idx else symbol for index, symbol in enumerate(symbols)]
    if len(set(named)) < len(named):
        twice = next(symbol for symbol in named if named.count(symbol) > 1)
        raise UserError(f"the dictionary cannot be exported: CTranslate2 would have the symbol {twice!r} twice")
    return named


def _options(cfg, stack, module) -> dict:
    from ctranslate2 import specs

    sizes = getattr(cfg, stack)
    options = {
        "num_layers": len(module.layers),
        "num_heads": sizes.attention_heads,
        "pre_norm": bool(sizes.normalize_before),
        "no_final_norm": module.layer_norm is None,
        "activation": specs.Activation[ACTIVATIONS[cfg.activation_fn]],
        "layernorm_embedding": module.layernorm_embedding is not None,
    }
    if isinstance(module.embed_positions, RotaryPositions):
        scaling = module.embed_positions.scaling
        options |= {"rotary_dim": 0, "rotary_interleave": True, "rotary_base": scaling.base}
        if scaling.mode == "linear":
            options |= {
                "rotary_scaling_type": specs.RotaryScalingType.Linear,
                "rotary_scaling_factor": scaling.factor,
            }
    return options


def _fill_stack(spec, embeddings, module, rows):
    embeddings.weight = _array(module.embed_tokens.weight)
    spec.scale_embeddings = module.embed_scale
    positions = _position_vectors(module, rows)
    if positions is not None:
        spec.position_encodings.encodings = positions
    elif hasattr(spec, "position_encodings"):  # the encoder's specification makes some for rotary stacks too
        del spec.position_encodings
    for name in ("layer_norm", "layernorm_embedding"):
        if getattr(module, name) is not None:
            _fill_norm(getattr(spec, name), getattr(module, name))


def _position_vectors(module, rows) -> np.ndarray | None:
    """What is added at each position from the first, (positions, embed_dim); None for a rotary stack."""
    positions, first = module.embed_positions, module.padding_idx + 1
    if isinstance(positions, RotaryPositions):
        return None
    if isinstance(positions, LearnedPositions):
        return _array(positions.weight[first:])
    if isinstance(positions, NoPositions):
        return np.zeros((rows, _width(module)), dtype=np.float32)
    return _array(sinusoidal_table(first + rows, positions.embed_dim, module.padding_idx)[first:])


def _width(module) -> int:
    return module.layers[0].embed_dim


def _fill_layer(spec, layer):
    attention = layer.self_attn
    _fill_joined(spec.self_attention.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    _fill_linear(spec.self_attention.linear[1], attention.out_proj)
    _fill_norm(spec.self_attention.layer_norm, layer.self_attn_layer_norm)
    _fill_linear(spec.ffn.linear_0, layer.fc1)
    _fill_linear(spec.ffn.linear_1, layer.fc2)
    _fill_norm(spec.ffn.layer_norm, layer.final_layer_norm)


def _fill_cross_attention(spec, layer):
    attention = layer.encoder_attn
    _fill_linear(spec.linear[0], attention.q_proj)
    _fill_joined(spec.linear[1], attention.k_proj, attention.v_proj)
    _fill_linear(spec.linear[2], attention.out_proj)
    _fill_norm(spec.layer_norm, layer.encoder_attn_layer_norm)


def _fill_norm(spec, norm: nn.LayerNorm):
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _fill_linear(spec, linear: nn.Linear):
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _fill_joined(spec, *linears: nn.Linear):
    """One map in place of several that read the same input: (sum of outputs, inputs)."""
    spec.weight = np.concatenate([_array(linear.weight) for linear in linears])
    if linears[0].bias is not None:
        spec.bias = np.concatenate([_array(linear.bias) for linear in linears])


def _array(tensor: Tensor) -> np.ndarray:
    # A copy: CTranslate2 quantises in place, and the model may still be wanted, or hold one matrix twice.
    return np.array(tensor.detach().float().cpu().numpy())
