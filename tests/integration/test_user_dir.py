"""--user-dir: every path that means this package works and registers it once."""

import argparse
import json
import shutil
import subprocess
import sys

import helpers
import pytest
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_rope.compat.user_dir import PACKAGE, usable_user_dir

CASES = {
    # name: (--user-dir, working folder, what is imported), all below `places`; {} is its absolute path
    "relative": ("my-clone/fairseq_rope", ".", "my-clone"),
    "absolute with slash": ("{}/my-clone/fairseq_rope/", "links", "my-clone"),
    "link": ("links/fairseq_rope", ".", "my-clone"),
    "link of another name": ("plugin", "links", "my-clone"),
    "root of a checkout": ("{}/my-clone", "links", "my-clone"),
    "link to a root": ("root/", "links", "my-clone"),
    "from the parent of a clone": ("fairseq_rope", ".", "fairseq_rope"),
    "from inside a clone": ("fairseq_rope", "fairseq_rope", "fairseq_rope"),
    # another copy is installed and has been imported already
    "imported, then a checkout": ("{}/my-clone/fairseq_rope", ".", "installed"),
    "imported, then a link": ("links/plugin", ".", "installed"),
    "imported, then the parent of a clone": ("fairseq_rope", ".", "installed"),
    "what the doctor prints": (None, "elsewhere", None),
    "imported, then its own path": ("{}/installed/fairseq_rope/", ".", "installed"),
}

# Imports fairseq once, without this package; each case then runs in a fork, as a program of fairseq would:
# the parser imports the user directory, and so does the run.
DRIVER = """
import argparse, io, json, logging, os, sys
sys.path = [path for path in sys.path if path]
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in repr(finder)]
from fairseq import models, utils

def probe(user_dir, cwd, installed):
    log = io.StringIO()
    logging.basicConfig(stream=log, force=True)
    os.chdir(cwd)
    if installed:
        sys.path.insert(0, installed)
        import fairseq_rope
    for _ in range(3):
        utils.import_user_module(argparse.Namespace(user_dir=user_dir))
    registered = models.ARCH_MODEL_REGISTRY.items()
    import fairseq_rope
    return {
        "archs": [name for name, model in registered if model.__module__.startswith("fairseq_rope.")],
        "copies": len({m.__file__ for n, m in sys.modules.items() if n.endswith("compat.user_dir")}),
        "file": os.path.realpath(fairseq_rope.__file__),
        "log": log.getvalue(),
    }

for name, arguments in json.loads(sys.stdin.read()).items():
    if os.fork() == 0:
        try:
            answer = probe(*arguments)
        except BaseException as error:
            answer = {"error": repr(error)}
        print(json.dumps([name, answer]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A clone named fairseq_rope, one of another name, an installed copy, and links."""
    top = tmp_path_factory.mktemp("places")
    ignore = shutil.ignore_patterns("__pycache__")
    for clone in ("fairseq_rope", "my-clone", "installed"):
        shutil.copytree(helpers.ROOT / "fairseq_rope", top / clone / "fairseq_rope", ignore=ignore)
        if clone != "installed":
            shutil.copy(helpers.ROOT / "__init__.py", top / clone)
    (top / "elsewhere").mkdir()
    links = top / "links"
    links.mkdir()
    (links / "fairseq_rope").symlink_to(top / "my-clone" / "fairseq_rope")
    (links / "plugin").symlink_to(top / "my-clone" / "fairseq_rope")
    (links / "root").symlink_to(top / "my-clone")
    return top


@pytest.fixture(scope="module")
def answers(places):
    cases = {}
    for name, (user_dir, cwd, _) in CASES.items():
        if name == "what the doctor prints":
            user_dir = usable_user_dir()
        installed = str(places / "installed") if name.startswith("imported") else None
        cases[name] = (user_dir.format(places), str(places / cwd), installed)
    result = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(cases),
        env=helpers.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return dict(json.loads(line) for line in result.stdout.splitlines() if line.startswith("["))


@pytest.mark.real_programs
@pytest.mark.parametrize("case", CASES)
def test_each_path_is_imported_once(places, answers, case):
    answer = answers[case]
    assert "error" not in answer, answer
    assert {"roformer_tiny", "baseline_wmt"} <= set(answer["archs"])
    assert answer["copies"] == 1
    if case == "what the doctor prints":
        assert answer["file"] == str(PACKAGE / "__init__.py")
    else:
        assert answer["file"] == str(places.resolve() / CASES[case][2] / "fairseq_rope" / "__init__.py")
    # said once, and only where the path names a copy that is not the imported one
    other_copy = case.startswith("imported") and case != "imported, then its own path"
    assert answer["log"].count("is not loaded") == int(other_copy), answer["log"]


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/../fairseq_rope", "link", "renamed", "root", "bare"])
def test_imported_package_accepts_every_path(tmp_path, monkeypatch, form):
    # the same process as fairseq's programs after `import fairseq_rope`
    (tmp_path / "fairseq_rope").symlink_to(helpers.USER_DIR)
    (tmp_path / "other").symlink_to(helpers.USER_DIR)
    monkeypatch.chdir(tmp_path if form != "bare" else tmp_path.parent)
    named = {"link": "fairseq_rope", "renamed": "other", "root": str(helpers.ROOT), "bare": "fairseq_rope"}
    before = dict(ARCH_MODEL_REGISTRY)
    for _ in range(2):
        utils.import_user_module(argparse.Namespace(user_dir=named.get(form, form.format(helpers.USER_DIR))))
    assert before == ARCH_MODEL_REGISTRY
    assert "other" not in sys.modules


def test_other_plugins_are_imported_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "another_plugin_of_fairseq").mkdir()
    (tmp_path / "another_plugin_of_fairseq" / "__init__.py").write_text("loaded = True\n")
    utils.import_user_module(argparse.Namespace(user_dir=str(tmp_path / "another_plugin_of_fairseq")))
    assert sys.modules.pop("another_plugin_of_fairseq").loaded
    with pytest.raises(FileNotFoundError):
        utils.import_user_module(argparse.Namespace(user_dir=str(tmp_path / "nowhere")))
