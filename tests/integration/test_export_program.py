"""``fairseq-rope-export``: what it writes is the model, works on its own, and comes whole or not at all."""

import copy
import hashlib
import math
import os
import re
import resource
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import helpers
import pytest
import runs
import torch
from fairseq.data import Dictionary

from fairseq_rope.cli import average
from fairseq_rope.cli import export as command
from fairseq_rope.deploy import export as library
from fairseq_rope.deploy import verify
from fairseq_rope.deploy.model_folder import read_folder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from test_export_spec import checkpoint, forced, trained_model

ctranslate2 = pytest.importorskip("ctranslate2")

WORDS = ["--no-subwords", "--tokenizer", "none", "--no-normalize"]
SENTENCES = ["one two three", "", "nine eight", "seven", "four four four four six", "  ", "zero one unheard-of two"]


def export(capsys, *args):
    """Run the command; (exit code, standard output, standard error)."""
    code = 0
    capsys.readouterr()
    try:
        command.main(list(map(str, args)))
    except SystemExit as stop:
        code = stop.code
    return (code, *capsys.readouterr())


def exported(capsys, path, data, output, *more):
    """What the command prints while it exports ``path`` to ``output``."""
    code, out, err = export(capsys, "--path", path, "--data", data, "--output", output, *WORDS, *more)
    assert code == 0, err
    return out


def refused(capsys, message, *args, code=1):
    """One line on standard error that matches; the line."""
    got, _, err = export(capsys, *args)
    last = err.splitlines()[-1]
    assert got == code and re.search(message, last) and last.startswith("fairseq-rope-export: error: "), err
    assert "Traceback" not in err
    return last


def task_of(data):
    source, target = (Dictionary.load(str(data / f"dict.{lang}.txt")) for lang in ("en", "de"))
    return SimpleNamespace(source_dictionary=source, target_dictionary=target)


SKELETON = {}  # a checkpoint as fairseq saved it, without model


def made(folder, data, arch="roformer_tiny", name="made.pt", task=None, **flags):
    """A checkpoint that was not trained, of a translation from en to de."""
    state = copy.deepcopy(SKELETON)
    made_up = checkpoint(arch, task_of(data), **flags)
    state["model"], state["cfg"]["model"] = made_up["model"], made_up["cfg"]["model"]
    state["cfg"]["task"].update({"source_lang": "en", "target_lang": "de", **(task or {})})
    torch.save(state, folder / name)
    return folder / name


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """Folder with checkpoints of 30 and of 60 updates of ADMIN, with a moving average; translations end by then."""
    folder = tmp_path_factory.mktemp("admin")
    flags = ["--store-ema", "--save-interval-updates", 30, "--position-encoding", "rope", "--lr", 0.01]
    runs.train(digits, folder, "admin_tiny", *flags, "--disable-validation", updates=60)
    return folder


@pytest.fixture(scope="module", autouse=True)
def skeleton(trained):
    state = runs.checkpoint(trained)
    SKELETON.update({key: value for key, value in state.items() if key not in ("model", "last_optimizer_state")})
    SKELETON["extra_state"].pop("ema")


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.en"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    return path


def test_what_it_writes(capsys, digits, trained, sentences, tmp_path):
    path, output = trained / "checkpoint_last.pt", tmp_path / "model"
    out = exported(capsys, path, digits, output, "--verify", sentences).splitlines()
    assert out[0] == "model: admin_tiny, en to de"
    assert out[1] == ("encoder and decoder: 2 layers of 64 (feed-forward 128, 4 heads, post-norm, positions rope)")
    assert re.fullmatch(
        r"folded the scaled shortcuts of --residual-init admin into the weights \(10 blocks; .*", out[2]
    )
    assert out[3] == "verify: 5 sentences, 2 empty lines left out"
    assert re.fullmatch(r"  forced decoding, \d+ tokens: log-prob.* at most \d.\de-0[5678] \(limit 0.0001\).*", out[4])
    assert out[5] == "  beam 4: 5 of 5 translations are the same (100.0 %)"
    assert re.fullmatch(rf"wrote {output}: 0\.[3-9] MB, weights in float32", out[6])
    assert out[7] == f"translate with: fairseq-rope-translate {output} --input FILE" and len(out) == 8

    assert sorted(os.listdir(output)) == [
        "config.json", "dict.de.txt", "dict.en.txt", "fairseq_rope.json", "model.bin", "shared_vocabulary.json",
    ]  # fmt: skip
    folder = read_folder(output)
    assert folder.text.to_dict() == {
        "source_lang": "en", "target_lang": "de", "normalize": False, "tokenizer": "none", "subwords": "none",
    }  # fmt: skip
    assert (folder.source_limit, folder.target_limit, folder.subword_file) == (None, None, None)
    info = folder.info
    assert (info["arch"], info["folded"], info["quantization"]) == ("admin_tiny", "admin", "float32")
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    [entry] = info["checkpoints"]
    assert (entry["file"], entry["sha256"], entry["update"]) == ("checkpoint_last.pt", sha, 60)
    assert str(tmp_path) not in (output / "fairseq_rope.json").read_text()
    assert (output / "dict.en.txt").read_bytes() == (digits / "dict.en.txt").read_bytes()


