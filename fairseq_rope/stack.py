"""What encoder and decoder stacks are built with: a position encoding by name, and wrapped layers."""

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper

from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.positions import (
    LearnedPositions,
    NoPositions,
    PositionEncoding,
    RotaryPositions,
    SinusoidalPositions,
    TupePositions,
)


def build_positions(cfg: RopeTransformerConfig, stack: str, stock_positions, dictionary) -> PositionEncoding:
    """Position encoding of ``encoder`` or ``decoder``.

    Args:
        stock_positions: what stock's constructor made; a learned table is taken over from it, so that a seed gives
            the same initial weights as stock.
        dictionary: of the tokens that have positions.
    """
    padding_idx = dictionary.pad()
    sizes = getattr(cfg, stack)
    limit = cfg.max_source_positions if stack == "encoder" else cfg.max_target_positions
    name = cfg.position_encoding_of(stack)
    if name == "rope":
        return RotaryPositions(cfg.rope_scaling_of(stack), padding_idx)
    if name == "learned":
        return LearnedPositions(stock_positions.weight, padding_idx)
    if name == "sinusoidal":
        return SinusoidalPositions(sizes.embed_dim, padding_idx, limit)
    if name in ("tupe-a", "tupe-r"):
        return TupePositions(
            sizes.embed_dim,
            sizes.attention_heads,
            limit,
            padding_idx,
            dictionary.eos(),
            reset=cfg.tupe_reset,
            reset_form=cfg.tupe_reset_form,
            buckets=cfg.relative_buckets if name == "tupe-r" else 0,
            max_distance=cfg.relative_max_distance,
            bidirectional=stack == "encoder",
        )
    return NoPositions()


def source_mask(padding_mask):
    """Keep-mask (batch, 1, 1, src_len) of ``padding_mask`` (batch, src_len), or None where nothing is padded."""
    if padding_mask is None or not bool(padding_mask.any()):
        return None
    return ~padding_mask[:, None, None, :]


def causal_mask(length: int, device) -> torch.Tensor:
    """Keep-mask (length, length) of queries that look at keys up to their own."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def masked_bias(bias, mask, causal: bool):
    """``bias`` with -inf where a query may not look, made once for all layers of a stack.

    The fused kernel takes a bias or a mask; each layer would otherwise join the two anew and keep the result for its
    backward pass.

    Args:
        bias: (1 or batch, 1 or heads, 1 or queries, 1 or keys).
        mask: keep-mask, broadcastable to (batch, 1, queries, keys), or None.
        causal: as for :func:`~fairseq_rope.attention.attend`.

    Returns:
        (1 or batch, heads, queries, keys): one for all sentences where their masks do not differ.
    """
    if causal:
        mask = causal_mask(bias.size(2), bias.device)
    return bias if mask is None else bias.masked_fill(~mask, float("-inf"))


def stream_divisor(residual_attention: str, depth: int) -> int | None:
    """What a layer divides its sum of scores by (see :func:`~fairseq_rope.attention.attend`).

    Args:
        residual_attention: ``none``, ``sum`` or ``mean``.
        depth: number of layers before it that the pass went through; LayerDrop leaves some out.
    """
    return {"none": None, "sum": 1, "mean": depth + 1}[residual_attention]


def layers_to_run(layers, measuring: bool):
    """The layers of a pass. A measuring pass runs them all: processes would wait for each other's dropped ones."""
    return layers.children() if measuring else layers


def wrap_layer(layer, cfg):
    """Activation checkpointing and FSDP, as stock wraps its layers."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is always a unit of FSDP, whatever its size.
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def residual_depth(cfg: RopeTransformerConfig) -> tuple[int, int]:
    """Encoder and decoder layers that the constants of DeepNorm and admin-torch are computed for.

    A pruned model keeps the constants that it was trained with.
    """
    return (
        cfg.residual_encoder_layers or cfg.encoder.layers,
        cfg.residual_decoder_layers or cfg.decoder.layers,
    )
