"""``rope``: rotary position encoding (Su et al. 2021, RoFormer, eq. 12-16 and 34)."""

from functools import cached_property

import torch
from torch import Tensor

from fairseq_rope.positions.base import PositionEncoding, Rotation, round_up
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


def plain_rotate(x: Tensor, turns: Tensor) -> Tensor:
    """The rotation as its formula reads, y = x e^(imθ), in the precision of ``turns``: what :func:`rotate` must equal.

    Used by tests only. Arguments are those of :func:`rotate`; complex128 turns give float64.
    """
    pairs = torch.view_as_complex(x.to(turns.real.dtype).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of channels (2i, 2i+1) of ``x`` by its angle, in float32 at least, and round once.

    Args:
        x: (batch, heads, length, head_dim), strided in any way.
        turns: complex64, broadcastable to (batch, heads, length, head_dim / 2).

    Returns:
        like ``x``, contiguous: the attention kernel reads keys faster where those of a head follow each other.
    """
    return StaticRotation(turns).rotate(x)


class StaticRotation(Rotation):
    """One turn a position, the same for all sentences or one set a sentence.

    Args:
        turns: complex64, broadcastable to (batch, heads, query_len, head_dim / 2).
    """

    def __init__(self, turns: Tensor):
        self.turns = turns.resolve_conj()

    @cached_property
    def transposed(self) -> "StaticRotation":
        """Rᵀ, which takes gradients back; made in the first backward pass and shared by all layers."""
        return StaticRotation(self.turns.conj())

    def rotate(self, x):
        if torch.is_grad_enabled() and x.requires_grad:
            return _Rotate.apply(x, self, None)
        return _rotated(x, self.turns)


class _Rotate(torch.autograd.Function):
    """y = R x, whose gradient is Rᵀ ∂L/∂y: nothing is kept but the turns, which all layers share.

    Both ways change the order in memory as they go: to heads that lie together, as the attention kernel reads them
    fastest, and back to the order of ``x``, which the projection before it would otherwise copy its gradient to.
    """

    @staticmethod
    def forward(ctx, x, rotation, strides):
        # Attributes and not saved tensors: the turns are no result of the graph, and wrappers that move saved tensors
        # elsewhere (offloaded activations) would move them once a layer.
        ctx.rotation = rotation
        like = torch.empty_like(x, device="meta")  # in the order of x, without the gaps of a slice
        ctx.strides = like.stride() if _is_paired(like) else None
        return _rotated(x, rotation.turns, strides)

    @staticmethod
    def backward(ctx, gradient):
        # Itself differentiable, so derivatives of any order exist.
        return _Rotate.apply(gradient, ctx.rotation.transposed, ctx.strides), None, None


def _rotated(x: Tensor, turns: Tensor, strides: tuple[int, ...] | None = None) -> Tensor:
    """The rotated ``x`` in new memory, contiguous or with ``strides``."""
    kind = torch.complex128 if x.dtype == torch.float64 else torch.complex64
    new = {"dtype": kind.to_real(), "device": x.device}
    y = torch.empty(x.shape, **new) if strides is None else torch.empty_strided(x.shape, strides, **new)
    if x.dtype == y.dtype and _is_paired(x):
        torch.mul(x.view(kind), turns, out=y.view(kind))
        return y
    y.copy_(x).view(kind).mul_(turns)
    return y.to(x.dtype)


def _is_paired(x: Tensor) -> bool:
    """Whether the memory of ``x`` can be read as complex numbers: pairs side by side, at even addresses."""
    *strides, last = x.stride()
    return last == 1 and x.storage_offset() % 2 == 0 and not any(stride % 2 for stride in strides)


class GrowingRotation(Rotation):
    """Dynamic NTK in a decoder: a query turns itself and all its keys by frequencies of the length so far.

    So a step of decoding and the same row of a full forward pass compute the same, beyond the training length too;
    the cache must hold keys as projected. Queries within the training length share the plain frequencies and are
    one block; each later query is a block of its own.

    Args:
        scaling: frequencies by length.
        plain_turns: turns of all keys within the training length, (keys, head_dim / 2) complex64.
        lengths: non-pad tokens up to and including each query, (batch, query_len).
        start: index of the first query among the keys.
    """

    before_cache = False

    def __init__(self, scaling: RopeScaling, plain_turns: Tensor, lengths: Tensor, start: int):
        self.scaling = scaling
        self.plain_turns = plain_turns
        self.lengths = lengths
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
            yield 0, self.plain, self._turn(self.plain_turns, 0, self.plain)
        positions = torch.arange(self.plain_turns.size(0), device=self.lengths.device)
        for query in range(self.plain, self.lengths.size(1)):
            turns = phases(positions, self.scaling.frequencies_at(self.lengths[:, query]))
            yield query, query + 1, self._turn(turns[:, None], query, query + 1)

    def _turn(self, turns, first, end):
        of_keys = StaticRotation(turns)
        of_queries = StaticRotation(turns[..., self.start + first : self.start + end, :])
        return lambda q, k: (of_queries.rotate(q), of_keys.rotate(k))


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
        # Turns of the positions met so far, (positions, head_dim / 2). A plain attribute, not a buffer: it stays
        # float32 under model.half() and out of checkpoints.
        self.table = None

    @property
    def keys_by_row(self):
        """Dynamic NTK turns all keys anew at each step, by the row's own number of tokens."""
        return self.scaling.dynamic

    def rotation(self, tokens, query_len, causal):
        keys = tokens.size(1)
        if self.scaling.dynamic and keys > self.scaling.train_length:
            counted = tokens.ne(self.padding_idx)
            if causal:
                lengths = counted.cumsum(dim=1)[:, -query_len:]
                return GrowingRotation(self.scaling, self._turns(keys, tokens.device), lengths, keys - query_len)
            frequencies = self.scaling.frequencies_at(counted.sum(dim=1))  # (batch, head_dim / 2)
            positions = torch.arange(keys, device=tokens.device)
            return StaticRotation(phases(positions, frequencies)[:, None])  # (batch, 1, keys, head_dim / 2)
        if self.scaling.dynamic and causal:
            # Within the training length still unrotated in the cache: a later step may need another base.
            lengths = tokens.new_zeros(tokens.size(0), query_len)
            return GrowingRotation(self.scaling, self._turns(keys, tokens.device), lengths, keys - query_len)
        return StaticRotation(self._turns(keys, tokens.device)[keys - query_len :])

    def _turns(self, count: int, device: torch.device) -> Tensor:
        """Turns of the first ``count`` positions. Computed once: a step of decoding only picks its row."""
        if self.table is None or self.table.size(0) < count or self.table.device != device:
            # A tensor that inference mode made could not take part in a later training pass.
            with torch.inference_mode(False):
                positions = torch.arange(round_up(count), device=device)
                self.table = phases(positions, self.scaling.frequencies(device), self.scaling.magnitude)
        return self.table[:count]

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
