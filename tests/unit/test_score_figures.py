"""Each figure of fairseq-rope-score against the program it has to agree with, and against counts made by hand."""

import io
import json
import logging
import re
import shutil
import socket
import subprocess
import tarfile
import urllib.request
from math import exp
from types import SimpleNamespace

import helpers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope import published, scoring
from fairseq_rope.cli import score as program
from fairseq_rope.errors import UserError
from fairseq_rope.generate_output import read_lines

WORDS = ["a", "b", "c", "<unk>", "<<unk>>", "</s>", "<pad>", "<s>", "x-y", "\u00a0", "\x1c"]
TEST_SET = "newstest2014-deen-ref.de.sgm"


def fairseq_bleu(hypotheses, references):
    """The line that fairseq's own scorer prints, fed as fairseq_cli.score feeds it."""
    from fairseq.data import Dictionary
    from fairseq.scoring.bleu import BleuConfig, Scorer

    words = Dictionary()
    scorer = Scorer(BleuConfig(pad=words.pad(), eos=words.eos(), unk=words.unk()))
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scorer.add(words.encode_line(reference), words.encode_line(hypothesis))
    return scorer.result_string()


def bleu4(text):
    """The two decimals behind the last "BLEU4 = " in what a program of fairseq printed."""
    return re.findall(r"BLEU4 = ([\d.]+),", text)[-1]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def generated(hypotheses, targets=None):
    """Lines as fairseq-generate prints them, last sentence first; without targets as fairseq-interactive does."""
    lines = []
    for number in reversed(range(len(hypotheses))):
        lines += [f"T-{number}\t{targets[number]}"] if targets else []
        lines += [f"{kind}-{number}\t-0.5\t{hypotheses[number]}" for kind in "HD"]
    return lines


def figures(folder, *args, pair="en-de"):
    """Run the program on gen.out and ref in ``folder``; returns (JSON, printed text)."""
    reference = [] if "--test-set" in args else ["--ref", folder / "ref"]
    out = folder / "scores.json"
    result = helpers.run("fairseq-rope-score", folder / "gen.out", *reference, "--pair", pair, "--json", out, *args)
    return json.loads(out.read_text(encoding="utf-8")), result.out


# --- tokenised BLEU ---


def test_tokenised_bleu_is_what_fairseq_generate_prints(tmp_path):
    text = helpers.write_digits(tmp_path / "text", splits=(("train", 60), ("valid", 5), ("test", 12)))
    # words that the dictionary lacks, forced into the hypotheses below: neither side's unknown word may match
    targets = read_lines(text / "test.de")
    write(text / "test.de", ["neu " + line + " ein-zwei alt" if n % 3 else line for n, line in enumerate(targets)])
    data = helpers.binarize(text, tmp_path / "bin")
    options = ["--num-workers", 0]
    helpers.run("fairseq-train", *helpers.train_args(data, tmp_path / "model", "roformer_tiny", *options, updates=1))
    # the first words of each target are given, so that an untrained model has matches of every order
    printed = helpers.run(
        "fairseq-generate", data, "--user-dir", helpers.USER_DIR, "--path", tmp_path / "model" / "checkpoint_last.pt",
        "--cpu", "--beam", 1, "--remove-bpe", "--prefix-size", 7, "--max-len-b", 9, "--max-len-a", 0, *options,
    )  # fmt: skip
    (tmp_path / "gen.out").write_text(printed.text, encoding="utf-8")
    write(tmp_path / "ref", targets)
    ours, table = figures(tmp_path)
    assert "\t<<unk>> " in printed.out and "\t<unk> " in printed.out
    assert 5 < float(bleu4(printed.out)) < 95
    assert f"{ours['tokenized_bleu']:.2f}" == bleu4(printed.out)
    assert f"tokenised BLEU       {float(bleu4(printed.out)):6.2f} " in table
    assert ours["tokenization"] == "T lines"


