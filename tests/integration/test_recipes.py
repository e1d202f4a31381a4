"""The recipes of examples/ through their real shell scripts: whole, interrupted and resumed, and refusals."""

import gzip
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from fnmatch import fnmatch

import helpers
import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.deploy import load_translator
from fairseq_rope.deploy.ctranslate2_spec import check_exportable
from fairseq_rope.errors import UserError

pytestmark = pytest.mark.real_programs

QUICKSTART = helpers.ROOT / "scripts" / "quickstart.sh"
QUICKSTART_RUN = helpers.ROOT / "examples" / "quickstart" / "run.sh"
PRESETS = helpers.ROOT / "fairseq_rope" / "config" / "model"
SPLITS = ("train", "valid", "test")
MULTI30K = helpers.ROOT / "examples" / "multi30k" / "run.sh"
DEEP = helpers.ROOT / "examples" / "deep" / "run.sh"


def spawn(script, *args, cwd=None, **env):
    """Start a recipe with this interpreter's environment."""
    settings = {"FAIRSEQ_ROPE_PYTHON": sys.executable, "PROGRESS_SECONDS": "1", **env}
    return helpers.spawn_script(script, *args, cwd=cwd, **settings)


def run(script, *args, code=0, **env):
    """Output of a recipe that has to end with exit status ``code``."""
    return helpers.finish(spawn(script, *args, **env), code)


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_quickstart_interrupted_and_resumed(tmp_path):
    out = tmp_path / "a folder with spaces"
    options = ["--updates", 6, "--out", out]
    process = spawn(QUICKSTART, *options)
    last = out / "checkpoints" / "checkpoint_last.pt"
    deadline = time.time() + 400
    while not last.exists() and process.poll() is None and time.time() < deadline:
        time.sleep(0.05)
    assert last.exists()
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C sends
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 130, text
    assert "the same command goes on from here" in text
    assert "[4/10] train" in text and "[5/10]" not in text

    text = run(QUICKSTART, *options, "--keep")
    assert "[3/10] binarise: finished earlier, reused" in text
    log = (out / "train.log").read_text(encoding="utf-8")
    assert "Loaded checkpoint checkpoints/checkpoint_last.pt" in log
    assert "num_updates: 6 >= max_update: 6" in log
    assert "training, 0 min 0" in text and "of 5 checkpoints" in text

    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert set(scores) == {"test", "test_long", "signature"}
    assert all(0 <= scores[name][metric] <= 100 for name in ("test", "test_long") for metric in ("bleu", "chrf"))
    assert all("nrefs:1" in signature for signature in scores["signature"].values())
    for name in ("test", "test_long"):
        assert len(lines_of(out / f"{name}.de")) == len(lines_of(out / "raw" / f"{name}.de"))
    assert text.count("  translation ") == 5
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert last.exists()

    typed = f"$ echo 'My sister buys a red flower.' | {helpers.script('fairseq-rope-translate')} '{out}/model-ct2'"
    translation = text.split(f"\n{typed}\n")[1].split("\n")[0]
    [again] = load_translator(out / "model-ct2").translate(["My sister buys a red flower."])
    assert translation == again.text
    assert f"fairseq-rope-translate '{out}/model-ct2' --input FILE" in text

    began = time.time()
    text = run(QUICKSTART, *options)  # without --keep
    assert time.time() - began < 10
    assert text.count("finished earlier, reused") == 10 and f"{typed}\n{translation}\n" in text
    assert (out / "average.pt").exists() and not last.exists()

    check_quickstart_without_ctranslate2(out, options, tmp_path / "hidden")
    check_quickstart_end(out, tmp_path)

    text = run(QUICKSTART, "--updates", 7, "--out", out, code=1)
    assert "before:  updates=6" in text and "now:     updates=7" in text
    assert (out / "average.pt").exists()


