"""``tupe-a`` and ``tupe-r``: untied positional encoding (Ke et al. 2021, TUPE, eq. 7-11)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rope.positions.base import PositionEncoding, check_table_length
from fairseq_rope.positions.relative import relative_bucket

INIT_STD = 0.02  # of every weight on the position path, as in TUPE's code
_MEMO_ROWS = 64  # steps of decoding whose scores are computed at once


def _embedding(rows, columns):
    table = nn.Embedding(rows, columns)
    nn.init.normal_(table.weight, 0, INIT_STD)
    return table


def _linear(embed_dim):
    linear = nn.Linear(embed_dim, embed_dim)
    nn.init.normal_(linear.weight, 0, INIT_STD)
    nn.init.zeros_(linear.bias)
    return linear


class TupePositions(PositionEncoding):
    """Scores of positions beside those of contents: α_ij = (q_i·k_j + (LN(p_i)U_Q)·(LN(p_j)U_K)) / sqrt(2 head_dim).

    The position scores v_ij are computed once a forward pass and serve every layer; nothing is added to the input.
    TUPE-R adds a learned scalar a head and bucket of relative distance. Positions count the tokens that are not
    pads, so padding of either side changes nothing.

    A reset token (the paper's [CLS]) stands apart from word order: its row of scores becomes θ_1, the rest of its
    column θ_2 (eq. 11). ``separate`` resets absolute and relative scores each to values of their own, as the official
    code does; ``joint`` replaces their sum, as the paper writes. Both give TUPE-A the same scores.

    Parameters (names of the official code): ``pos`` (max_positions, embed_dim), ``pos_ln``, ``pos_q_linear`` and
    ``pos_k_linear`` (embed_dim, embed_dim) with biases; with a reset ``reset_pos`` (2, embed_dim), the vectors of θ_1
    and θ_2; TUPE-R ``relative_attention_bias`` (buckets, heads), and with a separate reset ``reset_bias`` (2, heads).

    Args:
        embed_dim, num_heads: of the self-attention that reads the scores.
        max_positions: longest sentence in tokens.
        padding_idx, eos_idx: ids of the padding symbol and of ``</s>``.
        reset: ``none``, ``first`` (the first token that is no pad) or ``eos`` (every ``</s>``; in a decoder the
            first input).
        reset_form: ``separate`` or ``joint``.
        buckets: number of relative buckets, 0 for TUPE-A.
        max_distance: see :func:`~fairseq_rope.positions.relative.relative_bucket`.
        bidirectional: True in an encoder.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_positions: int,
        padding_idx: int,
        eos_idx: int,
        reset: str = "none",
        reset_form: str = "separate",
        buckets: int = 0,
        max_distance: int = 128,
        bidirectional: bool = True,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.padding_idx = padding_idx
        self.eos_idx = eos_idx
        self.reset = reset
        self.reset_form = reset_form
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional

        self.pos = _embedding(max_positions, embed_dim)
        self.pos_ln = nn.LayerNorm(embed_dim)
        self.pos_q_linear = _linear(embed_dim)
        self.pos_k_linear = _linear(embed_dim)
        self.reset_pos = _embedding(2, embed_dim) if reset != "none" else None
        self.relative_attention_bias = _embedding(buckets, num_heads) if buckets else None
        separate = buckets and reset != "none" and reset_form == "separate"
        self.reset_bias = _embedding(2, num_heads) if separate else None

    def check_length(self, tokens):
        check_table_length(tokens, self.padding_idx, self.max_positions(), "positions that TUPE has vectors for")

    def score_bias(self, tokens, query_len, memo=None):
        ranks, columns, one_block, reset = self._ranks(tokens)
        if memo is None or torch.is_grad_enabled() or not columns:
            scores = self._plain_scores(ranks, one_block, query_len)
            values = None if reset is None else self._reset_scores()
        else:
            scores, values = self._remembered(memo, ranks, query_len)
        return scores if reset is None else self._with_reset(scores, reset, values)

    def step_bias(self, tokens, memo):
        return self.score_bias(tokens, 1, memo)

    def _plain_scores(self, ranks, one_block, query_len):
        """Scores by rank alone, reset tokens not told apart: (1 or batch, heads, query_len, keys)."""
        scores = self._absolute(ranks, query_len)
        if self.relative_attention_bias is not None:
            scores = scores + self._relative(ranks, one_block, query_len)
        return scores

    def _remembered(self, memo, ranks, query_len):
        """What :meth:`_plain_scores` and :meth:`_reset_scores` return, by way of ``memo``.

        A step would otherwise project every position anew for its one row. Rows are computed ``_MEMO_ROWS`` at a time,
        for sentences without a pad before a token, which all have the same: ``ranks`` (1, keys) are column indices.
        """
        key = f"{type(self).__name__} {'encoder' if self.bidirectional else 'decoder'}"
        known = memo.setdefault(key, {})
        if self.reset != "none" and "reset" not in known:
            known["reset"] = self._reset_scores()
        keys = ranks.size(1)
        if keys > self.max_positions() or query_len > 1:
            return self._plain_scores(ranks, True, query_len), known.get("reset")
        if not known.get("first", keys) < keys <= known.get("end", 0):
            known["end"] = min(keys + _MEMO_ROWS - 1, self.max_positions())
            known["first"] = keys - 1
            every = torch.arange(known["end"], device=ranks.device)[None]
            known["rows"] = self._plain_scores(every, True, known["end"] - known["first"])
        row = keys - 1 - known["first"]
        return known["rows"][:, :, row : row + 1, :keys], known.get("reset")

    def score_scale(self, head_dim):
        """1/sqrt(2 head_dim), because two terms are summed (eq. 7)."""
        return (2 * head_dim) ** -0.5

    def max_positions(self):
        return self.pos.num_embeddings

    def _ranks(self, tokens):
        """Position of each token among those of its sentence that are no pads, and which tokens are reset.

        Returns:
            (1, keys), column indices for all sentences where no pad stands before a token, else (batch, keys); whether
            that is so; whether no pad stands between two tokens of a sentence; and the reset tokens, bool
            (1 or batch, keys), or None.
        """
        keys, last = tokens.size(1), self.max_positions() - 1
        pads = tokens.eq(self.padding_idx)
        pad_before_token = pads[:, :-1] & ~pads[:, 1:]
        begins = pad_before_token.sum(dim=1) + (~pads[:, 0]).long()
        questions = [pad_before_token.any(), (begins > 1).any()]
        if self.reset == "eos":
            ends = tokens.eq(self.eos_idx)
            questions.append((ends != ends[:1]).any())
        any_before, any_between, *differ = torch.stack(questions).tolist()  # waits for the device once
        ranks = (~pads).cumsum(dim=1) - 1 if any_before else torch.arange(keys, device=tokens.device)[None]
        ranks = ranks.clamp(0, last)  # what pads get is masked later; it only has to exist
        reset = None
        if self.reset == "eos":
            reset = ends if differ[0] else ends[:1]  # a decoder's first input: one row serves all sentences
        elif self.reset == "first":
            reset = ranks.eq(0) & ~pads if any_before else ranks.eq(0)  # the first column
        return ranks, not any_before, not any_between, reset

    def _heads(self, x):
        """(…, length, embed_dim) -> (…, heads, length, head_dim)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def _absolute(self, ranks, query_len):
        """(LN(p_i)U_Q)·(LN(p_j)U_K) / sqrt(2 head_dim): (1 or batch, heads, query_len, keys)."""
        # Projected once a position; sentences then pick theirs.
        known = min(ranks.size(1), self.max_positions())
        vectors = self.pos_ln(self.pos.weight[:known])
        if ranks.size(0) == 1:
            q = self.pos_q_linear(vectors[ranks[0, -query_len:]])[None]
            k = self.pos_k_linear(vectors)[ranks]
        else:
            q, k = self.pos_q_linear(vectors)[ranks[:, -query_len:]], self.pos_k_linear(vectors)[ranks]
        q, k = self._heads(q), self._heads(k)
        return (q * self.score_scale(q.size(-1))) @ k.transpose(-2, -1)

    def _relative(self, ranks, one_block, query_len):
        """The learned scalar of each distance key - query: (1 or batch, heads, query_len, keys)."""
        keys = ranks.size(1)
        table = self.relative_attention_bias.weight
        if one_block:
            # Distances of ranks are those of columns, so one vector over all distances holds every row: the row of a
            # query is a window of it.
            distance = torch.arange(1 - keys, query_len, device=ranks.device)
            by_distance = table[self._bucket(distance)].t()  # (heads, keys + query_len - 1)
            return by_distance.unfold(1, keys, 1).flip(1)[None]
        distance = ranks[:, None, :] - ranks[:, -query_len:, None]  # (batch, query_len, keys)
        return F.embedding(self._bucket(distance), table).permute(0, 3, 1, 2)

    def _bucket(self, distance):
        return relative_bucket(distance, self.buckets, self.max_distance, self.bidirectional)

    def _reset_scores(self) -> Tensor:
        """What reset tokens get in place of plain scores, (2, heads): θ_1 and θ_2, with their bias where separate.

        Resetting absolute and relative scores each and adding them is the same as resetting their sum to the sum.
        """
        vectors = self.pos_ln(self.reset_pos.weight)
        q, k = self._heads(self.pos_q_linear(vectors)), self._heads(self.pos_k_linear(vectors))  # (heads, 2, head_dim)
        scores = ((q * self.score_scale(q.size(-1))) * k).sum(dim=-1).t()
        return scores if self.reset_bias is None else scores + self.reset_bias.weight

    def _with_reset(self, scores, reset, values):
        """``scores`` with rows of reset tokens at ``values[0]`` and the rest of their columns at ``values[1]``.

        Args:
            scores: (1 or batch, heads, query_len, keys).
            reset: bool (1 or batch, keys).
            values: (2, heads).
        """
        row, column = values.type_as(scores)[:, None, :, None, None]  # (1, heads, 1, 1) each
        rows = reset[:, None, -scores.size(2) :, None]  # (1 or batch, 1, query_len, 1)
        return torch.where(rows, row, torch.where(reset[:, None, None, :], column, scores))

    def extra_repr(self):
        kind = f"relative, {self.buckets} buckets to {self.max_distance}" if self.buckets else "absolute"
        return f"{kind}, reset {self.reset}" + (f" ({self.reset_form})" if self.reset != "none" else "")
