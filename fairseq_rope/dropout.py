"""Dropout of (batch, length, width) with stock fairseq's random numbers, alone or with a shortcut's addition.

torch's dropout on the CPU keeps a factor in the precision of its input for each element, and makes two tensors on the
way to it; here it is one byte an element. Stock's Transformer drops from (length, batch, width), so the draws are made
in that order: the same seed drops the same elements.
"""

import torch
from torch import Tensor


class _DropoutAdd(torch.autograd.Function):
    """shortcut + dropout(x), or dropout(x) where the shortcut is None."""

    @staticmethod
    def forward(ctx, x, shortcut, p):
        batch, length, width = x.shape
        keep = torch.empty(length, batch, width, dtype=torch.bool).bernoulli_(1 - p).transpose(0, 1)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        if shortcut is None:
            return (x * _factor(keep, x)).mul_(ctx.scale)
        return torch.addcmul(shortcut, x, _factor(keep, x), value=ctx.scale)

    @staticmethod
    def backward(ctx, gradient):
        (keep,) = ctx.saved_tensors
        of_shortcut = gradient if ctx.needs_input_grad[1] else None
        return (gradient * _factor(keep, gradient)).mul_(ctx.scale), of_shortcut, None


def _factor(keep, like):
    # Bytes become numbers many times faster than truth values do.
    return keep.view(torch.int8).to(like.dtype)


def active(module) -> bool:
    """Whether fairseq's dropout ``module`` drops anything now."""
    return module.p > 0 and (module.training or module.apply_during_inference)


def dropout_add(x: Tensor, shortcut: Tensor | None, module) -> Tensor:
    """``shortcut`` + dropout of ``x``.

    Args:
        x: what a block computed, (batch, length, width).
        shortcut: like ``x``, or None for no addition.
        module: fairseq's dropout module.

    Returns:
        like ``x``, or in the wider of two precisions.
    """
    if active(module) and module.p < 1 and x.device.type == "cpu":
        if shortcut is None or shortcut.dtype == x.dtype:
            return _DropoutAdd.apply(x, shortcut, module.p)
        return shortcut + _DropoutAdd.apply(x, None, module.p)  # under autocast
    return module(x) if shortcut is None else shortcut + module(x)
