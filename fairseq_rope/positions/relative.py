"""Buckets of relative distance, as in T5 (Raffel et al. 2020, section 2.1) and TUPE-R."""

import math

import torch
from torch import Tensor

from fairseq_rope.errors import UserError


def relative_bucket(distance: Tensor, buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Bucket of ``distance`` = key position - query position.

    Half of a direction's buckets hold one distance each; the others grow in logarithmic steps up to
    ``max_distance``, and everything beyond shares the last one. Bidirectional: keys behind the query use the upper
    half of the buckets. Unidirectional: keys behind the query have bucket 0 (the causal mask hides them).

    Args:
        distance: integers of any shape.
        buckets: number of buckets; see :func:`check_buckets`.
        max_distance: distance from which on all share a bucket.
        bidirectional: True in an encoder.

    Returns:
        integers in 0 … buckets - 1, shaped like ``distance``.
    """
    upper = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        upper = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    # float64 and an ulp's slack: a distance on a boundary (max_distance / 2^k) must not fall short of it by rounding.
    steps = torch.log(distance.clamp(min=1).double() / exact) / math.log(max_distance / exact) * (buckets - exact)
    logarithmic = (exact + (steps + 1e-9).long()).clamp(max=buckets - 1)
    return upper + torch.where(distance < exact, distance, logarithmic)


def check_buckets(buckets: int, max_distance: int):
    """Raise a UserError unless every direction has an exact and a logarithmic bucket, in encoder and decoder."""
    if buckets < 4 or buckets % 2:
        raise UserError(f"--relative-buckets must be even and at least 4, not {buckets}")
    if max_distance <= buckets // 2:
        raise UserError(
            f"--relative-max-distance must be above half of --relative-buckets {buckets} (the distances with a bucket "
            f"of their own), not {max_distance}"
        )
