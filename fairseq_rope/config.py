"""Options: fairseq's own TransformerConfig plus the axes of this package, and what of them can be combined."""

# ruff: noqa: UP045  fairseq makes flags of these fields and reads typing.Optional only, not `X | None`

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from fairseq_rope.errors import UserError
from fairseq_rope.positions import OPTION_READERS, RopeScaling, check_buckets

POSITION_ENCODINGS = ["sinusoidal", "learned", "none", "rope", "tupe-a", "tupe-r"]
RESIDUAL_ATTENTIONS = ["none", "sum", "mean"]
RESIDUAL_INITS = ["default", "admin", "admin-torch", "deepnorm"]
ROPE_SCALINGS = ["none", "linear", "ntk", "dynamic-ntk", "yarn"]


@dataclass
class RopeTransformerConfig(TransformerConfig):
    """fairseq's Transformer options and, flat beside them, those of this package.

    Field names are the flags' with underscores. ``None`` means not given.
    """

    position_encoding: Optional[ChoiceEnum(POSITION_ENCODINGS)] = field(
        default=None,
        metadata={
            "help": "position encoding of encoder and decoder; not given: that of the architecture, or what "
            "--encoder-learned-pos, --decoder-learned-pos and --no-token-positional-embeddings say"
        },
    )
    residual_attention: ChoiceEnum(RESIDUAL_ATTENTIONS) = field(
        default="none",
        metadata={
            "help": "RealFormer: softmax over the sum or the mean of this layer's scores and those of all layers before"
        },
    )
    residual_init: ChoiceEnum(RESIDUAL_INITS) = field(
        default="default",
        metadata={
            "help": "scaled shortcuts of a post-norm model: admin is measured in the first training forward pass, "
            "admin-torch is its closed form of the depth, deepnorm is DeepNet's with its own initialisation"
        },
    )
    residual_encoder_layers: Optional[int] = field(
        default=None,
        metadata={
            "help": "encoder depth that the constants of DeepNorm and admin-torch are computed for; not given: the "
            "model's (recorded in checkpoints, so that a pruned model keeps those of its training)"
        },
    )
    residual_decoder_layers: Optional[int] = field(
        default=None, metadata={"help": "decoder depth that the constants of DeepNorm and admin-torch are computed for"}
    )
    rope_base: float = field(default=10000.0, metadata={"help": "b in RoPE's frequencies b^(-2i/head_dim)"})
    rope_scaling: ChoiceEnum(ROPE_SCALINGS) = field(
        default="none", metadata={"help": "how RoPE's frequencies change to reach beyond the training length"}
    )
    rope_scaling_factor: float = field(
        default=1.0, metadata={"help": "target length / training length, at least 1 (with --rope-scaling)"}
    )
    rope_train_length: Optional[int] = field(
        default=None, metadata={"help": "training length in tokens (for --rope-scaling dynamic-ntk and yarn)"}
    )
    tupe_reset: ChoiceEnum(["none", "first", "eos"]) = field(
        default="none",
        metadata={"help": "TUPE: token whose position scores are reset (first: the first token that is no pad)"},
    )
    tupe_reset_form: ChoiceEnum(["separate", "joint"]) = field(
        default="separate",
        metadata={"help": "TUPE: how the reset joins with relative buckets, as in the official code or the paper"},
    )
    relative_buckets: int = field(default=32, metadata={"help": "TUPE-R: number of relative position buckets"})
    relative_max_distance: int = field(default=128, metadata={"help": "TUPE-R: distance of the last bucket"})
    ffn_init: ChoiceEnum(["default", "xavier"]) = field(
        default="default",
        metadata={
            "help": "feed-forward initialisation: fairseq's, or xavier-uniform with zero bias (of which DeepNorm, "
            "which has weights of its own, leaves the zero bias)"
        },
    )
    admin_profile_out: Optional[str] = field(
        default=None,
        metadata={
            "help": "ADMIN: write the measured profile to this file (JSON), and a picture beside it (.png); no "
            "effect where a checkpoint holds the shortcuts already"
        },
    )
    admin_profile_in: Optional[str] = field(
        default=None,
        metadata={
            "help": "ADMIN: take the profile from this file (of --admin-profile-out) instead of measuring; no effect "
            "where a checkpoint holds the shortcuts already"
        },
    )
    untied_embeddings: bool = field(
        default=False,
        metadata={"help": "keep encoder input, decoder input and output embeddings apart (presets tie them)"},
    )

    @classmethod
    def from_model_config(cls, model_cfg):
        """This configuration from what fairseq hands to ``build_model``: an argparse Namespace or hydra's config."""
        if isinstance(model_cfg, DictConfig):
            model_cfg = Namespace(**OmegaConf.to_container(model_cfg, resolve=True, enum_to_str=True))
        return cls.from_namespace(model_cfg)

    def position_encoding_of(self, stack: str) -> str:
        """Position encoding of ``encoder`` or ``decoder``: the one that was asked for, or what stock's flags say."""
        if self.position_encoding is not None:
            return self.position_encoding
        if self.no_token_positional_embeddings:
            return "none"
        return "learned" if getattr(self, stack).learned_pos else "sinusoidal"

    def rope_scaling_of(self, stack: str) -> RopeScaling:
        """RoPE's frequencies in ``encoder`` or ``decoder``; raises UserError for values out of range."""
        sizes = getattr(self, stack)
        return RopeScaling(
            head_dim=sizes.embed_dim // sizes.attention_heads,
            base=self.rope_base,
            mode=self.rope_scaling,
            factor=self.rope_scaling_factor,
            train_length=self.rope_train_length,
        )


