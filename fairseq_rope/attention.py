"""Multi-head attention, composed of position encoding, score stream and kernel, which know nothing of each other."""

import torch
import torch.nn.functional as F
from fairseq import modules
from torch import Tensor

from fairseq_rope.errors import UserError
from fairseq_rope.positions import Rotation


def attend(q, k, v, mask, causal, scale, bias=None, dropout=0.0, need_weights=False, stream=None, divisor=None):
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1) with a keep-mask, a bias and a score stream.

    With residual attention (He et al. 2021, RealFormer, section 3.2) the scores q·k·scale of this layer are added to
    those of the layers before it; the sum is handed on raw, before division, bias, mask and dropout, since any of
    these would be counted once a layer.

    Args:
        q: (batch, heads, queries, head_dim).
        k, v: (batch, heads, keys, head_dim).
        mask: bool, broadcastable to (batch, heads, queries, keys), True where a query may look; or None for all.
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
        if bias is not None:
            bias = bias.to(q.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=causal, scale=scale)
        return out, None, None
    # Scaled before the product, which could overflow in float16; summed in float32, where 60 layers keep their digits.
    logits = (q * scale) @ k.transpose(-2, -1)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if divisor is not None:
        stream = logits if stream is None else logits + stream
        logits = stream / divisor if divisor > 1 else stream
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        # A query that may look nowhere (a sentence of pads only) gets zeros, as in the fused kernel, not NaN. Its row
        # stays unmasked and its output is erased: erasing weights would keep a second copy of them for autograd.
        nowhere = ~mask.any(dim=-1, keepdim=True)
        logits = logits.masked_fill(~(mask | nowhere), float("-inf"))
    weights = torch.softmax(logits, dim=-1)
    out = F.dropout(weights, dropout, training=dropout > 0).type_as(v) @ v
    if mask is not None:
        out = out.masked_fill(nowhere, 0.0)
        weights = weights.masked_fill(~mask, 0.0) if need_weights else weights
    return out, weights if need_weights else None, stream


