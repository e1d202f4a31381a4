"""fairseq-rope-doctor: what it prints, and when it exits with an error."""

import sys
from types import SimpleNamespace

import helpers
import pytest
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_rope
from fairseq_rope import compat
from fairseq_rope.cli import doctor
from fairseq_rope.compat.mend import Mend


def test_report_is_complete():
    result = helpers.run("fairseq-rope-doctor", check=False)
    assert result.code == 0
    values = dict(line.strip().split(None, 1) for line in result.out.split("Mends")[0].splitlines()[1:])
    assert set(values) == {
        "fairseq_rope",
        "fairseq",
        "Python",
        "torch",
        "NumPy",
        "sacrebleu",
        "CTranslate2",
        "CPU",
        "GPU",
        "bf16",
    }
    assert values["Python"] == sys.version.split()[0] and values["fairseq_rope"] == fairseq_rope.__version__
    for mend, why in compat.status():
        state = "active" if why is None else f"not active ({why})"
        assert f"  {mend.name}: {state}\n      {mend.reason}\n" in result.out
    mine = [arch for arch, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_rope.")]
    assert "roformer_tiny" in mine and "transformer" not in doctor.architectures()
    listed = result.out.split("for --arch\n")[1].split("Use it")[0].split("\n")
    assert [line.split()[0] for line in listed if line] == sorted(mine)
    assert f"Architectures ({len(mine)})" in result.out
    assert "No problems found." in result.out


def row(monkeypatch, version, module=None):
    """What is said of CTranslate2 where ``version`` is installed and importing it gives ``module``; never an error."""
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == "ctranslate2" else real(name))
    monkeypatch.setitem(sys.modules, "ctranslate2", module)
    assert doctor.problems() == []
    [value] = [value for name, value in doctor.stack() if name == "CTranslate2"]
    assert "optional: fairseq-rope-export" in value and "\n" not in value
    return value


def test_ctranslate2_is_optional(monkeypatch):
    def found(gpus):
        types = {"int8", "float32"}
        return SimpleNamespace(get_supported_compute_types=lambda device: types, get_cuda_device_count=lambda: gpus)

    assert row(monkeypatch, "not installed").endswith("pip install 'ctranslate2>=4.8'")
    newer = row(monkeypatch, "4.10.1", found(0))
    assert newer.startswith("4.10.1 (") and newer.endswith("CPU: float32, int8; no GPU")
    assert row(monkeypatch, "5.0.0", found(2)).endswith("; 2 GPUs")
    assert row(monkeypatch, "4.7.1", found(0)).startswith("4.7.1 is too old")
    assert row(monkeypatch, "4.8.5").startswith("4.8.5 cannot be imported")  # None in sys.modules: ImportError
    assert f'"{doctor.CTRANSLATE2}"' in (helpers.ROOT / "setup.py").read_text(encoding="utf-8")


def cannot(monkeypatch):
    broken = Mend(name="some mend", reason="because", apply=lambda: None)
    monkeypatch.setattr(compat, "status", lambda: [(broken, "cannot apply: no such function")])
    return "the mend 'some mend' cannot apply: no such function"


def nothing_registered(monkeypatch):
    monkeypatch.setattr(doctor, "architectures", dict)
    return "no architecture of fairseq_rope is registered"


def no_compiled_part(monkeypatch):
    monkeypatch.setitem(sys.modules, "fairseq.data.data_utils_fast", None)
    return "fairseq's compiled module fairseq.data.data_utils_fast cannot be imported"


def no_sacrebleu(monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "not installed" if name == "sacrebleu" else real(name))
    return "sacrebleu is not installed"


@pytest.mark.parametrize("fault", [cannot, nothing_registered, no_compiled_part, no_sacrebleu])
def test_what_cannot_work_is_named_and_is_an_error(monkeypatch, fault):
    expected = fault(monkeypatch)
    result = helpers.run("fairseq-rope-doctor", check=False)
    assert result.code == 1
    problems = result.out.split("\nProblems\n")[1]
    assert expected in problems and "No problems found" not in result.out


def test_failing_mend_is_reported_and_does_not_stop_the_others(monkeypatch):
    def apply():
        raise AttributeError("no call_main")

    applied = []
    broken = Mend(name="broken", reason="because", apply=apply)
    good = Mend(name="good", reason="because", apply=lambda: applied.append(1))
    monkeypatch.setattr(compat, "mends", lambda: [broken, good])
    monkeypatch.setattr(compat, "_results", [])
    assert compat.status() == [(broken, "cannot apply: no call_main"), (good, None)]
    assert applied == [1]
