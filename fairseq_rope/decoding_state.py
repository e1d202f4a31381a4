"""What step-by-step decoding of one batch keeps: keys, values, and which of them each hypothesis descends from.

Beam search moves hypotheses about at every step. Caches by hypothesis have to be copied whole each time, which costs
more memory traffic than attention itself. Here the hypotheses of a sentence share one pool that only grows: a step
adds an entry for each of them, and ``ancestors`` names the entries that are a hypothesis' own past. Moving hypotheses
is then an index_select of integers, and a mask hides what belongs to others.
"""

import torch
from torch import Tensor

GROWTH = 16  # steps by which a pool grows at least


class DecodingState:
    """State of one batch of decoding.

    Rows are hypotheses; ``group`` neighbouring rows have one source sentence. Pools have a place for each sentence
    that was there when they were last packed; ``active`` says which of them are still decoded.

    Args:
        rows: number of hypotheses.
        group: hypotheses a sentence that share keys and values; 1 for none, where any order of rows is as good.
        alike: compute only one row a sentence as long as its hypotheses are equal (the first step, a common prefix).
        lazy: leave finished sentences in the pools until a third of them is. False where keys are read by row.
    """

    def __init__(self, rows: int, group: int = 1, alike: bool = True, lazy: bool = True):
        self.rows = rows
        self.group = group
        self.alike = alike and group > 1
        self.lazy = lazy
        self.steps = 0
        self.places = rows // group
        self.active: Tensor | None = None  # (sentences,) places, ascending; None for all of them
        self.ancestors: Tensor | None = None  # (rows, steps) entries; None while rows of a sentence are alike
        self.entry_steps: list[int] = []  # the step that each entry is of
        self.source_mask: Tensor | None = None  # (places, 1, 1, src_len) keep-mask
        self.pools: dict = {}
        self.memo: dict = {}  # what a position encoding keeps for this batch

    @property
    def width(self) -> int:
        """Rows that are computed for each sentence."""
        return 1 if self.alike else self.group

    def begin_step(self, tokens: Tensor) -> Tensor:
        """Start a step with all tokens so far (rows, steps + 1); returns those of the rows that are computed.

        Raises:
            ValueError: the tokens do not continue the state.
        """
        if tokens.size(0) != self.rows or tokens.size(1) != self.steps + 1:
            raise ValueError(
                f"a step of decoding needs the {self.rows} x {self.steps + 1} tokens so far, not "
                f"{tokens.size(0)} x {tokens.size(1)}"
            )
        if self.alike:
            last = tokens[:, -1].unflatten(0, (-1, self.group))
            if bool((last != last[:, :1]).any()):
                self.alike = False
        if self.group > 1 and not self.alike:
            if self.ancestors is None:
                self.ancestors = torch.arange(self.steps, device=tokens.device).expand(self.rows, -1)
            own = torch.arange(self.group, device=tokens.device).repeat(self.rows // self.group)
            own = own + len(self.entry_steps)
            self.ancestors = torch.cat((self.ancestors, own[:, None]), dim=1)
        self.entry_steps += self.width * [self.steps]
        self.steps += 1
        return tokens[:: self.group] if self.alike else tokens

    def entry_mask(self, keep: Tensor | None) -> Tensor | None:
        """Keep-mask over the entries of self-attention.

        Args:
            keep: which of its own steps a row may look at, (computed rows, 1, 1, steps); None for all.

        Returns:
            (places, 1, width, entries), or None for all.
        """
        if self.ancestors is None:
            return None if keep is None else self.fold(keep)
        mine = torch.ones_like(self.ancestors, dtype=torch.bool) if keep is None else keep[:, 0, 0]
        mask = mine.new_zeros(self.rows, len(self.entry_steps)).scatter_(1, self.ancestors, mine)
        return self.fold(mask[:, None, None])

    def entry_bias(self, bias: Tensor) -> Tensor:
        """A bias by step, (1 or computed rows, heads, 1, steps), as (1 or places, heads, width, entries)."""
        if self.ancestors is not None:
            bias = bias.index_select(3, torch.tensor(self.entry_steps, device=bias.device))
        return bias if bias.size(0) == 1 else self.fold(bias)

    def fold(self, x: Tensor) -> Tensor:
        """(computed rows, heads, 1, n) -> (places, heads, width, n): the rows of a sentence become queries of it."""
        x = x.squeeze(2).unflatten(0, (-1, self.width))
        if self.active is not None:
            x = x.new_zeros(self.places, *x.shape[1:]).index_copy_(0, self.active, x)
        return x.transpose(1, 2)

    def unfold(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`fold`, without the places that are no longer decoded."""
        x = x.transpose(1, 2)
        if self.active is not None:
            x = x.index_select(0, self.active)
        return x.flatten(0, 1).unsqueeze(2)

    def expand(self, x: Tensor, dim: int = 0) -> Tensor:
        """Repeat the computed rows of ``x`` along ``dim`` for the hypotheses that they stand for."""
        return x.repeat_interleave(self.group, dim=dim) if self.alike else x

    def pool(self, attention) -> "Pool":
        """The pool of the module ``attention``."""
        if attention not in self.pools:
            self.pools[attention] = Pool(self, attention.num_heads)
        return self.pools[attention]

    def reorder(self, order: Tensor):
        """Go on with the rows ``order`` (rows,), in that order; rows may be left out or doubled."""
        if not self.steps:
            return
        wanted = order.cpu()  # decided on the host: one wait for the device
        if self.group > 1:
            sentences = wanted // self.group
            grouped = sentences.unflatten(0, (-1, self.group)) if sentences.numel() % self.group == 0 else None
            if grouped is None or bool((grouped != grouped[:, :1]).any()):
                self._ungroup()
            else:
                wanted = grouped[:, 0]
                if self.ancestors is not None:
                    self.ancestors = self.ancestors.index_select(0, order)
        self.rows = order.numel()
        if wanted.equal(torch.arange(self._sentences())):
            return
        ascending = bool((wanted[1:] > wanted[:-1]).all())
        wanted = wanted.to(order.device)
        places = wanted if self.active is None else self.active.index_select(0, wanted)
        if ascending and self.lazy and 3 * places.numel() > 2 * self.places:
            self.active = places
        else:
            self._select(places)

    def _sentences(self):
        return self.places if self.active is None else self.active.numel()

    def _select(self, places):
        """Pack the pools: only ``places``, in this order."""
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, places)
        for pool in self.pools.values():
            pool.select(places)
        self.places = places.numel()
        self.active = None

    def _ungroup(self):
        """Give every row a place of its own; for orders that mix the hypotheses of different sentences."""
        device = next(iter(self.pools.values())).keys.device
        places = torch.arange(self.places, device=device) if self.active is None else self.active
        places = places.repeat_interleave(self.group)
        self._select(places)
        for pool in self.pools.values():
            if self.ancestors is not None and pool.grows:
                pool.pick(self.ancestors)
        self.group, self.ancestors, self.alike = 1, None, False
        self.entry_steps = list(range(self.steps))


class Pool:
    """Keys and values of one attention, (places, heads, entries, head_dim) each, in blocks that are longer.

    Args:
        state: of the batch.
        heads: number of heads.

    Attributes:
        grows: True in self-attention, where each step appends; False for the source's, which are set once.
    """

    def __init__(self, state: DecodingState, heads: int):
        self.state = state
        self.heads = heads
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.length = 0
        self.grows = False

    def source(self, project):
        """The source's keys and values; ``project`` is asked once, with the number of rows that share a source."""
        if self.keys is None:
            k, v = project(self.state.group)
            self.keys, self.values = k.contiguous(), v.contiguous()
            self.length = k.size(2)
        return self.keys, self.values

    def split(self, x: Tensor) -> Tensor:
        """What was projected in a step, (computed rows, 1, embed_dim) -> (places, heads, width, head_dim)."""
        x = x.reshape(-1, self.state.width, self.heads, x.size(-1) // self.heads)
        if self.state.active is not None:
            x = x.new_zeros(self.state.places, *x.shape[1:]).index_copy_(0, self.state.active, x)
        return x.transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """(places, heads, width, head_dim) -> (computed rows, 1, embed_dim)."""
        x = x.transpose(1, 2)
        if self.state.active is not None:
            x = x.index_select(0, self.state.active)
        return x.reshape(-1, 1, self.heads * x.size(-1))

    def append(self, k: Tensor, v: Tensor):
        """Add new entries, (places, heads, n, head_dim) each; returns all of them."""
        self.grows = True
        if k.size(2) != self.state.width or k.requires_grad:
            # The source before the target (--cross-self-attention), or gradients, which in-place writes would spoil.
            self.keys = k if self.keys is None else torch.cat((self.keys[:, :, : self.length], k), dim=2)
            self.values = v if self.values is None else torch.cat((self.values[:, :, : self.length], v), dim=2)
            self.length = self.keys.size(2)
            return self.keys, self.values
        end = self.length + self.state.width
        if self.keys is None or self.keys.size(2) < end:
            self._grow(k, end)
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, k, end):
        """Make room for ``end`` entries and a block of steps more, at least half as much again."""
        capacity = max(end + GROWTH * self.state.group, end * 3 // 2)
        for name in ("keys", "values"):
            block = k.new_empty(self.state.places, k.size(1), capacity, k.size(3))
            if self.length:
                block[:, :, : self.length] = getattr(self, name)[:, :, : self.length]
            setattr(self, name, block)

    def select(self, places: Tensor):
        """Keep ``places`` (n,), in this order."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            if not self.grows:
                setattr(self, name, old.index_select(0, places))
                continue
            block = old.new_empty(places.numel(), old.size(1), old.size(2), old.size(3))
            block[:, :, : self.length] = old[:, :, : self.length].index_select(0, places)
            setattr(self, name, block)

    def pick(self, entries: Tensor):
        """Keep only ``entries`` (places, n) of each place."""
        index = entries[:, None, :, None].expand(-1, self.keys.size(1), -1, self.keys.size(3))
        self.keys, self.values = self.keys.gather(2, index), self.values.gather(2, index)
        self.length = entries.size(1)
