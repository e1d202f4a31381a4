"""Cutting parallel files into shards, and the jobs that work on one shard."""

import multiprocessing
import os
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.errors import UserError
from fairseq_rope.prepare.moses import Tokenizer
from fairseq_rope.prepare.shards import cut, line_offsets
from fairseq_rope.prepare.text import SegmentJob, TokenizeJob, read_counts, read_lines, segment_shard, tokenize_shard
from fairseq_rope.prepare.workers import run_jobs


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@settings(max_examples=80, deadline=None)
@given(
    lines=st.lists(st.text("aé\r\u2028\x85 ", max_size=5), min_size=1, max_size=23),
    end=st.booleans(),
    size=st.integers(1, 9),
)
def test_shards_are_the_lines(folder, lines, end, size):
    if not end and lines[-1] == "":
        lines.append("x")  # an empty last line without a line feed is no line
    text = "\n".join(lines) + ("\n" if end else "")
    path = write(folder, "text.en", text)
    other = write(folder, "text.de", "".join(f"{i}\n" for i in range(len(lines))))
    shards = cut("text", {"en": path, "de": other}, first=100, number=7, size=size)
    assert [line for shard in shards for line in shard.lines("en")] == lines
    assert [line for shard in shards for line in shard.lines("de")] == [str(i) for i in range(len(lines))]
    assert [shard.number for shard in shards] == list(range(7, 7 + len(shards)))
    assert [shard.first for shard in shards] == [100 + size * i for i in range(len(shards))]
    assert all(shard.pairs == len(shard.lines("en")) <= size for shard in shards)


def test_offsets_across_blocks(folder, monkeypatch):
    monkeypatch.setattr("fairseq_rope.prepare.shards._BLOCK", 7)
    path = write(folder, "blocks", "".join("x" * (i % 5) + "\n" for i in range(100)))
    lines, offsets = line_offsets(path, 10)
    data = path.read_bytes()
    assert lines == 100 and len(offsets) == 11 and offsets[-1] == len(data)
    assert all(data[:offset].count(b"\n") == 10 * i for i, offset in enumerate(offsets))


def test_what_is_refused(folder):
    two, three = write(folder, "a", "x\ny\n"), write(folder, "b", "x\ny\nz")
    with pytest.raises(UserError, match="two sides of europarl must have the same number of lines, not 2 of en and 3"):
        cut("europarl", {"en": two, "de": three})
    empty = write(folder, "empty", "")
    with pytest.raises(UserError, match=r"europarl has no lines \(empty, empty\)"):
        cut("europarl", {"en": empty, "de": empty})
    bad = write(folder, "latin1.de", b"gut\nsch\xf6n\n")
    with pytest.raises(UserError, match=r"latin1.de, line 2: not UTF-8 \(byte 0xf6"):
        cut("europarl", {"en": two, "de": bad})[0].lines("de")


def jobs(folder, english, german, **options):
    out = folder / "tokenized"
    out.mkdir(exist_ok=True)
    paths = {"en": write(folder, "raw.en", english), "de": write(folder, "raw.de", german)}
    defaults = {"tokenize": True, "every": 3, "words": None} | options
    return [TokenizeJob(shard, str(out), **defaults) for shard in cut("raw", paths, size=4)]


def joined(folder, stage, name):
    return [line for shard in sorted((folder / stage).iterdir()) for line in read_lines(shard / name)]


def test_split_counts_raw_lines(tmp_path):
    """Every third raw pair is held out, whatever is dropped later, and across shards."""
    english = "".join(f"{i}, a dog.\n" for i in range(10))
    german = "".join("\n" if i == 4 else f"{i} ein Hund\n" for i in range(10))
    work = jobs(tmp_path, english, german)
    assert [tokenize_shard(job) for job in work] == [
        {"pairs": 4, "train": 3, "valid": 1, "words": 0},
        {"pairs": 4, "train": 3, "valid": 1, "words": 0},
        {"pairs": 2, "train": 1, "valid": 1, "words": 0},
    ]
    assert joined(tmp_path, "tokenized", "valid.en") == [f"{i} , a dog ." for i in (2, 5, 8)]
    assert joined(tmp_path, "tokenized", "train.de") == [
        "" if i == 4 else f"{i} ein Hund" for i in (0, 1, 3, 4, 6, 7, 9)
    ]


