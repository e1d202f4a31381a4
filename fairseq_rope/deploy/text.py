"""Raw text to a model's subwords and back: normalise, tokenise, segment; join, detokenise.

The steps are those of the training data (:mod:`fairseq_rope.prepare`); without normalisation they are exactly those of
``fairseq-interactive --tokenizer moses --bpe subword_nmt --bpe-codes …`` (or ``--bpe sentencepiece``). Which steps a
model needs is a :class:`TextSettings`, which travels with an exported model; for a checkpoint they are found out from
its data folder by :mod:`fairseq_rope.deploy.text_options`. Nothing here imports torch or fairseq.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fairseq_rope.errors import UserError

TOKENIZERS = ("moses", "none")
SUBWORDS = ("subword_nmt", "sentencepiece", "none")
UNKNOWN = "<unk>"
# Symbols that mean something to a model; typed by a user they are words like others, which no dictionary has.
RESERVED = frozenset({"<s>", "</s>", "<pad>", "<blank>", UNKNOWN})
_NOT_SHOWN = RESERVED - {UNKNOWN}
SEPARATOR = "@@"  # subword-nmt's, at the end of a subword that does not end its word
SPACE = "▁"  # sentencepiece's, at the start of a word
# Longer words are segmented in parts of this many characters: subword-nmt's time grows with the square of the length.
LONGEST_WORD = 1000
_REMEMBERED = 50_000  # words whose segmentation is kept, so that memory does not grow with the text
# What str.splitlines takes for a line's end, beside "\n" itself: no program that reads the output shall see more lines.
_BREAKS = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")


@dataclass(frozen=True)
class TextSettings:
    """How a model's text is prepared.

    Attributes:
        source_lang, target_lang: language codes, which choose Moses' rules.
        normalize: whether Moses' normalisation of punctuation comes first, as in the recipes' training data.
        tokenizer: ``"moses"`` or ``"none"``, which only makes white space single.
        subwords: ``"subword_nmt"``, ``"sentencepiece"`` or ``"none"``.
    """

    source_lang: str
    target_lang: str
    normalize: bool
    tokenizer: str
    subwords: str

    def to_dict(self) -> dict:
        """The settings as JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "TextSettings":
        """The settings that :meth:`to_dict` gave; a UserError for what is missing, unknown or of no valid value."""
        valid = {
            "source_lang": ("a language code", lambda value: isinstance(value, str) and value),
            "target_lang": ("a language code", lambda value: isinstance(value, str) and value),
            "normalize": ("true or false", lambda value: isinstance(value, bool)),
            "tokenizer": (f"one of {', '.join(TOKENIZERS)}", lambda value: value in TOKENIZERS),
            "subwords": (f"one of {', '.join(SUBWORDS)}", lambda value: value in SUBWORDS),
        }
        if not isinstance(values, dict):
            raise UserError(f"the text settings are no table of names and values: {values!r}")
        missing = [name for name in valid if name not in values]
        unknown = sorted(map(str, set(values) - set(valid)))
        if missing or unknown:
            what = [f"lack {', '.join(missing)}"] if missing else []
            what += [f"have the unknown {', '.join(unknown)}"] if unknown else []
            raise UserError(f"the text settings {' and '.join(what)} (known: {', '.join(valid)})")
        for name, (wanted, check) in valid.items():
            if not check(values[name]):
                raise UserError(f"the text setting {name} is {values[name]!r}: it has to be {wanted}")
        return cls(**values)


