"""Dropout of a residual branch and the shortcut's addition as one operation."""

import torch
from torch import Tensor


class _DropoutAdd(torch.autograd.Function):
    """shortcut + dropout(x), keeping one byte an element for the backward pass.

    torch's dropout on the CPU keeps a factor in the precision of ``x`` for each element, and makes two tensors on the
    way to it. The draws are the same, bit for bit.
    """

    @staticmethod
    def forward(ctx, x, shortcut, p):
        keep = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - p)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        return torch.addcmul(shortcut, x, _factor(keep, x), value=ctx.scale)

    @staticmethod
    def backward(ctx, gradient):
        (keep,) = ctx.saved_tensors
        return (gradient * _factor(keep, gradient)).mul_(ctx.scale), gradient, None


def _factor(keep, like):
    # Bytes become numbers many times faster than truth values do.
    return keep.view(torch.int8).to(like.dtype)


def dropout_add(x: Tensor, shortcut: Tensor, dropout) -> Tensor:
    """``shortcut`` + ``dropout(x)``.

    Args:
        x: what a block computed, (length, batch, embed_dim).
        shortcut: like ``x``.
        dropout: fairseq's dropout module.

    Returns:
        like ``x``; with the same random numbers as ``shortcut + dropout(x)`` draws.
    """
    active = dropout.p > 0 and (dropout.training or dropout.apply_during_inference)
    if active and dropout.p < 1 and x.device.type == "cpu" and x.dtype == shortcut.dtype and x.is_contiguous():
        return _DropoutAdd.apply(x, shortcut, dropout.p)
    return shortcut + dropout(x)
