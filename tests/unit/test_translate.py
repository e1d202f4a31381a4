"""Lines to translations in order, by an engine that turns words around; formats, refusals and the files written."""

import io
import json
import math
import os
import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.cli import translate as program
from fairseq_rope.deploy.engines import Hypothesis, Search
from fairseq_rope.deploy.fairseq_engine import batches
from fairseq_rope.deploy.output import LineOutput, Stopped, StopSignals
from fairseq_rope.deploy.text import TextPipeline, TextSettings
from fairseq_rope.deploy.translator import LineTranslator, Opened, load_translator, text_options
from fairseq_rope.errors import UserError

WORDS = TextPipeline(TextSettings("en", "de", False, "none", "none"), None)


class Turning:
    """An engine whose best translation is the source turned around, the next ones that with a number."""

    source_limit = target_limit = None

    def __init__(self, found=5):
        self.calls, self.found = [], found

    def start(self, sentences, search):
        self.calls.append(sentences)
        assert sentences and all(sentences)
        return Done(
            [
                [
                    Hypothesis([*sentence[::-1], *[str(rank)] * (rank > 0)], -(rank + len(sentence)) * math.log(2))
                    for rank in range(min(search.nbest, self.found))
                ]
                for sentence in sentences
            ]
        )


class Done:
    def __init__(self, results):
        self.results = results

    def ready(self):
        return True

    def done(self):
        return len(self.results)

    def result(self):
        return self.results


def translator(search=None, max_source=200, **engine):
    return LineTranslator(Turning(**engine), WORDS, search or Search(), max_source)


def test_lines_keep_their_order_and_number():
    lines = [f"line {number} {'x ' * (number % 7)}".strip() for number in range(1300)]
    ours = translator()
    results = list(ours.translate(lines))
    assert [result.text for result in results] == [" ".join(line.split()[::-1]) for line in lines]
    assert [result.line for result in results] == list(range(1, 1301))
    assert [result.source for result in results] == lines
    assert [len(call) for call in ours.engine.calls] == [512, 512, 276]


def test_few_lines_are_read_ahead():
    read = []
    first = next(translator().translate(read.append(number) or str(number) for number in range(10**9)))
    assert first.text == "0" and len(read) == 1024
    with pytest.raises(TypeError, match="one text"):
        next(translator().translate("A dog runs."))


EMPTY = ["", " ", "\t", "\u00a0", "\u3000", "\0", "\x1b\x07", "\u200b", "\ufeff", "\u2028", "\r", "\x85"]


def test_lines_without_text_are_not_translated():
    ours = translator()
    results = list(ours.translate([*EMPTY, "a b", *EMPTY]))
    assert [result.text for result in results] == [""] * 12 + ["b a"] + [""] * 12
    assert [result.score for result in results if not result.text] == [0.0] * 24
    assert ours.engine.calls == [[["a", "b"]]]
    assert not any(result.warnings for result in results)
    assert [result.text for result in translator().translate(EMPTY)] == [""] * 12
    assert list(translator().translate([])) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=20))
def test_any_lines_give_as_many_single_lines(lines):
    results = list(translator(max_source=5).translate(lines))
    assert len(results) == len(lines)
    assert all(len(result.text.splitlines()) <= 1 for result in results)


def test_a_line_in_parts_joins_ranks_and_adds_scores():
    ours = translator(Search(nbest=3), max_source=3, found=2)
    (result,) = ours.translate(["One two. Three four five. Six."])
    assert ours.engine.calls == [[["One", "two."], ["Three", "four", "five."], ["Six."]]]
    texts = ["two. One five. four Three Six.", "two. One 1 five. four Three 1 Six. 1"]
    assert [text for text, _ in result.nbest] == [*texts, texts[1]]  # the search found two only
    assert [score for _, score in result.nbest] == pytest.approx([-6, -9, -9])
    assert (result.text, result.score) == result.nbest[0]
    assert result.warnings == ["more than 3 subwords were translated in 3 parts, sentence by sentence"]
    (result,) = ours.translate(["a b c d"])
    assert result.warnings == ["more than 3 subwords were translated in 2 parts, some sentences cut"]


def test_the_model_s_own_limits_hold():
    ours = translator(Search(max_len_b=100), max_source=0)
    ours.engine.source_limit, ours.engine.target_limit = 5, 4
    limited = LineTranslator(ours.engine, WORDS, ours.search, 0)
    (result,) = limited.translate(["a b c d e"])
    assert ours.engine.calls == [[["a", "b", "c", "d"], ["e"]]]
    assert "the translation reached the limit of 3 subwords without an end" in result.warnings
    assert translator(max_source=0).max_source == 0