class TextPipeline:
    """Turns raw lines into subwords and subwords into raw text.

    Args:
        settings: the model's.
        subword_file: BPE codes or the sentencepiece model; None if there are no subwords.

    Raises:
        UserError: the file is missing, or not what the settings say it is.
    """

    def __init__(self, settings: TextSettings, subword_file: Path | None):
        self.settings = settings
        self._normalize = self._tokenize = self._detokenize = None
        if settings.normalize:
            from fairseq_rope.prepare.moses import Normalizer

            self._normalize = Normalizer(settings.source_lang).normalize
        if settings.tokenizer == "moses":
            from sacremoses import MosesDetokenizer

            from fairseq_rope.prepare.moses import Tokenizer

            self._tokenize = Tokenizer(settings.source_lang).tokenize
            self._detokenize = MosesDetokenizer(settings.target_lang).detokenize
        self._segment = _segmenter(settings.subwords, subword_file)

    def encode(self, line: str) -> list[str]:
        """Subwords of one line of raw text; none for a line without anything to translate.

        A symbol of the model's own that is typed as text (``</s>``, ``<pad>``, …) becomes the unknown word.
        """
        if not line.isascii():
            line = line.encode("utf-8", "replace").decode("utf-8")  # a str from Python may hold half a surrogate pair
        if self._normalize:
            line = self._normalize(line)
        # The tokeniser makes white space single too, and leaves none where nothing is left.
        line = self._tokenize(line) if self._tokenize else " ".join(line.split())
        if not line:
            return []
        # White space again: a subword is a word of a dictionary's line.
        tokens = " ".join(self._segment(line)).split()
        return [UNKNOWN if token in RESERVED else token for token in tokens] if "<" in line else tokens

    def decode(self, tokens: list[str]) -> str:
        """Raw text of a translation's subwords: one line, whatever they hold."""
        text = " ".join([token for token in tokens if token not in _NOT_SHOWN])
        if self.settings.subwords == "subword_nmt":
            text = (text + " ").replace(SEPARATOR + " ", "").rstrip()
        elif self.settings.subwords == "sentencepiece":
            text = text.replace(" ", "").replace(SPACE, " ").strip()
        if self._detokenize:
            text = self._detokenize(text.split())
        return _BREAKS.sub(" ", text)


def _segmenter(kind: str, path: Path | None) -> Callable[[str], list[str]]:
    """Function from a tokenised line to its subwords."""
    if kind == "none":
        return lambda line: line.split(" ")
    if path is None:
        raise UserError(f"{kind} subwords need their {'codes' if kind == 'subword_nmt' else 'model'}")
    if not Path(path).is_file():
        raise UserError(f"there is no file of subwords {path}")
    return load_sentencepiece(path).encode_as_pieces if kind == "sentencepiece" else _Bpe(path)


class _Bpe:
    """subword-nmt, asked once for each of the latest words: what it does with a word does not depend on the others."""

    def __init__(self, path):
        from subword_nmt.apply_bpe import BPE

        check_codes(path)
        with open(path, encoding="utf-8") as codes:
            self.bpe = BPE(codes)
        self.segment = lru_cache(_REMEMBERED)(self._segment)

    def __call__(self, line):
        return [subword for word in line.split(" ") for subword in self.segment(word)]

    def _segment(self, word):
        self.bpe.cache.clear()  # a second memory of the same
        if len(word) <= LONGEST_WORD:
            return self.bpe.segment_tokens([word])
        parts = [word[i : i + LONGEST_WORD] for i in range(0, len(word), LONGEST_WORD)]
        subwords = []
        for part in parts:
            *inner, last = self.bpe.segment_tokens([part])
            subwords += [*inner, last + SEPARATOR]
        subwords[-1] = last
        return subwords


def check_codes(path: Path) -> list[tuple[str, str]]:
    """Merges of a file of BPE codes.

    Raises:
        UserError: it is not such a file (subword-nmt itself would end the program); the line is named.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the BPE codes {path}: {getattr(error, 'strerror', None) or error}") from error
    first = 0
    if lines[0].startswith("#version:"):
        first = 1
        if lines[0].split()[-1] not in ("0.1", "0.2"):
            raise UserError(f"{path} has BPE codes of an unknown version ({lines[0][:40]}); known: 0.1, 0.2")
    merges = [tuple(line.strip("\r\n ").split(" ")) for line in lines[first:]]
    for number, merge in enumerate(merges, first + 1):
        if len(merge) != 2:
            raise UserError(
                f"{path} is no file of BPE codes: line {number} is not two symbols with a space between "
                f"({lines[number - 1][:40]!r})"
            )
    if not merges:
        raise UserError(f"{path} holds no BPE codes")
    return merges


def load_sentencepiece(path: Path):
    """``sentencepiece.SentencePieceProcessor`` of a model file; a UserError if it is none."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        loaded = processor.LoadFromSerializedProto(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the sentencepiece model {path}: {error.strerror or error}") from error
    except RuntimeError as error:
        raise UserError(f"{path} is no sentencepiece model, or a damaged one") from error
    if not loaded or not len(processor):
        raise UserError(f"{path} is no sentencepiece model, or a damaged one")
    return processor
