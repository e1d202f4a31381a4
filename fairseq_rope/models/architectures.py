"""Architectures: a family (which method) times a size. Presets only; every flag can still be given."""

from fairseq.models import register_model_architecture

from fairseq_rope.models.translation import fill_defaults

# What a family sets. Only methods whose code is here have a family.
FAMILIES = {
    "baseline": {},  # stock's positions: sinusoidal unless --encoder-learned-pos, … say otherwise
    "roformer": {"position_encoding": "rope"},
}

# Vaswani et al. (2017), table 3, base and big; fairseq's IWSLT size; a size for tests.
SIZES = {
    "wmt": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8, "dropout": 0.1},
    "wmt_big": {"layers": 6, "embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16, "dropout": 0.3},
    "iwslt": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 1024, "attention_heads": 4, "dropout": 0.3},
    "tiny": {"layers": 2, "embed_dim": 64, "ffn_embed_dim": 128, "attention_heads": 4, "dropout": 0.1},
}


# Decoder widths that are the encoder's unless they are given.
FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
}


def preset(family: str, size: str) -> dict:
    """Flags that ``--arch FAMILY_SIZE`` sets where the user does not."""
    values = dict(FAMILIES[family])
    for name, value in SIZES[size].items():
        if name == "dropout":
            values[name] = value
        else:
            values[f"encoder_{name}"] = values[f"decoder_{name}"] = value
    return values


ARCHITECTURES = {f"{family}_{size}": preset(family, size) for family in FAMILIES for size in SIZES}


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
