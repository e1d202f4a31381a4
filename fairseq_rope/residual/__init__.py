"""Scaled shortcuts of deep post-norm Transformers: ADMIN, its closed form, and DeepNorm."""

from fairseq_rope.residual.admin import Measurement, is_unmeasured
from fairseq_rope.residual.build import init_residuals
from fairseq_rope.residual.constants import admin_torch_omega, deepnorm_constants
from fairseq_rope.residual.shortcut import BLOCKS, ScaledShortcuts

__all__ = [
    "BLOCKS",
    "Measurement",
    "ScaledShortcuts",
    "admin_torch_omega",
    "deepnorm_constants",
    "init_residuals",
    "is_unmeasured",
]
