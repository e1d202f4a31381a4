"""Linear layers as generation runs them: several that read the same input in one product, weights laid out for it.

A step of decoding multiplies few rows by every weight of the model, so its time is that of reading weights and of
starting kernels. Once fairseq has called a model's ``make_generation_fast_`` the model cannot be trained any more (so
fairseq decrees), and copies of the weights can be kept: joined, and on the CPU in oneDNN's blocked layout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH_HINT = 64  # rows that oneDNN picks its layout for; any number can be multiplied


class PackedLinear:
    """``linears`` that read the same input, their outputs side by side.

    Args:
        linears: nn.Linear modules with one input width.
        relu: apply a ReLU to the output.
    """

    def __init__(self, linears: list[nn.Linear], relu: bool = False):
        self.relu = relu
        weights, biases = [linear.weight.detach() for linear in linears], [linear.bias for linear in linears]
        self.weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        self.bias = None
        if any(bias is not None for bias in biases):
            zeros = [weight.new_zeros(weight.size(0)) for weight in weights]
            known = [zero if bias is None else bias.detach() for bias, zero in zip(biases, zeros, strict=True)]
            self.bias = torch.cat(known)
        self.blocked = None
        if (
            self.weight.device.type == "cpu"
            and self.weight.dtype == torch.float32
            and torch.backends.mkldnn.is_available()
        ):
            # What torch's own compiler calls for a frozen weight.
            self.blocked = torch.ops.mkldnn._reorder_linear_weight(self.weight, BATCH_HINT)
            self.weight = None

    def __call__(self, x: Tensor) -> Tensor:
        """(…, input width) -> (…, sum of the output widths)."""
        if self.blocked is not None:
            how = "relu" if self.relu else "none"
            return torch.ops.mkldnn._linear_pointwise(x, self.blocked, self.bias, how, [], "")
        x = F.linear(x, self.weight, self.bias)
        return x.relu_() if self.relu else x


class _Packed(dict):
    """Packed layers by name; copies of a model start without them, since oneDNN's tensors cannot be copied."""

    def __deepcopy__(self, memo):
        return _Packed()

    def __reduce__(self):
        return _Packed, ()


class GenerationLinears:
    """Mixin of a module: :meth:`joined` runs some of its linear layers, packed once generation is all it is for."""

    _packed = None

    def make_generation_fast_(self, **kwargs):
        """fairseq calls this before generation."""
        self._packed = _Packed()

    def joined(self, x: Tensor, *names: str, relu: bool = False) -> Tensor:
        """Outputs of the linear layers ``names`` for ``x`` (…, input width), side by side in the last dimension."""
        if self._packed is not None and not torch.is_grad_enabled():
            if (names, x.dtype) not in self._packed:
                self._packed[names, x.dtype] = self._pack(x, names, relu)
            packed = self._packed[names, x.dtype]
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
        return PackedLinear(linears, relu)

    def _forget(self):
        if self._packed is not None:
            self._packed = _Packed()

    def _apply(self, fn, recurse=True):
        self._forget()  # the weights change their device or precision
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args, **kwargs):
        self._forget()
        return super()._load_from_state_dict(*args, **kwargs)
