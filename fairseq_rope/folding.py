"""Rewrites a model with scaled shortcuts (ADMIN, admin-torch, DeepNorm) as the same function without them.

A post-norm block computes x_i = LN_i(ω_i x_{i-1} + f_i(x_{i-1})). Its ω_i can move into parameters by two routes:

**Input route.** The LayerNorm before, LN_{i-1}, takes ω_i into its weight and bias, so that its output is
y = ω_i x_{i-1}; the first maps of f_i divide their input columns by ω_i and so see x_{i-1} as before. These are
queries, keys and values of self-attention, the queries alone of encoder-decoder attention (its keys and values read the
encoder), and fc1. Exact up to rounding, for a vector ω of either sign. Nothing else reads the output of LN_{i-1}: the
last LayerNorm of a stack, which feeds the other stack or the output layer, comes before no block and stays as it is.

**Output route.** For a scalar ω > 0, LN(ωx + f) = LN(x + f/ω) but for LayerNorm's ε: the last map of f_i (out_proj or
fc2) is divided by ω, which multiplies ε by ω². With ε = 1e-5 and a sum x + f/ω of variance v the block's output changes
by about ε (1 - 1/ω²) / 2v of itself, so by less than 5e-6 where v is 1 or more.

The input route is taken wherever there is something before the block that can take ω in, also for a constant ω: it adds
no error of its own, whatever the variances, where that of the output route adds up over a hundred blocks. The output
route is for the first block of a stack, which reads embeddings that may be shared and positions that are no parameters.
Where ``--layernorm-embedding`` (or the encoder's map of ``--quant-noise-pq``) comes before it, that takes ω in.
Where ω is 1, as in ADMIN's first blocks, there is nothing to do.

Positions, score streams and dropout are untouched, because the first maps' outputs are those of before. But a folded
layer belongs to the one before it: layers of a folded model can be left out no more, neither by pruning nor by
LayerDrop in further training. Nor is folding linear: average first, then fold.

Source: the remark in the official ADMIN code (Transformer-Clinic) that a trained model can be reparameterised.
"""

import copy
import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_rope.averaging import tied_groups
from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.errors import UserError
from fairseq_rope.residual import BLOCKS, admin_torch_omega, deepnorm_constants
from fairseq_rope.stack import residual_depth

SCALED = ("admin", "admin-torch", "deepnorm")
HALF = (torch.float16, torch.bfloat16)

# Far below what training leaves (ω starts at 1 or above), and large enough that a folded model still has its digits in
# half precision: activations ω x stay normal float16 numbers, and weights W / ω stay below its largest one.
SMALLEST = 1e-3

# What of each block reads the stream, what writes to it, and what normalises the sum.
FIRST_MAPS = {
    "self_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "encoder_attn": ("encoder_attn.q_proj",),
    "ffn": ("fc1",),
}
LAST_MAP = {"self_attn": "self_attn.out_proj", "encoder_attn": "encoder_attn.out_proj", "ffn": "fc2"}
NORM = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}


@dataclass(frozen=True)
class FoldedBlock:
    """What was done with the ω of one block.

    Attributes:
        stack: ``encoder`` or ``decoder``.
        name: such as ``encoder.layers.0.self_attn``.
        route: ``input``, ``output``, or ``none`` where ω is 1.
        smallest, largest: range of ω over the dimensions.
    """

    stack: str
    name: str
    route: str
    smallest: float
    largest: float


