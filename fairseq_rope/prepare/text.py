"""The text stages, one shard at a time: tokenise and split, then subwords and cleaning."""

import contextlib
import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.files import read_lines
from fairseq_rope.prepare.moses import Normalizer, Tokenizer
from fairseq_rope.prepare.shards import Shard
from fairseq_rope.prepare.subwords import load_segmenter

COUNTS = "counts.json"
LONGEST_WORD = 1000  # characters; Moses' cleaning drops pairs with a longer one


@dataclass(frozen=True)
class TokenizeJob:
    """What :func:`tokenize_shard` does.

    Attributes:
        shard: the raw lines.
        out: folder of all shards; this one's is ``out/NNNNN``.
        tokenize: False (sentencepiece) normalises only.
        every: each ``every``-th pair of the whole training data is for validation; None for no such split.
        words: fewest and most tokens of either side, or None.
    """

    shard: Shard
    out: str
    tokenize: bool
    every: int | None
    words: tuple | None


@dataclass(frozen=True)
class SegmentJob:
    """What :func:`segment_shard` does.

    Attributes:
        source: a folder that :func:`tokenize_shard` wrote.
        out: folder of all shards.
        languages: the two languages.
        codes: BPE merges or a sentencepiece model, by its suffix.
        subwords, ratio: limits of either side's length and of their ratio, or None.
    """

    source: str
    out: str
    languages: tuple
    codes: str
    subwords: tuple | None
    ratio: float | None


def line_processor(language, tokenize, normalize=True):
    """Function from a raw line to a normalised and tokenised one; without tokenising, white space is made single."""
    last = Tokenizer(language).tokenize if tokenize else lambda line: " ".join(line.split())
    if not normalize:
        return last
    first = Normalizer(language).normalize
    return lambda line: last(first(line))


_processors = {}


def _processor(language, tokenize):
    if (language, tokenize) not in _processors:
        _processors[language, tokenize] = line_processor(language, tokenize)
    return _processors[language, tokenize]


def tokenize_shard(job):
    """Normalise, tokenise and split one shard; returns its counts.

    Writes ``out/NNNNN/{train,valid}.LANGUAGE`` and the counts, as a folder that appears whole. A folder that is there
    already is left as it is. Pair i of the whole training data, from 1, is for validation if ``every`` divides i, as in
    fairseq's scripts, before anything is dropped.

    Returns:
        dict: ``pairs`` read, ``train`` and ``valid`` written, ``words`` dropped because of their number of tokens.
    """
    shard = job.shard
    target = Path(job.out) / f"{shard.number:05d}"
    if target.exists():
        return read_counts(target)
    languages = list(shard.files)
    # single spaces: Moses' cleaning, which sees every training and validation pair sooner or later, makes them so
    sides = [
        [" ".join(process(line).split()) for line in shard.lines(language)]
        for language, process in ((language, _processor(language, job.tokenize)) for language in languages)
    ]
    split = {"train": [], "valid": []}
    dropped = 0
    for number, pair in enumerate(zip(*sides, strict=True), shard.first + 1):
        held_out = job.every is not None and number % job.every == 0
        if not held_out and job.words is not None and not _within(pair, job.words):
            dropped += 1
        else:
            split["valid" if held_out else "train"].append(pair)
    counts = {"pairs": shard.pairs, "train": len(split["train"]), "valid": len(split["valid"]), "words": dropped}
    _write_folder(target, languages, split, counts)
    return counts


def segment_shard(job):
    """Cut one shard into subwords and clean it by length; returns its counts.

    Cleaning is that of Moses' ``clean-corpus-n.perl -ratio``: a pair goes if either side is shorter or longer than the
    limits, has more than ``ratio`` times the other's subwords or a word of more than 1,000 characters; validation pairs
    too, as in fairseq's scripts.

    Returns:
        dict: ``train`` and ``valid`` kept, ``length`` and ``ratio`` dropped for these reasons, ``tokens`` by language
        of the training data, and ``vocabulary``, the training subwords with their numbers.
    """
    source = Path(job.source)
    target = Path(job.out) / source.name
    if target.exists():
        return read_counts(target)
    segment = load_segmenter(job.codes)
    split, dropped, vocabulary = {"train": [], "valid": []}, Counter(), Counter()
    tokens = dict.fromkeys(job.languages, 0)
    for name, kept in split.items():
        sides = [map(segment, read_lines(source / f"{name}.{language}")) for language in job.languages]
        for pair in zip(*sides, strict=True):
            reason = _unfit(pair, job.subwords, job.ratio)
            if reason:
                dropped[reason] += 1
            else:
                kept.append(pair)
    for i, language in enumerate(job.languages):
        for pair in split["train"]:
            words = pair[i].split()
            vocabulary.update(words)
            tokens[language] += len(words)
    counts = {
        "train": len(split["train"]),
        "valid": len(split["valid"]),
        "length": dropped["length"],
        "ratio": dropped["ratio"],
        "tokens": tokens,
        "vocabulary": vocabulary,
    }
    _write_folder(target, job.languages, split, counts)
    return counts


def count_words(folder_and_languages):
    """Numbers of the words in the training text of one tokenised shard, a Counter."""
    folder, languages = folder_and_languages
    counts = Counter()
    for language in languages:
        for line in read_lines(Path(folder) / f"train.{language}"):
            counts.update(line.split())
    return counts


def read_counts(folder):
    """What the stage that wrote ``folder`` returned for it."""
    return json.loads((Path(folder) / COUNTS).read_text(encoding="utf-8"))


def _length(line):
    """Number of words between single spaces."""
    return line.count(" ") + 1 if line else 0


def _within(pair, limits):
    return all(limits[0] <= _length(side) <= limits[1] and not _too_long(side) for side in pair)


def _too_long(line):
    return len(line) > LONGEST_WORD and any(len(word) > LONGEST_WORD for word in line.split(" "))


def _unfit(pair, limits, ratio):
    """Why a pair of sentences in subwords has to go, or None."""
    if limits is not None and not _within(pair, limits):
        return "length"
    short, long = sorted(map(_length, pair))
    return "ratio" if ratio is not None and long > ratio * short else None


def _write_folder(target, languages, split, counts):
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        for name, pairs in split.items():
            for i, language in enumerate(languages):
                with open(temporary / f"{name}.{language}", "w", encoding="utf-8", newline="\n") as file:
                    file.writelines(pair[i] + "\n" for pair in pairs)
        (temporary / COUNTS).write_text(json.dumps(counts, ensure_ascii=False), encoding="utf-8")
        temporary.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
