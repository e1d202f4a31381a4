"""ADMIN's measurement (Liu et al. 2020): how large each shortcut has to be so that its block cannot dominate."""

import math

import torch
import torch.distributed as dist
from fairseq.distributed import utils as distributed_utils
from torch import Tensor

from fairseq_rope.errors import UserError


def is_unmeasured(layers) -> bool:
    """Whether a block of the stack ``layers`` (a ModuleList) has an ω that is still to be measured."""
    omegas = [
        value[0] for layer in layers.children() for name, value in layer._buffers.items() if name.endswith("_omega")
    ]
    return bool(omegas) and bool((torch.stack(omegas) == 0).any())  # one question to the device


def variance(x: Tensor) -> Tensor:
    """Variance over all elements of ``x``, in all processes together; 0-dimensional float64.

    Pads are counted as the official code counts them. Sums are reduced in float64, so that every process gets the
    same bits and the result does not depend on how sentences are shared among processes.
    """
    x = x.detach().double()
    moments = torch.stack((x.sum(), (x * x).sum(), x.new_tensor(x.numel())))
    if dist.is_available() and dist.is_initialized():
        group = distributed_utils.get_data_parallel_group()
        if distributed_utils.get_world_size(group) > 1:
            distributed_utils.all_reduce(moments, group=group)
    total, squares, count = moments
    mean = total / count
    return squares / count - mean * mean


class Measurement:
    """One measuring pass through a stack.

    Block by block in the order of execution, with the recurrence of the official code: ω_1 = 1 and
    ω_{i+1}^2 = Var(ω_i x_{i-1}) + Var(f_i(x_{i-1})). The paper leaves out the variance of the very first input.

    Nothing is written into the model before :meth:`commit`, so a pass that fails leaves it unmeasured.

    Args:
        stack: ``encoder`` or ``decoder``, for messages.

    Attributes:
        omegas: ω of each block so far.
        shortcut_variances, branch_variances: the two variances behind the next block's ω.
        closed: True once the values are in the model.
    """

    def __init__(self, stack: str):
        self.stack = stack
        self.closed = False
        self.omegas: list[float] = []
        self.shortcut_variances: list[float] = []
        self.branch_variances: list[float] = []
        self._next = 1.0
        self._targets = []

    def begin(self, layer, block: str) -> Tensor:
        """ω of the block that comes now, (embed_dim,) float32."""
        name = f"{block}_omega"
        self._targets.append((layer, name))
        self.omegas.append(self._next)
        return torch.full_like(getattr(layer, name), self._next)

    def end(self, shortcut: Tensor, branch: Tensor):
        """Take in the block's scaled shortcut and branch output, (length, batch, embed_dim) each.

        Raises:
            UserError: their variances are no positive number.
        """
        # One block in float64 at a time: the two tensors are the largest that a layer hands on.
        shortcut_variance, branch_variance = float(variance(shortcut)), float(variance(branch))
        self._next = math.sqrt(max(shortcut_variance + branch_variance, 0.0))
        if not (math.isfinite(self._next) and self._next > 0):
            raise UserError(
                f"--residual-init admin cannot be measured: in block {len(self.omegas)} of the {self.stack} the "
                f"shortcut's variance is {shortcut_variance:g} and the branch's {branch_variance:g}; they must be "
                "finite and not both 0 (with --fp16 an overflow: measure in --bf16 or fp32 and use --admin-profile-in)"
            )
        self.shortcut_variances.append(shortcut_variance)
        self.branch_variances.append(branch_variance)

    def commit(self):
        """Write what was measured into the model's buffers."""
        with torch.no_grad():
            for (layer, name), omega in zip(self._targets, self.omegas, strict=True):
                getattr(layer, name).fill_(omega)
        self.closed = True
        self._targets.clear()
