"""Shortcut scales that follow from the depth alone."""

import math


def admin_torch_omega(blocks: int) -> float:
    """ω of every block for a stack of ``blocks`` residual blocks whose output should change by O(log blocks).

    From the Admin-Torch code by the authors of ADMIN (Liu et al. 2020): sqrt((n + 1) / ln(n + 1) - 1).
    """
    return math.sqrt((blocks + 1) / math.log(blocks + 1) - 1)


def deepnorm_constants(stack: str, encoder_layers: int, decoder_layers: int, cross_attention: bool = True):
    """DeepNorm's α (factor of the shortcut) and β (gain of the initialisation), Wang et al. 2022 (DeepNet), figure 2.

    Args:
        stack: ``encoder`` or ``decoder``.
        encoder_layers, decoder_layers: N and M.
        cross_attention: whether decoder layers look at the encoder; without, both stacks are those of a model that
            has no other one.

    Returns:
        (α, β).
    """
    n, m = encoder_layers, decoder_layers
    if not cross_attention:
        layers = n if stack == "encoder" else m
        return (2 * layers) ** 0.25, (8 * layers) ** -0.25
    if stack == "encoder":
        return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    return (3 * m) ** 0.25, (12 * m) ** -0.25