class MultiheadAttention(modules.MultiheadAttention):
    """Attention with stock fairseq's parameters, names and caches, and its own forward pass.

    Stock fairseq has two bodies, torch's fused function in training and a Python one in decoding; a position
    encoding between projection and product has to be in both. Here one body serves both.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        mask: Tensor | None = None,
        rotation: Rotation | None = None,
        score_bias: Tensor | None = None,
        scale: float | None = None,
        causal: bool = False,
        stream: Tensor | None = None,
        divisor: int | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = False,
    ):
        """Attend from ``query`` to ``key``.

        Args:
            query: (tgt_len, batch, embed_dim).
            key: what keys and values are projected from, (src_len, batch, kdim); None for ``query`` itself.
                Encoder-decoder attention projects it once and then takes both from ``incremental_state``.
            mask: bool keep-mask, broadcastable to (batch, 1, tgt_len, keys), cached keys included.
            rotation: turns projected queries and keys (RoPE); never values.
            score_bias: (1 or batch, heads, tgt_len, keys), added to the scaled scores.
            scale: factor of q·k; default 1/sqrt(head_dim).
            causal, divisor: see :func:`attend`.
            stream: what the same attention of the layer before returned; None in the first layer. Nothing of it is
                cached: while decoding it is built anew, layer by layer, for the one query of a step.
            incremental_state: cache of step-by-step decoding.
            need_weights: also return the attention weights.

        Returns:
            (tgt_len, batch, embed_dim); the weights (heads, batch, tgt_len, keys) in float32, or None; and the stream
            for the next layer (batch, heads, tgt_len, keys) in float32, or None. Its layout is the scores': where the
            beams of a sentence share their keys it is (sentences, heads, beam·tgt_len, keys).
        """
        cached = self._get_input_buffer(incremental_state)
        q = self._split_heads(self.q_proj(query))  # (batch, heads, tgt_len, head_dim)
        if self.encoder_decoder_attention:
            k, v = self._encoder_keys(query.size(1), key, cached, incremental_state)
        else:
            source = query if key is None else key
            k, v = self._split_heads(self.k_proj(source)), self._split_heads(self.v_proj(source))
            if rotation is not None and rotation.before_cache:
                q, k = rotation.rotate(q), rotation.rotate(k)
            if "prev_key" in cached:
                k = torch.cat((cached["prev_key"], k), dim=2)
                v = torch.cat((cached["prev_value"], v), dim=2)
            self._cache(incremental_state, k, v)

        dropout = self.dropout_module
        p = dropout.p if self.training or dropout.apply_during_inference else 0.0
        scale = self.scaling if scale is None else scale

        how = {"dropout": p, "need_weights": need_weights, "stream": stream, "divisor": divisor}
        if rotation is not None and not rotation.before_cache:
            out, weights, stream = self._attend_by_block(q, k, v, mask, causal, scale, score_bias, rotation, **how)
        elif k.size(0) != q.size(0):
            out, weights, stream = self._attend_by_beam(q, k, v, mask, scale, **how)
        else:
            out, weights, stream = attend(q, k, v, mask, causal, scale, score_bias, **how)

        out = out.permute(2, 0, 1, 3).flatten(2)  # (batch, heads, tgt_len, head_dim) -> (tgt_len, batch, embed_dim)
        return self.out_proj(out), None if weights is None else weights.transpose(0, 1), stream

    def _split_heads(self, x):
        """(length, batch, embed_dim) -> (batch, heads, length, head_dim)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _cache(self, incremental_state, k, v):
        if incremental_state is not None:
            self._set_input_buffer(incremental_state, {"prev_key": k, "prev_value": v})

    def _encoder_keys(self, batch, key, cached, incremental_state):
        """Keys and values of encoder-decoder attention, (batch or sentences, heads, src_len, head_dim) each."""
        if "prev_key" in cached:
            return cached["prev_key"], cached["prev_value"]
        if incremental_state is not None and self.beam_size > 1 and key.size(1) == batch:
            key = key[:, :: self.beam_size]  # the beams of a sentence are neighbours and see the same source
        k, v = self._split_heads(self.k_proj(key)), self._split_heads(self.v_proj(key))
        self._cache(incremental_state, k, v)
        return k, v

    def _attend_by_beam(self, q, k, v, mask, scale, **how):
        """Encoder-decoder attention whose keys are stored once a sentence: its beams become rows of queries."""
        sentences, batch, tgt_len = k.size(0), q.size(0), q.size(2)
        beam = batch // sentences
        q = (
            q.unflatten(0, (sentences, beam)).transpose(1, 2).flatten(2, 3)
        )  # (sentences, heads, beam·tgt_len, head_dim)
        if mask is not None:  # encoder padding: (batch, 1, 1, src_len), equal for the beams of a sentence
            mask = mask[::beam]
        out, weights, stream = attend(q, k, v, mask, False, scale, **how)

        def by_beam(x):  # (sentences, heads, beam·tgt_len, …) -> (batch, heads, tgt_len, …)
            return x.unflatten(2, (beam, tgt_len)).transpose(1, 2).flatten(0, 1)

        return by_beam(out), None if weights is None else by_beam(weights), stream

    def _attend_by_block(self, q, k, v, mask, causal, scale, bias, rotation, *, stream, **how):
        """Self-attention whose keys are turned anew for each block of queries (dynamic NTK)."""
        tgt_len, keys = q.size(2), k.size(2)
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

    def reorder_incremental_state(self, incremental_state, new_order):
        """Keep the cached rows that beam search goes on with, in the order ``new_order`` (rows,)."""
        cached = self._get_input_buffer(incremental_state)
        if not cached:
            return incremental_state
        order = new_order
        rows = cached["prev_key"].size(0)
        if self.encoder_decoder_attention and self.beam_size > 1:
            order = new_order[:: self.beam_size] // self.beam_size  # one row a sentence
        # Usually only beams moved within their sentences, whose source keys are equal: nothing to copy.
        if self.encoder_decoder_attention and torch.equal(order, torch.arange(rows, device=order.device)):
            return incremental_state
        self._cache(incremental_state, *(cached[name].index_select(0, order) for name in ("prev_key", "prev_value")))
        return incremental_state

    def __prepare_scriptable__(self):
        refuse_torchscript(self)


def refuse_torchscript(module):
    """Raise a UserError in place of torch.jit.script's long listing; torch asks modules before it compiles them."""
    raise UserError(
        f"{type(module).__name__} of fairseq_rope does not support TorchScript: its position encodings are Python "
        "objects; use the eager model (fairseq-generate without scripting)"
    )
