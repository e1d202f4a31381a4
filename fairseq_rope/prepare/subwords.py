"""Subwords: learns BPE merges (subword-nmt) or a sentencepiece model, and applies them with a memory of words."""

import io
import os
from itertools import islice
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.files import replacing
from fairseq_rope.prepare.progress import library_bars

# Of a corpus with more different words the rarest are left out of learning: each costs learn_bpe 1.4 kB, 8 GB in all.
MOST_WORDS = 6_000_000
# Sentences that a sentencepiece model is learned from at most, taken at equal distances.
MOST_SENTENCES = 10_000_000
_MOST_REMEMBERED = 1_000_000  # words whose segmentation a process keeps


def learn_bpe(words, merges, path):
    """Learn joint BPE merges from numbers of words, with subword-nmt's own algorithm and progress bar.

    Args:
        words: ``{word: number}``.
        merges: number of merges; fewer are learned where no pair comes twice.
        path: the codes file to write.

    Raises:
        UserError: no pair of symbols comes twice, so that there is nothing to merge.

    Returns:
        tuple of the number of merges learned and of words that were left out because there were more than
        :data:`MOST_WORDS`.
    """
    from subword_nmt.learn_bpe import learn_bpe as learn

    left_out = max(0, len(words) - MOST_WORDS)
    if left_out:
        # by number, then alphabetically, so that the choice depends on the corpus alone
        words = dict(islice(sorted(words.items(), key=lambda item: (-item[1], item[0])), MOST_WORDS))
    with replacing(path) as file:
        with library_bars("learn BPE"):
            learn((f"{word} {number}" for word, number in words.items()), file, merges, is_dict=True)
        if file.tell() <= len("#version: 0.2\n"):
            raise UserError("too little text to learn BPE merges from: no two symbols stand together twice")
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file) - 1, left_out  # the first line is the format's version


def learn_sentencepiece(sentences, number, size, path):
    """Learn a joint sentencepiece model (unigram, sentencepiece's default; Kudo 2018).

    Args:
        sentences: iterable of normalised sentences of both languages.
        number: how many they are.
        size: vocabulary size.
        path: the model file to write.

    Raises:
        UserError: sentencepiece cannot make a vocabulary of this size of them, in its own words.
    """
    import sentencepiece

    step = -(-number // MOST_SENTENCES)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=islice(sentences, 0, None, step),
            model_writer=model,
            vocab_size=size,
            character_coverage=0.9999,
            num_threads=16,  # a fixed number: sums, and with them the model, depend on it
            minloglevel=1,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].split("] ")[-1] if str(error).strip() else "no reason given"
        raise UserError(f"sentencepiece cannot learn a vocabulary of {size}: {reason}") from error
    with replacing(path, "wb") as file:
        file.write(model.getvalue())


_segmenters = {}


def load_segmenter(path):
    """Function from a normalised (BPE: tokenised) line to its subwords, separated by spaces; one a process and file."""
    if path not in _segmenters:
        _segmenters[path] = _sentencepiece(path) if Path(path).suffix == ".model" else _Bpe(path)
    return _segmenters[path]


class _Bpe:
    """subword-nmt, asked once for each word: what it does with a word does not depend on the others."""

    def __init__(self, path):
        from subword_nmt.apply_bpe import BPE

        with open(path, encoding="utf-8") as codes:
            self.bpe = BPE(codes)
        self.memory = {}

    def __call__(self, line):
        memory = self.memory
        try:
            return " ".join([memory[word] for word in line.split(" ")])
        except KeyError:
            return " ".join([memory[word] if word in memory else self._segment(word) for word in line.split(" ")])

    def _segment(self, word):
        if len(self.memory) >= _MOST_REMEMBERED:
            self.memory.clear()
        self.bpe.cache.clear()  # a second memory of the same
        self.memory[word] = " ".join(self.bpe.segment_tokens([word]))
        return self.memory[word]


def _sentencepiece(path):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=os.fspath(path))
    return lambda line: " ".join(processor.encode(line, out_type=str))
