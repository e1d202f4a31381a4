"""What a preparation was made of and by: the record that lets two data sets be told apart or be called the same."""

import hashlib
from importlib.metadata import version
from pathlib import Path

from fairseq_rope.errors import UserError

TOOLS = ("sacremoses", "regex", "subword-nmt", "sentencepiece", "ve-fairseq", "fairseq")
TOLERANCE = 0.01  # of counts after cleaning: sacremoses is not Moses' Perl to the last token


def tool_versions():
    """``{distribution: version}`` of the tools that decide on the text and its binary form."""
    versions = {}
    for name in TOOLS:
        try:
            versions[name] = version(name)
        except ModuleNotFoundError:
            continue
    return versions


def sha256(path, shown=None):
    """SHA-256 of a file, hexadecimal; ``shown`` is a bar to update by bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            if shown is not None:
                shown.update(len(block))
    return digest.hexdigest()


def checksums(folder, names, shown=None):
    """``{name: SHA-256}`` of files in ``folder``."""
    return {name: sha256(Path(folder) / name, shown) for name in names}


def check_count(what, found, expected, strict, tolerance=0.0):
    """Compare a number of sentence pairs with the published one.

    Args:
        what: what was counted.
        found, expected: numbers; None for ``expected`` where none is published.
        strict: a mismatch is an error, else only recorded.
        tolerance: accepted difference as a part of ``expected``.

    Raises:
        UserError: the numbers differ and ``strict``.

    Returns:
        dict: ``pairs`` and ``expected``.
    """
    if strict and expected is not None and abs(found - expected) > tolerance * expected:
        about = f" (within {tolerance:.0%})" if tolerance else ""
        raise UserError(
            f"{what}: {found:,} sentence pairs where {expected:,}{about} were expected, so this is not the published "
            "data; --limit N accepts any"
        )
    return {"pairs": found, "expected": expected}
