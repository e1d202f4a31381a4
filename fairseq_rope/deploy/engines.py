"""What translates subwords: one interface, and CTranslate2 behind it.

An engine has ``source_limit`` and ``target_limit`` (longest source and translation in tokens with their ``</s>``, None
for any length) and ``start``, ``translate`` and ``forced_log_probs`` as :class:`CTranslate2Engine` describes them;
:class:`~fairseq_rope.deploy.fairseq_engine.FairseqEngine` has the same for a checkpoint. This module imports neither
torch nor fairseq.
"""

import json
import math
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_rope.errors import UserError

# Small, since several such batches at the same time are what a CPU gets through fastest (benchmarks/deploy.py --grid).
BATCH_TOKENS = 512
DEVICES = ("auto", "cpu", "cuda")
INSTALL = "pip install 'fairseq-rope[deploy]', or in a checkout pip install '.[deploy]'"
# Seconds between two looks whether a result is there: only between them does Python hear Ctrl-C.
TICK = 0.005


class Hypothesis(NamedTuple):
    """A translation: its subwords, without ``</s>``, and its score.

    The score is the sum of the log-probabilities (natural logarithm) of its tokens and its ``</s>``, divided by their
    number to the power of the length penalty. fairseq-generate prints the same divided by ln 2.

    CTranslate2's differ a little: fairseq excludes the padding symbol and, at first, ``</s>`` after the softmax,
    CTranslate2 before it, which gives their probability to the other symbols (next to nothing once a model is trained);
    and a translation that CTranslate2 ends at the limit of its length has no ``</s>`` in its score, so that there the
    two may choose differently too.
    """

    tokens: list[str]
    score: float


@dataclass(frozen=True)
class Search:
    """How to look for translations.

    Attributes:
        beam: width of the beam search; 1 is greedy.
        lenpen: exponent of the length penalty.
        nbest: hypotheses a sentence, at most ``beam``.
        max_len_a, max_len_b: a translation has at most ``a * tokens of the source with its </s> + b`` tokens.
        batch_tokens: tokens a batch, pads included; a longer sentence is a batch of its own.

    Raises:
        UserError: a value that is not possible; names it and what is.
    """

    beam: int = 4
    lenpen: float = 0.6
    nbest: int = 1
    max_len_a: float = 0.0
    max_len_b: int = 200
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self):
        for name, least in (("beam", 1), ("nbest", 1), ("max_len_b", 0), ("batch_tokens", 1)):
            value = getattr(self, name)
            if value < least:
                flag = "n-best" if name == "nbest" else name.replace("_", "-")
                raise UserError(f"--{flag} {value} is not possible: it has to be at least {least}")
        if self.nbest > self.beam:
            raise UserError(
                f"--n-best {self.nbest} is not possible with --beam {self.beam}: a search finds at most as many "
                "translations as its beam is wide"
            )
        if not math.isfinite(self.lenpen):
            raise UserError(f"--lenpen {self.lenpen} is not possible: it has to be a finite number, such as 0.6")
        if not (math.isfinite(self.max_len_a) and self.max_len_a >= 0):
            raise UserError(f"--max-len-a {self.max_len_a} is not possible: it has to be a finite number from 0 on")
        if self.longest(1) < 1:
            raise UserError("--max-len-a and --max-len-b leave no token for a translation; give --max-len-b 200")

    def longest(self, source_tokens: int, target_limit: int | None = None) -> int:
        """Most tokens, without ``</s>``, of the translation of a source of ``source_tokens`` with its ``</s>``.

        Args:
            source_tokens: length of the source.
            target_limit: the engine's.
        """
        wanted = int(self.max_len_a * source_tokens + self.max_len_b)
        return wanted if target_limit is None else min(wanted, target_limit - 1)

    def check_beam(self, symbols: int):
        """Raise a UserError if the beam is wider than a target vocabulary of ``symbols`` has continuations."""
        if self.beam >= symbols:
            raise UserError(f"--beam {self.beam} is not possible: the model knows {symbols:,} symbols")

    def groups(self, sentences: list[list[str]]) -> list[list[int]]:
        """Numbers of the sentences that may be in a batch together: those with one limit of length."""
        if not self.max_len_a:
            return [list(range(len(sentences)))] if sentences else []
        found = defaultdict(list)
        for number, sentence in enumerate(sentences):
            found[len(sentence)].append(number)
        return [found[length] for length in sorted(found, reverse=True)]


