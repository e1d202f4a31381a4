"""Transformer decoder: stock fairseq's parameters and interface, with any position encoding."""

from collections.abc import Callable

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from fairseq_rope.attention import Mask, refuse_torchscript
from fairseq_rope.decoding_state import DecodingState
from fairseq_rope.errors import UserError
from fairseq_rope.layers import TransformerDecoderLayer
from fairseq_rope.packed_linear import GenerationLinears
from fairseq_rope.residual import Measurement, init_residuals
from fairseq_rope.stack import (
    build_positions,
    causal_mask,
    layers_to_run,
    masked_bias,
    residual_depth,
    source_mask,
    stream_divisor,
    wrap_layer,
)


def log_softmax_(logits: Tensor, block: int = 2**20) -> Tensor:
    """Turn float32 ``logits`` (…, vocabulary) into log-probabilities in place, about ``block`` numbers at a time.

    The scores of a step of beam search are among its largest tensors; a second one costs more to map than to fill.
    """
    rows = logits.view(-1, logits.size(-1))
    for part in rows.split(max(block // rows.size(1), 1)):
        part.copy_(torch.log_softmax(part, dim=-1))
    return logits


class TransformerDecoder(GenerationLinears, TransformerDecoderBase):
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
        super().make_generation_fast_(**kwargs)
        self.need_attn = need_attn

    def output_layer(self, features):
        """Scores of the vocabulary for ``features`` (batch, tgt_len, output_embed_dim); the features themselves with
        adaptive softmax, which has an output of its own."""
        return features if self.adaptive_softmax is not None else self.joined(features, "output_projection")

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
        head: Callable | None = None,
    ):
        """Scores of the next tokens, (batch, tgt_len or 1, vocabulary); with ``features_only`` what they are made of.

        Arguments are those of stock's decoder; see :meth:`extract_features`. ``head`` takes the output layer's place:
        its result for (features (batch, tgt_len or 1, output_embed_dim), this decoder) is returned. A loss that does
        without the whole of the scores is computed here, inside the forward pass, where data-parallel wrappers see
        which parameters it reads.
        """
        how = full_context_alignment, alignment_layer, alignment_heads, measurement
        x, extra, state = self._features(prev_output_tokens, encoder_out, incremental_state, *how)
        if head is not None:
            return head(x, self), extra
        if not features_only:
            x = self.output_layer(x)
        # Nobody else has seen a step's scores, so normalising them may write into them.
        extra["in_place"] = state is not None and not features_only and not x.requires_grad
        return x if state is None else state.expand(x), extra

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
        how = full_context_alignment, alignment_layer, alignment_heads, measurement
        x, extra, state = self._features(prev_output_tokens, encoder_out, incremental_state, *how)
        return x if state is None else state.expand(x), extra

    def _features(
        self,
        prev_output_tokens,
        encoder_out,
        incremental_state,
        full_context_alignment,
        alignment_layer,
        alignment_heads,
        measurement,
    ):
        """:meth:`extract_features` with the state of decoding (or None) and only the rows that it computes."""
        self.embed_positions.check_length(prev_output_tokens)
        enc = padding_mask = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            enc = encoder_out["encoder_out"][0]  # (src_len, batch, encoder_embed_dim)
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            padding_mask = encoder_out["encoder_padding_mask"][0]  # (batch, src_len)

        tokens, state = prev_output_tokens, None
        if incremental_state is None:
            query_len = tokens.size(1)
            encoder_mask = source_mask(padding_mask)
        else:
            query_len = 1
            state = self._decoding_state(incremental_state, tokens, encoder_out, enc)
            if state.steps == 0 and padding_mask is not None:
                state.source_mask = source_mask(padding_mask[:: state.group])
            tokens = state.begin_step(tokens)
            encoder_mask = state.source_mask
        x = self.forward_embedding(tokens, query_len)
        x = x.transpose(0, 1)  # (batch, query_len, embed_dim) -> (query_len, batch, embed_dim)

        # Asked once: all layers share these.
        positions = self.embed_positions
        causal, mask = self._self_attention_mask(tokens, query_len, full_context_alignment, encoder_mask, enc)
        rotation = positions.rotation(tokens, query_len, causal=not full_context_alignment)
        if state is None:
            score_bias = positions.score_bias(tokens, query_len)
        else:
            score_bias = positions.step_bias(tokens, state.memo)
        scale = positions.score_scale(self.embed_dim // self.cfg.decoder.attention_heads)
        if state is not None:
            mask = state.entry_mask(mask)
            score_bias = None if score_bias is None else state.entry_bias(score_bias)
        if self.cfg.residual_attention != "none":
            if causal:
                mask, causal = causal_mask(query_len, tokens.device), False
            mask = None if mask is None else Mask.of(mask, everywhere=True)  # a token sees itself at least
            encoder_mask = None if encoder_mask is None else Mask.of(encoder_mask)
        elif score_bias is not None or (state is not None and mask is not None):
            # Of a mask alone the fused kernel would make such a bias in each layer.
            bias = x.new_zeros(1, 1, 1, 1) if score_bias is None else score_bias
            score_bias, mask, causal = masked_bias(bias, mask, causal), None, False

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
                state=state,
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
        if state is not None:
            attn = None if attn is None else state.expand(attn)
            inner_states = [state.expand(inner, dim=1) for inner in inner_states]
        return x, {"attn": [attn], "inner_states": inner_states}, state

    def _decoding_state(self, incremental_state, tokens, encoder_out, enc):
        """The state of this batch's decoding, made at its first step."""
        state = self.get_incremental_state(incremental_state, "decoding")
        if state is None:
            if self.embed_positions.keys_by_row or self.cross_self_attention:
                state = DecodingState(tokens.size(0), lazy=False)
            else:
                # Hypotheses that are equal so far stay equal, but for dropout that is kept on purpose.
                noisy = self.training or any(getattr(m, "apply_during_inference", False) for m in self.modules())
                group = 1 if enc is None else self._rows_a_sentence(encoder_out, enc)
                state = DecodingState(tokens.size(0), group, alike=not noisy)
            self.set_incremental_state(incremental_state, "decoding", state)
        return state

    def _rows_a_sentence(self, encoder_out, enc):
        """How many neighbouring rows have the same source each, as beam search lays them out; 1 if it does not."""
        sentences = encoder_out.get("sentences")
        if sentences:
            counts = torch.unique_consecutive(sentences[0], return_counts=True)[1].tolist()
            return counts[0] if len(set(counts)) == 1 else 1
        # Without the encoder's word: what set_beam_size was told, if the rows bear it out.
        group = getattr(self, "_beam_size", 1)
        if group > 1 and enc.size(1) % group == 0:
            rows = enc.unflatten(1, (-1, group))
            if rows.eq(rows[:, :, :1]).all():
                return group
        return 1

    def reorder_incremental_state(self, incremental_state, new_order):
        """Go on with the rows ``new_order`` (rows,) of the hypotheses, in that order."""
        state = self.get_incremental_state(incremental_state, "decoding")
        if state is not None:
            state.reorder(new_order)

    reorder_incremental_state_scripting = reorder_incremental_state  # stock asks every module; one holds the state

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
        logits, extra = net_output[0], net_output[1] if len(net_output) > 1 else None
        scratch = isinstance(extra, dict) and extra.get("in_place") and self.adaptive_softmax is None
        if log_probs and scratch and logits.dtype == torch.float32 and logits.is_contiguous():
            return log_softmax_(logits)
        return super().get_normalized_probs(net_output, log_probs, sample)

    def max_positions(self):
        """Longest target in tokens that the position encoding can place."""
        return self.embed_positions.max_positions()

    def __prepare_scriptable__(self):
        refuse_torchscript(self)
