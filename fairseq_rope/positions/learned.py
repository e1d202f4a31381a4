"""``learned``: one trained vector a position, added to the input."""

import torch.nn.functional as F
from torch import nn

from fairseq_rope.positions.base import PositionEncoding, check_table_length, positions_of_last


class LearnedPositions(PositionEncoding):
    """Adds a trained table's rows (Gehring et al. 2017); positions count non-pad tokens.

    Args:
        weight: the table (padding_idx + 1 + max_positions, embed_dim); row ``padding_idx`` is zero and stays zero.
            Its name, ``embed_positions.weight``, is stock fairseq's.
        padding_idx: id of the padding symbol.
    """

    def __init__(self, weight: nn.Parameter, padding_idx: int):
        super().__init__()
        self.weight = weight
        self.padding_idx = padding_idx

    def check_length(self, tokens):
        check_table_length(tokens, self.padding_idx, self.max_positions(), "learned positions")

    def embed(self, tokens, query_len):
        positions = positions_of_last(tokens, query_len, self.padding_idx)  # (batch, query_len)
        return F.embedding(positions, self.weight, self.padding_idx)

    def max_positions(self):
        return self.weight.size(0) - self.padding_idx - 1
