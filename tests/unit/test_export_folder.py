"""The exported folder: it appears whole or not at all, replaces nothing by mistake, and tells when it is damaged."""

import json
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from fairseq_rope.deploy import model_folder
from fairseq_rope.deploy.model_folder import check_output, is_model_folder, new_folder, read_folder, write_info
from fairseq_rope.deploy.text import TextSettings
from fairseq_rope.errors import UserError

SETTINGS = TextSettings("en", "de", True, "moses", "subword_nmt")
LIMITS = {"limits": {"source": None, "target": 1024}}


def fill(folder, content="weights"):
    """Write the files of an export, of little content."""
    (folder / "model.bin").write_text(content)
    (folder / "bpe.codes").write_text("#version: 0.2\na b\n")
    (folder / "dict.en.txt").write_text("a 1\n")
    write_info(folder, SETTINGS, "bpe.codes", {"arch": "roformer_tiny", **LIMITS})


def export(path, content="weights", force=False):
    with new_folder(path, force) as folder:
        fill(folder, content)


def content(path):
    return (path / "model.bin").read_text()


def refused(message, function, *args):
    with pytest.raises(UserError, match=message) as caught:
        function(*args)
    assert "\n" not in str(caught.value)


def test_written_and_read(tmp_path):
    export(tmp_path / "model")
    assert os.listdir(tmp_path) == ["model"] and is_model_folder(tmp_path / "model")
    folder = read_folder(tmp_path / "model")
    assert folder.text == SETTINGS and folder.subword_file == tmp_path / "model" / "bpe.codes"
    assert (folder.source_limit, folder.target_limit) == (None, 1024)
    assert folder.info["arch"] == "roformer_tiny"
    assert folder.info["files"] == {"model.bin": 7, "bpe.codes": 18, "dict.en.txt": 4}
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~umask  # as mkdir makes it: others may read it


@pytest.mark.parametrize("form", ["{0}/model/", "{0}/./model", "{0}/other/../model"])
def test_forms_of_a_name(tmp_path, form):
    (tmp_path / "other").mkdir()
    export(form.format(tmp_path))
    assert read_folder(form.format(tmp_path)).text == SETTINGS
    assert sorted(os.listdir(tmp_path)) == ["model", "other"]


def test_relative_and_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    export("model")
    assert os.listdir(tmp_path) == ["model"] and content(tmp_path / "model") == "weights"


def test_links(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "far" / "real")
    export(tmp_path / "model")
    export(tmp_path / "model", "new", force=True)
    assert (tmp_path / "model").is_symlink() and content(tmp_path / "far" / "real") == "new"
    assert os.listdir(tmp_path / "far") == ["real"]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "to_file").symlink_to("file")
    refused("there is a file of this name", export, tmp_path / "to_file")


def test_force(tmp_path):
    model = tmp_path / "model"
    export(model)
    refused("there is an exported model; choose another name, or --force replaces it", export, model, "new")
    assert content(model) == "weights"
    export(model, "new", True)
    assert content(model) == "new" and os.listdir(tmp_path) == ["model"]
    (model / "model.bin").write_text("damaged")
    export(model, "newer", True)
    assert content(model) == "newer"


@pytest.mark.parametrize("name", ["checkpoint.pt", "dict.en.txt.d", "model.bin.old", ".hidden", "dict.x.txt/y"])
def test_force_deletes_nothing_else(tmp_path, name):
    model = tmp_path / "model"
    export(model)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("mine")
    refused(f"this folder holds {re.escape(name.split('/')[0])}, which --force would delete", export, model, "x", True)
    assert content(model) == "weights" and (model / name).read_text() == "mine"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_in_the_way(tmp_path, monkeypatch, force):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path / "full")
    for path, message in [
        (tmp_path / "file", "there is a file of this name; name a folder to make"),
        (tmp_path / "file" / "model", "there is no folder"),
        (tmp_path / "no" / "model", "there is no folder"),
        (tmp_path / "full", "current folder"),
        (tmp_path, "is not empty, and no exported model; choose another name"),
        (".", "current folder"),
        ("", "current folder"),
        ("/", "not empty, and no exported model"),
        (tmp_path / ("n" * 250), "File name too long"),
    ]:
        refused(message, export, path, "new", force)
    assert sorted(os.listdir(tmp_path)) == ["file", "full"] and (tmp_path / "file").read_text() == "mine"


def test_unwritable(tmp_path, monkeypatch):
    monkeypatch.setattr(model_folder.os, "access", lambda *args: False)
    refused("no permission to write in the folder", check_output, tmp_path / "model")
    monkeypatch.undo()
    monkeypatch.setattr(model_folder.Path, "mkdir", lambda self: (_ for _ in ()).throw(OSError(30, "Read-only file s")))
    refused("cannot write .*model: Read-only file s", export, tmp_path / "model")