def test_words_limits_and_no_split(tmp_path):
    """ADMIN's cleaning: 1 to 80 tokens before BPE, here 2 to 3; punctuation counts."""
    work = jobs(tmp_path, "a b\na b.\na b c d\n\na b c", "x y\nx y\nx y\nx\nja.\n", every=None, words=(2, 3))
    assert [tokenize_shard(job)["words"] for job in work] == [2, 0]
    assert joined(tmp_path, "tokenized", "train.en") == ["a b", "a b .", "a b c"]
    assert joined(tmp_path, "tokenized", "train.de") == ["x y", "x y", "ja ."]


def test_a_finished_shard_is_left_alone(tmp_path):
    (job,) = jobs(tmp_path, "a\nb\n", "x\ny\n")
    first = tokenize_shard(job)
    stamp = os.stat(tmp_path / "tokenized" / "00000" / "train.en").st_mtime_ns
    os.unlink(job.shard.files["en"][0])  # not read again
    assert tokenize_shard(job) == first == read_counts(tmp_path / "tokenized" / "00000")
    assert os.stat(tmp_path / "tokenized" / "00000" / "train.en").st_mtime_ns == stamp


def test_cleaning_by_length_and_ratio(tmp_path):
    """Moses' clean-corpus-n: a ratio of exactly 1.5 stays; empty, too long and uneven pairs go, valid pairs too."""
    source, out = tmp_path / "tokenized" / "00000", tmp_path / "segmented"
    source.mkdir(parents=True)
    out.mkdir()
    english = ["a b", "a b c", "a b c d", "", "a b c d e f", "a"]
    german = ["x y", "x y", "x y", "x", "x y z u v", "x"]
    for name, keep in (("train", slice(0, 5)), ("valid", slice(2, 6))):
        write(source, f"{name}.en", "".join(f"{line}\n" for line in english[keep]))
        write(source, f"{name}.de", "".join(f"{line}\n" for line in german[keep]))
    codes = write(tmp_path, "codes", "#version: 0.2\nq q</w>\n")
    job = SegmentJob(str(source), str(out), ("en", "de"), str(codes), subwords=(1, 5), ratio=1.5)
    counts = segment_shard(job)
    assert read_lines(out / "00000" / "train.en") == ["a b", "a b c"]
    assert read_lines(out / "00000" / "valid.de") == ["x"]
    assert (counts["train"], counts["valid"]) == (2, 1)
    assert (counts["length"], counts["ratio"]) == (4, 2)
    assert counts["tokens"] == {"en": 5, "de": 4}
    assert counts["vocabulary"] == Counter("abc") + Counter("ab") + Counter("xyxy")
    everything = SegmentJob(str(source), str(tmp_path), ("en", "de"), str(codes), subwords=None, ratio=None)
    assert segment_shard(everything)["train"] == 5


def test_words_are_counted_as_moses_counts(tmp_path):
    """The tokeniser may leave two spaces and one at the end; Moses' cleaning makes them single before it counts, and
    drops words of more than 1,000 characters."""
    lines = ["We are not here .'", "x" * 1001, "x" * 1000]
    assert Tokenizer("en").tokenize(lines[0]) == "We are not here  . &apos; "
    work = jobs(tmp_path, "\n".join(lines), "Das ist es .\nx\nx", every=None, words=(1, 6))
    assert tokenize_shard(work[0]) == {"pairs": 3, "train": 2, "valid": 0, "words": 1}
    assert joined(tmp_path, "tokenized", "train.en") == ["We are not here . &apos;", "x" * 1000]


def square(number):
    if number == 13:
        raise UserError("thirteen")
    if number == 99:
        os.kill(os.getpid(), 9)
    return bytes(number) if number > 10**6 else number * number


def test_jobs_keep_their_order():
    assert list(run_jobs(square, range(9), 1)) == list(run_jobs(square, range(9), 3)) == [i * i for i in range(9)]
    with pytest.raises(UserError, match="thirteen"):
        list(run_jobs(square, [1, 13, 2, 3, 4, 5, 6, 7], 2))
    with pytest.raises(UserError, match="worker process was killed, most often because memory ran out"):
        list(run_jobs(square, [1, 99, 3], 2))


def test_stopped_in_the_middle_of_large_results():
    """Workers that are killed while they send leave nothing that the program would wait for."""
    for _ in range(5):
        results = run_jobs(square, [1, 2, *[30_000_000] * 6], 3)
        assert next(results) == 1
        results.close()  # what an exception in the consumer does
    assert not multiprocessing.active_children()
    assert threading.active_count() == 1 or all(thread.daemon for thread in threading.enumerate()[1:])
