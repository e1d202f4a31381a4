"""The encoder-decoder Transformer, registered with fairseq as ``rope_transformer``."""

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import utils as distributed_utils
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
from fairseq_rope.packed_linear import Arena
from fairseq_rope.residual import Measurement, is_unmeasured
from fairseq_rope.residual.profile import STACKS, check_profile_out, fill, picture_of, read_profile, write_profile

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


def forget_files(args):
    """Leave the profile's file names out of checkpoints, whose users need neither file."""
    args.admin_profile_in = args.admin_profile_out = None


def record_depth(args):
    """Keep the depth that a model's constants are made for: fairseq prunes by changing the number of layers."""
    if args.residual_init in ("admin-torch", "deepnorm"):
        for stack in ("encoder", "decoder"):
            if getattr(args, f"residual_{stack}_layers") is None:
                setattr(args, f"residual_{stack}_layers", getattr(args, f"{stack}_layers"))


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
            forget_files(cfg)
            record_depth(cfg)
        config.encoder.learned_pos = config.position_encoding_of("encoder") == "learned"
        config.decoder.learned_pos = config.position_encoding_of("decoder") == "learned"
        model = super().build_model(config, task)
        logger.info(
            f"positions: encoder {config.position_encoding_of('encoder')}, "
            f"decoder {config.position_encoding_of('decoder')}; residual attention {config.residual_attention}, "
            f"residual initialisation {config.residual_init}"
        )
        model.use_profiles(config.admin_profile_in, config.admin_profile_out)
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return TransformerDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def make_generation_fast_(self, **kwargs):
        """fairseq calls this before generation: afterwards the model cannot be trained, and its weights are copied to
        where products with few rows find them fastest."""
        super().make_generation_fast_(arena=Arena(), **kwargs)

    profile_in = profile_out = None

    def use_profiles(self, profile_in: str | None, profile_out: str | None):
        """Take ADMIN's shortcuts from a file, or write them to one, in the first training forward pass.

        Raises:
            UserError: ``profile_in`` is no profile of such a model; ``profile_out`` cannot be written. A missing
                ``profile_in`` is no error yet, since a resumed run does not read it.
        """
        if profile_in and os.path.exists(profile_in):
            read_profile(profile_in, self)
        if profile_out:
            check_profile_out(profile_out)
        self.profile_in, self.profile_out = profile_in, profile_out

    def forward(
        self,
        src_tokens,
        src_lengths,
        prev_output_tokens,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        head: Callable | None = None,
    ):
        """Scores of the target tokens, as in stock. ADMIN's shortcuts are measured in the first pass in training.

        ``head`` takes the output layer's place, see :meth:`~fairseq_rope.decoder.TransformerDecoder.forward`.
        """
        encoder_measurement, decoder_measurement = self._begin_measuring()
        encoder_out = self.encoder(
            src_tokens,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
            measurement=encoder_measurement,
        )
        decoder_out = self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
            measurement=decoder_measurement,
            head=head,
        )
        self._end_measuring(encoder_measurement, decoder_measurement)
        return decoder_out

    def _begin_measuring(self):
        """A measurement for each stack whose shortcuts have to be measured in this pass, else None."""
        if not self.training:
            return None, None
        unmeasured = [is_unmeasured(self.encoder.layers), is_unmeasured(self.decoder.layers)]
        if not any(unmeasured):
            for name, path in (("in", self.profile_in), ("out", self.profile_out)):
                if path:
                    logger.warning(
                        f"ADMIN: the checkpoint holds its shortcuts, so --admin-profile-{name} has no effect"
                    )
            self.profile_in = self.profile_out = None
            return None, None
        if self.profile_in:
            fill(self, read_profile(self.profile_in, self))
            logger.info(f"ADMIN: shortcuts from the profile {self.profile_in}")
            self.profile_in = None
            return None, None
        return tuple(Measurement(stack) if todo else None for stack, todo in zip(STACKS, unmeasured, strict=True))

    def _end_measuring(self, *measurements):
        """Write what was measured into the model, and the profile to its file."""
        done = [measurement for measurement in measurements if measurement is not None]
        for measurement in done:
            measurement.commit()
            logger.info(
                f"ADMIN: measured the {measurement.stack}'s {len(measurement.omegas)} shortcuts in the first forward "
                f"pass; ω grows from 1 to {measurement.omegas[-1]:.3f}"
            )
        if done and self.profile_out:
            if distributed_utils.get_global_rank() == 0:
                write_profile(self.profile_out, self, done)
                logger.info(f"ADMIN: wrote the profile to {self.profile_out} and {picture_of(self.profile_out)}")
            self.profile_out = None

    def __prepare_scriptable__(self):
        refuse_torchscript(self)