def check_quickstart_without_ctranslate2(out, options, hidden):
    """Where the module cannot be imported, a line says how to get it; the run ends well."""
    hidden.mkdir()
    (hidden / "ctranslate2.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
    text = run(QUICKSTART, *options, PYTHONPATH=str(hidden))
    assert text.count("finished earlier, reused") == 9 and "[9/9] loss curve" in text
    assert f"CTranslate2 is not installed: {sys.executable} -m pip install 'ctranslate2>=4.8'" in text
    assert "$ echo" not in text
    assert f"fairseq-rope-translate '{out}/average.pt' --data '{out}/data-bin' --input FILE" in text


def check_quickstart_end(out, folder):
    """What the end of a run shows with other options, whose stages are those of ``out``."""
    data, own = helpers.write_digits(folder / "data"), folder / "own"
    (data / "test.en").write_text("\n--no option\nIt's Julia's \\cup\\.\n" + "one\n" * 17, encoding="utf-8")
    files = b"".join((data / f"{split}.{language}").read_bytes() for split in SPLITS for language in ("en", "de"))
    checksum = subprocess.run(["cksum"], input=files, capture_output=True, check=True).stdout.decode().strip()
    shutil.copytree(out, own)
    for split in SPLITS:
        shutil.copy(data / f"{split}.en", own / "raw")
    options = f"arch=roformer_iwslt\npair=en-de\ncorpus={data} {checksum}\nupdates=6\n"
    (own / "options.txt").write_text(options, encoding="utf-8")
    text = run(QUICKSTART, "--updates", 6, "--out", own, "--data", data)
    # the first line of the test set that no shell's echo takes for an option, quoted
    assert r"$ echo 'It'\''s Julia'\''s \cup\.' | " in text

    options = "arch=tupe_a_iwslt\npair=en-de\ncorpus=generated\nupdates=6\n"
    (own / "options.txt").write_text(options, encoding="utf-8")
    text = run(QUICKSTART, "--arch", "tupe_a", "--updates", 6, "--out", own)
    assert "fairseq-rope-export takes baseline, roformer and admin models, not tupe_a_iwslt" in text
    assert "$ echo" not in text and "/average.pt' --data" in text


def test_quickstart_knows_what_can_be_exported():
    """The recipe leaves the export out by the preset's name, without asking the program, which takes seconds."""
    names = re.search(r"in\n\s+(.+)\) ;;", QUICKSTART_RUN.read_text(encoding="utf-8").split("exportable()")[1])[1]
    presets = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    assert {"baseline_iwslt", "tupe_a_iwslt"} < set(presets)
    for arch in presets:
        options = Namespace(arch=arch)
        ARCH_CONFIG_REGISTRY[arch](options)
        try:
            check_exportable(RopeTransformerConfig.from_model_config(options))
            exportable = True
        except UserError:
            exportable = False
        assert exportable == any(fnmatch(arch, name) for name in names.split(" | ")), arch


def stub_environment(root, requirement):
    """A checkout whose .venv has a Python that notes its arguments, and runs the checks and the optional pip only."""
    for name in ("scripts/setup_env.sh", "examples/common.sh", "setup.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(helpers.ROOT / name, root / name)
    setup = (root / "setup.py").read_text(encoding="utf-8")
    (root / "setup.py").write_text(setup.replace("ctranslate2>=4.8", requirement), encoding="utf-8")
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/bash\necho "$@" | tail -n 1 >>"{root}/calls"\ncase $1 in -c) exec "{sys.executable}" "$@" ;; esac\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    return root / "scripts" / "setup_env.sh"


def test_an_environment_goes_without_what_is_optional(tmp_path):
    """pip can install nothing here: the optional package is there already, or cannot be had; neither is an error."""
    there = stub_environment(tmp_path / "there", "ctranslate2>=4")
    text = run(there, "run", PIP_NO_INDEX="1")
    assert "is finished" in text and "goes without" not in text
    calls = lines_of(tmp_path / "there" / "calls")
    assert [call for call in calls if "-m pip" in call][-1] == "-m pip install -e ."
    assert calls[-2].endswith("install ctranslate2>=4") and calls[-1] == "-c import ctranslate2"
    assert "finished earlier, reused" in run(there, "run")

    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "ctranslate2.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
    missing = stub_environment(tmp_path / "missing", "ctranslate2>=99")
    settings = {"PIP_NO_INDEX": "1", "PYTHONPATH": str(tmp_path / "hidden")}
    text = run(missing, "run", **settings)
    assert "goes without ctranslate2>=99, which could not be installed" in text and "is finished" in text
    assert "pip ended with 1" in (tmp_path / "missing" / ".venv" / "install.log").read_text(encoding="utf-8")
    assert "finished earlier, reused" in run(missing, "run", **settings)

    # the tests need it: their environment asks for it with the rest
    assert "goes without" not in run(missing, "test", **settings)
    assert "pip install -e .[test]" in lines_of(tmp_path / "missing" / "calls")[-1]


@pytest.fixture
def multi30k_slice(real_data, tmp_path):
    """The first sentences of each file, English plain and German gzipped."""
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for name, count in (("train", 200), ("val", 20), ("test_2016_flickr", 12), ("test_2017_flickr", 7)):
        for language in ("en", "de"):
            source = real_data / "multi30k" / f"{name}.{language}.gz"
            text = b"".join(gzip.decompress(source.read_bytes()).splitlines(keepends=True)[:count])
            if language == "en":
                (folder / f"{name}.en").write_bytes(text)
            else:
                (folder / f"{name}.de.gz").write_bytes(gzip.compress(text))
    return folder.parent


def test_multi30k_on_a_slice(multi30k_slice, tmp_path):
    out = tmp_path / "out"
    env = {"FAIRSEQ_ROPE_DATA": str(multi30k_slice), "OUT": str(out), "EPOCHS": "2"}
    text = run(MULTI30K, "de-en", "roformer", **env)
    assert "not the published text" in text
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert set(scores) == {"test_2016", "test_2017", "signature"}
    assert [len(lines_of(out / f"test_{year}.en")) for year in (2016, 2017)] == [12, 7]
    assert "[7/7] score: finished earlier" in run(MULTI30K, "de-en", "roformer", **env)
    assert "before:  arch=roformer_iwslt" in run(MULTI30K, "de-en", "baseline", code=1, **env)


@pytest.mark.parametrize(
    "args, message",
    [
        (["--bogus"], "unknown option '--bogus'"),
        (["--out"], "--out needs a value"),
        (["--updates", "1e3"], "--updates must be a whole number of at least 1, not '1e3'"),
        (["--updates=0"], "not '0'"),
        (["--pair", "en-xx"], "no language pair 'en-xx'; there are: en-de en-fr"),
        (["--arch", "roformer_huge"], "no architecture 'roformer_huge'; there are: admin_iwslt"),
        (["--data", "nowhere"], "there is no folder"),
    ],
)
def test_quickstart_refuses(args, message, tmp_path):
    text = run(QUICKSTART, "--out", tmp_path / "out", *args, code=1 if "--data" in args else 2)
    assert message in text and text.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "broken, content, message",
    [
        ("valid.de", None, "valid.de is missing"),
        ("test.en", "\n \n", "test.en is empty"),
        ("train.de", "eins\n", "train.en has 200 lines, but train.de has 1"),
    ],
)
def test_quickstart_refuses_data(broken, content, message, tmp_path):
    data = helpers.write_digits(tmp_path / "data")
    if content is None:
        (data / broken).unlink()
    else:
        (data / broken).write_text(content, encoding="utf-8")
    text = run(QUICKSTART, "--out", tmp_path / "out", "--data", data, code=1)
    assert message in text and text.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_quickstart_leaves_a_foreign_folder_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert "holds files of something else" in run(QUICKSTART, "--out", tmp_path, code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "args, env, message",
    [
        (["en-cs"], {}, "there are: en-de en-fr de-en fr-en"),
        (["en-de", "nothing"], {}, "no architecture 'nothing'"),
        ([], {"SIZE": "huge"}, "no SIZE 'huge'; there are: laptop base"),
        ([], {"EPOCHS": "-1"}, "EPOCHS must be a whole number of at least 1, not '-1'"),
    ],
)
def test_multi30k_refuses(args, env, message, tmp_path):
    text = run(MULTI30K, *args, code=2, OUT=str(tmp_path / "out"), **env)
    assert message in text and text.count("\n") == 1
    assert not (tmp_path / "out").exists()


