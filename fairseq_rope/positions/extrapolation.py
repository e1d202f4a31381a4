"""How far RoPE reaches: which channels have seen a whole turn in training, and what a larger base makes of it.

Liu et al. (2023), "Scaling Laws of RoPE-based Extrapolation", arXiv 2310.05209. Use these to choose ``--rope-base``
before training, or before fine-tuning on longer texts.
"""

import math


def _turns_log(length: float, base: float) -> float:
    if length <= 2 * math.pi:
        raise ValueError(f"a length of {length} tokens is shorter than one turn of the fastest pair (2π tokens)")
    if base <= 1:
        raise ValueError(f"the base must be above 1, not {base}")
    return math.log(length / (2 * math.pi), base)


def critical_dimension(head_dim: int, train_length: float, base: float = 10000.0) -> int:
    """Leading channels whose period lies within the training length: 2·⌈(d/2)·log_b(T/2π)⌉, at most d."""
    return min(2 * math.ceil(head_dim / 2 * _turns_log(train_length, base)), head_dim)


def critical_base(train_length: float, tune_length: float) -> float:
    """Base from which on fine-tuning at ``tune_length`` reaches further: 10000^(log_(T_train/2π)(T_tune/2π))."""
    return 10000.0 ** _turns_log(tune_length, train_length / (2 * math.pi))


def reach(head_dim: int, train_length: float, tune_length: float, tune_base: float) -> float:
    """Length in tokens up to which a model keeps its quality, trained at base 10000 and tuned at ``tune_base``.

    Above the critical base 2π·β^(d_extra/d), with d_extra of the first training; up to it the tuning length.
    """
    if tune_base <= critical_base(train_length, tune_length):
        return tune_length
    return 2 * math.pi * tune_base ** (critical_dimension(head_dim, train_length) / head_dim)
