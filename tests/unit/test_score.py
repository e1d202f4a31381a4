"""fairseq-rope-score: reading by sentence id, what is refused, sacreBLEU's own figures and significance test."""

import json
import logging
import random
import re
import subprocess

import helpers
import pytest

from fairseq_rope.cli.program import one_line_errors
from fairseq_rope.cli.score import comparison
from fairseq_rope.errors import UserError
from fairseq_rope.generate_output import in_order, read_lines, read_output, refuse_subwords
from fairseq_rope.scoring import detokenize, score

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


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "gen.out").write_text(generated(TOKENISED, [3, 0, 4, 1, 2]), encoding="utf-8")
    write(tmp_path / "ref.de", REFERENCE)
    return tmp_path


def program(folder, *args, check=True):
    arguments = [folder / "gen.out", "--ref", folder / "ref.de", "--pair", "en-de", *args]
    return helpers.run("fairseq-rope-score", *arguments, check=check)


def sacrebleu_command(folder, *args):
    """What the command ``sacrebleu`` prints of ``hyp.de`` against ``ref.de``: a list of dicts, BLEU and chrF."""
    command = [helpers.script("sacrebleu"), "ref.de", "-i", "hyp.de", "-m", "bleu", "chrf", *args]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def test_reads_by_id(files):
    hypotheses, targets = read_output(files / "gen.out")
    assert list(hypotheses) == list(targets) == [3, 0, 4, 1, 2]
    assert in_order(hypotheses, 5) == TOKENISED
    assert in_order(targets, 5) == [f"target {number}" for number in range(5)]


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
    ratio = float(bleu["verbose_score"].split("ratio = ")[1].split()[0])
    assert printed.splitlines() == [
        "gen.out against ref.de, 5 sentences",
        "tokenised BLEU         0.00   as fairseq-generate reports it: cased, on its own T lines",
        "compound-split BLEU    0.00   the same after x-y to x ##AT##-##AT## y",
        f"sacreBLEU            {bleu['score']:6.2f}   {bleu['signature']}",
        f"chrF                 {chrf['score']:6.2f}   {chrf['signature']}",
        f"length ratio         {ratio:7.3f}  sacreBLEU's tokens, hypotheses / reference",
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
    assert score(upper, [REFERENCE], "de")["bleu"] < 10


def test_nbest_takes_the_first(tmp_path):
    text = "".join(f"H-0\t{s}\tx\nD-0\t{s}\thypothesis {s}\nP-0\t0\n" for s in (-0.1, -0.2, -0.3))
    (tmp_path / "gen.out").write_text(text + "D-1\t-1\tother\n")
    assert read_output(tmp_path / "gen.out") == ({0: "hypothesis -0.1", 1: "other"}, {})


def test_a_target_comes_once(tmp_path):
    (tmp_path / "gen.out").write_text("T-0\tx\nT-0\tx\nD-0\t-1\ty\n")
    with pytest.raises(UserError, match="holds sentence 0 twice"):
        read_output(tmp_path / "gen.out")


def test_output_with_h_lines_only(tmp_path):
    (tmp_path / "gen.out").write_text(generated(["a", "b"], kind="H"))
    assert read_output(tmp_path / "gen.out").hypotheses == {0: "a", 1: "b"}


def test_unusual_characters_stay_in_their_line(tmp_path):
    text = "a\u2028b\u0085c\x0bd"
    lines = f"T-0\ta\tb\nD-0\t-1\t{text}\nT-1\t\nD-1\t-1\t\nD-2\tno score\n"
    (tmp_path / "gen.out").write_text(lines, encoding="utf-8")
    assert read_output(tmp_path / "gen.out") == ({0: text, 1: ""}, {0: "a\tb", 1: ""})
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
    with pytest.raises(UserError, match=message.replace("a sentence", "a T line").replace("sentence", "T line")):
        in_order(dict.fromkeys(ids, "x"), count, noun="T line")


@pytest.mark.parametrize(
    "text, option",
    [("gu@@ t", "--remove-bpe"), ("gut ge@@", "--remove-bpe"), ("▁gut ▁so", "--remove-bpe sentencepiece")],
)
def test_subwords_left_in(text, option):
    with pytest.raises(UserError, match=f"sentence 1 still holds subwords .* with {option}$"):
        refuse_subwords(["fine", text])
    refuse_subwords(["mail me@@home", "a @ b", "_gut"])


def systems(seed=3, count=40):
    """(reference, system, baseline): the baseline leaves out more words."""
    rng = random.Random(seed)
    reference = [
        " ".join(rng.choices(["ein", "Hund", "läuft", "am", "See", "und", "bellt"], k=8)) for _ in range(count)
    ]
    thinned = [[" ".join(w for w in line.split() if rng.random() > p) for line in reference] for p in (0.1, 0.14)]
    return reference, *thinned


@pytest.mark.parametrize("swapped", [False, True])
def test_paired_bootstrap_is_that_of_sacrebleus_command(tmp_path, swapped):
    reference, *two = systems()
    system, baseline = reversed(two) if swapped else two
    write(tmp_path / "ref.de", reference)
    for name, texts in (("gen.out", system), ("base.out", baseline)):
        (tmp_path / name).write_text(generated(texts), encoding="utf-8")
        write(tmp_path / f"{name}.txt", texts)
    printed = program(tmp_path, "--against", tmp_path / "base.out", "--json", tmp_path / "scores.json").out
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    command = [helpers.script("sacrebleu"), "ref.de", "-i", "base.out.txt", "gen.out.txt", "-m", "bleu", "chrf"]
    # as a table: with NumPy 2 sacreBLEU 2.6 cannot write this test's JSON
    options = ["--paired-bs", "-l", "en-de", "--no-color", "-w", "9", "-f", "text"]
    done = subprocess.run([*command, *options], cwd=tmp_path, check=True, capture_output=True, encoding="utf-8").stdout
    theirs = re.findall(r"(\d+\.\d{9}) \((\d+\.\d{9}) ± (\d+\.\d{9})\)", done)  # baseline, then system
    p_values = re.findall(r"\(p = (\d\.\d{4})\)", done)
    compared = scores["paired_bootstrap"]
    assert compared["samples"] == 1000 and compared["baseline"] == str(tmp_path / "base.out")
    assert (len(theirs), len(p_values)) == (4, 2)
    for column, name in enumerate(("bleu", "chrf")):
        for row, who in enumerate(("baseline", "system")):
            x = compared[name][who]
            assert tuple(f"{x[key]:.9f}" for key in ("score", "mean", "interval")) == theirs[2 * row + column]
        assert f"{compared[name]['p_value']:.4f}" == p_values[column]
        assert compared[name]["better"] == ("baseline" if swapped else "system")
        assert compared[name]["significant"] == (float(p_values[column]) < 0.05)
        assert compared["signature"][name] in done and compared["signature"][name] in printed
        assert "|bs:1000|seed:12345|" in compared["signature"][name]
        assert scores[name] == pytest.approx(compared[name]["system"]["score"], abs=1e-9)
    x = compared["bleu"]["system"]
    p = f"p = {compared['bleu']['p_value']:.4f}"
    assert (
        f"  sacreBLEU  {x['score']:6.2f}  {x['mean']:6.2f} ± {x['interval']:.2f}  {p}  gen.out" in printed.splitlines()
    )


def test_significance_in_words():
    def words(better, p, significant):
        result = {"system": x, "baseline": x, "p_value": p, "better": better, "significant": significant}
        compared = {"samples": 1000, "signature": {}, "bleu": result, "chrf": result}
        return comparison(compared, "new", "old").splitlines()[-1]

    x = {"score": 1.0, "mean": 1.0, "interval": 0.1}
    assert words("system", 0.01, True) == "chrF: new is significantly better than old (p < 0.05)"
    assert words("baseline", 0.01, True) == "chrF: old is significantly better than new (p < 0.05)"
    assert words("system", 0.2, False).startswith(
        "chrF: new has the higher figure, but its difference to old is not si"
    )
    assert words("baseline", 0.2, False).startswith("chrF: old has the higher figure, but its difference to new is not")
    assert words(None, 0.001, False) == "chrF: the figures are equal, there is no difference to test"


def test_equal_outputs_do_not_differ(tmp_path):
    reference, system, _ = systems()
    other = tmp_path / "other" / "gen.out"
    other.parent.mkdir()
    write(tmp_path / "ref.de", reference)
    for path in (tmp_path / "gen.out", other):
        path.write_text(generated(system), encoding="utf-8")
    printed = program(tmp_path, "--against", other, "--json", tmp_path / "scores.json").out
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    for name in ("bleu", "chrf"):
        assert scores["paired_bootstrap"][name]["p_value"] < 0.05  # sacreBLEU's own, of no meaning for equal figures
        assert scores["paired_bootstrap"][name]["significant"] is False
        assert scores["paired_bootstrap"][name]["better"] is None
    assert "  equal       " in printed and "p = " not in printed
    assert f"(baseline)  {other}" in printed  # one name twice: whole paths tell them apart


def damaged(folder, what):
    """Make one thing wrong in ``folder``; returns further arguments."""
    generate = folder / "gen.out"
    text = generate.read_text(encoding="utf-8")
    if what == "missing id":
        generate.write_text(generated(TOKENISED, [0, 1, 2, 4]), encoding="utf-8")
    elif what == "missing T line":
        generate.write_text(text.replace("T-3\ttarget 3\n", ""), encoding="utf-8")
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
    elif what == "subwords in a T line":
        generate.write_text(text.replace("target 2", "▁tar get ▁2"), encoding="utf-8")
    elif what == "short reference":
        (folder / "ref.de").write_text("one line\n")
    elif what == "empty reference":
        (folder / "ref.de").write_text("")
    elif what == "pair":
        return ["--pair", "english"]
    elif what == "two references":
        return ["--test-set", "wmt14/full"]
    elif what == "against itself":
        (folder / "link").symlink_to(generate)
        return ["--against", folder / "link"]
    elif what == "against a short one":
        (folder / "base.out").write_text(generated(TOKENISED[:4]))
        return ["--against", folder / "base.out"]
    elif what == "against subwords":
        (folder / "base.out").write_text(generated(["ge@@ ht", *TOKENISED[1:]]))
        return ["--against", folder / "base.out"]
    elif what == "against what it writes":
        (folder / "scores.json").write_text(text)
        return ["--against", folder / "scores.json"]
    elif what == "writes over an input":
        return ["--hypotheses", folder / "ref.de"]
    elif what == "writes one file twice":
        return ["--hypotheses", folder / "new", "--json", folder / "x" / ".." / "new"]
    elif what == "no such folder":
        return ["--json", folder / "none" / "scores.json"]
    return []


@pytest.mark.parametrize(
    "what, message",
    [
        ("missing id", "no sentence 3"),
        ("missing T line", "holds 4 T lines, the reference 5 (ids 0 to 4); the output has no T line 3"),
        ("two outputs", "holds sentence 3 twice"),
        ("cut off", "is cut off"),
        ("no output", "cannot read"),
        ("quiet output", "holds no hypotheses"),
        ("not UTF-8", "is not UTF-8 text: byte 0xfc"),
        ("subwords", "sentence 0 still holds subwords"),
        ("subwords in a T line", "T line 2 still holds subwords ('▁' in '▁tar get ▁2')"),
        ("short reference", "holds 5 sentences, the reference 1"),
        ("empty reference", "is empty"),
        ("pair", "not a language pair such as en-de: 'english'"),
        ("two references", "argument --test-set: not allowed with argument --ref"),
        ("against itself", "names the output itself"),
        ("against a short one", "base.out holds 4 sentences, the reference 5"),
        ("against subwords", "base.out: sentence 0 still holds subwords"),
        ("against what it writes", "is an input"),
        ("writes over an input", "is an input"),
        ("writes one file twice", "choose two names"),
        ("no such folder", "there is no folder"),
    ],
)
def test_refusals(files, what, message):
    (files / "scores.json").write_text("old")
    (files / "x").mkdir()
    arguments = damaged(files, what)
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    outputs = ["--json", files / "scores.json", "--hypotheses", files / "hyp.de"]
    result = program(files, *outputs, *arguments, check=False)
    assert result.code in (1, 2) and result.out == ""
    (line,) = result.log.splitlines()
    assert line.startswith("fairseq-rope-score: error: ") and message in line
    assert {path: path.read_bytes() for path in files.iterdir() if path.is_file()} == before


def test_a_reference_is_needed(files):
    result = helpers.run("fairseq-rope-score", files / "gen.out", "--pair", "en-de", check=False)
    assert result.code == 2 and "one of the arguments --ref --test-set is required" in result.log
