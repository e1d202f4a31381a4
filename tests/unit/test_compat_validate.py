"""Mend (f): fairseq-validate takes the task from the checkpoint."""

import argparse

import helpers
import pytest
import torch

from fairseq_rope.compat.validate import task_of
from fairseq_rope.errors import UserError


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("validate")
    helpers.run("fairseq-train", *helpers.train_args(digits, folder, "transformer_tiny", updates=1))
    return folder / "checkpoint_last.pt"


def losses(digits, checkpoint, *extra):
    args = [digits, "--user-dir", helpers.USER_DIR, "--path", checkpoint, "--cpu", "--max-tokens", "400"]
    log = helpers.run("fairseq-validate", *args, *extra).text
    return [line.split("| loss ")[1] for line in log.splitlines() if "| loss " in line]


def test_task_need_not_be_given(digits, checkpoint):
    found = losses(digits, checkpoint)
    assert len(found) == 1
    assert found == losses(digits, checkpoint, "--task", "translation")


def test_missing_path_is_named(digits):
    result = helpers.run("fairseq-validate", digits, "--cpu", check=False)
    assert isinstance(result.error, UserError) and "--path is missing" in str(result.error)


@pytest.mark.parametrize(
    "options",
    [
        {"cfg": {"task": {"_name": "denoising"}}, "args": None},
        {"cfg": {"task": argparse.Namespace(_name="denoising")}},
        {"args": argparse.Namespace(task="denoising")},
    ],
    ids=["hydra", "legacy task", "old fairseq"],
)
def test_task_is_found_in_each_kind_of_checkpoint(tmp_path, options):
    torch.save({"model": {}, **options}, tmp_path / "x.pt")
    assert task_of(tmp_path / "x.pt") == "denoising"


def test_task_is_translation_where_the_checkpoint_says_none(tmp_path):
    torch.save({"model": {}, "args": argparse.Namespace(arch="transformer")}, tmp_path / "x.pt")
    assert task_of(tmp_path / "x.pt") == "translation"