def flag(name: str) -> str:
    """``rope_base`` -> ``--rope-base``."""
    return "--" + name.replace("_", "-")


def _check_values(cfg):
    choices = {
        "position_encoding": [None, *POSITION_ENCODINGS],
        "residual_attention": RESIDUAL_ATTENTIONS,
        "residual_init": RESIDUAL_INITS,
        "rope_scaling": ROPE_SCALINGS,
        "tupe_reset": ["none", "first", "eos"],
        "tupe_reset_form": ["separate", "joint"],
        "ffn_init": ["default", "xavier"],
    }
    for name, valid in choices.items():  # argparse has checked these, hydra and --model-overrides have not
        value = getattr(cfg, name)
        if value not in valid:
            names = ", ".join(choice for choice in valid if choice is not None)
            raise UserError(f"{flag(name)} {value}: no such value; choose one of {names}")


def _check_effect(cfg):
    """Refuse options that nothing reads with the position encodings in use."""
    in_use = {cfg.position_encoding_of("encoder"), cfg.position_encoding_of("decoder")}
    for name, option in RopeTransformerConfig.__dataclass_fields__.items():
        for prefix, encodings in OPTION_READERS.items():
            value = getattr(cfg, name) if name.startswith(prefix) else option.default
            if value != option.default and not in_use & set(encodings):
                raise UserError(
                    f"{flag(name)} {value} has no effect with --position-encoding {' and '.join(sorted(in_use))}; it "
                    f"is read by {' and '.join(encodings)}"
                )


def _check_residuals(cfg):
    """Refuse scaled shortcuts where they have no meaning, and options that nothing reads with the ones in use."""
    init = cfg.residual_init
    if init != "default":
        for stack in ("encoder", "decoder"):
            if getattr(cfg, stack).normalize_before:
                raise UserError(
                    f"--residual-init {init} scales the shortcuts of a post-norm Transformer, but "
                    f"--{stack}-normalize-before asks for pre-norm; drop it, or use --residual-init default"
                )
    for name in ("admin_profile_out", "admin_profile_in"):
        if getattr(cfg, name) and init != "admin":
            raise UserError(f"{flag(name)} needs --residual-init admin, but it is {init}")
    if cfg.admin_profile_out and cfg.admin_profile_in:
        raise UserError("--admin-profile-in replaces the measurement, so there is nothing for --admin-profile-out")
    for name in ("residual_encoder_layers", "residual_decoder_layers"):
        depth = getattr(cfg, name)
        if depth is not None and init not in ("admin-torch", "deepnorm"):
            raise UserError(f"{flag(name)} is read with --residual-init admin-torch and deepnorm, but it is {init}")
        if depth is not None and depth < 1:
            raise UserError(f"{flag(name)} must be at least 1, not {depth}")