def test_tokenised_bleu_is_what_fairseq_score_prints(tmp_path, monkeypatch, capsys):
    from fairseq_cli import score as fairseq_score

    reference = ["der Hund läuft schnell weg .", "", "Ein Auto @-@ Rennen in der Stadt ?", "a b c d <unk> e"]
    system = ["der Hund läuft weg .", "", "ein Auto @-@ Rennen in der Stadt ?", "a b c d <unk> f g"]
    files = [str(write(tmp_path / name, lines)) for name, lines in (("sys", system), ("ref", reference))]
    monkeypatch.setattr("sys.argv", ["fairseq-score", "--sys", files[0], "--ref", files[1]])
    fairseq_score.cli_main()
    expected = bleu4(capsys.readouterr().out)
    write(tmp_path / "gen.out", generated(system, reference))
    ours, _ = figures(tmp_path)
    assert f"{ours['tokenized_bleu']:.2f}" == expected
    assert 5 < float(expected) < 95


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(*2 * [st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)]), min_size=1, max_size=4))
def test_tokenised_bleu_of_any_text(pairs):
    hypotheses, references = zip(*pairs, strict=True)
    ours = scoring.tokenized_bleu(hypotheses, [references])
    assert f"{ours:.2f}" == bleu4(fairseq_bleu(hypotheses, references))


# --- compound splitting ---


