"""--user-dir: every path that means this package works, registers once, and says nothing wrong."""

import argparse
import shutil
import subprocess
import sys

import helpers
import pytest
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY

# Imports a user directory as fairseq's programs do (twice: the parser and the run), then starts a model.
PROBE = """
import argparse, sys
before, after = sys.argv[1].split("|")
if before:
    import fairseq_rope
from fairseq import utils, models
for _ in range(3):
    utils.import_user_module(argparse.Namespace(user_dir=after))
import fairseq_rope
names = [name for name, model in models.ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_rope.")]
assert "roformer_tiny" in names and "baseline_wmt" in names, names
copies = {m.__file__ for n, m in list(sys.modules.items()) if n.endswith("compat.user_dir")}
assert len(copies) == 1, copies
print(fairseq_rope.__file__)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A clone named fairseq_rope, one of another name, an installed copy, and links."""
    top = tmp_path_factory.mktemp("places")
    for clone in ("fairseq_rope", "my-clone"):
        (top / clone).mkdir()
        shutil.copy(helpers.ROOT / "__init__.py", top / clone)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(helpers.ROOT / "fairseq_rope", top / clone / "fairseq_rope", ignore=ignore)
    installed = top / "installed"
    shutil.copytree(helpers.ROOT / "fairseq_rope", installed / "fairseq_rope", ignore=ignore)
    links = top / "links"
    links.mkdir()
    (links / "fairseq_rope").symlink_to(top / "my-clone" / "fairseq_rope")
    (links / "plugin").symlink_to(top / "my-clone" / "fairseq_rope")
    (links / "root").symlink_to(top / "my-clone")
    return top


def probe(user_dir, cwd, import_before=False, path=()):
    """Run the probe without the checkout's own editable install; returns (where it was imported from, log)."""
    code = f"import sys; sys.meta_path = [f for f in sys.meta_path if 'Editable' not in repr(f)]\n{PROBE}"
    result = subprocess.run(
        [sys.executable, "-c", code, f"{'x' if import_before else ''}|{user_dir}"],
        cwd=cwd,
        env=helpers.environment(PYTHONPATH=":".join(map(str, path))),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip().splitlines()[-1], result.stderr


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
}


@pytest.mark.real_programs
@pytest.mark.parametrize("case", CASES)
def test_each_path_is_imported_once(places, case):
    user_dir, cwd, clone = CASES[case]
    imported, log = probe(user_dir.format(places), places / cwd)
    assert str(places / clone) in imported or str(places / "links" / "fairseq_rope") in imported
    assert "is not loaded" not in log


@pytest.mark.real_programs
@pytest.mark.parametrize("case", ["link of another name", "from the parent of a clone"])
def test_checkout_beside_an_imported_copy_is_not_loaded(places, case):
    user_dir, cwd, clone = CASES[case]
    # the path names a checkout, while another copy is installed and already imported
    run_from = places / cwd
    imported, log = probe(user_dir, run_from, import_before=True, path=[places / "installed"])
    if case == "from the parent of a clone":  # `python -c` looks in the working folder first
        assert imported == str(places / "fairseq_rope" / "fairseq_rope" / "__init__.py")
        return
    assert imported == str(places / "installed" / "fairseq_rope" / "__init__.py")
    assert log.count("is not loaded") == 1 and str(places / clone) in log


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
