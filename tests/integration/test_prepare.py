"""fairseq-rope-prepare on the tiny WMT mirror: against the plain tools, killed at every step, and what it refuses."""

import io
import json
import os
import shutil
import signal
import tarfile
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import helpers
import pytest
import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_rope.cli.prepare import parser, read_options
from fairseq_rope.errors import UserError
from fairseq_rope.prepare.manifest import check_count
from fairseq_rope.prepare.pipeline import Preparation
from fairseq_rope.prepare.state import locked, need_space
from fairseq_rope.prepare.text import line_processor

MIRROR = helpers.DATA / "wmt-layout" / "mirror"
WMT13, WMT14, WMT17 = "statmt.org/wmt13", "statmt.org/wmt14", "data.statmt.org/wmt17/translation-task"
pytestmark = pytest.mark.skipif(not MIRROR.is_dir(), reason="needs wmt-layout of $FAIRSEQ_ROPE_DATA")
LIMIT = 120
BASE = ["wmt14", "--limit", str(LIMIT), "--bpe-merges", "150", "--workers", "1"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """What no mirror has is not sought on the original servers: nothing listens there."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # urllib keeps the proxies of its first download


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """The tiny mirror with a test set of its first 40 segments."""
    folder = tmp_path_factory.mktemp("mirror") / "mirror"
    shutil.copytree(MIRROR, folder, copy_function=shutil.copyfile)
    with tarfile.open(MIRROR / WMT14 / "test-full.tgz") as whole:
        sgm = {member.name: whole.extractfile(member).read().split(b"\n") for member in whole if member.isfile()}
    with tarfile.open(folder / WMT14 / "test-full.tgz", "w:gz") as small:
        for name, lines in sgm.items():
            last = [number for number, line in enumerate(lines) if b"<seg" in line][39]
            add(small, name, b"\n".join([*lines[: last + 1], b"</doc>", *lines[-2:]]))
    return folder


def add(archive, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def prepare(out, mirror, *options, pair="en-de", check=True):
    arguments = [*BASE, "--pair", pair, "--out", out, "--mirror", mirror, *options]
    return helpers.run("fairseq-rope-prepare", *arguments, check=check)


def preparation(out, mirror, *options, shard_pairs):
    """The same as an object, with shards small enough for several a corpus."""
    arguments = parser().parse_args([*BASE, "--pair", "en-de", "--out", str(out), *options])
    say = [].append
    return Preparation(read_options(arguments), out, mirrors=[str(mirror)], say=say, shard_pairs=shard_pairs)


def contents(out):
    """Every file that a preparation leaves, but its log and the sidecars of archives."""
    paths = [path for path in Path(out).rglob("*") if path.is_file()]
    names = {str(path.relative_to(out)): path.read_bytes() for path in paths}
    return {name: data for name, data in names.items() if "download/" not in name and "preprocess.log" not in name}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, mirror):
    """A preparation that nothing disturbed, in one process and one shard a corpus."""
    out = tmp_path_factory.mktemp("prepare") / "whole"
    result = prepare(out, mirror, "--news-commentary", "v12")
    assert "[7/7] binarise" in result.out and "is ready" in result.out
    return out


def member_lines(archive, member):
    with tarfile.open(archive) as tar:
        return tar.extractfile(member).read().decode("utf-8").split("\n")[:-1]


def reference(folder, mirror, merges):
    """The scripts' steps, each by the usual tool alone; writes subwords and data-bin into ``folder``."""
    text = {}
    for language in ("en", "de"):
        lines = [
            line
            for archive, member in (
                (f"{WMT13}/training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"),
                (f"{WMT13}/training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
                (f"{WMT17}/training-parallel-nc-v12.tgz", "training/news-commentary-v12.de-en"),
            )
            for line in member_lines(mirror / archive, f"{member}.{language}")[:LIMIT]
        ]
        normalizer, tokenizer = MosesPunctNormalizer(lang=language, perl_parity=True), MosesTokenizer(lang=language)

        def tokenize(line, tokenizer=tokenizer):
            return tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True)

        lines = [tokenize(regex.sub(r"\p{C}", " ", normalizer.normalize(line))) for line in lines]
        text["train", language] = [line for number, line in enumerate(lines, 1) if number % 100]
        text["valid", language] = [line for number, line in enumerate(lines, 1) if number % 100 == 0]
        side = f"test-full/newstest2014-deen-{'src' if language == 'en' else 'ref'}.{language}.sgm"
        raw = [line for line in member_lines(mirror / f"{WMT14}/test-full.tgz", side) if "<seg" in line]
        raw = [regex.sub("<[^>]*>", "", line).strip() for line in raw]
        text["test", language] = [tokenize(line.replace("’", "'")) for line in raw]
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join([*text["train", "en"], *text["train", "de"]])), codes, merges)
    bpe = BPE(codes)
    folder.mkdir()
    for split in ("train", "valid", "test"):
        sides = [[bpe.process_line(line) for line in text[split, language]] for language in ("en", "de")]
        pairs = list(zip(*sides, strict=True))
        if split != "test":
            pairs = [tuple(" ".join(side.split()) for side in pair) for pair in pairs]  # as clean-corpus-n.perl does
            lengths = [sorted(len(side.split()) for side in pair) for pair in pairs]
            keep = [short >= 1 and long <= 250 and long / max(short, 1) <= 1.5 for short, long in lengths]
            pairs = [pair for pair, kept in zip(pairs, keep, strict=True) if kept]
        for i, language in enumerate(("en", "de")):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[i]}\n" for pair in pairs), "utf-8")
    helpers.binarize(folder, folder / "data-bin")
    return codes.getvalue()