@pytest.mark.parametrize(
    "text, split",
    [
        ("x-y", "x ##AT##-##AT## y"),
        ("a rich-text format", "a rich ##AT##-##AT## text format"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the b is used up by the first match
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a---b", "a ##AT##-##AT## --b"),
        ("- x -y z- a - b", "- x -y z- a - b"),
        ("a-ä-b", "a ##AT##-##AT## ä ##AT##-##AT## b"),  # ä is two bytes to perl
        ("a\u00a0-b", "a\u00a0 ##AT##-##AT## b"),  # a no-break space is no space to perl
        ("", ""),
    ],
)
def test_compounds_are_split_as_the_script_does(text, split):
    assert scoring.split_compounds(text) == split
    if shutil.which("perl"):
        script = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
        out = subprocess.run(["perl", "-ple", script], input=text.encode(), capture_output=True, check=True).stdout
        assert out.decode().rstrip("\n") == split


def test_a_hyphen_that_moses_split_is_one_token():
    assert scoring.split_compounds("Auto @-@ Rennen") == "Auto ##AT##-##AT## Rennen"
    assert scoring.split_compounds("@-@ x-y @-@") == "##AT##-##AT## x ##AT##-##AT## y ##AT##-##AT##"
    assert scoring.split_compounds("a@-@b") == "a@ ##AT##-##AT## @b"  # not a token of its own: the script's rule


@pytest.mark.parametrize(
    "hypothesis, reference, plain, split",
    [
        # five words, all but the first right; after splitting seven
        ("d b c x-y e", "a b c x-y e", (4 / 5, 3 / 4, 2 / 3, 1 / 2), (6 / 7, 5 / 6, 4 / 5, 3 / 4)),
        # split by Moses already: @-@ becomes one token, the counts stay 6 of 7, 5 of 6, …; the three tokens that
        # the script makes of it would give 8 of 9, 7 of 8, 6 of 7, 5 of 6
        ("d b c x @-@ y e", "a b c x @-@ y e", (6 / 7, 5 / 6, 4 / 5, 3 / 4), (6 / 7, 5 / 6, 4 / 5, 3 / 4)),
    ],
)
def test_compound_split_bleu_by_hand(hypothesis, reference, plain, split):
    def bleu(precisions):  # equal lengths: no brevity penalty
        product = 1
        for precision in precisions:
            product *= precision
        return 100 * product**0.25

    assert scoring.tokenized_bleu([hypothesis], [[reference]]) == pytest.approx(bleu(plain), abs=1e-9)
    assert scoring.compound_split_bleu([hypothesis], [[reference]]) == pytest.approx(bleu(split), abs=1e-9)


def test_tokenised_bleu_by_hand():
    # a short hypothesis, 4 of 4, 3 of 3, …, against 5 words: brevity penalty alone; case counts, nothing is smoothed
    assert scoring.tokenized_bleu(["a b c d"], [["a b c d e"]]) == pytest.approx(100 * exp(1 - 5 / 4), abs=1e-9)
    assert scoring.tokenized_bleu(["a b c d"], [["A B C D"]]) == 0
    assert scoring.tokenized_bleu(["a b c"], [["a b c"]]) == 0  # no 4-gram
    assert scoring.tokenized_bleu(["a b c d e"], [["a b c d e"]]) == pytest.approx(100)


def test_compound_splitting_is_for_en_de_only(tmp_path):
    write(tmp_path / "ref", ["x-y a b"])
    write(tmp_path / "gen.out", generated(["x-y a b"], ["x-y a b"]))
    assert figures(tmp_path, pair="en-de")[0]["compound_split_bleu"] == pytest.approx(100)
    for pair in ("en-fr", "de-en", "fr-de"):
        scores, printed = figures(tmp_path, pair=pair)
        assert scores["compound_split_bleu"] is None
        assert "compound-split BLEU       -   for en-de only" in printed.splitlines()


# --- no T lines, plain text ---


def test_without_t_lines_both_sides_are_tokenised(tmp_path):
    raw = ['Er sagt: "Gut, ein Auto-Rennen!"', "Der Mann liest ein Buch am Fenster."]
    tokenised = ["Er sagt : &quot; Gut , ein Auto @-@ Rennen ! &quot;", "Der Mann las ein Buch am Fenster ."]
    plain = ['Er sagt: "Gut, ein Auto-Rennen!"', "Der Mann las ein Buch am Fenster."]
    assert scoring.tokenize(plain, "de") == tokenised
    expected = bleu4(fairseq_bleu(tokenised, scoring.tokenize(raw, "de")))
    write(tmp_path / "ref", raw)
    untokenised = ["not ▁ tokenised", "at all"]
    for lines, options in (
        (generated(tokenised), []),  # fairseq-interactive
        (generated(plain), ["--no-detokenize"]),
        (generated(plain, raw), ["--no-detokenize"]),  # T lines of a sentencepiece model are not tokenised
    ):
        write(tmp_path / "gen.out", lines)
        scores, printed = figures(tmp_path, *options)
        assert f"{scores['tokenized_bleu']:.2f}" == f"{scores['compound_split_bleu']:.2f}" == expected
        assert scores["tokenization"] == "sacremoses" and "raw reference tokenised by sacremoses" in printed
    write(tmp_path / "gen.out", generated(plain, untokenised))
    with pytest.raises(AssertionError, match="T line 0 still holds subwords"):
        figures(tmp_path, "--no-detokenize")


def test_blank_texts_have_figures(tmp_path):
    write(tmp_path / "ref", ["", " "])
    write(tmp_path / "gen.out", generated(["", ""], ["", ""]))
    scores, printed = figures(tmp_path)
    assert scores["bleu"] == scores["tokenized_bleu"] == 0 and scores["length_ratio"] is None
    assert "length ratio              -   the reference is empty" in printed.splitlines()


# --- test sets by name ---


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """sacreBLEU's folder moved to an empty one, and no way to the network; returns (folder, tried addresses)."""
    from sacrebleu import utils
    from sacrebleu.dataset import DATASETS

    folder, tried = tmp_path / "sacrebleu", []

    def refuse(address, *args, **kwargs):
        tried.append(address)
        assert socket.getdefaulttimeout() == program.DOWNLOAD_TIMEOUT
        raise OSError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(folder))
    monkeypatch.setattr(DATASETS["wmt14/full"], "_outdir", str(folder / "wmt14" / "full"))
    monkeypatch.setattr(DATASETS["wmt14/full"], "_rawdir", str(folder / "wmt14" / "full" / "raw"))
    return folder, tried


@pytest.fixture
def newstest2014(cache, real_data):
    """sacreBLEU's folder with the genuine newstest2014 as downloaded and unpacked; returns it."""
    folder, tried = cache
    archive = real_data / "wmt-layout" / "mirror" / "statmt.org" / "wmt14" / "test-full.tgz"
    if not archive.is_file():
        pytest.skip(f"no {archive.name} in the mirror of $FAIRSEQ_ROPE_DATA")
    raw = folder / "wmt14" / "full" / "raw"
    raw.mkdir(parents=True)
    shutil.copy(archive, raw / "wmt14_full.test-full.tgz")
    with tarfile.open(archive) as tar:
        tar.extractall(raw, filter="data")
    yield folder
    assert not tried