def test_works_on_its_own(capsys, digits, trained, tmp_path):
    """Moved elsewhere, with everything that it was made of gone, the folder gives fairseq-generate's translations."""
    data = shutil.copytree(digits, tmp_path / "data")
    path = shutil.copy(trained / "checkpoint_last.pt", tmp_path / "model.pt")
    expected = {beam: runs.generate(data, path, "--lenpen", 0.6, beam=beam).out for beam in (1, 4)}
    exported(capsys, path, data, tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / "moved")
    os.unlink(path)
    shutil.rmtree(data)
    translator = ctranslate2.Translator(str(tmp_path / "moved"))
    for beam, out in expected.items():
        rows = dict(line.split("\t", 1) for line in out.splitlines() if re.match(r"[SH]-\d", line))
        assert len(rows) == 40
        sources = [rows[f"S-{number}"].split() for number in range(20)]
        found = translator.translate_batch(
            sources, beam_size=beam, length_penalty=0.6, max_decoding_length=12, suppress_sequences=[["<blank>"]]
        )
        best = [result.hypotheses[0] for result in found]
        forced_scores = [result.log_probs for result in translator.score_batch(sources, best)]
        for number, (words, log_probs) in enumerate(zip(best, forced_scores, strict=True)):
            score, expected_words = rows[f"H-{number}"].split("\t")
            assert " ".join(words) == expected_words
            # The search's own score is normalised without <blank>, which a model of few updates gives a chance.
            assert sum(log_probs) / len(log_probs) ** 0.6 / math.log(2) == pytest.approx(float(score), abs=1e-4)
        lengths = set(map(len, best))
        assert min(lengths) < 12 and (beam > 1 or len(lengths) > 1)


