"""Bytes to lines and windows, and long lines to parts."""

import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.deploy.lines import LineReader
from fairseq_rope.deploy.long_lines import split


def read(data, **limits):
    reader = LineReader(io.BytesIO(data), **limits)
    windows = []
    while not reader.exhausted:
        windows.append(reader.window())
    return [line for window in windows for line in window], windows


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n\n", ["", "", ""]),
        (b"a", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\r\r\n\r", ["a\rb\r", ""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"\n\xef\xbb\xbf", ["", "\ufeff"]),
        ("a\u2028b\x85c\x0bd\x0ce\x1ef\n".encode(), ["a\u2028b\x85c\x0bd\x0ce\x1ef"]),
        (b"a\0b\x1b\n", ["a\0b\x1b"]),
    ],
)
def test_only_line_feeds_end_lines(data, lines):
    assert [line.text for line in read(data)[0]] == lines


def test_bytes_that_are_not_utf8_are_replaced_and_told():
    lines, _ = read(b"good\nb\xffad\n\xe4\xb8\n\xed\xa0\x80x")
    assert [line.damaged for line in lines] == [False, True, True, True]
    assert [line.text for line in lines[:3]] == ["good", "b\ufffdad", "\ufffd"]
    assert [line.number for line in lines] == [1, 2, 3, 4]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")), max_size=40), st.booleans())
def test_windows_are_bounded_and_lose_nothing(lines, ended):
    data = b"\n".join(lines) + b"\n" * ended
    expected = data.split(b"\n")[: -1 if data.endswith(b"\n") or not data else None]
    found, windows = read(data, lines=5, size=40)
    assert len(found) == len(expected) - (expected == [b"\xef\xbb\xbf"])
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert all(len(window) <= 5 for window in windows)
    for line, raw in zip(found[1:], expected[1:], strict=False):
        assert line.text == raw.removesuffix(b"\r").decode("utf-8", "replace")


def test_a_window_has_no_more_bytes_than_its_limit_and_a_line():
    _, windows = read(b"x" * 30 + b"\n" + b"y" * 30 + b"\n" + b"z\n" * 100, size=40)
    assert [len(window) for window in windows] == [2, 40, 40, 20]


def test_a_line_of_many_megabytes_is_read_in_linear_time():
    lines, _ = read(b"x" * (1 << 24) + b"\nend")
    assert [len(line.text) for line in lines] == [1 << 24, 3]


def test_bytes_handed_out_are_counted():
    reader = LineReader(io.BytesIO(b"abc\nde\nf"), lines=2)
    reader.window()
    assert reader.handed == 7


def test_a_pipe_gives_what_is_there_now():
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as stream:
        reader = LineReader(stream)
        assert not reader.ready()
        os.write(into, b"one\ntwo\nthr")
        assert reader.ready()
        assert [line.text for line in reader.window()] == ["one", "two"]
        assert not reader.ready() and not reader.exhausted
        os.write(into, b"e")
        assert reader.ready() and reader.window() == []  # no line yet: it does not wait for its end
        os.write(into, b"e\n")
        assert [line.text for line in reader.window()] == ["three"]
        os.write(into, b"four")
        os.close(into)
        assert reader.ready()
        texts = [line.text for line in reader.window()] + [line.text for line in reader.window()]
        assert texts == ["four"] and reader.exhausted and reader.ready()


def test_a_pipe_that_does_not_block_is_waited_for():
    out, into = os.pipe()
    os.set_blocking(out, False)
    with os.fdopen(out, "rb", buffering=0) as stream:
        os.write(into, b"one\n")
        reader = LineReader(stream)
        assert [line.text for line in reader.window()] == ["one"]
        os.close(into)
        assert reader.window() == [] and reader.exhausted


def test_a_file_gives_full_windows(tmp_path):
    (tmp_path / "text").write_bytes(b"a line of text\n" * 20_000)
    with open(tmp_path / "text", "rb", buffering=0) as stream:
        reader = LineReader(stream, lines=7000)
        assert [len(reader.window()) for _ in range(3)] == [7000, 7000, 6000]