def _check_sizes(cfg):
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(cfg, name) <= 1:
            raise UserError(f"{flag(name)} {getattr(cfg, name)} is no probability; it must lie between 0 and 1")
    for stack in ("encoder", "decoder"):
        sizes = getattr(cfg, stack)
        for name in ("layers", "embed_dim", "ffn_embed_dim"):
            if getattr(sizes, name) < 1:
                raise UserError(f"--{stack}-{name.replace('_', '-')} must be at least 1, not {getattr(sizes, name)}")
        if sizes.attention_heads < 1 or sizes.embed_dim % sizes.attention_heads:
            raise UserError(
                f"--{stack}-attention-heads {sizes.attention_heads} does not divide "
                f"--{stack}-embed-dim {sizes.embed_dim}"
            )
        if cfg.position_encoding_of(stack) == "rope":
            cfg.rope_scaling_of(stack)
        if cfg.position_encoding_of(stack) == "tupe-r":
            check_buckets(cfg.relative_buckets, cfg.relative_max_distance)


def _check_positions(cfg):
    asked = cfg.position_encoding
    if asked is None:
        return
    for stack in ("encoder", "decoder"):
        if getattr(cfg, stack).learned_pos and asked != "learned":
            raise UserError(
                f"--{stack}-learned-pos asks for learned positions, but --position-encoding (or the architecture) "
                f"says {asked}; drop one of the two"
            )
    if cfg.no_token_positional_embeddings and asked in ("sinusoidal", "learned"):
        raise UserError(
            f"--no-token-positional-embeddings asks for no vectors at the input, but --position-encoding (or the "
            f"architecture) says {asked}, which adds some; drop one of the two"
        )


def _check_stock_flags(cfg):
    """Refuse what stock's Transformer offers and this one does not, instead of ignoring it."""
    if cfg.cross_self_attention and cfg.position_encoding_of("decoder") in ("rope", "tupe-a", "tupe-r"):
        raise UserError(
            "--cross-self-attention mixes source and target keys, which share no positions, so "
            f"{cfg.position_encoding_of('decoder')} cannot relate them; use --position-encoding sinusoidal, learned "
            "or none"
        )
    if cfg.cross_self_attention and cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise UserError(
            f"--cross-self-attention needs encoder and decoder of one width, not {cfg.encoder.embed_dim} and "
            f"{cfg.decoder.embed_dim}"
        )
    refused = {
        "adaptive_input": "stock's translation Transformer ignores it; only its language models have it",
        "tie_adaptive_weights": "it needs adaptive input, which the translation Transformer does not have",
        "tie_adaptive_proj": "it needs adaptive input, which the translation Transformer does not have",
        "merge_src_tgt_embed": "preprocess with --joined-dictionary and use --share-all-embeddings",
        "char_inputs": "only old character models have it",
        "base_layers": "BASE layers are not part of this model; leave it at 0",
    }
    for name, why in refused.items():
        if getattr(cfg, name):
            raise UserError(f"{flag(name)} is not supported: {why}")
    for stack in ("encoder", "decoder"):
        kept = getattr(cfg, stack).layers_to_keep
        if kept is not None and not isinstance(kept, str):  # as a flag; from --model-overrides it is a string
            text = ",".join(map(str, kept))
            raise UserError(
                f"--{stack}-layers-to-keep {text} prunes a trained model while it is loaded: give it to "
                f"fairseq-generate as --model-overrides \"{{'{stack}_layers_to_keep': '{text}'}}\""
            )
        if getattr(cfg, stack).xformers_att_config:
            raise UserError(
                f"--{stack}-xformers-att-config is not supported: attention is torch's "
                "scaled_dot_product_attention, which picks its own fused kernel"
            )
    if cfg.quant_noise.scalar and not torch.cuda.is_available():
        raise UserError(
            f"--quant-noise-scalar {cfg.quant_noise.scalar} needs a GPU: fairseq's scalar quantisation computes with "
            "CUDA only; use --quant-noise-pq on a CPU"
        )
    if cfg.adaptive_softmax_cutoff and (cfg.share_decoder_input_output_embed or cfg.share_all_embeddings):
        raise UserError(
            "--adaptive-softmax-cutoff has an output of its own, so the output cannot share embeddings; drop "
            "--share-decoder-input-output-embed and --share-all-embeddings"
        )


def check(cfg: RopeTransformerConfig):
    """Raise a UserError, in one sentence that names the values and what is allowed, if ``cfg`` cannot be built."""
    _check_values(cfg)
    _check_positions(cfg)
    _check_effect(cfg)
    _check_residuals(cfg)
    _check_sizes(cfg)
    _check_stock_flags(cfg)
