"""Reads what ``fairseq-generate`` prints: texts by sentence id, all there and in whole words."""

import os
import re
from typing import NamedTuple

from fairseq_rope.errors import UserError
from fairseq_rope.files import read_lines

_LINE = re.compile(r"([HDT])-(\d+)\t(.*)", re.DOTALL)
MOST_NAMED = 5  # ids that an error names


class GenerateOutput(NamedTuple):
    """Texts of one output of fairseq-generate, each a dict from sentence id to text in the file's order.

    ``hypotheses`` are the best translations; ``targets`` the references as the model's data has them (the T
    lines), empty for fairseq-interactive, which knows none.
    """

    hypotheses: dict
    targets: dict


def read_output(path):
    """Read the best hypothesis and the target of each sentence from fairseq-generate's output.

    The D lines are read: the text after ``--remove-bpe`` and after any ``--bpe`` and ``--tokenizer`` are
    undone, which is also what fairseq-generate scores; an output with only H lines is read by these. With
    ``--nbest`` the first, best hypothesis counts.

    Args:
        path: what fairseq-generate printed, or its ``generate-test.txt``; other lines are passed over.

    Returns:
        GenerateOutput

    Raises:
        UserError: no hypotheses in the file, a sentence that comes twice (two outputs in one file), or a last
            line that is cut off.
    """
    texts = {"H": {}, "D": {}, "T": {}}
    latest = dict.fromkeys(texts)
    for line in read_lines(path):
        match = _LINE.fullmatch(line)
        if not match:
            continue
        kind, number, text = match[1], int(match[2]), match[3]
        if kind != "T":
            _, tab, text = text.partition("\t")  # the score stands before the text
            if not tab:
                continue
        if number not in texts[kind]:
            texts[kind][number] = text
        elif kind == "T" or latest[kind] != number:  # further hypotheses of --nbest follow the first at once
            raise UserError(f"{path} holds sentence {number} twice: is it more than one output of fairseq-generate?")
        latest[kind] = number
    hypotheses = texts["D"] or texts["H"]
    if not hypotheses:
        raise UserError(
            f"{path} holds no hypotheses (no lines that begin with D- or H-): is it the output of "
            "fairseq-generate without --quiet?"
        )
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            raise UserError(f"{path} is cut off: its last line has no end")
    return GenerateOutput(hypotheses, texts["T"])


def in_order(texts, count, path="the output", noun="sentence"):
    """Return the texts of the sentences 0 … ``count - 1`` in this order.

    Args:
        texts: dict from sentence id to text.
        count: number of sentences of the reference.
        path: what errors call the output.
        noun: what errors call a text, such as "sentence" or "T line".

    Raises:
        UserError: a missing id, or ids beyond the reference; both numbers are named.
    """
    missing = [number for number in range(count) if number not in texts]
    beyond = sorted(number for number in texts if number >= count)
    if missing or beyond:
        problems = [f"no {noun} {_some(missing)}"] if missing else []
        problems += [f"a {noun} {_some(beyond)}"] if beyond else []
        raise UserError(
            f"{path} holds {len(texts)} {noun}s, the reference {count} (ids 0 to {count - 1}); "
            f"the output has {' and '.join(problems)}"
        )
    return [texts[number] for number in range(count)]


def refuse_subwords(texts, path="the output", noun="sentence"):
    """Raise :class:`UserError` if a text still has subword marks: ``@@`` at a token's end, or ``▁``."""
    for number, text in enumerate(texts):
        if text.endswith("@@") or "@@ " in text:
            mark, option = "@@", "--remove-bpe"
        elif "▁" in text:
            mark, option = "▁", "--remove-bpe sentencepiece"
        else:
            continue
        raise UserError(
            f"{path}: {noun} {number} still holds subwords ({mark!r} in {text[:60]!r}): run "
            f"fairseq-generate with {option}"
        )


def _some(numbers):
    more = len(numbers) - MOST_NAMED
    return ", ".join(map(str, numbers[:MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
