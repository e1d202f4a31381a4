"""Lines of raw text in, their translations out, in order: by an exported model or by checkpoints.

From Python::

    from fairseq_rope.deploy import load_translator
    for translation in load_translator("model-ct2").translate(["A dog runs."]):
        print(translation.text)
"""

import math
import os
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_rope.deploy.engines import CTranslate2Engine, Search
from fairseq_rope.deploy.lines import WINDOW_LINES, Line
from fairseq_rope.deploy.long_lines import Parts, split
from fairseq_rope.deploy.text import TextPipeline
from fairseq_rope.deploy.text_options import add_text_options, given_text_options, languages, settings_for
from fairseq_rope.errors import UserError

MAX_SOURCE = 200
IN_FLIGHT = 2  # windows: one that the model works on, and the next, whose text is prepared meanwhile


class Scored(NamedTuple):
    """A text and its score, which is the one that fairseq prints: of base 2."""

    text: str
    score: float


class Translation(NamedTuple):
    """The translation of a line.

    Attributes:
        line: its number, from 1.
        source: the line.
        text: the best translation, without line breaks; empty for a line without anything to translate.
        score: the best one's, of base 2; 0 for an empty line. Of a line in several parts: the sum of theirs.
        nbest: as many as the search's ``nbest``, best first. Of a line in several parts, number n joins the parts'
            number n; where a search found fewer, the last one stands again.
        warnings: what is to be known about it, in sentences.
    """

    line: int
    source: str
    text: str
    score: float
    nbest: list[Scored]
    warnings: list[str]


class LineTranslator:
    """Translates raw text line by line.

    Args:
        engine: what translates subwords (see :mod:`fairseq_rope.deploy.engines`).
        text: the model's :class:`~fairseq_rope.deploy.text.TextPipeline`.
        search: how to look for translations.
        max_source: a line of more subwords is translated in parts; 0 for no such limit (the model's own stands).
    """

    def __init__(self, engine, text: TextPipeline, search: Search, max_source: int = MAX_SOURCE):
        if max_source < 0:
            raise UserError(f"--max-source {max_source} is not possible: it is a number of subwords, or 0 for any")
        self.engine, self.text, self.search = engine, text, search
        own = None if engine.source_limit is None else engine.source_limit - 1  # its </s> counts
        self.max_source = min(filter(None, (max_source, own)), default=0)

    def translate(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translations of ``lines`` in order; few lines are read ahead, so that there may be any number of them.

        Text is cut into windows of 512 lines, which are what a batch is made of.
        """
        if isinstance(lines, str):
            raise TypeError("lines is one text: give a list of lines")
        numbered = (Line(number, line) for number, line in enumerate(lines, 1))
        under_way = deque()
        while window := list(islice(numbered, WINDOW_LINES)):
            under_way.append(self.start(window))
            if len(under_way) == IN_FLIGHT:
                yield from under_way.popleft().result()
        while under_way:
            yield from under_way.popleft().result()

    def start(self, lines: Iterable[Line]) -> "Running":
        """Prepare the text of a window of lines and begin to translate it."""
        lines = list(lines)
        parts = [
            split(line.text, self.text.encode, self.max_source) if has_text(line.text) else Parts([], 1, False)
            for line in lines
        ]
        sentences = [subwords for part in parts for subwords in part.subwords]
        return Running(self, lines, parts, self.engine.start(sentences, self.search) if sentences else None)

    def finish(self, line: Line, parts: Parts, hypotheses: list) -> Translation:
        """Put the translation of a line together from its parts' ``hypotheses``."""
        nbest = []
        for rank in range(self.search.nbest):
            chosen = [found[min(rank, len(found) - 1)] for found in hypotheses]
            texts = [self.text.decode(hypothesis.tokens) for hypothesis in chosen]
            score = math.fsum(hypothesis.score for hypothesis in chosen) / math.log(2)
            nbest.append(Scored(" ".join(filter(None, texts)), score))
        return Translation(line.number, line.text, *nbest[0], nbest, self._warnings(line, parts, hypotheses))

    def _warnings(self, line, parts, hypotheses):
        found = []
        if line.damaged:
            found.append("bytes that are not UTF-8 were replaced by U+FFFD")
        if len(parts.subwords) > 1 or parts.cut:
            how = f"{len(parts.subwords)} parts"
            how += ", some sentences cut" if parts.cut else ", sentence by sentence"
            found.append(f"more than {self.max_source:,} subwords were translated in {how}")
        reached = 0
        for subwords, (best, *_) in zip(parts.subwords, hypotheses, strict=True):
            longest = self.search.longest(len(subwords) + 1, self.engine.target_limit)
            reached = max(reached, longest if len(best.tokens) >= longest else 0)
        if reached:
            found.append(f"the translation reached the limit of {reached:,} subwords without an end")
        return found


class Running:
    """A window of lines whose translation is under way."""

    def __init__(self, translator, lines, parts, started):
        self.translator, self.lines, self.parts, self.started = translator, lines, parts, started
        self.sentences = sum(len(part.subwords) for part in parts)

    def ready(self) -> bool:
        """Whether :meth:`result` would not wait."""
        return self.started is None or self.started.ready()

    def done(self) -> float:
        """Share of the window that is translated."""
        return self.started.done() / self.sentences if self.started else 1.0

    def result(self) -> list[Translation]:
        """Wait for the translations of the lines, in order."""
        hypotheses = iter(self.started.result() if self.started else [])
        return [
            self.translator.finish(line, part, [next(hypotheses) for _ in part.subwords])
            for line, part in zip(self.lines, self.parts, strict=True)
        ]


def has_text(line: str) -> bool:
    """Whether a line has a character that can be seen: not only white space and control characters."""
    return any(character.isprintable() and not character.isspace() for character in line)


class Opened(NamedTuple):
    """A model and its text, and sentences for the user: what was found by itself, and warnings."""

    engine: object
    text: TextPipeline
    found: list[str]
    warnings: list[str]


def text_options(**values) -> Namespace:
    """The text options with their defaults, as the command line has them, but for ``values``."""
    parser = ArgumentParser()
    add_text_options(parser)
    options = parser.parse_args([])
    unknown = set(values) - set(vars(options))
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}; known: {', '.join(vars(options))}")
    vars(options).update(values)
    return options


