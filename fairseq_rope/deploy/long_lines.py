"""Cuts a line that is too long for a model into parts: at sentence ends, clause marks, between words, or anywhere."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

_CLOSING = "\"'”’»›)\\]}〉》」』】）"
# After a full stop and the like, with closing quotes and brackets, where white space and no small letter follow; after
# the marks of scripts that write no space, at once.
# Each starts only where a row of marks does, so that a row of thousands takes no time.
_SENTENCE = re.compile(rf"(?<![.!?…؟۔।॥])[.!?…؟۔।॥]++[{_CLOSING}]*+(?=\s)|[。！？｡]++[{_CLOSING}]*+")
_CLAUSE = re.compile(rf"(?<![,;:،؛])[,;:،؛]++[{_CLOSING}]*+(?=\s)|\s(?=[–—-]++\s)|[、，；：]++[{_CLOSING}]*+")
# Before a full stop: an initial, or a German ordinal number.
_NO_END = re.compile(r"(?<!\w)(?:[^\W\d_]|\d{1,2})\Z")
_WORD = re.compile(r"\s+")
# So many characters are encoded at once at most: text without any white space costs time that grows with its square.
MOST_CHARACTERS = 20_000


class Parts(NamedTuple):
    """Parts of a line.

    Attributes:
        subwords: of each part, none of them empty; together they are the line's.
        sentences: number of sentences that the line was split into; 1 for a line that is short enough.
        cut: whether a sentence was too long and had to be cut.
    """

    subwords: list[list[str]]
    sentences: int
    cut: bool


def split(line: str, encode: Callable[[str], list[str]], limit: int) -> Parts:
    """Encode a line, in parts of at most ``limit`` subwords.

    Args:
        line: raw text.
        encode: function from text to subwords.
        limit: most subwords of a part; 0 for any number.
    """
    if not limit:
        return Parts([subwords] if (subwords := encode(line)) else [], 1, False)
    whole = _fitting(line, encode, limit)
    if whole is not None:
        return Parts([whole] if whole else [], 1, False)
    sentences = list(_sentences(line))
    parts, cut = [], False
    for sentence in sentences:
        subwords = _fitting(sentence, encode, limit)
        if subwords is not None:
            parts.append(subwords)
        else:
            cut = True
            parts.extend(_cut(sentence, encode, limit, [_CLAUSE, _WORD]))
    return Parts([part for part in parts if part], len(sentences), cut)


def _fitting(text, encode, limit):
    """The text's subwords if they are no more than ``limit``, otherwise None."""
    if len(text) > MOST_CHARACTERS:
        return None
    subwords = encode(text)
    return subwords if len(subwords) <= limit else None


def _sentences(line) -> Iterator[str]:
    start = 0
    for end in _SENTENCE.finditer(line):
        following = line[end.end() : end.end() + 40].lstrip()
        if (
            following
            and not following[0].islower()
            and not (end[0] == "." and _NO_END.search(line[max(start, end.start() - 4) : end.start()]))
        ):
            yield line[start : end.end()]
            start = end.end()
    yield line[start:]


def _cut(text, encode, limit, marks):
    """Subwords of parts of ``text``, which is too long: cut at the first of ``marks``, small parts put together."""
    if not marks:
        yield from _cut_anywhere(text, encode, limit)
        return
    ends = [end.end() for end in marks[0].finditer(text)]
    pieces = [text[a:b] for a, b in pairwise([0, *ends, len(text)]) if a < b]
    if len(pieces) == 1:
        yield from _cut(text, encode, limit, marks[1:])
        return
    start = 0
    while start < len(pieces):
        # As many pieces as fit: doubled while they do, then halved down to the last that does.
        low, high, fitting = 0, 1, None
        while start + low < len(pieces):
            high = min(high, len(pieces) - start)
            subwords = _fitting("".join(pieces[start : start + high]), encode, limit)
            if subwords is None:
                break
            low, fitting = high, subwords
            high = 2 * high
        while high - low > 1 and low and start + low < len(pieces):
            middle = (low + high) // 2
            subwords = _fitting("".join(pieces[start : start + middle]), encode, limit)
            if subwords is None:
                high = middle
            else:
                low, fitting = middle, subwords
        if fitting is None:
            yield from _cut(pieces[start], encode, limit, marks[1:])
            low = 1
        else:
            yield fitting
        start += low


def _cut_anywhere(text, encode, limit):
    """Halves until they fit; not between a character and the signs that belong to it, where there is a choice."""
    subwords = _fitting(text, encode, limit)
    if subwords is not None:
        yield subwords
    elif len(text) < 2:  # one character that is many subwords
        subwords = encode(text)
        yield from (subwords[i : i + limit] for i in range(0, len(subwords), limit))
    else:
        middle = len(text) // 2
        for place in range(middle, min(middle + 20, len(text))):
            if not (_belongs_to_previous(text[place]) or text[place - 1] == "\u200d"):
                middle = place
                break
        yield from _cut_anywhere(text[:middle], encode, limit)
        yield from _cut_anywhere(text[middle:], encode, limit)


def _belongs_to_previous(character):
    return unicodedata.category(character).startswith("M") or character in "\u200c\u200d" or "🏻" <= character <= "🏿"
