"""The encoder-decoder Transformer, registered with fairseq as ``rope_transformer``."""

import logging
from contextlib import nullcontext

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import (
    DEFAULT_MAX_SOURCE_POSITIONS,
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerConfig,
    TransformerModelBase,
)
from fairseq.models.transformer.transformer_legacy import base_architecture
from omegaconf import OmegaConf, open_dict

from fairseq_rope.attention import refuse_torchscript
from fairseq_rope.config import RopeTransformerConfig, check
from fairseq_rope.decoder import TransformerDecoder
from fairseq_rope.encoder import TransformerEncoder
from fairseq_rope.errors import UserError

logger = logging.getLogger(__name__)

# Flags of this package and their defaults; None means that stock's flags decide.
OWN_DEFAULTS = {
    name: field.default
    for name, field in RopeTransformerConfig.__dataclass_fields__.items()
    if name not in TransformerConfig.__dataclass_fields__
}


def fill_defaults(args):
    """Give ``args`` every field that it lacks: those of this package, then those of stock's Transformer.

    An older checkpoint's configuration lacks the fields that came later. ``share_all_embeddings`` stays None where
    nobody has decided: then :func:`decide_sharing` looks at the dictionaries.
    """
    for name, default in OWN_DEFAULTS.items():
        setattr(args, name, getattr(args, name, default))
    if getattr(args, "share_all_embeddings", None) is None:
        args.share_all_embeddings = False if getattr(args, "share_decoder_input_output_embed", False) else None
    for name, default in (
        ("max_source_positions", DEFAULT_MAX_SOURCE_POSITIONS),
        ("max_target_positions", DEFAULT_MAX_TARGET_POSITIONS),
    ):
        if getattr(args, name, None) is None:
            setattr(args, name, default)
    base_architecture(args)


def decide_sharing(args, same_dictionary: bool):
    """Settle which embeddings are one matrix where nobody has yet (``share_all_embeddings`` is None).

    All three (encoder input, decoder input, output) if the dictionaries and widths agree, otherwise the decoder's two.
    """
    if args.share_all_embeddings is not None:
        return
    args.share_all_embeddings = False
    if args.untied_embeddings or args.adaptive_softmax_cutoff:
        return
    paths_agree = args.encoder_embed_path == args.decoder_embed_path
    one_width = args.decoder_embed_dim == args.decoder_input_dim == args.decoder_output_dim
    if same_dictionary and paths_agree and one_width and args.encoder_embed_dim == args.decoder_embed_dim:
        args.share_all_embeddings = args.share_decoder_input_output_embed = True
        logger.info("embeddings: encoder input, decoder input and output share one matrix (same dictionary)")
    elif args.decoder_input_dim == args.decoder_output_dim:
        args.share_decoder_input_output_embed = True
        why = "the widths or embedding files differ" if same_dictionary else "the two dictionaries differ"
        logger.info(f"embeddings: decoder input and output share one matrix, the encoder has its own ({why})")


@register_model("rope_transformer")
class TranslationTransformer(TransformerModelBase):
    """Encoder-decoder Transformer with a choice of position encoding.

    Architectures (``--arch roformer_wmt``, …) are presets of its flags, see
    :mod:`fairseq_rope.models.architectures`. Trained models are loaded for translation in Python by
    ``TranslationTransformer.from_pretrained(folder, checkpoint_file, data_name_or_path, …)``.
    """

    @classmethod
    def add_args(cls, parser):
        """Add fairseq's Transformer flags and this package's; no defaults, so that an architecture can set them."""
        gen_parser_from_dataclass(parser, RopeTransformerConfig(), delete_default=True, with_prefix="")

    @classmethod
    def build_model(cls, cfg, task):
        """Build the model; what was decided is written back into ``cfg``, which fairseq saves in checkpoints.

        Raises:
            UserError: a flag's value or a combination is not allowed.
        """
        with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
            fill_defaults(cfg)
            same = task.source_dictionary == task.target_dictionary
            if cfg.share_all_embeddings and not same:
                raise UserError(
                    f"--share-all-embeddings needs one dictionary, but those of source and target differ "
                    f"({len(task.source_dictionary)} and {len(task.target_dictionary)} symbols); preprocess with "
                    "--joined-dictionary"
                )
            if cfg.untied_embeddings and (cfg.share_all_embeddings or cfg.share_decoder_input_output_embed):
                raise UserError(
                    "--untied-embeddings contradicts --share-all-embeddings and --share-decoder-input-output-embed"
                )
            decide_sharing(cfg, same)
        config = RopeTransformerConfig.from_model_config(cfg)
        check(config)
        config.encoder.learned_pos = config.position_encoding_of("encoder") == "learned"
        config.decoder.learned_pos = config.position_encoding_of("decoder") == "learned"
        model = super().build_model(config, task)
        logger.info(
            f"positions: encoder {config.position_encoding_of('encoder')}, "
            f"decoder {config.position_encoding_of('decoder')}"
        )
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return TransformerDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def __prepare_scriptable__(self):
        refuse_torchscript(self)
