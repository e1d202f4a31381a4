"""The stack check says in one sentence what was found and what is supported; no mend is applied twice."""

import importlib.metadata
import subprocess
import sys

import fairseq
import helpers
import pytest
from fairseq import checkpoint_utils, utils

from fairseq_rope import compat
from fairseq_rope.compat import versions
from fairseq_rope.compat.wrap import wrap


@pytest.fixture
def installed(monkeypatch):
    """Pretend other versions: installed(torch="2.5.1")."""
    real = importlib.metadata.version
    fake = {}

    def version(name):
        found = fake.get(name, real) if name in fake else real(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    return lambda **versions: fake.update({name.replace("_", "-"): value for name, value in versions.items()})


def test_this_stack_is_accepted():
    assert versions.fairseq_distribution()[0] in ("ve-fairseq", "fairseq")
    for doubt in versions.check():
        assert "untested" in doubt and versions.TESTED in doubt


def test_old_torch_is_refused(installed):
    installed(torch="2.5.1+cu121")
    with pytest.raises(versions.UnsupportedStack, match=r"torch 2\.5\.1\+cu121: it needs 2\.6 or later; tested are"):
        versions.check()


@pytest.mark.parametrize("version", ["2.6.0", "2.9.1+cpu", "2.14.0", "3.0"])
def test_other_torch_is_called_untested(installed, version):
    installed(torch=version)
    assert [doubt for doubt in versions.check() if f"untested on torch {version}: tested are" in doubt]


def test_missing_torch_is_named(installed):
    installed(torch=None)
    with pytest.raises(versions.UnsupportedStack, match="needs torch, which is not installed"):
        versions.check()


@pytest.mark.parametrize("python", [(3, 10), (3, 9)])
def test_old_python_is_refused(monkeypatch, python):
    monkeypatch.setattr(sys, "version_info", (*python, 0))
    with pytest.raises(versions.UnsupportedStack, match=rf"does not run on Python 3\.{python[1]}: tested are"):
        versions.check()


def test_new_python_is_called_untested(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    assert [doubt for doubt in versions.check() if "untested on Python 3.13" in doubt]


def test_main_branch_is_accepted_if_its_checks_pass(installed):
    installed(ve_fairseq=None, fairseq="0.13.0")
    (doubt,) = [doubt for doubt in versions.check() if "fairseq 0.13.0" in doubt]
    assert "whose checks pass" in doubt


def test_fairseq_without_a_needed_function_is_refused(installed, monkeypatch):
    installed(ve_fairseq=None, fairseq="0.9.0")
    monkeypatch.delattr(checkpoint_utils, "load_model_ensemble_and_task")
    expected = r"fairseq 0\.9\.0 has no fairseq\.checkpoint_utils\.load_model_ensemble_and_task"
    with pytest.raises(versions.UnsupportedStack, match=expected):
        versions.check()


FAKE_PYPI = "raise ValueError('mutable default CommonConfig for field common is not allowed')"


def test_pypi_fairseq_on_this_python_is_refused_in_one_line(tmp_path):
    # PyPI's 0.12.2 fails with this ValueError while it is imported on Python 3.11
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq" / "__init__.py").write_text(FAKE_PYPI)
    code = "import sys; sys.argv = ['fairseq-rope-doctor']; import fairseq_rope.cli.doctor"
    path = f"{tmp_path}:{helpers.ROOT}"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=helpers.environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("fairseq-rope-doctor: error: ") and "cannot be imported on Python" in line
    assert "mutable default" in line and "install ve-fairseq in its place" in line


def test_applying_again_changes_nothing():
    for mend in compat.mends():  # an earlier test may have put torch.distributed's own excepthook over ours
        mend.apply()
    before = utils.import_user_module, checkpoint_utils.load_checkpoint_to_cpu, sys.excepthook
    compat.apply()
    for mend in compat.mends():
        mend.apply()
    assert (utils.import_user_module, checkpoint_utils.load_checkpoint_to_cpu, sys.excepthook) == before


def test_every_mend_is_active_or_says_why_not():
    status = compat.status()
    assert {mend.name for mend, _ in status} == {mend.name for mend in compat.mends()}
    assert len({mend.name for mend, _ in status}) == len(status)
    for mend, why in status:
        assert mend.reason and (why is None or len(why.split()) > 3)
        assert not str(why).startswith("cannot")


def test_wrap_keeps_other_wrappers_and_never_repeats(monkeypatch):
    monkeypatch.setattr(fairseq, "probe", lambda x: x, raising=False)

    def double(stock):
        return lambda x: 2 * stock(x)

    def plus_one(stock):
        return lambda x: stock(x) + 1

    for build in (double, plus_one, double):
        wrap(fairseq, "probe")(build)
    assert fairseq.probe(10) == 21
    with pytest.raises(AttributeError):
        wrap(fairseq, "no_such_function")(double)