def words(text):
    return text.split()


def characters(text):
    return [character for character in text if not character.isspace()]


def parts_of(line, limit, encode=words):
    found = split(line, encode, limit)
    return [" ".join(part) for part in found.subwords], found.sentences, found.cut


def test_a_short_line_is_one_part():
    assert parts_of("One. Two. Three.", 3) == (["One. Two. Three."], 1, False)
    assert parts_of("One. Two. Three.", 0) == (["One. Two. Three."], 1, False)
    assert parts_of("  ", 3) == ([], 1, False)


def test_a_long_line_is_split_at_sentence_ends():
    line = 'He said "Stop it now!" Then J. Smith left on the 3. May at 3.5 p.m. without him... Why? (Nobody knows.) So'
    assert parts_of(line, 16)[0] == [
        'He said "Stop it now!"',
        "Then J. Smith left on the 3. May at 3.5 p.m. without him...",
        "Why?",
        "(Nobody knows.)",
        "So",
    ]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("狗跑。猫睡！「好？」对", ["狗跑。", "猫睡！", "「好？」", "对"]),
        ("कुत्ता दौड़ा। बिल्ली सोई॥ ठीक", ["कुत्ता दौड़ा।", "बिल्ली सोई॥", "ठीक"]),
        ("ركض الكلب؟ نام القط۔ نعم", ["ركض الكلب؟", "نام القط۔", "نعم"]),
    ],
)
def test_other_scripts_have_sentences_too(line, sentences):
    encode = characters if "狗" in line else words
    expected = [" ".join(encode(sentence)) for sentence in sentences]
    assert parts_of(line, 4 if encode is characters else 2, encode)[0] == expected


def test_a_sentence_that_is_too_long_is_cut_at_clauses_then_words_then_anywhere():
    assert parts_of("a b c, d e, f g h i; j", 4) == (["a b c,", "d e,", "f g h i;", "j"], 1, True)
    assert parts_of("a b, c d, e f, g", 4) == (["a b, c d,", "e f, g"], 1, True)  # small clauses stay together
    assert parts_of("a b c d e f g h i j, k", 4) == (["a b c d", "e f g h", "i j,", "k"], 1, True)
    found, _, cut = parts_of("abcdefghij", 4, characters)
    assert cut and "".join(found).replace(" ", "") == "abcdefghij" and max(map(len, found)) <= 7


def test_nothing_is_cut_within_a_character_of_several_signs():
    family = "👨\u200d👩\u200d👧"
    found = split(family * 40, lambda text: list(text), 12).subwords
    assert all("".join(part).replace(family, "") == "" for part in found)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab .,!?。、-–\u0301\u200d\t", max_size=120), st.integers(1, 12))
def test_parts_fit_and_are_the_line(line, limit):
    found = split(line, characters, limit)
    assert all(0 < len(part) <= limit for part in found.subwords)
    assert [token for part in found.subwords for token in part] == characters(line)


@pytest.mark.parametrize(
    "line",
    [
        "x" * 10_000,
        "狗" * 10_000,
        "a" * 50_000,
        "ab " * 20_000,
        "Yes. " * 10_000,
        "," * 30_000,
        "." * 30_000,
        "J. " * 9000,
        "- " * 9000,
        '." ' * 9000,
    ],
)
def test_enormous_lines_take_no_time_to_speak_of(line):
    calls = []

    def encode(text):
        calls.append(len(text))
        return characters(text)

    found = split(line, encode, 200)
    assert sum(map(len, found.subwords)) == len(characters(line))
    assert sum(calls) <= 12 * len(line)


def test_one_character_of_many_subwords_is_cut_too():
    found = split("xy", lambda text: [f"{character}{i}" for character in text for i in range(5)], 2)
    assert [len(part) for part in found.subwords] == [2, 2, 1, 2, 2, 1]