def test_a_translation_that_reaches_the_limit_is_told():
    results = list(translator(Search(max_len_a=1, max_len_b=0)).translate(["a b", "a"]))
    assert [result.warnings for result in results] == [[], []]  # 3 and 2 tokens, with the source's </s>
    results = list(translator(Search(max_len_b=2)).translate(["a b", "a"]))
    assert [len(result.warnings) for result in results] == [1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam": 0}, "--beam 0 is not possible: it has to be at least 1"),
        ({"beam": 4, "nbest": 5}, "--n-best 5 is not possible with --beam 4"),
        ({"nbest": 0}, "--n-best 0"),
        ({"lenpen": math.nan}, "--lenpen nan"),
        ({"lenpen": math.inf}, "--lenpen inf"),
        ({"max_len_a": -1.0}, "--max-len-a -1.0"),
        ({"max_len_a": math.inf}, "--max-len-a inf"),
        ({"max_len_b": -1}, "--max-len-b -1"),
        ({"max_len_b": 0}, "leave no token"),
        ({"batch_tokens": 0}, "--batch-tokens 0"),
    ],
)
def test_a_search_that_is_not_possible_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        Search(**values)


def test_batches_hold_one_limit_of_length_and_few_tokens():
    sentences = [["x"] * length for length in (3, 9, 1, 9, 3, 30)]
    assert batches(sentences, Search(batch_tokens=20)) == [[5], [1, 3], [0, 4, 2]]
    assert batches(sentences, Search(max_len_a=1, max_len_b=5, batch_tokens=20)) == [[5], [1, 3], [0, 4], [2]]
    assert batches([], Search()) == []


# --- the program, in this process -------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, tmp_path, capfdbinary):
    """Run the program with the turning engine; returns exit code, output bytes and messages."""
    opened = []

    def open_model(*arguments):
        opened.append(arguments)
        return Opened(Turning(), WORDS, ["subwords: found"], ["strange"])

    monkeypatch.setattr(program, "open_model", open_model)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, data=b""):
        opened.clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = 0
        try:
            program.main(["model", *map(str, arguments)], leave=lambda code: None)
        except SystemExit as stop:
            code = stop.code
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    run.opened = opened
    return run


def test_lines_of_all_kinds_keep_their_places(run):
    data = b"\xef\xbb\xbfa b\r\n\n \t\nc\rd\ne\xe2\x80\xa8f\n\xff x\n\0\ny </s> &amp;"
    code, out, err = run(data=data)
    assert code == 0
    assert out.decode().split("\n") == ["b a", "", "", "d c", "f e", "x \ufffd", "", "&amp; <unk> y", ""]
    assert "warning: line 6: bytes that are not UTF-8 were replaced by U+FFFD" in err
    assert "subwords: found" in err and "warning: strange" in err
    assert re_summary(err) == ("8 lines", "1 warning")


def re_summary(err):
    last = err.strip().splitlines()[-1]
    assert last.startswith("fairseq-rope-translate: translated ") and "sentences/s" in last
    return last.split("translated ")[1].split(" in ")[0], last.rpartition(", ")[2]


def test_quiet_says_warnings_only(run):
    _, _, err = run("--quiet", data=b"a\n\xff\n")
    assert err.splitlines() == [
        "fairseq-rope-translate: warning: strange",
        "fairseq-rope-translate: warning: line 2: bytes that are not UTF-8 were replaced by U+FFFD",
    ]


def test_many_warnings_are_counted(run):
    _, out, err = run(data=b"\xff\n" * 200)
    assert out.count(b"\n") == 200
    assert err.count("not UTF-8") == 50 and "further warnings are only counted" in err
    assert re_summary(err)[1] == "200 warnings"


def test_formats(run):
    data = b"a b\n\nc\xc2\x85d\n"
    assert run("--scores", data=data)[1].decode() == "-2.000000\tb a\n0.000000\t\n-2.000000\td c\n"
    lines = run("--n-best", 2, data=data)[1].decode().split("\n")
    assert lines[:4] == ["1\t-2.000000\tb a", "1\t-3.000000\tb a 1", "2\t0.000000\t", "2\t0.000000\t"]
    assert run("--n-best", 1, data=data)[1] == run(data=data)[1]
    text = run("--json", data=data)[1].decode()
    assert len(text.splitlines()) == 3
    rows = [json.loads(line) for line in text.splitlines()]
    assert rows[0] == {"line": 1, "source": "a b", "translation": "b a", "score": pytest.approx(-2), "warnings": []}
    assert rows[2]["source"] == "c\x85d"
    (row,) = [json.loads(line) for line in run("--json", "--n-best", 2, data=b"\xffa\n")[1].splitlines()]
    assert row["nbest"] == [
        {"translation": "\ufffda", "score": pytest.approx(-1)},
        {"translation": "\ufffda 1", "score": pytest.approx(-2)},
    ]
    assert row["warnings"] == ["bytes that are not UTF-8 were replaced by U+FFFD"]


