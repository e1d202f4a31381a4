"""Transformer encoder: stock fairseq's parameters and interface, with any position encoding."""

import torch
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor

from fairseq_rope.attention import Mask, refuse_torchscript
from fairseq_rope.layers import TransformerEncoderLayer
from fairseq_rope.residual import Measurement, init_residuals
from fairseq_rope.stack import (
    build_positions,
    layers_to_run,
    masked_bias,
    residual_depth,
    source_mask,
    stream_divisor,
    wrap_layer,
)


class TransformerEncoder(TransformerEncoderBase):
    """Stack of :class:`~fairseq_rope.layers.TransformerEncoderLayer`.

    Args:
        cfg: sizes and options.
        dictionary: source dictionary.
        embed_tokens: input embedding (vocabulary, embed_dim).
    """

    def __init__(self, cfg, dictionary, embed_tokens):
        super().__init__(cfg, dictionary, embed_tokens)
        # The attribute keeps stock's name: a learned table is saved as `embed_positions.weight`.
        self.embed_positions = build_positions(cfg, "encoder", self.embed_positions, dictionary)
        init_residuals(self.layers, cfg.residual_init, "encoder", *residual_depth(cfg))

    def build_encoder_layer(self, cfg):
        return wrap_layer(TransformerEncoderLayer(cfg), cfg)

    def forward_embedding(self, src_tokens, token_embedding: Tensor | None = None):
        """Embed (batch, src_len) tokens.

        Returns:
            what the layers read and the scaled embedding, (batch, src_len, embed_dim) each.
        """
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        x = embed = self.embed_scale * token_embedding
        positions = self.embed_positions.embed(src_tokens, src_tokens.size(1))
        if positions is not None:
            x = (embed + positions).type_as(embed)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        return x, embed

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        measurement: Measurement | None = None,
    ):
        """Encode (batch, src_len) tokens; arguments and result are those of stock's encoder, and ADMIN's measurement.

        Returns:
            dict of lists: ``encoder_out`` [(src_len, batch, embed_dim)], ``encoder_padding_mask`` [(batch, src_len)],
            ``encoder_embedding`` [(batch, src_len, embed_dim)], ``encoder_states`` (the input and each layer's output
            if ``return_all_hiddens``), ``src_lengths`` [(batch, 1)].
        """
        self.embed_positions.check_length(src_tokens)
        padding_mask = src_tokens.eq(self.padding_idx)  # (batch, src_len)
        mask = source_mask(padding_mask)  # (batch, 1, 1, src_len)

        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if mask is not None:
            x = x.masked_fill(padding_mask[:, :, None], 0)
        x = x.transpose(0, 1)  # (batch, src_len, embed_dim) -> (src_len, batch, embed_dim)

        # Asked once: all layers share these.
        positions, src_len = self.embed_positions, src_tokens.size(1)
        rotation = positions.rotation(src_tokens, src_len, causal=False)
        score_bias = positions.score_bias(src_tokens, src_len)
        scale = positions.score_scale(self.cfg.encoder.embed_dim // self.cfg.encoder.attention_heads)

        if self.cfg.residual_attention != "none":
            mask = None if mask is None else Mask.of(mask)
        elif score_bias is not None:
            score_bias, mask = masked_bias(score_bias, mask, causal=False), None

        states = [x] if return_all_hiddens else []
        stream = None
        for depth, layer in enumerate(layers_to_run(self.layers, measurement is not None)):
            divisor = stream_divisor(self.cfg.residual_attention, depth)
            x, stream = layer(
                x, mask, rotation, score_bias, stream, scale=scale, divisor=divisor, measurement=measurement
            )
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)

        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [padding_mask.logical_not().sum(dim=1, dtype=torch.int32)[:, None]],
        }

    forward_scriptable = forward  # stock's name of its body

    def reorder_encoder_out(self, encoder_out, new_order):
        """As stock's, but ``encoder_out`` itself where ``new_order`` only moves the hypotheses of each sentence.

        That is nearly every step of beam search. ``sentences`` [(rows,)] in the result says which sentence of the
        encoder's batch each row has, by which the decoder knows what rows can share.
        """
        known = encoder_out.get("sentences")
        sentences = new_order if not known else known[0].index_select(0, new_order)
        if known and sentences.equal(known[0]):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentences": [sentences]}

    def max_positions(self):
        """Longest source in tokens that the position encoding can place."""
        return self.embed_positions.max_positions()

    def __prepare_scriptable__(self):
        refuse_torchscript(self)