class CTranslate2Engine:
    """An exported model, run by CTranslate2.

    Args:
        folder: the model.
        threads: threads in all.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"`` (cuda where CTranslate2 sees such a device).
        batches: batches that are translated at the same time, each by ``threads // batches`` threads; None: one a
            thread.
        limits: longest source and translation in tokens with their ``</s>``, each None for any length.

    Raises:
        UserError: CTranslate2 is not installed, or cannot load the model.
    """

    def __init__(
        self,
        folder: Path,
        threads: int = 1,
        device: str = "cpu",
        batches: int | None = None,
        limits: tuple[int | None, int | None] = (None, None),
    ):
        try:
            import ctranslate2
        except ImportError as error:
            raise UserError(f"an exported model needs CTranslate2, which is not installed: {INSTALL}") from error
        self.source_limit, self.target_limit = limits
        self._symbols = _target_symbols(Path(folder))
        batches = max(1, min(batches or threads, threads))
        if device == "auto":
            device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        try:
            self.translator = ctranslate2.Translator(
                str(folder),
                device=device,
                inter_threads=batches if device == "cpu" else 1,
                intra_threads=max(1, threads // batches),
                max_queued_batches=-1,  # a full queue would block, deaf to Ctrl-C; windows of lines bound it already
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot load {folder} on the device {device}: {error}") from error

    def start(self, sentences: list[list[str]], search: Search):
        """Begin to translate, and return at once.

        Args:
            sentences: subwords without ``</s>``, none of them empty, within ``source_limit``.
            search: how.

        Returns:
            an object with ``ready()``, ``done()`` (how many sentences) and ``result()``, which waits: one list of
            ``search.nbest`` hypotheses a sentence, best first, in order.
        """
        search.check_beam(self._symbols)
        futures = [None] * len(sentences)
        for group in search.groups(sentences):
            longest = search.longest(len(sentences[group[0]]) + 1, self.target_limit)
            started = self.translator.translate_batch(
                [sentences[number] for number in group],
                asynchronous=True,
                max_batch_size=max(search.batch_tokens, max(len(sentences[number]) for number in group) + 1),
                batch_type="tokens",
                beam_size=search.beam,
                num_hypotheses=search.nbest,
                length_penalty=search.lenpen,
                max_input_length=0,
                max_decoding_length=longest,
                return_scores=True,
                suppress_sequences=[["<blank>"]],  # as fairseq never generates its <pad>
            )
            for number, future in zip(group, started, strict=True):
                futures[number] = future
        return _Started(futures)

    def translate(self, sentences: list[list[str]], search: Search) -> list[list[Hypothesis]]:
        """Translate and wait; see :meth:`start`."""
        return self.start(sentences, search).result()

    def forced_log_probs(self, sources: list[list[str]], targets: list[list[str]]) -> list[list[float]]:
        """Log-probabilities (natural logarithm) of given translations, one a token and one for the ``</s>``."""
        results = self.translator.score_batch(
            sources, targets, max_batch_size=BATCH_TOKENS, batch_type="tokens", max_input_length=0
        )
        return [result.log_probs for result in results]


def _target_symbols(folder):
    """Number of symbols that a model may say."""
    for name in ("target_vocabulary.json", "shared_vocabulary.json"):
        if (folder / name).is_file():
            try:
                return len(json.loads((folder / name).read_bytes()))
            except (OSError, ValueError) as error:
                raise UserError(f"{folder / name} cannot be read: {error}; export the model again") from error
    raise UserError(f"{folder} is no exported model: it has no vocabulary")


class _Started:
    """Translations under way in CTranslate2's threads."""

    def __init__(self, futures):
        self.futures, self.waiting = futures, list(futures)

    def ready(self):
        # One future a look as long as it is under way: asking all of them would take a core from the engine.
        while self.waiting and self.waiting[-1].done():
            self.waiting.pop()
        return not self.waiting

    def done(self):
        return sum(future.done() for future in self.futures)

    def result(self):
        tick = TICK / 16  # short at first, for the answer to a single sentence
        while not self.ready():
            time.sleep(tick)
            tick = min(2 * tick, TICK)
        try:
            results = [future.result() for future in self.futures]
        except RuntimeError as error:
            raise UserError(f"CTranslate2 cannot translate this: {error}") from error
        return [
            [Hypothesis(tokens, score) for tokens, score in zip(result.hypotheses, result.scores, strict=True)]
            for result in results
        ]
