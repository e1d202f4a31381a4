"""Multi-head attention, composed of position encoding, score stream and kernel, which know nothing of each other."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from fairseq import modules
from torch import Tensor

from fairseq_rope.decoding_state import Pool
from fairseq_rope.errors import UserError
from fairseq_rope.packed_linear import GenerationLinears
from fairseq_rope.positions import Rotation


class Mask(NamedTuple):
    """A keep-mask and what follows from it, made once for all layers of a stack.

    Attributes:
        keep: bool, broadcastable to (batch, heads, queries, keys), True where a query may look.
        hidden: what gets a score of -inf. A query that may look nowhere (a sentence of pads only) keeps all its keys,
            so that its weights are no NaN.
        nowhere: (…, queries, 1), such queries, whose output is erased as the fused kernel does it; None: none.
    """

    keep: Tensor
    hidden: Tensor
    nowhere: Tensor | None

    @classmethod
    def of(cls, keep: Tensor, everywhere: bool = False) -> "Mask":
        """From a keep-mask; ``everywhere`` says that each query may look somewhere, and saves a look at all of it."""
        if everywhere:
            return cls(keep, ~keep, None)
        nowhere = ~keep.any(dim=-1, keepdim=True)
        return cls(keep, ~(keep | nowhere), nowhere)


def attend(q, k, v, mask, causal, scale, bias=None, dropout=0.0, need_weights=False, stream=None, divisor=None):
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1) with a keep-mask, a bias and a score stream.

    With residual attention (He et al. 2021, RealFormer, section 3.2) the scores q·k·scale of this layer are added to
    those of the layers before it; the sum is handed on raw, before division, bias, mask and dropout, since any of
    these would be counted once a layer.

    Args:
        q: (batch, heads, queries, head_dim).
        k, v: (batch, heads, keys, head_dim).
        mask: where a query may look, bool or :class:`Mask`, broadcastable to (batch, heads, queries, keys); None for
            everywhere.
        causal: each query looks at keys up to its own index only; queries = keys, and ``mask`` is None.
        scale: factor of q·k.
        bias: added to the scaled scores, broadcastable to (batch, heads, queries, keys), or None.
        dropout: probability with which a weight is dropped.
        need_weights: also return the weights, before dropout; costs a (batch, heads, queries, keys) tensor.
        stream: sum of the raw scores of earlier layers (batch, heads, queries, keys) in float32; None in the first.
        divisor: with residual attention, what the sum is divided by before the softmax (1, or the number of summed
            layers for their mean); None without.

    Returns:
        (batch, heads, queries, head_dim); the weights (batch, heads, queries, keys) in float32 or None; and the
        stream with this layer's scores added, or None.
    """
    if causal and (need_weights or bias is not None or divisor is not None):
        mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device).tril()
        causal = False
    if not need_weights and divisor is None:
        keep = mask.keep if isinstance(mask, Mask) else mask
        if bias is not None:
            bias = bias.to(q.dtype)
            keep = bias if keep is None else bias.masked_fill(~keep, float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, keep, dropout_p=dropout, is_causal=causal, scale=scale)
        return out, None, None
    # Scaled before the product, which could overflow in float16; summed in float32, where 60 layers keep their digits.
    scores = (q * scale) @ k.transpose(-2, -1)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    shared = False  # whether anything else refers to the scores; if not, they are changed in place
    if divisor is not None:
        stream = scores if stream is None else scores.add_(stream)
        scores, shared = (stream / divisor, False) if divisor > 1 else (stream, True)
    if bias is not None:
        scores, shared = (scores + bias if shared else scores.add_(bias)), False
    if mask is not None:
        mask = mask if isinstance(mask, Mask) else Mask.of(mask)
        scores = (scores.masked_fill if shared else scores.masked_fill_)(mask.hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    out = F.dropout(weights, dropout, training=dropout > 0).type_as(v) @ v
    if mask is not None:
        # Erasing weights instead would keep a second copy of them for autograd.
        out = out if mask.nowhere is None else out.masked_fill(mask.nowhere, 0.0)
        weights = weights.masked_fill(~mask.keep, 0.0) if need_weights else weights
    return out, weights if need_weights else None, stream


class MultiheadAttention(GenerationLinears, modules.MultiheadAttention):
    """Attention with stock fairseq's parameters and names, and its own forward pass.

    Stock fairseq has two bodies, torch's fused function in training and a Python one in decoding; a position
    encoding between projection and product has to be in both. Here one body serves both.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        mask: Tensor | Mask | None = None,
        rotation: Rotation | None = None,
        score_bias: Tensor | None = None,
        scale: float | None = None,
        causal: bool = False,
        stream: Tensor | None = None,
        divisor: int | None = None,
        past: Pool | None = None,
        need_weights: bool = False,
    ):
        """Attend from ``query`` to ``key``.

        Args:
            query: (tgt_len, batch, embed_dim).
            key: what keys and values are projected from, (src_len, batch, kdim); None for ``query`` itself.
                Encoder-decoder attention projects it once and then takes both from ``past``.
            mask: keep-mask or :class:`Mask`, broadcastable to (batch, 1, tgt_len, keys), those of ``past`` included.
            rotation: turns projected queries and keys (RoPE); never values.
            score_bias: (1 or batch, heads, tgt_len, keys), added to the scaled scores.
            scale: factor of q·k; default 1/sqrt(head_dim).
            causal, divisor: see :func:`attend`.
            stream: what the same attention of the layer before returned; None in the first layer. Nothing of it is
                kept: while decoding it is built anew, layer by layer, for the one query of a step.
            past: keys and values of step-by-step decoding; tgt_len is 1. The rows of a sentence then become queries
                of it: mask, bias and stream have (places, …, width, keys) for (batch, …, 1, keys), see
                :class:`~fairseq_rope.decoding_state.DecodingState`.
            need_weights: also return the attention weights.

        Returns:
            (tgt_len, batch, embed_dim); the weights (heads, batch, tgt_len, keys) in float32, or None; and the stream
            for the next layer (batch, heads, tgt_len, keys) in float32, or None.
        """
        # Batch first inside: heads are then views of what the projections write and read, in both directions, where
        # (length, batch, …) would be copied around the kernel. A caller whose memory is batch first pays nothing.
        query = query.transpose(0, 1)
        key = None if key is None else key.transpose(0, 1)
        split = self._split_heads if past is None else past.split
        if self.encoder_decoder_attention:
            q = split(self.joined(query, "q_proj"))  # (batch, heads, tgt_len, head_dim)
            if past is None:
                k, v = self._project_source(key)
            else:
                k, v = past.source(lambda group: self._project_source(key[::group]))
        else:
            if key is None:
                q, k, v = (split(x) for x in self._project(query, "q_proj", "k_proj", "v_proj"))
            else:
                q = split(self.joined(query, "q_proj"))
                k, v = self._project_source(key)
            if rotation is not None and rotation.before_cache:
                q, k = rotation.rotate(q), rotation.rotate(k)
            if past is not None:
                k, v = past.append(k, v)

        dropout = self.dropout_module
        p = dropout.p if self.training or dropout.apply_during_inference else 0.0
        scale = self.scaling if scale is None else scale

        how = {"dropout": p, "need_weights": need_weights, "stream": stream, "divisor": divisor}
        if rotation is not None and not rotation.before_cache:
            out, weights, stream = self._attend_by_block(q, k, v, mask, causal, scale, score_bias, rotation, **how)
        else:
            out, weights, stream = attend(q, k, v, mask, causal, scale, score_bias, **how)

        if past is None:
            out = out.transpose(1, 2).flatten(2)  # (batch, heads, tgt_len, head_dim) -> (batch, tgt_len, embed_dim)
        else:
            out = past.join(out)
            weights = None if weights is None else past.state.unfold(weights)
        out = self.joined(out, "out_proj").transpose(0, 1)
        return out, None if weights is None else weights.transpose(0, 1), stream

    def _split_heads(self, x):
        """(batch, length, embed_dim) -> (batch, heads, length, head_dim)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _project_source(self, source):
        """Keys and values of encoder-decoder attention, (batch, heads, src_len, head_dim) each."""
        return tuple(self._split_heads(x) for x in self._project(source, "k_proj", "v_proj"))

    def _project(self, x, *names):
        """Each of the projections ``names`` of ``x``, in one product where the weights do not change any more."""
        if self._packed is None or torch.is_grad_enabled():
            return [getattr(self, name)(x) for name in names]
        return self.joined(x, *names).split(self.embed_dim, dim=-1)

    def _attend_by_block(self, q, k, v, mask, causal, scale, bias, rotation, *, stream, **how):
        """Self-attention whose keys are turned anew for each block of queries (dynamic NTK)."""
        tgt_len, keys = q.size(2), k.size(2)
        mask = mask.keep if isinstance(mask, Mask) else mask
        if causal:
            mask = torch.ones(tgt_len, keys, dtype=torch.bool, device=q.device).tril()

        def rows(x, first, end):
            return x if x is None or x.size(-2) == 1 else x[..., first:end, :]

        outs, all_weights, streams = [], [], []
        for first, end, turn in rotation.blocks():
            turned_q, turned_k = turn(q[:, :, first:end], k)
            mask_rows, bias_rows, stream_rows = (rows(x, first, end) for x in (mask, bias, stream))
            out, weights, summed = attend(
                turned_q, turned_k, v, mask_rows, False, scale, bias_rows, stream=stream_rows, **how
            )
            outs.append(out)
            all_weights.append(weights)
            streams.append(summed)
        return (
            torch.cat(outs, dim=2),
            torch.cat(all_weights, dim=2) if how["need_weights"] else None,
            None if how["divisor"] is None else torch.cat(streams, dim=2),
        )

    def __prepare_scriptable__(self):
        refuse_torchscript(self)


def refuse_torchscript(module):
    """Raise a UserError in place of torch.jit.script's long listing; torch asks modules before it compiles them."""
    raise UserError(
        f"{type(module).__name__} of fairseq_rope does not support TorchScript: its position encodings are Python "
        "objects; use the eager model (fairseq-generate without scripting)"
    )
