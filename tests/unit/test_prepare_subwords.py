"""Learning and applying subwords, and the dictionary that encodes them, against subword-nmt and fairseq themselves."""

import io
import sys

import pytest
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe as learn

from fairseq_rope.errors import UserError
from fairseq_rope.prepare import progress, subwords
from fairseq_rope.prepare.binarize import sum_counts, write_dictionary
from fairseq_rope.prepare.fast_dictionary import FastDictionary

WORDS = {"lower": 5, "low": 7, "newest": 6, "widest": 3, "wider": 2, "x": 9}


def learned(words, merges):
    codes = io.StringIO()
    learn(io.StringIO("".join(f"{word} {number}\n" for word, number in words.items())), codes, merges, is_dict=True)
    return codes.getvalue()


def test_rarest_words_are_left_out(tmp_path, monkeypatch):
    """Beyond the bound the most frequent words count, ties in alphabetical order, whatever order they come in."""
    monkeypatch.setattr(subwords, "MOST_WORDS", 4)
    kept = {word: WORDS[word] for word in ("x", "low", "newest", "lower")}
    for words in (WORDS, dict(reversed(WORDS.items()))):
        assert subwords.learn_bpe(words, 6, tmp_path / "codes") == (6, 2)
        assert (tmp_path / "codes").read_text() == learned(kept, 6) != learned(WORDS, 6)
    monkeypatch.setattr(subwords, "MOST_WORDS", 6)
    assert subwords.learn_bpe(WORDS, 6, tmp_path / "codes") == (6, 0)
    assert (tmp_path / "codes").read_text() == learned(WORDS, 6)
    merges, _ = subwords.learn_bpe(WORDS, 1000, tmp_path / "codes")
    assert merges == learned(WORDS, 1000).count("\n") - 1 < 1000


def test_too_little_text(tmp_path):
    with pytest.raises(UserError, match="too little text to learn BPE merges from"):
        subwords.learn_bpe({"ab": 1, "cd": 1}, 10, tmp_path / "codes")
    assert not list(tmp_path.iterdir())


def test_segments_as_subword_nmt(tmp_path, monkeypatch):
    codes = tmp_path / "codes"
    codes.write_text(learned(WORDS, 8))
    lines = ["lowest newer x", "", "widest low", "ä low low x", "lower &apos;s @-@"] * 2
    plain = BPE(io.StringIO(codes.read_text()))
    expected = [plain.segment(line) for line in lines]
    assert list(map(subwords.load_segmenter(str(codes)), lines)) == expected
    monkeypatch.setattr(subwords, "_MOST_REMEMBERED", 2)  # the memory of words is emptied now and then
    forgetful = subwords._Bpe(str(codes))
    assert list(map(forgetful, lines)) == expected
    assert len(forgetful.memory) <= 2


def test_sentences_at_equal_distances(tmp_path, monkeypatch):
    """Beyond the bound every n-th sentence is learned from: the same model as from these alone."""
    sentences = [f"{word} {other}" for word in WORDS for other in WORDS] * 3
    monkeypatch.setattr(subwords, "MOST_SENTENCES", 54)
    subwords.learn_sentencepiece(iter(sentences), len(sentences), 20, tmp_path / "all.model")
    subwords.learn_sentencepiece(iter(sentences[::2]), 54, 20, tmp_path / "half.model")
    assert (tmp_path / "all.model").read_bytes() == (tmp_path / "half.model").read_bytes()


@pytest.mark.parametrize("size", [None, 8, 5])
def test_dictionary_is_fairseqs(tmp_path, size):
    text = tmp_path / "text"
    text.write_text("b a c\na b a\nd é é\n", encoding="utf-8")
    theirs = Dictionary()
    Dictionary.add_file_to_dictionary(str(text), theirs, str.split, 1)
    theirs.finalize(nwords=size or -1)
    theirs.save(str(tmp_path / "theirs"))
    counts = sum_counts([{"b": 1, "a": 1, "c": 1}, {"a": 2, "b": 1, "d": 1, "é": 2}])
    assert write_dictionary(counts, tmp_path / "ours", size) == len(theirs)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.fixture(scope="module")
def dictionaries():
    pair = Dictionary(), FastDictionary()
    for dictionary in pair:
        for word in ("a", "b", "é", "@-@"):
            dictionary.add_symbol(word)
    return pair


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.sampled_from(["a", "b", "é", "@-@", "zz", "<unk>", "</s>", "\u2028", "\u00a0"]), max_size=8),
    eos=st.booleans(),
    reverse=st.booleans(),
)
def test_encodes_as_fairseq(dictionaries, words, eos, reverse):
    line = " ".join(words) + "\n"
    results = []
    for dictionary in dictionaries:
        unknown = []

        def consumer(word, index, dictionary=dictionary, unknown=unknown):
            if index == dictionary.unk_index and word != dictionary.unk_word:  # as fairseq-preprocess does
                unknown.append(word)

        options = {"add_if_not_exist": False, "append_eos": eos, "reverse_order": reverse}
        ids = dictionary.encode_line(line, consumer=consumer, **options)
        results.append((ids.tolist(), ids.dtype, unknown))
    assert results[0] == results[1]


def test_bars_in_a_log(monkeypatch):
    """Lines for people: the beginning and the end of a bar, each once, and what a library says besides its bar."""
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress.bar("tokenise", 2000) as shown:
        for _ in range(20):
            shown.update(100)
    assert log.getvalue().count("\n") == 2 and "\r" not in log.getvalue() and "100%" in log.getvalue().split("\n")[1]
    log.truncate(0)
    with progress.library_bars("learn BPE"):
        for i in range(5):
            sys.stderr.write(f"\r{i}/5 merges")
        sys.stderr.write("no pair has frequency >= 2. Stopping\n")
        sys.stderr.write("\rlast state")
    lines = log.getvalue().strip("\0").split("\n")
    assert lines == ["learn BPE: no pair has frequency >= 2. Stopping", "learn BPE: last state", ""]


def test_a_librarys_bar_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.library_bars("learn BPE"):
        assert sys.stderr.isatty()
        sys.stderr.write("\r 5%|###")
        sys.stderr.write("Stopping\n")
    assert terminal.getvalue() == "\rlearn BPE:  5%|###Stopping\n"
