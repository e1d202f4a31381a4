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

# Rows by which tables of positions grow, so that decoding does not make a new one each step.
TABLE_BLOCK = 256


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


def round_up(count: int) -> int:
    """Rows of a table that ``count`` positions need: the next multiple of :data:`TABLE_BLOCK`."""
    return -(-count // TABLE_BLOCK) * TABLE_BLOCK


def positions_of_last(tokens: Tensor, query_len: int, padding_idx: int) -> Tensor:
    """fairseq's positions of the last ``query_len`` columns of ``tokens`` (batch, keys): (batch, query_len).

    A token has position ``padding_idx`` + its rank among those of its row that are no pads, from 1 on; a pad has
    ``padding_idx``. In a step of decoding one number a row is wanted, which takes no running sum.
    """
    counted = tokens.ne(padding_idx)
    if query_len == 1:
        return counted.sum(dim=1, keepdim=True) * counted[:, -1:] + padding_idx
    return (counted.cumsum(dim=1) * counted)[:, -query_len:] + padding_idx


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
    """Position encoding of one Transformer stack (an encoder or a decoder). This base class encodes nothing.

    Attributes:
        keys_by_row: True where a step of decoding changes a row's earlier keys, so that the hypotheses of a sentence
            cannot share them.
    """

    keys_by_row = False

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
        """What is added to the scaled scores of every self-attention: (1 or batch, heads, query_len, keys) or None.

        The result may be a view of something that is kept: it is not changed in place.
        """
        return None

    def step_bias(self, tokens: Tensor, memo: dict) -> Tensor | None:
        """:meth:`score_bias` of the last column, in a step of decoding: (1 or batch, heads, 1, keys) or None.

        Args:
            tokens: as for :meth:`embed`.
            memo: a dict that lives as long as one batch is decoded step by step, with the same parameters. An encoding
                may keep in it, under a key of its own, what further steps need again; never what depends on the rows
                of ``tokens``, which beam search reorders and drops between steps, and nothing that takes part in a
                graph: with gradients enabled it neither reads nor writes the dict. An empty dict, or one that lost
                its entries, only costs time.
        """
        return self.score_bias(tokens, 1)

    def score_scale(self, head_dim: int) -> float:
        """Factor of q·k in self-attention; 1/sqrt(head_dim) (Vaswani et al. 2017, eq. 1)."""
        return head_dim**-0.5

    def max_positions(self) -> int:
        """Largest number of tokens that the encoding can place."""
        return UNLIMITED


class NoPositions(PositionEncoding):
    """``none``: word order is seen only through the decoder's causal mask."""
