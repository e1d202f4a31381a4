"""Sets up the shortcuts of a stack as ``--residual-init`` says."""

from torch import nn

from fairseq_rope.residual.constants import admin_torch_omega, deepnorm_constants
from fairseq_rope.residual.shortcut import BLOCKS


def blocks_of(layer) -> list[str]:
    """The blocks that ``layer`` has, in order."""
    return [block for block in BLOCKS if block == "ffn" or getattr(layer, block, None) is not None]


def init_residuals(layers, how: str, stack: str, encoder_layers: int, decoder_layers: int):
    """Prepare every layer of a stack, just built.

    Args:
        layers: ModuleList of layers with :class:`~fairseq_rope.residual.shortcut.ScaledShortcuts`.
        how: ``default``, ``admin``, ``admin-torch`` or ``deepnorm``.
        stack: ``encoder`` or ``decoder``.
        encoder_layers, decoder_layers: depths that constants are computed for.
    """
    if how == "default":
        return
    depth = {"encoder": encoder_layers, "decoder": decoder_layers}[stack]
    for index, layer in enumerate(layers.children()):  # not by iterating, which is where LayerDrop drops some
        blocks = blocks_of(layer)
        if how == "deepnorm":
            alpha, beta = deepnorm_constants(stack, encoder_layers, decoder_layers, cross_attention=_crosses(layer))
            layer.shortcut_scale = alpha
            init_deepnorm(layer, beta)
            continue
        if how == "admin-torch":
            layer.shortcut_scale = admin_torch_omega(depth * len(blocks))
        for number, block in enumerate(blocks):
            width = layer.embed_dim
            if how == "admin":
                layer.add_omega(block, width)
            # Nothing normalises what the first block adds to, so its ω could not be folded away if it were trained.
            if index > 0 or number > 0:
                layer.add_offset(block, width)


def _crosses(layer):
    """Whether DeepNorm's constants for encoder and decoder apply: not in a decoder that sees no encoder."""
    return not hasattr(layer, "encoder_attn") or layer.encoder_attn is not None


def init_deepnorm(layer, beta: float):
    """DeepNorm's initialisation: xavier-normal, gain ``beta`` for what a branch's output is proportional to.

    That is value and output projections and the feed-forward block; queries and keys keep gain 1.
    """
    for block in ("self_attn", "encoder_attn"):
        attention = getattr(layer, block, None)
        if attention is not None:
            for name, gain in (("q_proj", 1.0), ("k_proj", 1.0), ("v_proj", beta), ("out_proj", beta)):
                nn.init.xavier_normal_(getattr(attention, name).weight, gain=gain)
    for linear in (layer.fc1, layer.fc2):
        nn.init.xavier_normal_(linear.weight, gain=beta)