def test_a_file_appears_when_it_is_complete(run, tmp_path):
    (tmp_path / "in").write_bytes(b"a b\n" * 3)
    (tmp_path / "real").write_bytes(b"older")
    (tmp_path / "out").symlink_to("real")
    code, out, err = run("--input", "in", "--output", "out")
    assert code == 0 and out == b"" and "into out" in err
    assert (tmp_path / "real").read_bytes() == b"b a\n" * 3 and (tmp_path / "out").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "real"]
    (tmp_path / "in").write_bytes(b"")
    assert run("--input", "in", "--output", "out")[0] == 0
    assert (tmp_path / "real").read_bytes() == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "missing"], "cannot read missing: there is no such file"),
        (["--input", "."], "cannot read .: it is a folder"),
        (["--input", "in", "--output", "in"], "would overwrite the input"),
        (["--input", "in", "--output", "link"], "would overwrite the input"),
        (["--input", "other.part", "--output", "other"], "would overwrite the input"),
        (["--output", "."], "it is a folder"),
        (["--output", "missing/out"], "there is no folder"),
        (["--output", ""], "needs the name of a file"),
        (["--threads", "0"], "--threads 0 is not possible"),
        (["--max-source", "-1"], "--max-source -1 is not possible"),
        (["--n-best", "9"], "--n-best 9 is not possible with --beam 4"),
        (["--lenpen", "nan"], "--lenpen nan is not possible"),
    ],
)
def test_what_is_wrong_is_told_before_the_model_is_loaded(run, tmp_path, arguments, message):
    for name in ("in", "other.part"):
        (tmp_path / name).write_text("a\n")
    (tmp_path / "link").symlink_to("in")
    code, out, err = run(*arguments)
    assert (code, out, run.opened) == (1, b"", [])
    assert message in err and err.count("\n") == 1
    assert (tmp_path / "in").read_text() == (tmp_path / "other.part").read_text() == "a\n"


def test_a_folder_without_permission_is_told_before_the_model_is_loaded(run, tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("closed"))  # root may write everywhere
    code, _, err = run("--output", "closed/out")
    assert code == 1 and not run.opened and "no permission" in err


def test_a_full_disk_is_one_line(run):
    code, _, err = run("--output", "/dev/full", "--quiet", data=b"a\n")
    assert code == 1 and err.splitlines()[-1] == (
        "fairseq-rope-translate: error: cannot write /dev/full: No space left on device"
    )


def test_what_breaks_in_the_middle_leaves_whole_lines_in_the_part_file(run, tmp_path, monkeypatch):
    (tmp_path / "in").write_bytes(b"a b\n" * 3000)
    (tmp_path / "out").write_bytes(b"older\n")
    start, calls = Turning.start, []

    def breaking(self, sentences, search):
        calls.append(1)
        if len(calls) == 4:
            raise UserError("the model broke")
        return start(self, sentences, search)

    monkeypatch.setattr(Turning, "start", breaking)
    code, _, err = run("--input", "in", "--output", "out")
    assert code == 1 and "error: the model broke; 1,024 lines so far are in " in err
    assert (tmp_path / "out").read_bytes() == b"older\n"
    assert (tmp_path / "out.part").read_bytes() == b"b a\n" * 1024


def test_standard_input_or_output_that_is_closed_is_told(run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    code, _, err = run()
    assert code == 1 and "standard output is closed" in err


def test_a_signal_waits_until_the_lines_are_written(tmp_path):
    with StopSignals() as signals:
        output = LineOutput(str(tmp_path / "out"), signals)

        class Interrupted:
            def write(self, data):
                os.kill(os.getpid(), signal.SIGTERM)
                return file.write(data[:3])

            def close(self):
                file.close()

        file, output._file = output._file, Interrupted()
        with pytest.raises(Stopped) as stop:
            output.write(["one", "two"], 2)
        output.close()
        assert stop.value.number == signal.SIGTERM and output.sources == 2
    assert (tmp_path / "out.part").read_text() == "one\ntwo\n" and not (tmp_path / "out").exists()


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("missing", None, "there is no model 'missing'"),
        ("ck.pt:missing.pt", "data", "there is no model 'missing.pt'"),
        ("ck.pt", None, "ck.pt is a checkpoint: give --data"),
        ("folder", None, "folder is no model of fairseq-rope-export"),
        ("ck.pt", "nowhere", "checkpoint ck.pt is"),
    ],
)
def test_a_model_that_is_none_is_told(tmp_path, monkeypatch, model, data, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ck.pt").write_bytes(b"nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=message):
        load_translator(model, data)


def test_unknown_text_options_are_told():
    assert text_options(bpe_codes="x").bpe_codes == "x"
    with pytest.raises(TypeError, match="unknown options: codes; known: source_lang"):
        text_options(codes="x")
