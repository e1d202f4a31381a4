"""Small models for the unit tests, and a float64 reference decoder pass."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_rope  # noqa: F401  registers the architectures
from fairseq_rope.config import POSITION_ENCODINGS, RESIDUAL_ATTENTIONS, RESIDUAL_INITS

# Every family and position encoding, with the variants of RoPE; what decodes must decode alike.
VARIANTS = {
    "baseline": ("baseline_tiny", {}),
    "baseline-pre-norm": (
        "baseline_tiny",
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
    ),
    "learned": ("baseline_tiny", {"position_encoding": "learned"}),
    "none": ("baseline_tiny", {"position_encoding": "none"}),
    "roformer": ("roformer_tiny", {}),
    "roformer-pre-norm": (
        "roformer_tiny",
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
    ),
    "rope-linear": ("roformer_tiny", {"rope_scaling": "linear", "rope_scaling_factor": 2.0}),
    "rope-ntk": ("roformer_tiny", {"rope_scaling": "ntk", "rope_scaling_factor": 2.0}),
    "rope-yarn": (
        "roformer_tiny",
        {"rope_scaling": "yarn", "rope_scaling_factor": 2.0, "rope_train_length": 6},
    ),
    "rope-dynamic-ntk": (
        "roformer_tiny",
        {"rope_scaling": "dynamic-ntk", "rope_scaling_factor": 2.0, "rope_train_length": 6},
    ),
    "tupe-a": ("tupe_a_tiny", {}),
    "tupe-a-first": ("tupe_a_tiny", {"tupe_reset": "first"}),
    "tupe-a-eos-pre-norm": (
        "tupe_a_tiny",
        {"tupe_reset": "eos", "encoder_normalize_before": True, "decoder_normalize_before": True},
    ),
    "tupe-r": ("tupe_r_tiny", {}),
    "tupe-r-first-joint": ("tupe_r_tiny", {"tupe_reset": "first", "tupe_reset_form": "joint"}),
    "tupe-r-eos": ("tupe_r_tiny", {"tupe_reset": "eos", "residual_attention": "sum"}),
    "realformer": ("realformer_tiny", {}),
    "realformer-sum-tupe-r": ("realformer_tiny", {"residual_attention": "sum", "position_encoding": "tupe-r"}),
    "realformer-dynamic-ntk": (
        "realformer_tiny",
        {
            "position_encoding": "rope",
            "rope_scaling": "dynamic-ntk",
            "rope_scaling_factor": 2.0,
            "rope_train_length": 6,
        },
    ),
    "admin": ("admin_tiny", {}),
    "realformer-admin": ("realformer_admin_tiny", {"position_encoding": "rope"}),
    "admin-torch": ("baseline_tiny", {"residual_init": "admin-torch"}),
    "deepnorm": ("baseline_tiny", {"residual_init": "deepnorm", "position_encoding": "tupe-a"}),
}

# A pairwise covering set of the three axes: each position encoding meets each initialisation; residual attention
# shifts with both, so every two values of different axes meet once at least.
COVER = [
    (position, RESIDUAL_ATTENTIONS[(i + j) % 3], init)
    for i, position in enumerate(POSITION_ENCODINGS)
    for j, init in enumerate(RESIDUAL_INITS)
]


class Task:
    """The two dictionaries that a model is built for."""

    def __init__(self, symbols=40, target_symbols=None):
        self.source_dictionary = dictionary(symbols)
        same = target_symbols is None
        self.target_dictionary = self.source_dictionary if same else dictionary(target_symbols)


def dictionary(symbols):
    """A dictionary of ``symbols`` words besides the special ones."""
    result = Dictionary()
    for index in range(symbols):
        result.add_symbol(f"w{index}")
    return result


def build(arch, task=None, seed=1, **flags):
    """The model of ``--arch arch`` with ``flags``, in evaluation mode, with biases and norms away from their start."""
    torch.manual_seed(seed)
    args = Namespace(arch=arch, _name=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task or Task())
    with torch.no_grad():  # zeros and ones would hide a term that is left out
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
            elif "layer_norm" in name or "layernorm" in name:
                parameter.normal_(1, 0.1)
            elif "omega_offset" in name or ("embed_positions." in name and not name.endswith("embed_positions.weight")):
                parameter.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("_omega") and ".0.self_attn" not in name:
                buffer.uniform_(1, 3)
    return model.eval()


def variant(name, **flags):
    """The model of ``VARIANTS[name]``."""
    arch, own = VARIANTS[name]
    return build(arch, **{**own, **flags})


def unmeasured(arch="admin_tiny", **flags):
    """An ADMIN model in training mode, as built: its shortcuts are still to be measured."""
    model = build(arch, **flags)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "_omega" in name:
                value.zero_()
    return model.train()


def batch(lengths, symbols=40, left=True, bos=None, extra=0, seed=3):
    """Random sentences of ``lengths`` tokens that end in </s>, padded on the left or right to the longest + ``extra``.

    With ``bos`` each starts with it and has no </s>: what a decoder reads.
    """
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths) + extra
    rows = torch.full((len(lengths), width), 1)
    for row, length in enumerate(lengths):
        words = torch.randint(4, 4 + symbols, (length,), generator=generator)
        if bos is None:
            words[-1] = 2
        else:
            words[0] = bos
        rows[row, width - length if left else 0 :][:length] = words
    return rows


def logits(model, source, target):
    """(batch, tgt_len, vocabulary) of a full forward pass."""
    with torch.no_grad():
        return model(source, source.ne(1).sum(1), target)[0]


def close(a, b, tolerance=1e-5):
    """Whether ``a`` and ``b`` agree to ``tolerance`` of the largest value."""
    assert a.shape == b.shape, (a.shape, b.shape)
    difference = float((a - b).abs().max())
    return difference <= tolerance * float(b.abs().max()), difference