def load(path):
    """An example's Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_download_that_differs_is_refused(tmp_path, monkeypatch):
    prepare = load(MULTI30K.parent / "prepare.py")
    monkeypatch.setattr(prepare, "URL", tmp_path.as_uri() + "/")
    with pytest.raises(SystemExit, match="cannot download"):
        prepare.download("val.en", tmp_path / "to", tmp_path / "data")
    (tmp_path / "val.en.gz").write_bytes(gzip.compress(b"A dog.\n"))
    with pytest.raises(SystemExit, match="wrong SHA-256"):
        prepare.download("val.en", tmp_path / "to", tmp_path / "data")
    assert not (tmp_path / "to" / "val.en.gz").exists()


def test_the_checksums_are_those_of_the_real_files(real_data, tmp_path, monkeypatch):
    prepare = load(MULTI30K.parent / "prepare.py")
    monkeypatch.setattr(prepare, "URL", (real_data / "multi30k").as_uri() + "/")
    for name in prepare.SHA256:
        assert prepare.download(name, tmp_path, real_data).exists()


def test_subwords_refuses_what_is_not_utf8(tmp_path):
    subwords = load(helpers.ROOT / "examples" / "subwords.py")
    (tmp_path / "train.en").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(SystemExit, match=r"train\.en, line 2: not UTF-8 \(byte 0xe9\)"):
        subwords.read_lines(tmp_path / "train.en")


def test_subwords_keeps_lines_together(tmp_path):
    """Line separators of Unicode, carriage returns and empty lines neither add nor remove a line."""
    subwords = load(helpers.ROOT / "examples" / "subwords.py")
    (tmp_path / "train.en").write_text(
        "one\u2028two\r\n\nthree\x0bfour\x85five\n<unk> \u00a0it's\n", encoding="utf-8", newline=""
    )
    assert subwords.tokenize(tmp_path / "train.en", "en") == [
        "one two", "", "three four five", "&lt; unk &gt; it &apos;s",
    ]  # fmt: skip


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_cut_short_is_replaced(whole, tmp_path):
    names = [
        "checkpoint_last.pt",
        "checkpoint_best.pt",
        *(["checkpoint1.pt", "checkpoint_1_20.pt"] if whole else []),
    ]
    for name in names:
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("data", name)
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:-30])
    os.utime(tmp_path / "checkpoint_best.pt", (2e9, 2e9))
    command = f'ROOT={helpers.ROOT}; RECIPE=test; . "$ROOT/examples/common.sh"; PYTHON=$1; restore_last "$2"'
    out = subprocess.run(
        ["bash", "-euc", command, "-", sys.executable, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if whole:
        assert "going on from checkpoint_1_20.pt" in out
        assert last.read_bytes() == (tmp_path / "checkpoint_1_20.pt").read_bytes()
    else:
        assert "starting the training afresh" in out and not last.exists()


def test_deep(multi30k_slice, tmp_path):
    """Two methods, then a third one in the same folder; and what is refused before anything starts."""
    out = tmp_path / "deep"
    env = {"FAIRSEQ_ROPE_DATA": str(multi30k_slice), "OUT": str(out), "UPDATES": "2"}
    text = run(DEEP, "2-1", "plain", "admin", **env)
    assert "[4/6] train plain" in text and "[5/6] train admin" in text and "picture: " in text
    assert "best validation" in text and "admin took" in text
    profile = json.loads((out / "admin" / "profile.json").read_text())
    assert (len(profile["encoder"]["omega"]), len(profile["decoder"]["omega"])) == (4, 3)
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    for method in ("plain", "admin"):
        assert (out / method / "checkpoints" / "checkpoint_last.pt").exists()

    text = run(DEEP, "2-1", "plain", "admin", "deepnorm", **env)
    assert text.count("finished earlier, reused") == 5 and "[6/7] train deepnorm" in text
    assert "deepnorm: training" in text

    assert "no method 'post-norm'; there are: plain" in run(DEEP, "2-1", "post-norm", code=2, **env)
    assert "LAYERS must be encoder-decoder, such as 18-18, not '18'" in run(DEEP, "18", code=2, **env)
    assert "before:  layers=2-1" in run(DEEP, "2-2", "plain", code=1, **env)