@pytest.mark.parametrize("error", [UserError("why"), KeyboardInterrupt(), SystemExit(143)])
def test_stopped_while_writing(tmp_path, error):
    model = tmp_path / "model"
    export(model)
    with pytest.raises(type(error)), new_folder(model, force=True) as folder:
        fill(folder, "new")
        raise error
    assert content(model) == "weights" and os.listdir(tmp_path) == ["model"]


def test_stopped_between_the_renames(tmp_path, monkeypatch):
    model = tmp_path / "model"
    export(model)
    real, done = os.rename, []

    def rename(a, b):
        done.append(b)
        if len(done) == 2:
            raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr(model_folder.os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        export(model, "new", True)
    assert len(done) == 3 and content(model) == "weights" and os.listdir(tmp_path) == ["model"]


def test_made_by_another_meanwhile(tmp_path):
    with pytest.raises(UserError, match="is not empty"), new_folder(tmp_path / "model") as folder:
        fill(folder)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "file").write_text("mine")
    assert os.listdir(tmp_path) == ["model"] and os.listdir(tmp_path / "model") == ["file"]


def test_full_disk(tmp_path):
    model = tmp_path / "model"
    export(model)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        refused("cannot write .*model: File too large", export, model, "x" * 200_000, True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(model) == "weights" and os.listdir(tmp_path) == ["model"]


def test_killed(tmp_path):
    """Killed so that nothing can be cleaned up: the older folder is as it was, and a new one is not there."""
    export(tmp_path / "model")
    code = """
import sys, time
from pathlib import Path
sys.argv = ["fairseq-rope-translate"]  # starts without fairseq
from fairseq_rope.deploy.model_folder import new_folder
with new_folder(sys.path[-1], force=True) as folder:
    (folder / "model.bin").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""
    for name in ("model", "new"):
        process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path / name)!r})\n{code}"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert content(tmp_path / "model") == "weights" and not (tmp_path / "new").exists()
    export(tmp_path / "new")  # what was left is in nobody's way
    assert content(tmp_path / "new") == "weights"


def edit(**changes):
    def apply(folder):
        info = json.loads((folder / "fairseq_rope.json").read_text())
        (folder / "fairseq_rope.json").write_text(json.dumps({**info, **changes}))

    return apply


DAMAGES = {
    "truncated": (lambda f: (f / "model.bin").write_text("weig"), "model.bin has 4 bytes instead of 7; export the"),
    "no codes": (lambda f: (f / "bpe.codes").unlink(), "bpe.codes is missing"),
    "no model": (lambda f: (f / "model.bin").unlink(), "model.bin is missing"),
    "no information": (
        lambda f: (f / "fairseq_rope.json").unlink(),
        "no model of fairseq-rope-export: it has no fairs",
    ),
    "empty": (lambda f: (f / "fairseq_rope.json").write_text(""), "fairseq_rope.json is damaged"),
    "cut": (lambda f: (f / "fairseq_rope.json").write_text('{"format": 1, "te'), "fairseq_rope.json is damaged"),
    "no UTF-8": (lambda f: (f / "fairseq_rope.json").write_bytes(b"\xff\xfe\xff"), "fairseq_rope.json is damaged"),
    "a list": (lambda f: (f / "fairseq_rope.json").write_text("[]"), "fairseq_rope.json is damaged"),
    "later": (edit(format=2), "of format 2, and this program reads 1: update"),
    "text": (edit(text={}), "text settings lack source_lang"),
    "tokenizer": (edit(text={**SETTINGS.to_dict(), "tokenizer": "x"}), "the text setting tokenizer is 'x'"),
    "no limits": (edit(limits={}), "damaged"),
    "limits": (edit(limits={"source": "x", "target": 1}), "damaged"),
    "elsewhere": (edit(subword_file="../codes"), "damaged"),
    "other files": (edit(files={"model.bin": 7, "../x": 3, "bpe.codes": 18}), "damaged"),
    "no subwords": (edit(files={"model.bin": 7}), "damaged"),
    "no list of files": (edit(files=None), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(tmp_path, damage):
    export(tmp_path / "model")
    change, message = DAMAGES[damage]
    change(tmp_path / "model")
    refused(message, read_folder, tmp_path / "model")


def test_no_folder(tmp_path):
    refused("there is no folder", read_folder, tmp_path / "nothing")
    refused("no model of fairseq-rope-export: it has no fairseq_rope.json$", read_folder, tmp_path)
    (tmp_path / "model.bin").write_text("")
    refused("another of CTranslate2's converters", read_folder, tmp_path)