def open_model(
    model, data, options: Namespace, threads: int, device: str = "cpu", batches: int | None = None
) -> Opened:
    """Load an exported folder, or checkpoints with their data folder.

    Args:
        model: the folder, or one checkpoint or several joined by ``":"``, which then are an ensemble.
        data: folder of the checkpoints' dictionaries; None for an exported folder.
        options: the text options, which an exported folder has none of.
        threads, device, batches: as for :class:`~fairseq_rope.deploy.engines.CTranslate2Engine`; checkpoints have one
            batch at a time.

    Raises:
        UserError: what is asked for is not there, damaged, or does not belong together.
    """
    model = os.fspath(model)
    if os.path.isdir(model):
        from fairseq_rope.deploy.model_folder import read_folder

        folder = read_folder(model)
        given = given_text_options(options) + ["--data"] * (data is not None)
        if given:
            raise UserError(f"{model} is an exported model, which knows its own text: leave {given[0]} out")
        text = TextPipeline(folder.text, folder.subword_file)
        limits = (folder.source_limit, folder.target_limit)
        return Opened(CTranslate2Engine(folder.path, threads, device, batches, limits), text, [], [])

    paths = [model] if os.path.exists(model) else model.split(":")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise UserError(f"there is no model {missing[0]!r}: give an exported folder, or a checkpoint and --data")
    if data is None:
        raise UserError(f"{paths[0]} is a checkpoint: give --data with the folder of its dictionaries")
    from fairseq_rope.deploy.fairseq_engine import FairseqEngine, recorded_languages

    given = bool(options.source_lang and options.target_lang)
    pair = languages(options, data, (None, None) if given else recorded_languages(paths[0]))
    choice = settings_for(options, data, *pair)
    text = TextPipeline(choice.settings, choice.subword_file)
    engine = FairseqEngine(paths, Path(data), *pair, threads, device)
    return Opened(engine, text, choice.found, choice.warnings)


def load_translator(
    model, data=None, *, threads: int = 1, device: str = "cpu", max_source: int = MAX_SOURCE, search=None, **text
) -> LineTranslator:
    """A :class:`LineTranslator` of an exported folder, or of checkpoints with their data folder.

    Args:
        model, data, threads, device: as for :func:`open_model`.
        max_source: as for :class:`LineTranslator`.
        search: how to look for translations; None for :class:`~fairseq_rope.deploy.engines.Search`'s defaults.
        text: for checkpoints, options as ``fairseq-rope-translate`` has them, with ``_`` for ``-``, such as
            ``bpe_codes="codes"``; ``normalize=False`` is ``--no-normalize``.

    Raises:
        UserError: as :func:`open_model`.
    """
    opened = open_model(model, data, text_options(**text), threads, device)
    return LineTranslator(opened.engine, opened.text, search or Search(), max_source)
