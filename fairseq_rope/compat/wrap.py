"""How a mend takes hold: it puts its own function around stock fairseq's, and never twice."""

import functools


def wrap(owner, name):
    """Decorator that replaces ``owner.name`` by a function around it.

    The decorated function receives what it replaces as first argument and returns the replacement, so several
    mends can stand around one function, in any order. Applying the same one again changes nothing.

    Args:
        owner: a module or class of fairseq.
        name: name of its function or method.

    Raises:
        AttributeError: this fairseq has no such function.
    """

    def decorate(build):
        current = getattr(owner, name)
        mark = f"{build.__module__}.{build.__qualname__}"
        marks = getattr(current, "mends", ())  # functools.wraps hands them on to an outer wrapper
        if mark not in marks:
            replacement = functools.wraps(current)(build(current))
            replacement.mends = (*marks, mark)
            setattr(owner, name, replacement)
        return build

    return decorate
