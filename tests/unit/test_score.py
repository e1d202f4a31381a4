"""fairseq-rope-score: reading by sentence id, what is refused, and sacreBLEU's own figures."""

import json
import logging
import subprocess

import helpers
import pytest

from fairseq_rope.cli.program import one_line_errors
from fairseq_rope.cli.score import detokenize, score
from fairseq_rope.errors import UserError
from fairseq_rope.generate_output import in_order, read_hypotheses, read_lines, refuse_subwords

REFERENCE = [
    'Er sagte: "Das ist gut."',
    "Zwei Hunde & eine Katze, 5% billiger.",
    "Ein Auto-Rennen?",
    "Der Mann liest ein Buch am Fenster.",
    "",
]
# tokenised as sacremoses does it, with an error here and there
TOKENISED = [
    "Er sagte : &quot; Das ist gut . &quot;",
    "Zwei Hunde &amp; eine Katze , 5 % teurer .",
    "Ein Auto @-@ Rennen ?",
    "Der Mann liest Buch am Fenster .",
    "ja .",
]


def generated(hypotheses, order=None, kind="D"):
    """Text as fairseq-generate prints it, in the order of its batches."""
    lines = ["INFO:some log line"]
    for number in order or range(len(hypotheses)):
        lines += [f"S-{number}\tsource {number}", f"T-{number}\ttarget {number}"]
        if kind == "D":
            lines += [f"H-{number}\t-0.5\tnot this one"]
        lines += [f"{kind}-{number}\t-0.5\t{hypotheses[number]}", f"P-{number}\t-0.1 -0.2"]
    return "\n".join([*lines, "Generate test with beam=4: BLEU4 = 1.23"]) + "\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "gen.out").write_text(generated(TOKENISED, [3, 0, 4, 1, 2]), encoding="utf-8")
    (tmp_path / "ref.de").write_text("".join(f"{line}\n" for line in REFERENCE), encoding="utf-8")
    return tmp_path


def program(folder, *args, check=True):
    arguments = [folder / "gen.out", "--ref", folder / "ref.de", "--pair", "en-de", *args]
    return helpers.run("fairseq-rope-score", *arguments, check=check)


def sacrebleu_command(folder, *args):
    """What the command ``sacrebleu`` prints of ``hyp.de`` against ``ref.de``: a list of dicts, BLEU and chrF."""
    command = [helpers.script("sacrebleu"), "ref.de", "-i", "hyp.de", "-m", "bleu", "chrf", *args]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def test_reads_by_id(files):
    hypotheses = read_hypotheses(files / "gen.out")
    assert list(hypotheses) == [3, 0, 4, 1, 2]
    assert in_order(hypotheses, 5) == TOKENISED


def test_detokenises_for_the_language():
    assert detokenize(TOKENISED[:3], "de") == [
        'Er sagte: "Das ist gut."', "Zwei Hunde & eine Katze, 5% teurer.", "Ein Auto-Rennen?",
    ]  # fmt: skip
    assert detokenize(["l&apos; homme arrive &quot; demain &quot; !"], "fr") == ['l\'homme arrive "demain" !']
    assert detokenize([""], "de") == [""]


@pytest.mark.parametrize("pair", ["en-de", "en-zh"])
def test_figures_are_those_of_sacrebleus_command(files, pair):
    outputs = ["--hypotheses", files / "hyp.de", "--json", files / "scores.json"]
    program(files, "--pair", pair, *outputs)
    ours = json.loads((files / "scores.json").read_text(encoding="utf-8"))
    theirs = sacrebleu_command(files, "-l", pair, "-w", "12")
    for name, one in zip(("bleu", "chrf"), theirs, strict=True):
        assert 0 < one["score"] < 100
        assert round(ours[name], 12) == one["score"]
        assert ours["signature"][name] == one["signature"]
    assert ("tok:zh" if pair == "en-zh" else "tok:13a") in ours["signature"]["bleu"]


def test_printed_table_and_hypotheses(files):
    printed = program(files, "--hypotheses", files / "hyp.de").out
    assert (files / "hyp.de").read_text(encoding="utf-8").split("\n") == [*detokenize(TOKENISED, "de"), ""]
    bleu, chrf = sacrebleu_command(files, "-l", "en-de", "-w", "2")
    assert printed.splitlines() == [
        "gen.out against ref.de, 5 sentences",
        f"sacreBLEU  {bleu['score']:6.2f}  {bleu['signature']}",
        f"chrF       {chrf['score']:6.2f}  {chrf['signature']}",
    ]


def test_programs_log_warnings_only():
    root = logging.getLogger()
    before = root.level
    with pytest.raises(SystemExit), one_line_errors("program"):
        assert root.level == logging.WARNING
        raise UserError("no")
    assert root.level == before


def test_perfect_and_plain_text(files):
    (files / "gen.out").write_text(generated(REFERENCE), encoding="utf-8")
    program(files, "--no-detokenize", "--json", files / "scores.json")
    scores = json.loads((files / "scores.json").read_text())
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)


