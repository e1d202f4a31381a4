"""What a mend of stock fairseq is: a name, the reason, and the function that applies it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mend:
    """One small repair of stock fairseq.

    Args:
        name: short name that ``fairseq-rope-doctor`` prints.
        reason: one sentence: what breaks without it, on which versions.
        apply: applies the mend once and returns None, or returns one sentence that says why it is not
            needed (or cannot apply) here; it must be safe to call again.
    """

    name: str
    reason: str
    apply: Callable[[], str | None]
