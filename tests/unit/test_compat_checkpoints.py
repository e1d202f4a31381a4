"""Mend (a): fairseq's own checkpoints load; what a foreign one carries is refused by name and never runs."""

import argparse
import os
import pickle
import shutil

import helpers
import numpy as np
import pytest
import torch

from fairseq_rope.compat.checkpoints import CheckpointError, load_state

BLEU = ("--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 10}', "--best-checkpoint-metric", "bleu")


class Payload:
    """Pickles to a call that would create a file when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """Folder of a run with --eval-bleu, stopped after 3 of 6 updates."""
    folder = tmp_path_factory.mktemp("bleu")
    helpers.run("fairseq-train", *helpers.train_args(digits, folder, "transformer_tiny", *BLEU, updates=3))
    return folder


@pytest.fixture
def poisoned(trained, tmp_path):
    """A real checkpoint with one foreign object in it, and the folder that loading the object would make."""
    state = torch.load(trained / "checkpoint_last.pt", map_location="cpu", weights_only=True)
    proof = tmp_path / "executed"
    state["extra_state"]["note"] = Payload(proof)
    path = tmp_path / "poisoned.pt"
    torch.save(state, path)
    return path, proof


def resume(data, folder, *extra, updates=6):
    args = helpers.train_args(data, folder, "transformer_tiny", *BLEU, *extra, updates=updates)
    return helpers.run("fairseq-train", *args, check=False)


def decode_args(program, data, path):
    extra = {"fairseq-generate": ["--max-len-b", 12], "fairseq-validate": ["--valid-subset", "valid"]}
    if program == "fairseq-interactive":
        return [data, "-s", "en", "-t", "de", "--path", path, "--cpu", "--beam", "1", "--max-len-b", 12]
    return [data, "--path", path, "--cpu", "--batch-size", "16", "--no-progress-bar", *extra[program]]


def test_eval_bleu_checkpoint_holds_what_torch_refuses(trained):
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(trained / "checkpoint_last.pt")
    assert foreign == []  # all allowed now; stock torch names Namespace, ndarray, dtype and _reconstruct
    state = load_state(trained / "checkpoint_last.pt")
    assert isinstance(state["cfg"]["model"], argparse.Namespace)
    counts = [value for meter in state["extra_state"]["metrics"]["valid"] for value in meter[3].values()]
    assert any(isinstance(value, np.ndarray) for value in counts)


def test_eval_bleu_run_resumes(digits, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    result = resume(digits, folder)
    assert result.code == 0, result.text[-2000:]
    assert "Loaded checkpoint" in result.text and "num_updates=6" in result.text.replace(
        "num_updates 6", "num_updates=6"
    )
    assert load_state(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 6


@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_eval_bleu_checkpoint_starts_another_run(digits, trained, tmp_path, flag):
    extra = [flag, trained / "checkpoint_last.pt"]
    updates = 4
    result = resume(digits, tmp_path / "other", *extra, updates=updates)
    assert result.code == 0, result.text[-2000:]
    done = load_state(tmp_path / "other" / "checkpoint_last.pt")["optimizer_history"]
    assert done[-1]["num_updates"] == updates
    # --restore-file goes on after update 3, --finetune-from-model starts to count again
    assert result.text.count("train_inner") == (1 if flag == "--restore-file" else 4)


@pytest.mark.parametrize("program", ["fairseq-generate", "fairseq-interactive", "fairseq-validate"])
def test_eval_bleu_checkpoint_is_used(digits, trained, program):
    args = decode_args(program, digits, trained / "checkpoint_last.pt")
    result = helpers.run(program, *args, stdin="one two three\n")
    if program == "fairseq-validate":
        assert "valid on 'valid' subset | loss" in result.text
    else:
        assert len(helpers.hypotheses(result.out)) == (20 if program == "fairseq-generate" else 1)


@pytest.mark.parametrize("how", ["resume", "--restore-file", "--finetune-from-model"])
def test_foreign_object_stops_training(digits, poisoned, tmp_path, how):
    path, proof = poisoned
    folder = tmp_path / "run"
    if how == "resume":
        folder.mkdir()
        path = shutil.copy(path, folder / "checkpoint_last.pt")
        result = resume(digits, folder)
    else:
        result = resume(digits, folder, how, path)
    assert result.code != 0
    assert isinstance(result.error, CheckpointError)
    assert str(path) in str(result.error) and "mkdir" in str(result.error)
    assert not proof.exists()


@pytest.mark.parametrize("program", ["fairseq-generate", "fairseq-interactive", "fairseq-validate"])
def test_foreign_object_stops_decoding(digits, poisoned, program):
    path, proof = poisoned
    result = helpers.run(program, *decode_args(program, digits, path), stdin="one\n", check=False)
    assert isinstance(result.error, CheckpointError)
    assert f"carries an object of the forbidden type {os.mkdir.__module__}.mkdir" in str(result.error)
    assert not proof.exists()


def test_foreign_object_stays_safe_where_torch_is_told_to_trust_it(digits, poisoned, monkeypatch):
    path, proof = poisoned
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    result = helpers.run("fairseq-generate", *decode_args("fairseq-generate", digits, path), check=False)
    assert isinstance(result.error, CheckpointError)
    assert not proof.exists()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("mmap", [False, True])
def test_load_state_never_executes(tmp_path, legacy, mmap):
    proof = tmp_path / "executed"
    path = tmp_path / "bad.pt"
    torch.save({"model": Payload(proof)}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match="mkdir"):
        load_state(path, mmap=mmap)
    path.write_bytes(pickle.dumps(Payload(proof), protocol=2))
    with pytest.raises(CheckpointError, match="mkdir"):
        load_state(path, mmap=mmap)
    path.write_bytes(pickle.dumps(Payload(proof)))  # a newer protocol than torch reads at all
    with pytest.raises(CheckpointError, match=r"not a checkpoint \(Unsupported operand"):
        load_state(path, mmap=mmap)
    assert not proof.exists()


def test_load_state_reads_bleu_meters_of_numpy_1_and_2(tmp_path):
    arrays = {
        "counts": np.array([3, 2]),
        "score": np.float64(1.5),
        "single": np.array([1.0], dtype=np.float32),
        "flag": np.bool_(True),
    }
    path = tmp_path / "numpy.pt"
    torch.save({"model": {}, **arrays}, path)
    for old, new in ((b"numpy._core.multiarray", b"numpy.core.multiarray"), (b"", b"")):
        renamed = tmp_path / "renamed.pt"
        pickled = pickle.dumps({"model": {}, **arrays}, protocol=2)
        # the legacy format of torch.save: magic number, protocol, system information, object, storage keys
        head = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
        parts = [pickle.dumps(part, protocol=2) for part in head] + [pickled, pickle.dumps([], protocol=2)]
        renamed.write_bytes(b"".join(parts).replace(old, new) if old else b"".join(parts))
        for state in (load_state(path), load_state(renamed)):
            np.testing.assert_array_equal(state["counts"], [3, 2])
            assert state["score"] == 1.5 and state["single"].dtype == np.float32 and state["flag"]


def test_arrays_of_objects_are_refused(tmp_path):
    torch.save({"model": {}, "objects": np.array([{}], dtype=object)}, tmp_path / "objects.pt")
    with pytest.raises(CheckpointError, match=r"ObjectDType"):
        load_state(tmp_path / "objects.pt")


def test_load_state_names_what_is_wrong(trained, tmp_path):
    whole = (trained / "checkpoint_last.pt").read_bytes()
    cases = {
        "half.pt": (whole[: len(whole) // 2], "is truncated: the end of the file is missing"),
        "stub.pt": (whole[:3], "is damaged or not a checkpoint"),
        "empty.pt": (b"", "is truncated: the file is empty"),
        "text.pt": (b"no checkpoint at all\n" * 40, "is damaged or not a checkpoint"),
        "noise.pt": (bytes(range(256)) * 8, "is damaged or not a checkpoint"),
    }
    for name, (content, expected) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=expected) as caught:
            load_state(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_state(tmp_path / "missing.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        load_state(tmp_path)
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="not one of fairseq's: it holds a dict with the keys"):
        load_state(tmp_path / "other.pt")
    torch.save(torch.zeros(1), tmp_path / "tensor.pt")
    with pytest.raises(CheckpointError, match="it holds Tensor"):
        load_state(tmp_path / "tensor.pt")
