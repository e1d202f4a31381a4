"""Cuts pairs of parallel files into shards of so many lines, found by byte offsets, without holding the text."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_rope.errors import UserError

SHARD_PAIRS = 50_000
_BLOCK = 1 << 24


@dataclass(frozen=True)
class Shard:
    """Consecutive lines of two parallel files.

    Attributes:
        number: place among all shards of the run, from 0.
        first: number of the first pair in the whole training data, from 0.
        pairs: number of pairs.
        files: for each language its path and the first and last + 1 byte: ``{language: (path, begin, end)}``.
        first_line: number of the first line in the files, from 1, for messages.
    """

    number: int
    first: int
    pairs: int
    files: dict
    first_line: int = 1

    def lines(self, language):
        """The shard's lines of one language, a list of ``pairs`` strings without line feeds.

        Raises:
            UserError: a line is not UTF-8; names file, line and byte.
        """
        path, begin, end = self.files[language]
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.first_line + data.count(b"\n", 0, error.start)
            raise UserError(
                f"{Path(path).name}, line {line}: not UTF-8 (byte {data[error.start]:#04x}, {error.reason})"
            ) from error
        lines = text.split("\n")  # no other character ends a line; str.splitlines knows more
        if lines[-1] == "":
            lines.pop()
        return lines


def line_offsets(path, every):
    """Count the lines of a file and find where each ``every``-th one begins.

    Args:
        path: a file; a last line without a line feed counts too.
        every: number of lines between two offsets.

    Returns:
        tuple of the number of lines and a list of byte offsets: of lines 0, ``every``, 2 ``every``, …, and the end.
    """
    lines, offsets, position, last = 0, [0], 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10)
            first = -(lines + 1) % every  # index in ``ends`` of the next line feed that ends a shard
            offsets.extend((ends[first::every] + position + 1).tolist())
            lines, position, last = lines + len(ends), position + len(block), block[-1:]
    if last != b"\n":
        lines += 1
    if offsets[-1] != position:
        offsets.append(position)
    return lines, offsets


def cut(name, paths, first=0, number=0, size=SHARD_PAIRS):
    """Cut two parallel files into shards.

    Args:
        name: what messages call the corpus.
        paths: ``{language: path}`` of the two files.
        first: number of the corpus' first pair in the whole training data.
        number: number of its first shard.
        size: most pairs of a shard.

    Raises:
        UserError: the files have different numbers of lines (both are named), or none.

    Returns:
        list of :class:`Shard`.
    """
    counted = {language: line_offsets(path, size) for language, path in paths.items()}
    counts = {language: lines for language, (lines, _) in counted.items()}
    if len(set(counts.values())) != 1:
        both = " and ".join(f"{lines:,} of {language}" for language, lines in counts.items())
        raise UserError(f"the two sides of {name} must have the same number of lines, not {both}")
    pairs = next(iter(counts.values()))
    if not pairs:
        raise UserError(f"{name} has no lines ({', '.join(Path(path).name for path in paths.values())})")
    return [
        Shard(
            number + i,
            first + i * size,
            min(size, pairs - i * size),
            {language: (os.fspath(path), *counted[language][1][i : i + 2]) for language, path in paths.items()},
            1 + i * size,
        )
        for i in range(-(-pairs // size))
    ]
