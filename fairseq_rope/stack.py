"""What encoder and decoder stacks are built with: a position encoding by name, and wrapped layers."""

from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper

from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.positions import (
    LearnedPositions,
    NoPositions,
    PositionEncoding,
    RotaryPositions,
    SinusoidalPositions,
)


def build_positions(cfg: RopeTransformerConfig, stack: str, stock_positions, padding_idx: int) -> PositionEncoding:
    """Position encoding of ``encoder`` or ``decoder``.

    Args:
        stock_positions: what stock's constructor made; a learned table is taken over from it, so that a seed gives
            the same initial weights as stock.
    """
    limit = cfg.max_source_positions if stack == "encoder" else cfg.max_target_positions
    name = cfg.position_encoding_of(stack)
    if name == "rope":
        return RotaryPositions(cfg.rope_scaling_of(stack), padding_idx)
    if name == "learned":
        return LearnedPositions(stock_positions.weight, padding_idx)
    if name == "sinusoidal":
        return SinusoidalPositions(getattr(cfg, stack).embed_dim, padding_idx, limit)
    return NoPositions()


def wrap_layer(layer, cfg):
    """Activation checkpointing and FSDP, as stock wraps its layers."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is always a unit of FSDP, whatever its size.
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)
