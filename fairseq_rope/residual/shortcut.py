"""The scaled shortcut of a post-norm block, x_i = LN(ω_i x_{i-1} + f_i(x_{i-1})), as part of a layer."""

import torch
from torch import Tensor, nn

BLOCKS = ("self_attn", "encoder_attn", "ffn")  # in the order in which a layer runs them


def _wide(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


class ScaledShortcuts:
    """Mixin of a Transformer layer: scales the shortcut of each of its blocks.

    Three states of a block ``B`` (one of :data:`BLOCKS`), set up by :mod:`fairseq_rope.residual.build`:

    - nothing set: the plain shortcut, ω = 1.
    - ``shortcut_scale``: ω is a constant of the architecture (DeepNorm, admin-torch) and not saved.
    - buffer ``B_omega`` (embed_dim,): ω was measured (ADMIN) and belongs to the checkpoint. 0 means not measured yet.

    With ADMIN and admin-torch every block but the first of a stack also trains an offset, parameter
    ``B_omega_offset`` (embed_dim,), that starts at 0 and is added to ω. Its gradient is that of ω itself. Weight decay
    pulls it to 0, so ω to the measured value. A parameter ω could not be measured during training: with fp16 the
    optimiser holds a float32 copy of every parameter from the start, which would overwrite it.

    The buffer stays float32 when the model is cast to half precision.
    """

    shortcut_scale = None

    def add_omega(self, block: str, embed_dim: int):
        """Give ``block`` an unmeasured ω."""
        self.register_buffer(f"{block}_omega", torch.zeros(embed_dim, dtype=torch.float32))

    def add_offset(self, block: str, embed_dim: int):
        """Let the ω of ``block`` be trained."""
        self.register_parameter(f"{block}_omega_offset", nn.Parameter(self.fc1.weight.new_zeros(embed_dim)))

    def scaled_shortcut(self, block: str, shortcut: Tensor, branch: Tensor | None = None, measurement=None) -> Tensor:
        """ω times the shortcut.

        Args:
            block: one of :data:`BLOCKS`.
            shortcut: what the block read, (length, batch, embed_dim).
            branch: what the block computed from it, dropout included, (length, batch, embed_dim); read with
                ``measurement`` only.
            measurement: in a measuring pass, the :class:`~fairseq_rope.residual.admin.Measurement` of the stack.

        Returns:
            (length, batch, embed_dim).
        """
        offset = getattr(self, f"{block}_omega_offset", None)
        buffer = getattr(self, f"{block}_omega", None)
        if buffer is None:
            if self.shortcut_scale is None:
                return shortcut
            if offset is None:
                return shortcut * self.shortcut_scale
            omega = self.shortcut_scale + _wide(offset)
        else:
            # Activation checkpointing runs a layer again after the pass; by then the measured values are in place.
            measuring = measurement is not None and not measurement.closed
            omega = measurement.begin(self, block) if measuring else buffer + (buffer == 0)  # not measured: 1
            if offset is not None:
                omega = omega + _wide(offset)
        # Multiplied in float32 whatever the dtype: in bfloat16 an ω of 8 has no neighbours closer than 0.06.
        scaled = (shortcut * omega).type_as(shortcut)
        if buffer is not None and measuring:
            measurement.end(scaled, branch)
        return scaled

    def _apply(self, fn, recurse=True):
        """Move the buffers along, but keep them from half precision, which would round what was measured."""
        kept = {name: value for name, value in self._buffers.items() if name.endswith("_omega")}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self._buffers[name]
            if moved.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = value.to(moved.device)
        return self

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        """Complete what a checkpoint lacks.

        A plain layer (fine-tuning with ADMIN) has ω = 1 and counts as measured. A pruned model may begin with a layer
        that was not the first and had an offset; here that becomes part of the measured ω, or (admin-torch) stays.
        """
        plain = prefix + "fc1.weight" in state_dict and not any(
            prefix + f"{block}_omega{end}" in state_dict for block in BLOCKS for end in ("", "_offset")
        )
        for block in BLOCKS:
            omega, offset = f"{block}_omega", f"{block}_omega_offset"
            if omega not in self._buffers:
                if self.shortcut_scale is not None and prefix + offset in state_dict and offset not in self._parameters:
                    self.add_offset(block, state_dict[prefix + offset].numel())
                continue
            if plain:
                state_dict[prefix + omega] = torch.ones_like(self._buffers[omega])
                if offset in self._parameters:
                    state_dict[prefix + offset] = torch.zeros_like(self._parameters[offset])
            elif offset not in self._parameters and prefix + offset in state_dict and prefix + omega in state_dict:
                state_dict[prefix + omega] = state_dict[prefix + omega] + state_dict.pop(prefix + offset).float()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
