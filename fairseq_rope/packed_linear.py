"""Linear layers as generation runs them: several that read the same input in one product, weights side by side.

A step of decoding multiplies few rows by every weight of the model, so its time is that of reading the weights and of
starting kernels. Weights that lie in separate pieces of 4 KiB pages were read two to three times as slowly:
hardware looks ahead within a page only, and the table of pages has to be read too. Once fairseq has called a model's
``make_generation_fast_`` the model cannot be trained any more (so fairseq decrees), and copies can be kept: joined,
transposed, and in huge pages.
"""

import contextlib
import mmap

import torch
from torch import Tensor, nn

BLOCK = 2**23  # numbers in a block of an arena
ALIGNMENT = 16  # numbers; 64 bytes in float32


class Arena:
    """Memory for matrices that are read one after the other, in large blocks."""

    def __init__(self):
        self.free: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def take(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """An uninitialised (rows, columns) of the dtype and device of ``like``."""
        count = rows * columns
        key = like.dtype, like.device
        block = self.free.get(key)
        if block is None or block.numel() < count:
            block = self._block(max(count, BLOCK), like)
        self.free[key] = block[-(-count // ALIGNMENT) * ALIGNMENT :]
        return block[:count].view(rows, columns)

    @staticmethod
    def _block(count, like):
        """``count`` numbers; on the CPU in memory of their own, for which huge pages are asked for.

        Only here: torch can ask for them everywhere (THP_MEM_ALLOC_ENABLE), but then training, whose memory comes and
        goes, slows down by a fifth.
        """
        if like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
            return like.new_empty(count)
        memory = mmap.mmap(-1, count * like.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them; the weights still lie side by side
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=like.dtype)


class PackedLinear:
    """``linears`` that read the same input, their outputs side by side.

    Args:
        linears: nn.Linear modules with one input width.
        arena: where the weights are copied to.
        relu: apply a ReLU to the output.
    """

    def __init__(self, linears: list[nn.Linear], arena: Arena, relu: bool = False):
        self.relu = relu
        weights, biases = [linear.weight.detach() for linear in linears], [linear.bias for linear in linears]
        # Transposed: products of 30 to 500 rows are faster by a tenth to a fifth, those of fewer as fast.
        columns = sum(weight.size(0) for weight in weights)
        self.weight = arena.take(weights[0].size(1), columns, weights[0])  # (input width, columns)
        torch.cat([weight.t() for weight in weights], dim=1, out=self.weight)
        self.bias = None
        if any(bias is not None for bias in biases):
            zeros = [weight.new_zeros(weight.size(0)) for weight in weights]
            self.bias = torch.cat(
                [zero if bias is None else bias.detach() for bias, zero in zip(biases, zeros, strict=True)]
            )

    def __call__(self, x: Tensor) -> Tensor:
        """(…, input width) -> (…, sum of the output widths)."""
        rows = x.reshape(-1, x.size(-1))  # a single product whatever the strides are
        out = rows @ self.weight if self.bias is None else torch.addmm(self.bias, rows, self.weight)
        out = out.view(*x.shape[:-1], self.weight.size(1))
        return out.relu_() if self.relu else out


class _Packed(dict):
    """Packed layers of a module by name. Copies of a model start without them, and pack again."""

    def __init__(self, arena=None):
        super().__init__()
        self.arena = Arena() if arena is None else arena

    def __deepcopy__(self, memo):
        return _Packed()

    def __reduce__(self):
        return _Packed, ()


class GenerationLinears:
    """Mixin of a module: :meth:`joined` runs some of its linear layers, packed once generation is all it is for."""

    _packed = None

    def make_generation_fast_(self, arena: Arena | None = None, **kwargs):
        """fairseq calls this before generation; the model adds an ``arena`` for all its modules."""
        self._packed = _Packed(arena)

    def joined(self, x: Tensor, *names: str, relu: bool = False) -> Tensor:
        """Outputs of the linear layers ``names`` for ``x`` (…, input width), side by side in the last dimension."""
        if self._packed is not None and not torch.is_grad_enabled():
            key = names, x.dtype
            if key not in self._packed:
                self._packed[key] = self._pack(x, names, relu)
            packed = self._packed[key]
            if packed is not None:
                return packed(x)
        parts = [getattr(self, name)(x) for name in names]
        out = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
        return out.relu() if relu else out

    def _pack(self, x, names, relu):
        """The packed layers, or None where their modules do more than multiply (quantised, hooked, under autocast)."""
        linears = [getattr(self, name) for name in names]
        for linear in linears:
            hooked = hasattr(linear, "_forward_hooks") and (linear._forward_hooks or linear._forward_pre_hooks)
            if type(linear) is not nn.Linear or hooked or linear.weight.dtype != x.dtype:
                return None
        return PackedLinear(linears, self._packed.arena, relu)

    def _forget(self):
        if self._packed is not None:
            self._packed = _Packed(self._packed.arena)

    def _apply(self, fn, recurse=True):
        self._forget()  # the weights change their device or precision
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args, **kwargs):
        self._forget()
        return super()._load_from_state_dict(*args, **kwargs)
