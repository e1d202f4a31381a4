"""``rope``: rotary position encoding (Su et al. 2021, RoFormer, eq. 12-16 and 34)."""

import torch
from torch import Tensor

from fairseq_rope.positions.base import PositionEncoding, Rotation
from fairseq_rope.positions.rope_scaling import RopeScaling


def phases(positions: Tensor, frequencies: Tensor, magnitude: float = 1.0) -> Tensor:
    """The turns e^(i·m·θ) as complex numbers.

    Angles are computed in float64 and rounded once: in half precision neighbouring positions would get the same
    angle, and even float32 angles are off by 1e-3 rad at position 10,000.

    Args:
        positions: m, (…, length).
        frequencies: θ, (…, head_dim / 2) float64.
        magnitude: length of the complex numbers (YaRN).

    Returns:
        (…, length, head_dim / 2) complex64.
    """
    angles = positions.double()[..., :, None] * frequencies[..., None, :]
    return torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of channels (2i, 2i+1) of ``x`` by its angle, in float32 whatever the dtype of ``x``.

    Args:
        x: (batch, heads, length, head_dim).
        turns: complex64, broadcastable to (batch, heads, length, head_dim / 2).

    Returns:
        like ``x``.
    """
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)


class StaticRotation(Rotation):
    """One turn a position, the same for all sentences or one set a sentence.

    Args:
        turns: complex64, broadcastable to (batch, heads, query_len, head_dim / 2).
    """

    def __init__(self, turns: Tensor):
        self.turns = turns

    def rotate(self, x):
        return rotate(x, self.turns)


class GrowingRotation(Rotation):
    """Dynamic NTK in a decoder: a query turns itself and all its keys by frequencies of the length so far.

    So a step of decoding and the same row of a full forward pass compute the same, beyond the training length too;
    the cache must hold keys as projected. Queries within the training length share the plain frequencies and are
    one block; each later query is a block of its own.

    Args:
        scaling: frequencies by length.
        lengths: non-pad tokens up to and including each query, (batch, query_len).
        keys: number of keys.
        start: index of the first query among the keys.
    """

    before_cache = False

    def __init__(self, scaling: RopeScaling, lengths: Tensor, keys: int, start: int):
        self.scaling = scaling
        self.lengths = lengths
        self.positions = torch.arange(keys, device=lengths.device)
        self.start = start
        # Every query of the first train_length columns has at most that many tokens behind it, whatever the pads.
        self.plain = min(max(scaling.train_length - start, 0), lengths.size(1))
        # A single block (a step of decoding, or a sequence within the training length) is made once for all layers;
        # one for each of many queries would hold (queries, batch, keys) turns, so those are made anew by each layer.
        self.kept = list(self._make_blocks()) if lengths.size(1) in (1, self.plain) else None

    def blocks(self):
        return self._make_blocks() if self.kept is None else self.kept

    def _make_blocks(self):
        if self.plain:
            turns = phases(self.positions, self.scaling.frequencies(self.lengths.device))
            yield 0, self.plain, self._turn(turns, 0, self.plain)
        for query in range(self.plain, self.lengths.size(1)):
            turns = phases(self.positions, self.scaling.frequencies_at(self.lengths[:, query]))
            yield query, query + 1, self._turn(turns[:, None], query, query + 1)

    def _turn(self, turns, first, end):
        of_queries = turns[..., self.start + first : self.start + end, :]
        return lambda q, k: (rotate(q, of_queries), rotate(k, turns))


class RotaryPositions(PositionEncoding):
    """RoPE: q and k are turned by an angle proportional to their position, so scores see only distances.

    Nothing is added to the input and nothing is learned or saved: no parameters, no buffers. Positions are column
    indices; the constant shift that left padding adds to a row cancels in every score.

    Args:
        scaling: base and scaling of the frequencies.
        padding_idx: id of the padding symbol (dynamic NTK counts the tokens that are not pads).
    """

    def __init__(self, scaling: RopeScaling, padding_idx: int):
        super().__init__()
        self.scaling = scaling
        self.padding_idx = padding_idx

    def rotation(self, tokens, query_len, causal):
        keys = tokens.size(1)
        if self.scaling.dynamic and keys > self.scaling.train_length:
            counted = tokens.ne(self.padding_idx)
            if causal:
                lengths = counted.cumsum(dim=1)[:, -query_len:]
                return GrowingRotation(self.scaling, lengths, keys, keys - query_len)
            frequencies = self.scaling.frequencies_at(counted.sum(dim=1))  # (batch, head_dim / 2)
            positions = torch.arange(keys, device=tokens.device)
            return StaticRotation(phases(positions, frequencies)[:, None])  # (batch, 1, keys, head_dim / 2)
        if self.scaling.dynamic and causal:
            # Within the training length still unrotated in the cache: a later step may need another base.
            return GrowingRotation(self.scaling, tokens.new_zeros(tokens.size(0), query_len), keys, keys - query_len)
        positions = torch.arange(keys - query_len, keys, device=tokens.device)
        return StaticRotation(phases(positions, self.scaling.frequencies(tokens.device), self.scaling.magnitude))

    def extra_repr(self):
        return str(self.scaling)


def to_half_split(weight: Tensor, num_heads: int) -> Tensor:
    """Permute the rows of W_q or W_k (or their biases) for code that pairs channels (i, i + head_dim/2).

    RoFormer and this package pair neighbours (2i, 2i+1); GPT-NeoX, LLaMA and others pair the halves of a head. The
    function is the same once the projections' output channels are permuted.

    Args:
        weight: (num_heads · head_dim, …).

    Returns:
        like ``weight``; :func:`from_half_split` is the inverse.
    """
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def from_half_split(weight: Tensor, num_heads: int) -> Tensor:
    """Inverse of :func:`to_half_split`: rows for pairs (i, i + head_dim/2) to rows for pairs (2i, 2i+1)."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