@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_newstest2014_by_name(tmp_path, newstest2014, pair):
    files = program.test_set_files("wmt14/full", pair)  # sacreBLEU extracts them, once
    assert files == [str(newstest2014 / "wmt14" / "full" / f"wmt14_full.{pair}.ref")]
    reference = read_lines(files[0])
    assert len(reference) == 3003
    texts = [line.removesuffix(" .").removesuffix(".") for line in reference]
    write(tmp_path / "gen.out", generated(texts, reference))
    scores, printed = figures(tmp_path, "--test-set", "wmt14/full", "--hypotheses", tmp_path / "hyp", pair=pair)
    assert scores["reference"] == {"name": "wmt14/full", "sha256": published.NEWSTEST2014[pair]}
    command = [helpers.script("sacrebleu"), "-t", "wmt14/full", "-l", pair, "-i", "hyp", "-w", "9"]
    env = helpers.environment(SACREBLEU=str(newstest2014))
    theirs = json.loads(subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True).stdout)
    assert round(scores["bleu"], 9) == theirs["score"] and scores["signature"]["bleu"] == theirs["signature"]
    expected = [figure for figure in published.FIGURES if figure.pair == pair]
    assert len(expected) == len(scores["published"]) and len({x["metric"] for x in scores["published"]}) >= 3
    beside = printed[printed.index("sacreBLEU  ") : printed.index("chrF  ")]
    assert re.findall(r"\d\d\.\d+    (?:Transformer|RealFormer|ADMIN).*", beside) == [
        f"{'28.6' if pair == 'en-de' else '41.4'}    Transformer big, large batches (Ott et al. 2018, Scaling NMT)"
    ]


def test_published_figures_need_newstest2014(tmp_path, newstest2014):
    reference = read_lines(program.test_set_files("wmt14/full", "en-de")[0])
    write(tmp_path / "gen.out", generated(["x"] * 3003, ["x"] * 3003))
    write(tmp_path / "ref", reference)
    scores, printed = figures(tmp_path)  # known by its contents
    assert "published, metric not stated" in printed and "27.5    RoFormer base (RoFormer, Table 1)" in printed
    sha256 = published.NEWSTEST2014["en-de"]
    assert scores["reference"] == {"name": str(tmp_path / "ref"), "sha256": sha256}
    assert len(scores["published"]) == len(published.published_for("en-de", sha256)) > 20
    (tmp_path / "ref").write_bytes("\r\n".join(reference).encode())  # other line ends, none at the end: the same text
    arguments = SimpleNamespace(ref=str(tmp_path / "ref"), test_set=None, pair=("en", "de"))
    assert program.read_reference(arguments).sha256() == sha256
    write(tmp_path / "ref", [*reference[:-1], reference[-1] + "!"])
    assert program.read_reference(arguments).sha256() != sha256


def test_other_references_have_no_published_figures(tmp_path):
    write(tmp_path / "ref", ["a b"])
    write(tmp_path / "gen.out", generated(["a b"], ["a b"]))
    scores, printed = figures(tmp_path)
    assert scores["published"] == [] and scores["paired_bootstrap"] is None
    assert len(printed.splitlines()) == 6 and "published" not in printed


