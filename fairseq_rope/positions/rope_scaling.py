"""Frequencies of RoPE, and how they change to reach beyond the training length."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_rope.errors import UserError

# YaRN (Peng et al. 2023): pairs that turn more than 32 times within the training length keep their frequency,
# pairs that turn less than once are interpolated.
YARN_FAST_TURNS = 32
YARN_SLOW_TURNS = 1


@dataclass(frozen=True)
class RopeScaling:
    """Base and scaling of the rotary frequencies of one attention head.

    Args:
        head_dim: width of a head, even.
        base: b in θ_i = b^(-2i/head_dim) (RoFormer, eq. 15).
        mode: ``none``, ``linear``, ``ntk``, ``dynamic-ntk`` or ``yarn``.
        factor: s, how many times the training length is to be reached; at least 1.
        train_length: L in tokens; ``dynamic-ntk`` and ``yarn`` need it.

    Raises:
        UserError: a value is out of its range, or one that the mode needs is missing.
    """

    head_dim: int
    base: float = 10000.0
    mode: str = "none"
    factor: float = 1.0
    train_length: int | None = None

    def __post_init__(self):
        if self.head_dim % 2:
            raise UserError(
                f"RoPE turns pairs of channels: the head size must be even, but it is {self.head_dim}; "
                "choose --encoder/decoder-attention-heads so that embedding width / heads is even"
            )
        for name, value in (("--rope-base", self.base), ("--rope-scaling-factor", self.factor)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{name} must be a number, not {value!r}")
        if not (self.base > 1 and math.isfinite(self.base)):
            raise UserError(f"--rope-base must be above 1 and finite, not {self.base}")
        if not (self.factor >= 1 and math.isfinite(self.factor)):
            raise UserError(f"--rope-scaling-factor must be at least 1, not {self.factor}")
        if self.mode == "none" and self.factor != 1:
            raise UserError(
                f"--rope-scaling-factor {self.factor} has no effect with --rope-scaling none; "
                "choose linear, ntk, dynamic-ntk or yarn"
            )
        if self.mode not in ("dynamic-ntk", "yarn") and self.train_length is not None:
            raise UserError(
                f"--rope-train-length {self.train_length} has no effect with --rope-scaling {self.mode}; "
                "dynamic-ntk and yarn read it"
            )
        if self.mode in ("dynamic-ntk", "yarn") and not (self.train_length or 0) > 0:
            raise UserError(
                f"--rope-scaling {self.mode} needs --rope-train-length, the length in tokens that the model was "
                f"trained on (at least 1), but it is {self.train_length}"
            )
        if self.mode in ("dynamic-ntk", "ntk") and self.head_dim < 4:
            raise UserError(f"--rope-scaling {self.mode} needs a head size of at least 4, not {self.head_dim}")

    @property
    def dynamic(self) -> bool:
        """Whether the frequencies depend on the sentence's length."""
        return self.mode == "dynamic-ntk"

    @property
    def magnitude(self) -> float:
        """Factor of cos and sin; above 1 only for YaRN (0.1 ln s + 1), which so sharpens the scores."""
        return 0.1 * math.log(self.factor) + 1 if self.mode == "yarn" else 1.0

    def _frequencies(self, base: float | Tensor, device) -> Tensor:
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device) / self.head_dim
        if isinstance(base, Tensor):
            return base.double()[..., None] ** -exponents
        return base**-exponents

    def frequencies(self, device=None) -> Tensor:
        """Angle per position of each pair up to the training length: θ, (head_dim / 2,) float64."""
        theta = self._frequencies(self.base, device)
        if self.mode == "linear":  # position interpolation (Chen et al. 2023): m/s in place of m
            return theta / self.factor
        if self.mode == "ntk":
            return self._frequencies(self.base * self.factor ** (self.head_dim / (self.head_dim - 2)), device)
        if self.mode == "yarn":
            keep = self._yarn_keep(device)
            return (1 - keep) * theta / self.factor + keep * theta
        return theta

    def frequencies_at(self, lengths: Tensor) -> Tensor:
        """Dynamic NTK: θ for sentences of ``lengths`` tokens (any shape …), (…, head_dim / 2) float64.

        b' = b · (s·n/L - (s - 1))^(d / (d - 2)) for a length n above L, b up to L.
        """
        growth = self.factor * lengths.double() / self.train_length - (self.factor - 1)
        growth = growth.clamp(min=1.0)  # exactly 1 at n = L, below it for shorter sentences
        return self._frequencies(self.base * growth ** (self.head_dim / (self.head_dim - 2)), lengths.device)

    def _yarn_keep(self, device) -> Tensor:
        """1 for pairs that keep their frequency, 0 for interpolated ones, linear in the pair's index between."""

        def pair_of(turns):  # index whose wavelength fits `turns` times into the training length
            return self.head_dim * math.log(self.train_length / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low = max(math.floor(pair_of(YARN_FAST_TURNS)), 0)
        high = min(math.ceil(pair_of(YARN_SLOW_TURNS)), self.head_dim - 1)
        index = torch.arange(self.head_dim // 2, dtype=torch.float64, device=device)
        # A training length below one turn of the fastest pair gives high <= low: then a step at `low`.
        return 1 - ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