def test_equals_the_usual_tools(finished, mirror, tmp_path):
    """Text, merges, dictionary and binary files are those that the tools make one after another."""
    codes = reference(tmp_path / "plain", mirror, 150)
    assert (finished / "codes").read_text("utf-8") == codes
    for name in [f"{split}.{language}" for split in ("train", "valid", "test") for language in ("en", "de")]:
        assert (finished / "text" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
    plain = contents(tmp_path / "plain" / "data-bin")
    assert len(plain) == 14
    assert contents(finished / "data-bin") == plain


def test_manifest(finished):
    manifest = json.loads((finished / "manifest.json").read_text("utf-8"))
    assert manifest["options"]["pair"] == "en-de" and manifest["options"]["news_commentary"] == "v12"
    counts = manifest["counts"]
    assert {name: count["pairs"] for name, count in counts["raw"].items()} == dict.fromkeys(
        ("europarl-v7", "commoncrawl", "news-commentary-v12"), LIMIT
    )
    assert counts["raw"]["commoncrawl"]["expected"] == 2_399_123
    assert counts["tokenised"] == {"train": 3 * LIMIT - 3, "valid": 3, "valid_is_every": 100}
    cleaned = counts["cleaned"]
    dropped = sum(cleaned["dropped"].values())
    assert cleaned["train"] + cleaned["valid"] + dropped == 3 * LIMIT
    assert counts["test"] == {"pairs": 40, "expected": 3003}
    lines = [(finished / "text" / f"{name}.de").read_bytes().count(b"\n") for name in ("train", "valid", "test")]
    assert lines == [cleaned["train"], cleaned["valid"], 40]
    assert not manifest["data"]["test-full.tgz"]["published"]
    assert "sacremoses" in manifest["made"]["tools"] and str(finished) not in json.dumps(manifest)
    assert {entry.name for entry in finished.iterdir()} == {
        "codes", "data-bin", "download", "manifest.json", "options.json", "raw", "text",
    }  # fmt: skip
    raw = (finished / "raw" / "newstest2014.de").read_text("utf-8").split("\n")
    assert raw[0] == "Gutach: Noch mehr Sicherheit für Fußgänger" and len(raw) == 41


def test_again_and_other_options(finished, mirror):
    before = contents(finished)
    again = prepare(finished, mirror, "--news-commentary", "v12")
    assert "is ready" in again.out and "[1/7]" not in again.out
    other = prepare(finished, mirror, "--news-commentary", "v9", check=False)
    assert other.code == 1 and other.log.count("\n") == 1
    assert "holds a preparation with other options (news-commentary was v12, is now v9)" in other.log
    assert contents(finished) == before


def test_killed_at_every_step(finished, mirror, tmp_path, monkeypatch):
    """SIGKILL just before each file or folder takes its name, one step a run (or as many as it takes to get anywhere,
    since the two members of an archive are written together); several shards a corpus."""
    out = tmp_path / "out"
    steps = Counter()

    def deadly(function):
        def renaming(*args, **kwargs):
            if steps["left"] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            steps["left"] -= 1
            return function(*args, **kwargs)

        return renaming

    monkeypatch.setattr(os, "replace", deadly(os.replace))
    monkeypatch.setattr(os, "rename", deadly(os.rename))  # Path.rename calls it
    kills, allowed, names = 0, 0, []
    while kills < 200:
        child = os.fork()
        if child == 0:
            steps["left"] = allowed
            code = 1
            try:
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), 2)
                    os.dup2(nowhere.fileno(), 1)
                    preparation(out, mirror, "--news-commentary", "v12", shard_pairs=90).run()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
        if os.WIFEXITED(status):
            break
        kills += 1
        assert not (out / "manifest.json").exists()
        before, names = names, sorted(path for path in out.rglob("*") if ".tmp" not in str(path))
        allowed = allowed + 1 if names == before else 1
    assert 30 < kills < 200
    assert contents(out) == contents(finished)


