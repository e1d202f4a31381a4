"""Position encodings, one file each; :mod:`fairseq_rope.positions.base` states the protocol."""

from fairseq_rope.positions.base import UNLIMITED, NoPositions, PositionEncoding, Rotation
from fairseq_rope.positions.learned import LearnedPositions
from fairseq_rope.positions.relative import check_buckets
from fairseq_rope.positions.rope import RotaryPositions
from fairseq_rope.positions.rope_scaling import RopeScaling
from fairseq_rope.positions.sinusoidal import SinusoidalPositions
from fairseq_rope.positions.tupe import TupePositions

# Which encodings read the options whose names begin so.
OPTION_READERS = {"rope_": ("rope",), "tupe_": ("tupe-a", "tupe-r"), "relative_": ("tupe-r",)}

__all__ = [
    "OPTION_READERS",
    "UNLIMITED",
    "LearnedPositions",
    "NoPositions",
    "PositionEncoding",
    "RopeScaling",
    "RotaryPositions",
    "Rotation",
    "SinusoidalPositions",
    "TupePositions",
    "check_buckets",
]
