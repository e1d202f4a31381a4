"""Compares an exported model with the one it was made of, on the user's own text.

Two comparisons, since each tells what the other cannot: log-probabilities of given translations (forced decoding) say
how near the two functions are, token by token; translations of beam search say what becomes of that.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from fairseq_rope.deploy.engines import Search
from fairseq_rope.deploy.long_lines import split
from fairseq_rope.deploy.text import TextPipeline
from fairseq_rope.errors import UserError
from fairseq_rope.prepare.progress import bar

# Largest difference of a token's log-probability under forced decoding that rounding in float32 explains.
TOLERANCE = 1e-4
SEARCH = Search(beam=4, lenpen=0.6, max_len_b=200)
LONGEST = 200  # subwords of a sentence; longer lines are compared in parts, as fairseq-rope-translate translates them
STEP = 32  # sentences between two states of the progress bar
MOST_SHOWN = 20  # sentences that a report shows with both translations


class Difference(NamedTuple):
    """A sentence that the two models translate differently.

    Attributes:
        source: its subwords.
        trained, exported: subwords of the trained model's and of the exported model's translation.
        scores: of ``trained`` by the trained model and by the exported one, then of ``exported`` by both: the sum of
            log-probabilities divided by length^0.6, in base 2 as fairseq prints it.
    """

    source: list[str]
    trained: list[str]
    exported: list[str]
    scores: tuple[float, float, float, float]


@dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        sentences: number compared.
        empty: lines without anything to translate, left out.
        tokens: tokens of forced decoding, with each ``</s>``.
        largest, mean: difference of their log-probabilities (natural logarithm); NaN if one is.
        differing: the sentences whose best translations are not the same.
        most: tokens at which the search was stopped.
    """

    sentences: int
    empty: int
    tokens: int
    largest: float
    mean: float
    differing: list[Difference]
    most: int


# The two searches differ here: fairseq ends a hypothesis at the limit with </s>, whose probability counts.
_CUT = " (cut off at the length limit)"


def sentences_of(lines: list[str], pipeline: TextPipeline, limit: int = LONGEST) -> tuple[list[list[str]], int]:
    """Subwords of the sentences of raw lines, none with more than ``limit``, and the number of empty lines.

    Raises:
        UserError: there is nothing to translate.
    """
    sentences, empty = [], 0
    for line in lines:
        parts = split(line, pipeline.encode, limit).subwords
        sentences += parts
        empty += not parts
    if not sentences:
        raise UserError("there is nothing to translate in it")
    return sentences, empty


def longest_sentence(*engines) -> int:
    """Most subwords, without ``</s>``, of a sentence that all ``engines`` have positions for; at most 200."""
    return min([LONGEST, *(engine.source_limit - 1 for engine in engines if engine.source_limit is not None)])


def compare(trained, exported, sentences: list[list[str]], empty: int = 0) -> Comparison:
    """Compare two engines.

    Args:
        trained, exported: engines (see :mod:`~fairseq_rope.deploy.engines`).
        sentences: subwords.
        empty: number of empty lines, for the report.
    """
    differing, differences = [], []
    with bar("verify", len(sentences), "sentences") as shown:
        for start in range(0, len(sentences), STEP):
            part = sentences[start : start + STEP]
            under_way = exported.start(part, SEARCH)
            targets = [hypotheses[0].tokens for hypotheses in trained.translate(part, SEARCH)]
            others = [hypotheses[0].tokens for hypotheses in under_way.result()]
            ours, theirs = (engine.forced_log_probs(part, targets) for engine in (trained, exported))
            for a, b in zip(ours, theirs, strict=True):
                differences += [abs(x - y) for x, y in zip(a, b, strict=True)]
            for number, (target, other) in enumerate(zip(targets, others, strict=True)):
                if target != other:
                    source = [part[number]]
                    found = [engine.forced_log_probs(source, [other])[0] for engine in (trained, exported)]
                    scores = tuple(_score(log_probs) for log_probs in (ours[number], theirs[number], *found))
                    differing.append(Difference(source[0], target, other, scores))
            shown.update(len(part))
    # max() would pass over a NaN, which compares with nothing
    largest = math.nan if any(map(math.isnan, differences)) else max(differences)
    most = SEARCH.longest(LONGEST, trained.target_limit)
    return Comparison(len(sentences), empty, len(differences), largest, _mean(differences), differing, most)


def report(comparison: Comparison, pipeline: TextPipeline, limit: float | None) -> list[str]:
    """The comparison in lines for people.

    Args:
        pipeline: turns subwords into text.
        limit: of the log-probabilities' difference; None if there is none.
    """
    c = comparison
    same = c.sentences - len(c.differing)
    within = "" if limit is None else f" (limit {limit:g})"
    lines = [
        f"verify: {_count(c.sentences, 'sentence')}"
        + (f", {_count(c.empty, 'empty line')} left out" if c.empty else ""),
        f"  forced decoding, {_count(c.tokens, 'token')}: log-probabilities differ by at most {c.largest:.1e}{within}, "
        f"{c.mean:.1e} on average",
        f"  beam 4: {same:,} of {c.sentences:,} translations are the same ({100 * same / c.sentences:.1f} %)",
    ]
    for difference in c.differing[:MOST_SHOWN]:
        first, second = difference.scores[:2], difference.scores[2:]
        lines.append(f"  {'source':<12} {pipeline.decode(difference.source)}")
        for name, tokens, (trained, exported) in (
            ("fairseq", difference.trained, first),
            ("CTranslate2", difference.exported, second),
        ):
            lines.append(f"  {name:<12} {pipeline.decode(tokens)}" + _CUT * (len(tokens) >= c.most))
            lines.append(f"  {'':<12} score {trained:.4f} by fairseq, {exported:.4f} by CTranslate2")
    if len(c.differing) > MOST_SHOWN:
        lines.append(f"  and {len(c.differing) - MOST_SHOWN:,} more")
    return lines


def check(comparison: Comparison):
    """Raise a UserError if an export in float32 is not the same function."""
    if not comparison.largest <= TOLERANCE:  # a NaN too
        raise UserError(
            f"the export is not the model: log-probabilities differ by {comparison.largest:.1e}, and rounding explains "
            f"{TOLERANCE:g}; nothing was written"
        )


def _score(log_probs):
    return sum(log_probs) / len(log_probs) ** SEARCH.lenpen / math.log(2)


def _mean(values):
    return math.fsum(values) / len(values)


def _count(number, what):
    return f"{number:,} {what}{'s' * (number != 1)}"