def test_a_test_set_that_cannot_be_got(tmp_path, cache):
    folder, tried = cache
    write(tmp_path / "gen.out", generated(["x"]))

    def refused(name, pair="en-de"):
        arguments = [tmp_path / "gen.out", "--test-set", name, "--pair", pair, "--json", tmp_path / "scores.json"]
        result = helpers.run("fairseq-rope-score", *arguments, check=False)
        (line,) = result.log.splitlines()
        assert result.code == 1 and not result.out and not (tmp_path / "scores.json").exists()
        return line

    line = refused("wmt14/full")
    assert "no network in tests" in line and "--ref FILE" in line and str(folder / "wmt14" / "full") in line
    assert "variable SACREBLEU" in line and len(tried) == 1
    assert socket.getdefaulttimeout() is None and logging.getLogger("sacrebleu").propagate
    line = refused("wmt14-full")
    assert "no test set 'wmt14-full' for en-de" in line and "wmt14, wmt14/full" in line and "mtnt" not in line
    assert "no test set 'wmt14/full' for en-zh" in refused("wmt14/full", "en-zh")
    assert refused("wmt14/full", "de-fi").endswith("for de-fi: none")
    assert len(tried) == 1


def test_what_sacrebleu_says_of_a_bad_download(cache, monkeypatch):
    folder, _ = cache
    monkeypatch.setattr(urllib.request, "urlopen", lambda address: io.BytesIO(b"<html>404</html>"))
    with pytest.raises(UserError, match=r"MD5 sum of downloaded file was incorrect.*--ref FILE"):
        program.test_set_files("wmt14/full", "en-de")
    with pytest.raises(UserError, match=r"FileNotFoundError.*--ref FILE"):  # it keeps the file and reads no further
        program.test_set_files("wmt14/full", "en-de")
    shutil.rmtree(folder)

    def stopped(address):
        raise SystemExit(143)

    monkeypatch.setattr(urllib.request, "urlopen", stopped)
    with pytest.raises(SystemExit, match="143"):  # SIGTERM meanwhile is no failed download
        program.test_set_files("wmt14/full", "en-de")


def test_test_sets_with_several_references(tmp_path, monkeypatch):
    streams = [write(tmp_path / f"ref{n}", lines) for n, lines in enumerate((["a b c d", "e f"], ["a b x d", "e g h"]))]
    monkeypatch.setattr(program, "test_set_files", lambda name, pair: [str(path) for path in streams])
    write(tmp_path / "gen.out", generated(["a b x d", "e f"]))
    scores, _ = figures(tmp_path, "--test-set", "two", "--hypotheses", tmp_path / "hyp")
    assert scores["signature"]["bleu"].startswith("nrefs:2|") and scores["bleu"] == pytest.approx(100)
    assert scores["tokenized_bleu"] == pytest.approx(100) and scores["sentences"] == 2
    write(streams[1], ["a b x d"])
    with pytest.raises(UserError, match="differ in length"):
        program.read_reference(SimpleNamespace(ref=None, test_set="two", pair=("en", "de")))


# --- published figures ---


def test_published_figures_are_those_of_the_papers():
    def values(pair, metric, start):
        return [
            x.printed for x in published.FIGURES if (x.pair, x.metric) == (pair, metric) and x.system.startswith(start)
        ]

    assert values("en-de", "tokenized_bleu", "RealFormer") == ["28.17", "29.06", "29.35"]
    assert values("en-fr", "tokenized_bleu", "RealFormer") == ["41.92", "43.97"]
    assert values("en-de", "tokenized_bleu", "Post-LN") == ["27.80"]
    assert values("en-fr", "tokenized_bleu", "Post-LN") == ["41.29"]
    assert values("en-fr", "tokenized_bleu", "ADMIN (Liu") == ["41.47", "43.80"]
    assert values("en-de", "compound_split_bleu", "Transformer") == ["27.3", "29.29"]
    assert values("en-de", "bleu", "Transformer") == ["28.6"]
    assert values("en-de", "not stated", "RoFormer") == ["27.5"]
    assert not [x for x in published.FIGURES if x.pair == "en-fr" and x.metric == "compound_split_bleu"]
    for x in published.FIGURES:
        assert x.pair in published.NEWSTEST2014 and x.source and 25 < x.value < 50
        assert x.metric in ("tokenized_bleu", "compound_split_bleu", "bleu", "not stated")
    for pair, sha256 in published.NEWSTEST2014.items():
        assert published.published_for(pair, sha256) == published.published_for(pair, "", "wmt14/full") != []
        assert published.published_for(pair, "", "wmt14") == published.published_for("de-en", sha256) == []