def fold(model: dict[str, Tensor], cfg: RopeTransformerConfig) -> tuple[OrderedDict, list[FoldedBlock]]:
    """Fold a model's scaled shortcuts into its parameters.

    Each tensor is changed in float64 and stored in its own type; a model in half precision comes back in float32,
    where the products keep more digits than they had.

    Args:
        model: state dict; not changed.
        cfg: its complete configuration.

    Returns:
        the state dict of a model with ``--residual-init default`` and otherwise ``cfg``, which computes the same; and
        what was done, block by block in order of execution.

    Raises:
        UserError: the model cannot be folded: it has no scaled shortcuts, is not post-norm, has cross-self-attention or
            scalar quantisation, was not measured yet, lacks parameters or has some that are no numbers, or an ω is too
            near 0 or has no route.
    """
    check_foldable(cfg)
    check_numbers(model)
    folded = _to_float32(model) if any(tensor.dtype in HALF for tensor in model.values()) else copy.copy(model)
    done = []
    for stack in ("encoder", "decoder"):
        before = _before_first_block(model, stack)
        for layer in range(_depth(model, stack)):
            # The model's own, not the configuration's: a layer that lacks a block is an error that names it.
            for block in _blocks(cfg, stack):
                name = f"{stack}.layers.{layer}.{block}"
                omega = effective_omega(model, name, _constant(cfg, stack))
                done.append(_fold_block(folded, stack, name, omega, before))
                before = f"{stack}.layers.{layer}.{NORM[block]}"
    for key in [key for key in folded if key.endswith(("_omega", "_omega_offset"))]:
        del folded[key]
    check_numbers(folded)
    return folded, done


def check_foldable(cfg: RopeTransformerConfig):
    """Raise a UserError, in words, if no model of this configuration can be folded."""
    if cfg.residual_init not in SCALED:
        raise UserError(
            f"there is nothing to fold: the model was built with --residual-init {cfg.residual_init}; shortcuts are "
            f"scaled with {', '.join(SCALED)}"
        )
    for stack in ("encoder", "decoder"):
        sizes = getattr(cfg, stack)
        if sizes.normalize_before:
            raise UserError(
                f"a pre-norm model cannot be folded (--{stack}-normalize-before): no LayerNorm follows its shortcuts"
            )
        if sizes.layers_to_keep:
            raise UserError(
                f"--{stack}-layers-to-keep {sizes.layers_to_keep} prunes the model while it is loaded, but a folded "
                "layer belongs to the one before it; save the pruned model and fold that"
            )
    if cfg.cross_self_attention:
        raise UserError(
            "a model with --cross-self-attention cannot be folded: its keys and values read the encoder's output and "
            "the decoder's stream by the same maps, and only one of the two is scaled"
        )
    if cfg.quant_noise.scalar:
        raise UserError(
            f"a model with --quant-noise-scalar {cfg.quant_noise.scalar} cannot be folded: its weights are rounded to "
            "8 bits with one step a matrix, and folding scales their columns apart"
        )


def effective_omega(model: dict[str, Tensor], name: str, constant: float | None) -> Tensor:
    """ω of the block ``name`` as the layer computes it (see :mod:`fairseq_rope.residual.shortcut`).

    Args:
        model: state dict.
        name: such as ``encoder.layers.0.self_attn``.
        constant: the architecture's ω; None with ADMIN, whose ω is in ``model``, or is 1 where it is missing.

    Returns:
        (embed_dim,) or 0-dimensional, in float64.

    Raises:
        UserError: ADMIN has not measured it.
    """
    omega, offset = constant, model.get(f"{name}_omega_offset")
    if constant is None:
        omega = model.get(f"{name}_omega", torch.ones(()))
        if bool((omega == 0).any()):
            raise UserError(
                f"ADMIN has not measured the model yet ({name}_omega is 0): its first training forward pass does that; "
                "fold a checkpoint that was saved after the first update"
            )
    if offset is not None:
        # The sum in float32, as in the layer (float64 in a float64 model): its rounding is part of the function.
        omega = omega + (offset if offset.dtype == torch.float64 else offset.float())
    return torch.as_tensor(omega, dtype=torch.float64)


