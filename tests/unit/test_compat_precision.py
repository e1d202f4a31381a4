"""Mend (c): --bf16 is no request for a TPU, and every program computes in bfloat16 when it is told to."""

import contextlib

import helpers
import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_rope.compat.checkpoints import load_state


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bf16")
    result = helpers.run("fairseq-train", *helpers.train_args(digits, folder, "transformer_tiny", "--bf16", updates=2))
    return folder / "checkpoint_last.pt", result


@contextlib.contextmanager
def recorded_types():
    """Collect the parameter types of every model that a program loads."""
    seen = []
    before = checkpoint_utils.load_model_ensemble_and_task

    def record(*args, **kwargs):
        models, *rest = before(*args, **kwargs)
        seen.extend({p.dtype for p in model.parameters()} for model in models)
        return models, *rest

    checkpoint_utils.load_model_ensemble_and_task = record
    try:
        yield seen
    finally:
        checkpoint_utils.load_model_ensemble_and_task = before


def test_bf16_trains_on_cpu(trained):
    path, result = trained
    state = load_state(path)
    assert state["cfg"]["common"]["bf16"] and not state["cfg"]["common"]["tpu"]
    assert not state["cfg"]["distributed_training"]["tpu"]
    # fairseq saves in float32 what it has computed in bfloat16, so every value has bfloat16's eight digits
    assert all(torch.equal(tensor, tensor.bfloat16().float()) for tensor in state["model"].values())
    assert state["optimizer_history"][-1]["optimizer_name"] == "FP16Optimizer"
    assert state["optimizer_history"][-1]["num_updates"] == 2 and "train_inner" in result.text


def test_bf16_run_resumes(digits, trained, tmp_path):
    options = ["--bf16", "--restore-file", trained[0]]
    helpers.run("fairseq-train", *helpers.train_args(digits, tmp_path, "transformer_tiny", *options, updates=3))
    assert load_state(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 3


def arguments(program, data, path):
    if program == "fairseq-interactive":
        return [data, "-s", "en", "-t", "de", "--path", path, "--cpu", "--beam", "2", "--max-len-b", 12]
    own = {
        "fairseq-generate": ["--gen-subset", "valid", "--max-len-b", 12],
        "fairseq-validate": ["--valid-subset", "valid"],
    }
    return [data, "--path", path, "--cpu", "--batch-size", "16", *own[program]]


@pytest.mark.parametrize("program", ["fairseq-generate", "fairseq-interactive", "fairseq-validate"])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32], ids=str)
def test_precision_is_what_was_asked_for(digits, trained, program, wanted):
    extra = ["--bf16"] if wanted == torch.bfloat16 else []
    with recorded_types() as seen:
        args = arguments(program, digits, trained[0])
        result = helpers.run(program, *args, *extra, stdin="one two\n")
    assert seen == [{wanted}]
    assert ("computes in bfloat16" in result.text) == bool(extra)
    if program == "fairseq-validate":
        assert "loss" in result.text
    else:
        assert len(helpers.hypotheses(result.out)) == (20 if program == "fairseq-generate" else 1)


def test_model_overrides_are_kept_beside_bf16(digits, trained):
    overrides = ["--bf16", "--model-overrides", "{'dropout': 0.25}"]
    with recorded_types() as seen:
        helpers.run("fairseq-generate", *arguments("fairseq-generate", digits, trained[0]), *overrides)
    assert seen == [{torch.bfloat16}]