def test_workers_and_shards_change_nothing(finished, mirror, tmp_path):
    work = preparation(tmp_path / "out", mirror, "--news-commentary", "v12", shard_pairs=33)
    work.workers = 3
    work.run()
    assert contents(tmp_path / "out") == contents(finished)


def test_admin_recipe(mirror, tmp_path):
    """ADMIN's data: 1 to 80 words before BPE, all of newstest2013 for validation; and a dictionary of a given size."""
    out = tmp_path / "out"
    prepare(out, mirror, "--recipe", "admin", "--vocab-size", "160")
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    counts, valid = manifest["counts"], (out / "raw" / "newstest2013.de").read_text("utf-8")
    assert valid.count("\n") == 200 == counts["cleaned"]["valid"] == counts["raw"]["newstest2013"]["pairs"]
    tokenised, reason = counts["tokenised"], "words, fewer than 1 or more than 80"
    assert tokenised["train"] + tokenised["dropped"][reason] == 3 * LIMIT and tokenised["dropped"][reason] > 0
    assert counts["cleaned"]["train"] == tokenised["train"]
    text = (out / "text" / "train.de").read_text("utf-8").split("\n")[:-1]
    assert all(1 <= len(line.replace("@@ ", "").split()) <= 80 for line in text)
    entries = (out / "data-bin" / "dict.de.txt").read_text("utf-8").split("\n")[:-1]
    assert len(entries) == 160 - 4 == manifest["subwords"]["dictionary"] - 4


def test_sentencepiece(mirror, tmp_path):
    """Untokenised text in sentencepiece's pieces, which decode to the normalised lines; the same model each time."""
    import sentencepiece

    options = [
        "wmt14",
        "--pair",
        "en-fr",
        "--mirror",
        mirror,
        "--limit",
        "60",
        "--workers",
        "1",
        "--sentencepiece",
        "300",
    ]
    for name in ("one", "two"):
        result = helpers.run("fairseq-rope-prepare", *options, "--out", tmp_path / name)
        assert "fewer than 1,333 pairs: one in 30 is for validation" in result.out
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "one" / "sentencepiece.model"))
    pieces = (tmp_path / "one" / "text" / "test.fr").read_text("utf-8").split("\n")[:-1]
    raw = (tmp_path / "one" / "raw" / "newstest2014.fr").read_text("utf-8").split("\n")[:-1]
    normalize = line_processor("fr", tokenize=False)
    assert len(pieces) == len(raw) == 40
    for line, original in zip(pieces, raw, strict=True):
        assert line.split() == processor.encode(normalize(original.replace("’", "'")), out_type=str)
    too_many = helpers.run(
        "fairseq-rope-prepare", *options, "--sentencepiece", "90000", "--out", tmp_path / "three", check=False
    )
    assert too_many.code == 1 and "sentencepiece cannot learn a vocabulary of 90000" in too_many.log


EUROPARL = f"{WMT13}/training-parallel-europarl-v7.tgz"


def damaged(mirror, what):
    """Put one fault into a copy of the mirror's archives."""
    path = mirror / EUROPARL
    data = path.read_bytes()
    if what == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif what == "end missing":
        path.write_bytes(data[:-40])
    elif what == "error page":
        path.write_bytes(b"<html>Not here</html>" * 100)
    elif what == "gone":
        path.unlink()
    else:
        sides = dict.fromkeys(("en", "de"), "a line\n" * (LIMIT + 5))
        if what == "uneven":
            sides["de"] = "eine Zeile\n" * (LIMIT - 3)
        elif what == "not UTF-8":
            sides["de"] = sides["de"].encode()[: 7 * 40] + b"sch\xf6n\n" + sides["de"].encode()[7 * 41 :]
        elif what == "no member":
            del sides["de"]
        elif what == "empty":
            sides = dict.fromkeys(sides, "")
        with tarfile.open(path, "w:gz") as archive:
            for language, text in sides.items():
                add(
                    archive,
                    f"training/europarl-v7.de-en.{language}",
                    text if isinstance(text, bytes) else text.encode(),
                )