def test_case_counts():
    upper = [line.upper() for line in REFERENCE]
    assert score(upper, REFERENCE, "de")["bleu"] < 10


def test_nbest_takes_the_first(tmp_path):
    text = "".join(f"H-0\t{s}\tx\nD-0\t{s}\thypothesis {s}\nP-0\t0\n" for s in (-0.1, -0.2, -0.3))
    (tmp_path / "gen.out").write_text(text + "D-1\t-1\tother\n")
    assert read_hypotheses(tmp_path / "gen.out") == {0: "hypothesis -0.1", 1: "other"}


def test_output_with_h_lines_only(tmp_path):
    (tmp_path / "gen.out").write_text(generated(["a", "b"], kind="H"))
    assert read_hypotheses(tmp_path / "gen.out") == {0: "a", 1: "b"}


def test_unusual_characters_stay_in_their_line(tmp_path):
    text = "a\u2028b\u0085c\x0bd"
    (tmp_path / "gen.out").write_text(f"D-0\t-1\t{text}\nD-1\t-1\t\n", encoding="utf-8")
    assert read_hypotheses(tmp_path / "gen.out") == {0: text, 1: ""}
    (tmp_path / "ref").write_bytes(b"one\r\ntwo\x0cthree\rfour\n\nlast")
    assert read_lines(tmp_path / "ref") == ["one", "two\x0cthree\rfour", "", "last"]


@pytest.mark.parametrize(
    "ids, count, message",
    [
        ([0, 1, 3], 4, r"holds 3 sentences, the reference 4 .*no sentence 2$"),
        ([0, 1, 2], 2, r"holds 3 sentences, the reference 2 .*a sentence 2$"),
        ([0, 2], 2, r"no sentence 1 and a sentence 2$"),
        ([0], 20, r"no sentence 1, 2, 3, 4, 5 and 14 more$"),
    ],
)
def test_counts_must_match(ids, count, message):
    with pytest.raises(UserError, match=message):
        in_order(dict.fromkeys(ids, "x"), count)


@pytest.mark.parametrize(
    "text, option",
    [("gu@@ t", "--remove-bpe"), ("gut ge@@", "--remove-bpe"), ("▁gut ▁so", "--remove-bpe sentencepiece")],
)
def test_subwords_left_in(text, option):
    with pytest.raises(UserError, match=f"sentence 1 still holds subwords .* with {option}$"):
        refuse_subwords(["fine", text])
    refuse_subwords(["mail me@@home", "a @ b", "_gut"])


def damaged(folder, what):
    """Make one thing wrong in ``folder``; returns further arguments."""
    generate = folder / "gen.out"
    text = generate.read_text(encoding="utf-8")
    if what == "missing id":
        generate.write_text(generated(TOKENISED, [0, 1, 2, 4]), encoding="utf-8")
    elif what == "two outputs":
        generate.write_text(text + text, encoding="utf-8")
    elif what == "cut off":
        generate.write_text(text[:-5], encoding="utf-8")
    elif what == "no output":
        generate.unlink()
    elif what == "quiet output":
        generate.write_text("Generate test with beam=4: BLEU4 = 1.23\n")
    elif what == "not UTF-8":
        generate.write_bytes(b"D-0\t-1\tgr\xfcn\n")
    elif what == "subwords":
        generate.write_text(generated(["ge@@ ht", *TOKENISED[1:]]), encoding="utf-8")
    elif what == "short reference":
        (folder / "ref.de").write_text("one line\n")
    elif what == "empty reference":
        (folder / "ref.de").write_text("")
    elif what == "pair":
        return ["--pair", "english"]
    elif what == "writes over an input":
        return ["--hypotheses", folder / "ref.de"]
    elif what == "no such folder":
        return ["--json", folder / "none" / "scores.json"]
    return []


@pytest.mark.parametrize(
    "what, message",
    [
        ("missing id", "no sentence 3"),
        ("two outputs", "holds sentence 3 twice"),
        ("cut off", "is cut off"),
        ("no output", "cannot read"),
        ("quiet output", "holds no hypotheses"),
        ("not UTF-8", "is not UTF-8 text: byte 0xfc"),
        ("subwords", "sentence 0 still holds subwords"),
        ("short reference", "holds 5 sentences, the reference 1"),
        ("empty reference", "is empty"),
        ("pair", "not a language pair such as en-de: 'english'"),
        ("writes over an input", "is an input"),
        ("no such folder", "there is no folder"),
    ],
)
def test_refusals(files, what, message):
    (files / "scores.json").write_text("old")
    arguments = damaged(files, what)
    reference = (files / "ref.de").read_bytes()
    result = program(files, "--json", files / "scores.json", *arguments, check=False)
    assert result.code in (1, 2) and result.out == ""
    (line,) = result.log.splitlines()
    assert line.startswith("fairseq-rope-score: error: ") and message in line
    assert (files / "scores.json").read_text() == "old" and (files / "ref.de").read_bytes() == reference