def test_the_same_bytes_again(capsys, digits, trained, tmp_path):
    for name in ("a", "b"):
        exported(capsys, trained / "checkpoint_last.pt", digits, tmp_path / name, "--quantization", "int8")
    for file in os.listdir(tmp_path / "a"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_several_checkpoints_are_averaged(capsys, digits, trained, sentences, tmp_path):
    paths = [next(trained.glob("checkpoint_*_30.pt")), trained / "checkpoint_last.pt"]
    joined = os.pathsep.join(map(str, paths))
    out = exported(capsys, joined, digits, tmp_path / "a", "--verify", sentences)
    assert "averaged the parameters of 2 checkpoints (CTranslate2 has no ensembles)" in out
    assert "5 of 5 translations are the same" in out
    average.main(["--inputs", *map(str, paths), "--output", str(tmp_path / "mean.pt")])
    exported(capsys, tmp_path / "mean.pt", digits, tmp_path / "b")
    assert (tmp_path / "a" / "model.bin").read_bytes() == (tmp_path / "b" / "model.bin").read_bytes()
    assert [entry["file"] for entry in read_folder(tmp_path / "a").info["checkpoints"]] == [p.name for p in paths]


def test_the_parameters_not_the_moving_average(capsys, digits, trained, tmp_path):
    """As fairseq-generate does."""
    state = runs.checkpoint(trained)
    exported(capsys, trained / "checkpoint_last.pt", digits, tmp_path / "model")
    model = trained_model("admin_tiny", state, task_of(digits), position_encoding="rope")
    assert any(not torch.equal(x, state["model"][name]) for name, x in state["extra_state"]["ema"].items())
    assert forced(model, tmp_path / "model") < 2e-5


def test_two_dictionaries_and_limits(capsys, digits_separate, sentences, tmp_path):
    flags = {"position_encoding": "learned", "max_source_positions": 4, "max_target_positions": 9}
    path = made(tmp_path, digits_separate, "baseline_tiny", **flags, task={**flags, "position_encoding": None})
    out = exported(capsys, path, digits_separate, tmp_path / "model", "--verify", sentences)
    # five words with </s> are longer than four positions: compared in parts
    assert "verify: 7 sentences" in out
    folder = read_folder(tmp_path / "model")
    assert (folder.source_limit, folder.target_limit) == (4, 9)
    assert {"source_vocabulary.json", "target_vocabulary.json"} < set(folder.info["files"])


def test_subwords_travel_along(capsys, digits, tmp_path):
    data = shutil.copytree(digits, tmp_path / "data")
    codes = "#version: 0.2\no n\non e</w>\n"
    (data / "codes").write_text(codes)
    path = made(tmp_path, data)
    code, out, err = export(capsys, "--path", path, "--data", data, "--output", data / "model")
    assert code == 0 and f"subwords: {data / 'codes'} (BPE codes)" in out
    assert "warning: " in err and "may not be the subwords" in err
    folder = read_folder(data / "model")
    assert folder.subword_file.read_text() == codes and folder.text.tokenizer == "moses" and folder.text.normalize


def test_other_languages_are_said(capsys, digits, tmp_path):
    path = made(tmp_path, digits, task={"source_lang": "de", "target_lang": "en"})
    code, _, err = export(
        capsys, "--path", path, "--data", digits, "--output", tmp_path / "model", *WORDS, "-s", "en", "-t", "de"
    )
    assert code == 0 and "warning: trained to translate de to en, but exported as en to de" in err


# ---- --verify ----


def test_verify_finds_a_wrong_export(capsys, digits, sentences, tmp_path, monkeypatch):
    path, real = made(tmp_path, digits), library.translation_spec

    def wrong(*args):
        spec = real(*args)
        weight = spec.encoder.layer[1].ffn.linear_0.weight
        weight *= -1
        return spec

    monkeypatch.setattr(library, "translation_spec", wrong)
    arguments = ["--path", path, "--data", digits, "--output", tmp_path / "model", *WORDS, "--verify", sentences]
    refused(capsys, "the export is not the model: log-probabilities differ by .* nothing was written", *arguments)
    assert os.listdir(tmp_path) == ["made.pt"]
    monkeypatch.undo()
    exported(capsys, *arguments[1::2][:3])
    before = (tmp_path / "model" / "model.bin").read_bytes()
    monkeypatch.setattr(library, "translation_spec", wrong)
    refused(capsys, "nothing was written", *arguments, "--force")
    assert (tmp_path / "model" / "model.bin").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["made.pt", "model"]


class Engine:
    """Translates each sentence as told, and finds that each token of a translation has the log-probability of it.

    Args:
        translations: source to translation.
        log_probs: translation to the log-probability of each token and of ``</s>``.
    """

    source_limit, target_limit = 9, None

    def __init__(self, translations, log_probs):
        self.translations, self.log_probs = translations, log_probs

    def translate(self, sentences, search):
        assert (search.beam, search.lenpen, search.max_len_b) == (4, 0.6, 200)
        return [[SimpleNamespace(tokens=self.translations[" ".join(sentence)].split())] for sentence in sentences]

    def start(self, sentences, search):
        return SimpleNamespace(result=lambda: self.translate(sentences, search))

    def forced_log_probs(self, sources, targets):
        return [[self.log_probs[" ".join(target)]] * (len(target) + 1) for target in targets]


def test_verify_reports_each_difference():
    """With both translations and both models' scores of both, as fairseq prints them."""
    trained = Engine({"a b": "x y", "c": "z"}, {"x y": -0.25, "z": -0.5, "z z z": -0.75})
    exported_model = Engine({"a b": "x y", "c": "z z z"}, {"x y": -0.25, "z": -0.75, "z z z": -0.125})
    assert verify.longest_sentence(trained, exported_model) == 8
    found = verify.compare(trained, exported_model, [["a", "b"], ["c"]], 3)
    assert (found.sentences, found.empty, found.tokens, found.largest, found.mean) == (2, 3, 5, 0.25, 0.1)
    [(source, ours, theirs, scores)] = found.differing
    assert (source, ours, theirs) == (["c"], ["z"], ["z", "z", "z"])
    expected = [
        tokens * x / tokens**0.6 / math.log(2) for tokens, x in ((2, -0.5), (2, -0.75), (4, -0.75), (4, -0.125))
    ]
    assert scores == pytest.approx(expected)
    lines = verify.report(found, SimpleNamespace(decode=" ".join), None)
    assert lines[:3] == [
        "verify: 2 sentences, 3 empty lines left out",
        "  forced decoding, 5 tokens: log-probabilities differ by at most 2.5e-01, 1.0e-01 on average",
        "  beam 4: 1 of 2 translations are the same (50.0 %)",
    ]
    assert lines[3:] == [
        "  source       c",
        "  fairseq      z",
        f"               score {expected[0]:.4f} by fairseq, {expected[1]:.4f} by CTranslate2",
        "  CTranslate2  z z z",
        f"               score {expected[2]:.4f} by fairseq, {expected[3]:.4f} by CTranslate2",
    ]
    with pytest.raises(ValueError, match="is not the model: log-probabilities differ by 2"):
        verify.check(found)


def test_verify_says_what_quantisation_changes(capsys, digits, trained, sentences, tmp_path):
    """Figures without a limit."""
    more = ["--quantization", "int8", "--verify", sentences]
    out = exported(capsys, trained / "checkpoint_last.pt", digits, tmp_path / "model", *more)
    assert re.search(r"differ by at most \d\.\de-0[1-3], \d\.\de-0[1-4] on average\n", out)
    assert re.search(r"beam 4: \d of 5 translations", out) and "weights in int8\n" in out


def test_verify_report_shows_no_more_than_some(capsys):
    difference = verify.Difference(["a"], ["b"], ["c"], (-1.0, -2.0, -3.0, -4.0))
    comparison = verify.Comparison(30, 1, 60, float("nan"), 0.5, [difference] * 25, most=1)
    lines = verify.report(comparison, SimpleNamespace(decode=" ".join), 1e-4)
    assert lines[0] == "verify: 30 sentences, 1 empty line left out"
    assert lines[-1] == "  and 5 more" and sum(line.startswith("  source ") for line in lines) == 20
    assert lines[4] == "  fairseq      b (cut off at the length limit)"
    assert "5 of 30 translations are the same (16.7 %)" in lines[2]
    with pytest.raises(ValueError, match="is not the model: log-probabilities differ by nan"):
        verify.check(comparison)


@pytest.mark.parametrize(
    "text, message", [("", "nothing to translate"), (" \n\n\t\n", "nothing"), (None, "cannot read")]
)
def test_verify_without_a_sentence(capsys, digits, tmp_path, monkeypatch, text, message):
    """Said before long work."""
    monkeypatch.setattr(library, "convert", None)
    if text is not None:
        (tmp_path / "text").write_text(text)
    path = made(tmp_path, digits)
    files = sorted(os.listdir(tmp_path))
    arguments = ["--path", path, "--data", digits, "--output", tmp_path / "model", *WORDS]
    refused(capsys, message, *arguments, "--verify", tmp_path / "text")
    assert sorted(os.listdir(tmp_path)) == files


# ---- refusals ----


def test_refusals_name_the_file(capsys, digits, tmp_path):
    """What tests/unit/test_export_spec.py finds refused, through the program: one line, and nothing written."""
    tail = ["--data", digits, "--output", tmp_path / "model", *WORDS]
    cases = {
        "tupe_a_tiny": r"made\.pt: CTranslate2 cannot compute --position-encoding tupe-a",
        "realformer_tiny": r"made\.pt: CTranslate2 cannot compute --residual-attention mean",
    }
    for arch, message in cases.items():
        refused(capsys, message, "--path", made(tmp_path, digits, arch), *tail)
    path = made(tmp_path, digits, task={"_name": "translation_multi_simple_epoch"})
    refused(capsys, r"made\.pt: it was trained with --task translation_multi_simple_epoch", "--path", path, *tail)
    assert os.listdir(tmp_path) == ["made.pt"]


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "foreign", "folder", "no model"])
def test_no_checkpoint(capsys, digits, tmp_path, damage):
    bad = tmp_path / "bad.pt"
    if damage in ("truncated", "empty"):
        bad.write_bytes(made(tmp_path, digits).read_bytes()[: 5000 if damage == "truncated" else 0])
    elif damage == "foreign":
        bad.write_text("not a checkpoint\n")
    elif damage == "folder":
        bad.mkdir()
    elif damage == "no model":
        torch.save({"weights": {}}, bad)
    tail = ["--data", digits, "--output", tmp_path / "model", *WORDS]
    refused(capsys, r"bad\.pt", "--path", bad, *tail)
    refused(capsys, r"bad\.pt", "--path", f"{made(tmp_path, digits)}{os.pathsep}{bad}", *tail)
    assert not (tmp_path / "model").exists()


