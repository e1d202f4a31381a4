"""Transformer decoder: stock fairseq's parameters and interface, with any position encoding."""

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from fairseq_rope.attention import refuse_torchscript
from fairseq_rope.errors import UserError
from fairseq_rope.layers import TransformerDecoderLayer
from fairseq_rope.residual import Measurement, init_residuals
from fairseq_rope.stack import (
    build_positions,
    layers_to_run,
    masked_bias,
    residual_depth,
    stream_divisor,
    wrap_layer,
)


class TransformerDecoder(TransformerDecoderBase):
    """Stack of :class:`~fairseq_rope.layers.TransformerDecoderLayer`.

    Args:
        cfg: sizes and options.
        dictionary: target dictionary.
        embed_tokens: input embedding (vocabulary, input_dim).
        no_encoder_attn: build no encoder-decoder attention.
    """

    def __init__(self, cfg, dictionary, embed_tokens, no_encoder_attn=False):
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        self.embed_positions = build_positions(cfg, "decoder", self.embed_positions, dictionary)
        init_residuals(self.layers, cfg.residual_init, "decoder", *residual_depth(cfg))
        self.need_attn = True

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return wrap_layer(TransformerDecoderLayer(cfg, no_encoder_attn), cfg)

    def make_generation_fast_(self, need_attn=False, **kwargs):
        """fairseq calls this before generation; without --print-alignment no attention weights are kept."""
        self.need_attn = need_attn

    def forward_embedding(self, tokens, query_len):
        """Embed the last ``query_len`` of ``tokens`` (batch, length): (batch, query_len, embed_dim)."""
        x = self.embed_scale * self.embed_tokens(tokens[:, -query_len:].contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        positions = self.embed_positions.embed(tokens, query_len)
        if positions is not None:
            x = (x + positions).type_as(x)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict | None = None,
        features_only: bool = False,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        measurement: Measurement | None = None,
    ):
        """Scores of the next tokens, (batch, tgt_len or 1, vocabulary); with ``features_only`` what they are made of.

        Arguments are those of stock's decoder; see :meth:`extract_features`.
        """
        x, extra = self.extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
            measurement,
        )
        return x if features_only else self.output_layer(x), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: dict | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        measurement: Measurement | None = None,
    ):
        """The decoder without its output layer; arguments are those of stock's decoder.

        Args:
            prev_output_tokens: all target tokens so far (batch, tgt_len); with ``incremental_state`` only the last
                one is computed.
            encoder_out: result of the encoder, or None.
            full_context_alignment: no causal mask.
            alignment_layer: layer whose attention to the source is returned (default: the last).
            alignment_heads: average the attention of this many heads (default: all).
            measurement: ADMIN's, in a measuring pass.

        Returns:
            (batch, tgt_len or 1, output_embed_dim) and a dict: ``attn`` [(batch, tgt_len or 1, src_len) or None],
            ``inner_states``. Attention weights are returned in evaluation, and in training if an alignment argument
            is given; they cost a pass outside the fused kernel.
        """
        self.embed_positions.check_length(prev_output_tokens)
        enc = padding_mask = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            enc = encoder_out["encoder_out"][0]  # (src_len, batch, encoder_embed_dim)
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            padding_mask = encoder_out["encoder_padding_mask"][0]  # (batch, src_len)
        encoder_mask = None
        if padding_mask is not None and bool(padding_mask.any()):
            encoder_mask = ~padding_mask[:, None, None, :]  # (batch, 1, 1, src_len)

        tokens = prev_output_tokens
        query_len = tokens.size(1) if incremental_state is None else 1
        x = self.forward_embedding(tokens, query_len)
        x = x.transpose(0, 1)  # (batch, query_len, embed_dim) -> (query_len, batch, embed_dim)

        # Asked once: all layers share these.
        positions = self.embed_positions
        causal, mask = self._self_attention_mask(tokens, query_len, full_context_alignment, encoder_mask, enc)
        rotation = positions.rotation(tokens, query_len, causal=not full_context_alignment)
        score_bias = positions.score_bias(tokens, query_len)
        scale = positions.score_scale(self.embed_dim // self.cfg.decoder.attention_heads)

        if score_bias is not None and self.cfg.residual_attention == "none":
            score_bias, mask, causal = masked_bias(score_bias, mask, causal), None, False

        aligned = alignment_layer is not None or alignment_heads is not None
        need_attn = aligned or (self.need_attn and not self.training)
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1

        attn = None
        inner_states = [x]
        self_stream = cross_stream = None
        for index, layer in enumerate(layers_to_run(self.layers, measurement is not None)):
            x, weights, self_stream, cross_stream = layer(
                x,
                enc,
                encoder_mask,
                mask,
                rotation,
                score_bias,
                self_stream,
                cross_stream,
                scale=scale,
                causal=causal,
                divisor=stream_divisor(self.cfg.residual_attention, index),
                incremental_state=incremental_state,
                need_weights=need_attn and index == alignment_layer,
                measurement=measurement,
            )
            inner_states.append(x)
            if weights is not None:
                attn = weights[:alignment_heads].mean(dim=0).type_as(x)  # (batch, query_len, src_len)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # (query_len, batch, embed_dim) -> (batch, query_len, embed_dim)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def _self_attention_mask(self, tokens, query_len, full_context, encoder_mask, enc):
        """Whether the plain causal mask is enough, and if not, the keep-mask (batch or 1, 1, query_len, keys) or None.

        The plain one is enough without pads and with pads on the right, where no token looks at a pad. A pad always
        sees itself, so that no row of scores is masked whole.
        """
        pads = tokens.eq(self.padding_idx)  # (batch, tgt_len)
        tgt_len = tokens.size(1)
        step = query_len != tgt_len or full_context
        if self.cross_self_attention and enc is not None:
            keep = self._target_mask(pads, query_len, full_context)
            source = encoder_mask
            if source is None:
                source = keep.new_ones(enc.size(1), 1, 1, enc.size(0))
            source = source.expand(-1, -1, query_len, -1)
            return False, torch.cat((source, keep.expand(source.size(0), -1, -1, -1)), dim=3)
        if step or tgt_len == 1:
            return False, self._target_mask(pads, query_len, full_context) if bool(pads.any()) else None
        if bool((pads[:, :-1] & ~pads[:, 1:]).any()):  # a pad before a token
            return False, self._target_mask(pads, query_len, full_context)
        return True, None

    def _target_mask(self, pads, query_len, full_context):
        tgt_len = pads.size(1)
        keep = ~pads[:, None, None, :]  # (batch, 1, 1, tgt_len)
        itself = torch.eye(tgt_len, dtype=torch.bool, device=pads.device)
        if not full_context:
            keep = keep & torch.ones_like(itself).tril()[-query_len:]
        return keep | itself[-query_len:]  # (batch, 1, query_len, tgt_len)

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        """Probabilities (or their logarithms) of the output layer's result, as in stock.

        Raises:
            UserError: in training with adaptive softmax; only the criterion ``adaptive_loss`` computes its loss.
        """
        if self.training and self.adaptive_softmax is not None:
            raise UserError("--adaptive-softmax-cutoff is trained with --criterion adaptive_loss and with no other")
        return super().get_normalized_probs(net_output, log_probs, sample)

    def max_positions(self):
        """Longest target in tokens that the position encoding can place."""
        return self.embed_positions.max_positions()

    def __prepare_scriptable__(self):
        refuse_torchscript(self)