def _fold_block(folded, stack, name, omega, before) -> FoldedBlock:
    """Fold one block's ω into ``folded``, in place.

    Args:
        before: prefix of the module whose output the block reads and that can take ω in; None if there is none.
    """
    prefix, _, block = name.rpartition(".")
    smallest, largest = float(omega.min()), float(omega.max())

    def done(route):
        return FoldedBlock(stack, name, route, smallest, largest)

    if smallest == largest == 1:
        return done("none")
    size = omega.abs()
    if float(size.min()) < SMALLEST:
        where = f" in dimension {int(size.argmin())}" if omega.dim() else ""
        worst = float(omega.flatten()[size.argmin()])
        raise UserError(
            f"{name} cannot be folded: the factor ω of its shortcut is {worst:g}{where}, "
            f"too near 0 to divide by (|ω| must be at least {SMALLEST:g})"
        )
    if before is not None:
        _scale_rows(folded, f"{before}.weight", omega)
        if f"{before}.bias" in folded:
            _scale_rows(folded, f"{before}.bias", omega)
        for first in FIRST_MAPS[block]:
            _scale_columns(folded, f"{prefix}.{first}.weight", 1 / omega)
        return done("input")
    if smallest != largest or smallest < 0:
        what = "it is negative" if smallest == largest else f"it differs by dimension ({smallest:g} to {largest:g})"
        raise UserError(
            f"{name} cannot be folded: no LayerNorm comes before the first block of a stack (without "
            f"--layernorm-embedding), so its ω must be one positive number, but {what}"
        )
    for name_of in ("weight", "bias"):
        _scale_rows(folded, f"{prefix}.{LAST_MAP[block]}.{name_of}", 1 / omega.flatten()[0])
    return done("output")


def _scale_rows(folded, key, factor):
    """Multiply what a parameter puts out, (embed_dim,) or (embed_dim, in), by ``factor`` (embed_dim,) or scalar."""
    tensor = _get(folded, key, factor, 0)
    if factor.dim():
        factor = factor.reshape(-1, *[1] * (tensor.dim() - 1))
    folded[key] = (tensor.double() * factor).to(tensor.dtype)


def _scale_columns(folded, key, factor):
    """Multiply what a weight (out, embed_dim) takes in by ``factor`` (embed_dim,) or scalar."""
    tensor = _get(folded, key, factor, 1)
    folded[key] = (tensor.double() * factor).to(tensor.dtype)


def _get(folded, key, factor, dim) -> Tensor:
    if key not in folded:
        raise UserError(f"the checkpoint lacks {key}")
    tensor = folded[key]
    if tensor.dim() <= dim or (factor.dim() and tensor.size(dim) != factor.numel()):
        raise UserError(f"{key} has the shape {list(tensor.shape)}, which does not fit {factor.numel()} values of ω")
    return tensor


def _before_first_block(model, stack) -> str | None:
    """Prefix of the last module between the embeddings and the first block that can take its ω in, or None.

    Only the encoder's map of --quant-noise-pq comes after the embeddings' LayerNorm.
    """
    candidates = {"encoder": ("quant_noise", "layernorm_embedding"), "decoder": ("layernorm_embedding",)}[stack]
    return next((f"{stack}.{name}" for name in candidates if f"{stack}.{name}.weight" in model), None)


def _depth(model, stack) -> int:
    numbers = [int(match[1]) for key in model if (match := re.match(rf"{stack}\.layers\.(\d+)\.", key))]
    return max(numbers, default=-1) + 1


def _blocks(cfg, stack) -> list[str]:
    """The blocks of each layer of a stack, in order of execution."""
    crosses = stack == "decoder" and not cfg.no_cross_attention
    return [block for block in BLOCKS if block != "encoder_attn" or crosses]


def _constant(cfg, stack) -> float | None:
    """The ω that follows from the depth (see :func:`~fairseq_rope.residual.build.init_residuals`); None with ADMIN."""
    depths = residual_depth(cfg)
    if cfg.residual_init == "deepnorm":
        return deepnorm_constants(stack, *depths, cross_attention=stack == "encoder" or not cfg.no_cross_attention)[0]
    if cfg.residual_init == "admin-torch":
        return admin_torch_omega(depths[0 if stack == "encoder" else 1] * len(_blocks(cfg, stack)))
    return None


def _to_float32(model) -> OrderedDict:
    """``model`` with its floating-point tensors in float32; those that share memory still do."""
    wide = copy.copy(model)
    for keys in tied_groups(model):
        tensor = model[keys[0]]
        wide.update(dict.fromkeys(keys, tensor.float() if tensor.is_floating_point() else tensor))
    return wide


def check_numbers(model: dict[str, Tensor]):
    """Raise a UserError that names the parameter if one is no tensor, or holds what is no finite number."""
    for key, tensor in model.items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"{key} is a {type(tensor).__name__}, not a tensor")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{key} holds values that are no finite numbers (NaN or infinite)")