def test_checkpoints_of_two_models(capsys, digits, tmp_path):
    paths = [made(tmp_path, digits), made(tmp_path, digits, "baseline_tiny", name="other.pt")]
    joined = os.pathsep.join(map(str, paths))
    tail = ["--data", digits, "--output", tmp_path / "model", *WORDS]
    refused(capsys, r"other\.pt cannot be averaged with .*made\.pt: another architecture", "--path", joined, *tail)
    refused(capsys, "names no checkpoint", "--path", f"{paths[0]}{os.pathsep}", *tail)
    refused(capsys, "names no checkpoint", "--path", "", *tail)


def test_data(capsys, digits, digits_separate, tmp_path):
    path = made(tmp_path, digits)
    tail = ["--output", tmp_path / "model", *WORDS]
    refused(capsys, "there is no data folder", "--path", path, "--data", tmp_path / "no", *tail)
    (tmp_path / "none").mkdir()
    refused(capsys, "has no dictionary", "--path", path, "--data", tmp_path / "none", *tail)
    message = r"made\.pt: the source dictionary is not the one .* embeddings$"
    refused(capsys, message, "--path", path, "--data", digits_separate, *tail)
    refused(capsys, "no dictionary of the language 'fr'", "--path", path, "--data", digits, *tail, "-t", "fr")
    (tmp_path / "none" / "dict.en.txt").write_text("a 1\nb 2 3 4\na 1\n")
    (tmp_path / "none" / "dict.de.txt").write_text("a 1\nb 2\na 1\n")
    refused(capsys, "dict.*txt", "--path", path, "--data", tmp_path / "none", *tail)
    refused(capsys, "no subwords found: give --bpe-codes", "--path", path, "--data", digits, *tail[:2])
    assert sorted(os.listdir(tmp_path)) == ["made.pt", "none"]


