"""Encoder and decoder layer: stock fairseq's parameters and names, around the attention of this package."""

import torch
import torch.nn.functional as F
from fairseq.modules import transformer_layer
from torch import Tensor, nn

from fairseq_rope.attention import MultiheadAttention, refuse_torchscript
from fairseq_rope.decoding_state import DecodingState
from fairseq_rope.dropout import dropout_add
from fairseq_rope.packed_linear import GenerationLinears
from fairseq_rope.positions import Rotation
from fairseq_rope.residual import Measurement, ScaledShortcuts


def init_feed_forward(layer, how: str):
    """Initialise a layer's feed-forward block as ``--ffn-init`` says.

    ``default`` keeps stock fairseq's (uniform within 1/sqrt(fan_in), weight and bias); ``xavier`` is that of fairseq
    in 2019, xavier-uniform weights and zero biases, which the ADMIN recipes were made with.
    """
    if how == "xavier":
        for linear in (layer.fc1, layer.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)


class _Blocks(ScaledShortcuts, GenerationLinears):
    """What encoder and decoder layer share: how a block is wrapped, and the feed-forward block."""

    def block_input(self, x, layer_norm):
        """What a block reads: the normalised stream with pre-norm, the stream itself with post-norm."""
        return layer_norm(x) if self.normalize_before else x

    def block_output(self, block, shortcut, x, layer_norm, measurement):
        """The stream after ``block``: dropout, (scaled) shortcut, and with post-norm the normalisation."""
        if measurement is None and self._adds_plainly():
            x = dropout_add(x, self.scaled_shortcut(block, shortcut), self.dropout_module)
        else:
            x = dropout_add(x, None, self.dropout_module)
            x = self.residual_connection(x, self.scaled_shortcut(block, shortcut, x, measurement))
        return x if self.normalize_before else layer_norm(x)

    def _adds_plainly(self):
        """Whether ``residual_connection`` is fairseq's, and not another one of a subclass or a study."""
        function = getattr(self.residual_connection, "__func__", None)
        return function in (
            transformer_layer.TransformerEncoderLayerBase.residual_connection,
            transformer_layer.TransformerDecoderLayerBase.residual_connection,
        )

    def feed_forward(self, x, measurement):
        """The whole feed-forward block, (batch, length, embed_dim) -> the same."""
        shortcut = x
        x = self.block_input(x, self.final_layer_norm)
        if self.activation_fn is F.relu:
            x = self.joined(x, "fc1", relu=True)
        else:
            x = self.activation_fn(self.joined(x, "fc1"))
        x = self.joined(dropout_add(x, None, self.activation_dropout_module), "fc2")
        return self.block_output("ffn", shortcut, x, self.final_layer_norm, measurement)

    def __prepare_scriptable__(self):
        refuse_torchscript(self)


class TransformerEncoderLayer(_Blocks, transformer_layer.TransformerEncoderLayerBase):
    """Self-attention and feed-forward block (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, cfg):
        super().__init__(cfg)
        init_feed_forward(self, cfg.ffn_init)

    def build_self_attention(self, embed_dim, cfg):
        return MultiheadAttention(
            embed_dim,
            cfg.encoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        rotation: Rotation | None,
        score_bias: Tensor | None,
        stream: Tensor | None,
        *,
        scale: float,
        divisor: int | None,
        measurement: Measurement | None = None,
    ):
        """Args:
            x: (src_len, batch, embed_dim).
            mask, rotation, score_bias, scale, divisor: see :class:`~fairseq_rope.attention.MultiheadAttention`.
            stream: the layer before's, (batch, heads, src_len, src_len) or None. An argument by itself, because
                activation checkpointing loses the gradients of tensors inside dicts and other objects.
            measurement: ADMIN's, in a measuring pass.

        Returns:
            (src_len, batch, embed_dim) and the stream for the next layer, or None.
        """
        shortcut = x = x.transpose(0, 1)  # batch first inside, as attention has it
        x = self.block_input(x, self.self_attn_layer_norm).transpose(0, 1)
        x, _, stream = self.self_attn(x, None, mask, rotation, score_bias, scale, stream=stream, divisor=divisor)
        x = self.block_output("self_attn", shortcut, x.transpose(0, 1), self.self_attn_layer_norm, measurement)
        return self.feed_forward(x, measurement).transpose(0, 1), stream


class TransformerDecoderLayer(_Blocks, transformer_layer.TransformerDecoderLayerBase):
    """Causal self-attention, attention to the encoder, and feed-forward block."""

    def __init__(self, cfg, no_encoder_attn=False):
        super().__init__(cfg, no_encoder_attn)
        init_feed_forward(self, cfg.ffn_init)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        return MultiheadAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=not cfg.cross_self_attention,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def build_encoder_attention(self, embed_dim, cfg):
        return MultiheadAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None,
        encoder_mask: Tensor | None,
        self_attn_mask: Tensor | None,
        rotation: Rotation | None,
        score_bias: Tensor | None,
        self_stream: Tensor | None,
        cross_stream: Tensor | None,
        *,
        scale: float,
        causal: bool,
        divisor: int | None,
        state: DecodingState | None = None,
        need_weights: bool = False,
        measurement: Measurement | None = None,
    ):
        """Args:
            x: (tgt_len, batch, embed_dim); tgt_len is 1 with ``state``.
            encoder_out: (src_len, batch, encoder_embed_dim) or None.
            encoder_mask: keep-mask of encoder-decoder attention, (batch, 1, 1, src_len) or None.
            self_attn_mask, rotation, score_bias, scale, causal, divisor: see
                :class:`~fairseq_rope.attention.MultiheadAttention`.
            self_stream, cross_stream: the layer before's, of self-attention and of attention to the encoder.
            state: of step-by-step decoding; masks, bias and streams are then those of its places.
            need_weights: also return the weights of encoder-decoder attention.
            measurement: ADMIN's, in a measuring pass.

        Returns:
            (tgt_len, batch, embed_dim); (heads, batch, tgt_len, src_len) in float32, or None; and both streams for
            the next layer, or None.
        """
        shortcut = x = x.transpose(0, 1)  # batch first inside, as attention has it
        x = self.block_input(x, self.self_attn_layer_norm).transpose(0, 1)
        key = None
        if self.cross_self_attention:
            # Keys are the encoder's output followed by the target; once it is there, only the target grows.
            key = x if state is not None and state.steps > 1 else _concat_lengths(encoder_out, x)
        x, _, self_stream = self.self_attn(
            x,
            key,
            self_attn_mask,
            rotation,
            score_bias,
            scale,
            causal=causal,
            stream=self_stream,
            divisor=divisor,
            past=None if state is None else state.pool(self.self_attn),
        )
        x = self.block_output("self_attn", shortcut, x.transpose(0, 1), self.self_attn_layer_norm, measurement)

        weights = None
        if self.encoder_attn is not None and encoder_out is not None:
            shortcut = x
            x = self.block_input(x, self.encoder_attn_layer_norm).transpose(0, 1)
            x, weights, cross_stream = self.encoder_attn(
                x,
                encoder_out,
                encoder_mask,
                stream=cross_stream,
                divisor=divisor,
                past=None if state is None else state.pool(self.encoder_attn),
                need_weights=need_weights,
            )
            x = self.block_output(
                "encoder_attn", shortcut, x.transpose(0, 1), self.encoder_attn_layer_norm, measurement
            )
        return self.feed_forward(x, measurement).transpose(0, 1), weights, self_stream, cross_stream


def _concat_lengths(encoder_out, x):
    return x if encoder_out is None else torch.cat((encoder_out, x), dim=0)