@pytest.mark.parametrize(
    "what, message",
    [
        ("truncated", "training-parallel-europarl-v7.tgz is truncated"),
        ("end missing", "training-parallel-europarl-v7.tgz is truncated"),
        ("error page", "<html>Not here"),
        ("gone", "training-parallel-europarl-v7.tgz"),
        ("uneven", "two sides of europarl-v7 must have the same number of lines, not 120 of en and 117 of de"),
        ("not UTF-8", "europarl-v7.de-en.de, line 41: not UTF-8 (byte 0xf6"),
        ("no member", "europarl-v7.de-en.de"),
        ("empty", "europarl-v7 has no lines"),
    ],
)
def test_bad_archives(mirror, tmp_path, what, message):
    """One line that says what is wrong; nothing half-written; the same command goes on once the archive is right."""
    copy, out = tmp_path / "mirror", tmp_path / "out"
    shutil.copytree(mirror, copy)
    damaged(copy, what)
    result = prepare(out, copy, check=False)
    errors = [line for line in result.log.splitlines() if "error" in line]
    assert result.code == 1 and len(errors) == 1
    assert errors[0].startswith("fairseq-rope-prepare: error: ") and message in errors[0]
    assert not (out / "manifest.json").exists() and not (out / "data-bin").exists()
    assert not [path for path in out.rglob("*") if "tmp" in path.name or "part" in path.name]
    if what == "truncated":
        shutil.copyfile(MIRROR / EUROPARL, copy / EUROPARL)
        assert "is ready" in prepare(out, copy).out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--pair", "en-fr", "--news-commentary", "v12"], "--news-commentary v12 is not for en-fr, which has: v9"),
        (["--pair", "en-fr", "--valid", "newstest2013"], "--valid newstest2013 is not for en-fr, which has: every"),
        (["--sentencepiece", "100"], "not allowed with argument"),
        (["--limit", "0"], "not a whole number of at least 1: '0'"),
        (["--pair", "de-en"], "invalid choice: 'de-en'"),
        (["--vocab-size", "99"], "not at least 100: 99"),
        (["--downloads", ""], "an empty name is no folder"),
    ],
)
def test_options_refused(tmp_path, options, message):
    result = prepare(tmp_path / "out", MIRROR, *options, check=False)
    assert result.code in (1, 2) and message in result.log and result.log.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_folders_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    result = prepare(tmp_path / "mine", MIRROR, check=False)
    assert "holds files of something else (thesis.tex): choose a new or empty --out" in result.log
    (tmp_path / "file").write_text("x")
    result = prepare(tmp_path / "file" / "below", MIRROR, check=False)
    assert result.code == 1 and "cannot make the folder" in result.log
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "name, content",
    [("manifest.json", "junk"), ("manifest.json", "{}"), ("options.json", "[1]"), ("data-bin/dict.en.txt", None)],
)
def test_a_finished_folder_that_somebody_changed(finished, mirror, tmp_path, name, content):
    out = tmp_path / "out"
    shutil.copytree(finished, out, ignore=shutil.ignore_patterns("download"))
    if content is None:
        (out / name).unlink()
    else:
        (out / name).write_text(content)
    result = prepare(out, mirror, "--news-commentary", "v12", check=False)
    assert result.code == 1 and result.log.count("\n") == 1
    assert Path(name).name in result.log and f"remove {out}" in result.log


@pytest.mark.parametrize("name", ["tokenize.json", "tokenized"])
def test_an_unfinished_folder_that_somebody_changed(mirror, tmp_path, monkeypatch, name):
    out = tmp_path / "out"
    monkeypatch.setattr("fairseq_rope.prepare.pipeline.learn_bpe", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        preparation(out, mirror, shard_pairs=90).run()
    path = out / "work" / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_text('{"trunc')
    with pytest.raises(UserError, match=rf"{name} is (damaged|missing): remove .*out \(its folder download may stay\)"):
        preparation(out, mirror, shard_pairs=90).run()


def test_two_runs_at_once(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with locked(out):
        result = prepare(out, MIRROR, check=False)
    assert result.code == 1 and f"another run is at work in {out}" in result.log


def test_not_the_published_data(tmp_path):
    """Without --limit sizes and counts are checked, and the mirror's small archives are not accepted."""
    arguments = ["wmt14", "--pair", "en-de", "--out", tmp_path / "out", "--mirror", MIRROR]
    result = helpers.run("fairseq-rope-prepare", *arguments, check=False)
    (error,) = [line for line in result.log.splitlines() if "error" in line]
    assert result.code == 1 and "training-parallel-europarl-v7.tgz" in error and "657" in error
    with pytest.raises(UserError, match=r"europarl-v7: 1,500 sentence pairs where 1,920,209 were expected"):
        check_count("europarl-v7", 1_500, 1_920_209, strict=True)
    assert check_count("x", 995, 1_000, strict=True, tolerance=0.01) == {"pairs": 995, "expected": 1_000}
    with pytest.raises(UserError, match=r"x: 980 sentence pairs where 1,000 \(within 1%\) were expected"):
        check_count("x", 980, 1_000, strict=True, tolerance=0.01)


def test_disk_space_is_asked_for_first(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
    result = prepare(tmp_path / "out", MIRROR, check=False)
    assert result.code == 1 and result.log.splitlines()[-1].endswith("free")
    need_space(tmp_path, 1_000, "x")
    with pytest.raises(UserError, match=r"^x needs about 0.0 GB in .*, where 0.0 GB are free$"):
        need_space(tmp_path, 1_001, "x")