def test_output(capsys, digits, tmp_path, monkeypatch):
    """Whatever is in the way is said before long work and stays as it was."""
    path = made(tmp_path, digits)
    before = path.read_bytes()
    tail = ["--path", path, "--data", digits, *WORDS]
    exported(capsys, path, digits, f"{tmp_path / 'model'}/")
    monkeypatch.setattr(library, "load_source", None)
    refused(capsys, "there is an exported model; .* --force replaces it", *tail, "--output", tmp_path / "model")
    refused(capsys, "there is a file of this name", *tail, "--output", path, "--force")
    refused(capsys, "not empty, and no exported model", *tail, "--output", digits, "--force")
    refused(capsys, "there is no folder", *tail, "--output", tmp_path / "no" / "model")
    assert path.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["made.pt", "model"]


def test_full_disk(capsys, digits, tmp_path):
    path = made(tmp_path, digits)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        refused(
            capsys, "cannot write .*model: ", "--path", path, "--data", digits, "--output", tmp_path / "model", *WORDS
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["made.pt"]


def test_ctranslate2_missing_or_old(capsys, digits, tmp_path, monkeypatch):
    arguments = ["--path", "x.pt", "--data", digits, "--output", tmp_path / "model"]
    monkeypatch.setattr(ctranslate2, "__version__", "4.7.1")
    refused(capsys, r"needs CTranslate2 4\.8 or later, not 4\.7\.1: .*pip install", *arguments)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    refused(capsys, r"needs CTranslate2, which is not installed: pip install 'fairseq-rope\[deploy\]'", *arguments)


@pytest.mark.parametrize(
    "arguments", [(), ("--path", "x"), ("--quantization", "int4"), ("--bpe-codes", "a", "--no-subwords")]
)
def test_arguments(capsys, arguments):
    code, out, err = export(capsys, *arguments)
    assert code == 2 and out == "" and err.count("\n") == 1 and "fairseq-rope-export --help" in err


def test_zeros_in_16_bits(capsys, digits, tmp_path):
    def change(state):
        state["model"]["encoder.layers.1.fc1.weight"].zero_()

    path = made(tmp_path, digits, change=change)
    tail = ["--data", digits, "--output", tmp_path / "model", *WORDS]
    refused(
        capsys,
        "int16 cannot store encoder/layer_1/ffn/linear_0/weight",
        "--path",
        path,
        *tail,
        "--quantization",
        "int16",
    )
    exported(capsys, path, digits, tmp_path / "model", "--quantization", "int8")


def test_names_of_types_are_ctranslate2s():
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    assert set(library.QUANTIZATIONS) == set(ACCEPTED_MODEL_TYPES)


def test_real_program(digits, tmp_path):
    """A process of its own prints its lines, and nothing on standard error."""
    path = made(tmp_path, digits)
    command_line = [sys.executable, "-m", "fairseq_rope.cli.export"]
    arguments = ["--path", path, "--data", digits, "--output", tmp_path / "model", *WORDS]
    result = helpers.subprocess.run(
        [*command_line, *map(str, arguments)], capture_output=True, text=True, env=helpers.environment(), timeout=120
    )
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["model:", "encoder", "wrote", "translate"]
    assert read_folder(tmp_path / "model").info["arch"] == "roformer_tiny"
