"""``sinusoidal``: fixed sine and cosine vectors added to the input, in fairseq's layout."""

import math

import torch
from torch import Tensor

from fairseq_rope.errors import UserError
from fairseq_rope.positions.base import PositionEncoding, positions_of_last, round_up


def sinusoidal_table(rows: int, embed_dim: int, padding_idx: int) -> Tensor:
    """Sinusoids of fairseq (and tensor2tensor): row p holds [sin(p·w), cos(p·w)], w_i = 10000^(-i/(embed_dim/2 - 1)).

    Vaswani et al. (2017, section 3.5) interleave sine and cosine and divide by embed_dim/2; stock checkpoints were
    trained with this form. The padding row is zero.

    Returns:
        (rows, embed_dim) float32; an odd embed_dim ends in a zero column.
    """
    half = embed_dim // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10000) / (half - 1)))
    phases = torch.arange(rows, dtype=torch.float32)[:, None] * frequencies[None, :]
    table = torch.zeros(rows, embed_dim, dtype=torch.float32)
    table[:, :half] = phases.sin()
    table[:, half : 2 * half] = phases.cos()
    table[padding_idx] = 0
    return table


class SinusoidalPositions(PositionEncoding):
    """Adds fairseq's sinusoids; positions count non-pad tokens, so padding of either side changes nothing.

    Args:
        embed_dim: width of the embeddings, at least 4.
        padding_idx: id of the padding symbol; the first token has position ``padding_idx + 1``.
        max_positions: the length limit that is reported; the table itself grows with the input.
    """

    def __init__(self, embed_dim: int, padding_idx: int, max_positions: int):
        super().__init__()
        if embed_dim < 4:
            raise UserError(f"sinusoidal positions need an embedding width of at least 4, not {embed_dim}")
        self.embed_dim = embed_dim
        self.padding_idx = padding_idx
        self.limit = max_positions
        # A plain attribute, not a buffer: it stays float32 under model.half() and out of checkpoints.
        self.table = None

    def _rows(self, count: int, device: torch.device) -> Tensor:
        if self.table is None or self.table.size(0) < count or self.table.device != device:
            known = 0 if self.table is None else self.table.size(0)
            rows = round_up(max(count, known))
            # A tensor that inference mode made could not take part in a later training pass.
            with torch.inference_mode(False):
                self.table = sinusoidal_table(rows, self.embed_dim, self.padding_idx).to(device)
        return self.table

    def embed(self, tokens, query_len):
        positions = positions_of_last(tokens, query_len, self.padding_idx)  # (batch, query_len)
        return self._rows(self.padding_idx + 1 + tokens.size(1), tokens.device)[positions]

    def max_positions(self):
        return min(self.limit, 10**5)  # the bound that stock fairseq reports for its sinusoids
