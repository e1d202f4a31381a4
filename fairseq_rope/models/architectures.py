"""Architectures: a family (which method) times a size. Presets only; every flag can still be given."""

from fairseq.models import register_model_architecture

from fairseq_rope.models.translation import fill_defaults

# What a family sets beside its size. None of them names sinusoidal positions: they are the default, and stock's own
# flags (--encoder-learned-pos, …) can still ask for others.
_REALFORMER = {"residual_attention": "mean"}  # He et al. (2021, section 4.2): the mean at every depth for translation
_ADMIN = {"residual_init": "admin", "ffn_init": "xavier"}  # ADMIN's profiles were measured with this initialisation
FAMILIES = {
    "baseline": {},
    "roformer": {"position_encoding": "rope"},
    "tupe_a": {"position_encoding": "tupe-a"},
    "tupe_r": {"position_encoding": "tupe-r"},
    "realformer": _REALFORMER,
    "admin": _ADMIN,
    "realformer_admin": {**_REALFORMER, **_ADMIN},
}

# Vaswani et al. (2017), table 3, base and big; fairseq's IWSLT size; a size for tests.
SIZES = {
    "wmt": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8, "dropout": 0.1},
    "wmt_big": {"layers": 6, "embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16, "dropout": 0.3},
    "iwslt": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 1024, "attention_heads": 4, "dropout": 0.3},
    "tiny": {"layers": 2, "embed_dim": 64, "ffn_embed_dim": 128, "attention_heads": 4, "dropout": 0.1},
}

# Liu et al. (2020, "Very deep Transformers for neural machine translation"): base width, many layers.
DEEP_SIZES = {
    "wmt_12l": {**SIZES["wmt"], "layers": 12},
    "wmt_18l": {**SIZES["wmt"], "layers": 18},
    "wmt_60l_12l": {**SIZES["wmt"], "layers": 60, "decoder_layers": 12},
}
DEEP_FAMILIES = ("realformer", "admin", "realformer_admin")

# Decoder widths that are the encoder's unless they are given.
FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
}


def preset(family: str, size: str) -> dict:
    """Flags that ``--arch FAMILY_SIZE`` sets where the user does not."""
    values = dict(FAMILIES[family])
    for name, value in {**SIZES, **DEEP_SIZES}[size].items():
        if name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
            values[f"encoder_{name}"] = values[f"decoder_{name}"] = value
        else:
            values[name] = value
    return values


ARCHITECTURES = {
    f"{family}_{size}": preset(family, size)
    for family in FAMILIES
    for size in (*SIZES, *(DEEP_SIZES if family in DEEP_FAMILIES else ()))
}


def apply_preset(args, values: dict):
    """Set what ``args`` lacks, first from the preset, then from the defaults.

    The decoder's widths follow the encoder's where only those are given, as in stock.
    """
    for follower, leader in FOLLOWS.items():
        if getattr(args, leader, None) is not None and getattr(args, follower, None) is None:
            setattr(args, follower, getattr(args, leader))
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    fill_defaults(args)


def _register(name, values):
    @register_model_architecture("rope_transformer", name)
    def architecture(args):
        apply_preset(args, values)


for _name, _values in ARCHITECTURES.items():
    _register(_name, _values)
