"""The protocol of a position encoding: three hooks and a score scale, each a no-op by default.

A Transformer stack owns one position encoding and asks it once per forward pass for what its layers share.
Adding a method is adding one file with a subclass of :class:`PositionEncoding`; attention and layers stay as they
are, since all that they see is a :class:`Rotation` and a bias.

Hooks take all tokens of the sequence so far and the number of queries: the queries are the last ``query_len``
columns (all of them in a full forward pass, one while decoding step by step).
"""

from torch import Tensor, nn

from fairseq_rope.errors import UserError

# What `max_positions()` of an encoding without a length limit of its own returns.
UNLIMITED = 10**9


def check_table_length(tokens: Tensor, padding_idx: int, limit: int, table: str):
    """Raise a UserError if a row of ``tokens`` has more than ``limit`` tokens that are no pads.

    An index beyond a table ends in a CUDA assertion, which names neither length and leaves the process unusable.

    Args:
        tokens: token ids (batch, keys).
        table: what ``limit`` counts, such as ``learned positions``.
    """
    # By the tensor's shape first: counting waits for the device.
    if tokens.size(1) > limit:
        length = int(tokens.ne(padding_idx).sum(dim=1).max())
        if length > limit:
            raise UserError(f"a sequence of {length} tokens is longer than the {limit} {table}")


class Rotation:
    """What happens to projected queries and keys in self-attention, the same for every layer of a stack.

    Attributes:
        before_cache: True if each new key is turned once, before it is cached; False if the cache holds keys as
            projected, because the angle of a key depends on the query that looks at it.
    """

    before_cache = True

    def rotate(self, x: Tensor) -> Tensor:
        """Turn the queries or the new keys ``x`` (batch, heads, query_len, head_dim); used if ``before_cache``."""
        raise NotImplementedError

    def blocks(self):
        """Yield (first query, end of queries, function) for queries that share their keys' angles.

        The function maps (q (batch, heads, n, head_dim), k (batch, heads, keys, head_dim)) to both turned; used
        if not ``before_cache``. Blocks are in order and cover the queries 0 … query_len.
        """
        raise NotImplementedError


class PositionEncoding(nn.Module):
    """Position encoding of one Transformer stack (an encoder or a decoder). This base class encodes nothing."""

    def check_length(self, tokens: Tensor):
        """Raise a UserError if a row of ``tokens`` (batch, keys) is too long; asked before anything is computed."""

    def embed(self, tokens: Tensor, query_len: int) -> Tensor | None:
        """What is added to the input embeddings.

        Args:
            tokens: token ids (batch, keys), padding included.
            query_len: number of last columns that are queries.

        Returns:
            (batch, query_len, embed_dim), or None for nothing.
        """
        return None

    def rotation(self, tokens: Tensor, query_len: int, causal: bool) -> Rotation | None:
        """What happens to q and k of every self-attention (``causal`` in a decoder), or None for nothing."""
        return None

    def score_bias(self, tokens: Tensor, query_len: int) -> Tensor | None:
        """What is added to the scaled scores of every self-attention: (1 or batch, heads, query_len, keys) or None."""
        return None

    def score_scale(self, head_dim: int) -> float:
        """Factor of q·k in self-attention; 1/sqrt(head_dim) (Vaswani et al. 2017, eq. 1)."""
        return head_dim**-0.5

    def max_positions(self) -> int:
        """Largest number of tokens that the encoding can place."""
        return UNLIMITED


class NoPositions(PositionEncoding):
    """``none``: word order is seen only through the decoder's causal mask."""
