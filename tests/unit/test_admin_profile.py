"""ADMIN's profile as a file: written once, read instead of measuring, refused when it does not fit."""

import json

import models
import pytest
import torch

from fairseq_rope.errors import UserError
from fairseq_rope.residual import is_unmeasured
from fairseq_rope.residual.profile import picture_of

SOURCE = models.batch([7, 3, 12])
TARGET = models.batch([6, 9, 2], bos=2, left=False)


def run(model):
    return model(SOURCE, SOURCE.ne(1).sum(1), TARGET)[0]


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "profile.json"
    run(models.unmeasured(dropout=0.0, admin_profile_out=str(path)))
    return path


def test_what_is_written(profile):
    content = json.loads(profile.read_text())
    assert list(content) == ["encoder", "decoder"]
    for stack, blocks in (("encoder", 4), ("decoder", 6)):
        part = content[stack]
        assert [len(part[name]) for name in ("omega", "shortcut_variance", "branch_variance")] == [blocks] * 3
        assert part["omega"][0] == 1
        for i in range(1, blocks):
            assert part["omega"][i] ** 2 == pytest.approx(
                part["shortcut_variance"][i - 1] + part["branch_variance"][i - 1], rel=1e-12
            )
    picture = profile.with_suffix(".png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_read_instead_of_measuring(profile):
    measured = models.unmeasured(dropout=0.0)
    run(measured)
    given = models.unmeasured(dropout=0.0, admin_profile_in=str(profile))
    with torch.no_grad():
        given.encoder.layers[0].fc2.weight.mul_(5)  # would give another profile
    run(given)
    for name, value in measured.named_buffers():
        assert torch.equal(value, dict(given.named_buffers())[name]), name


def test_measured_only_once_and_never_in_evaluation(tmp_path):
    path = tmp_path / "p.json"
    model = models.unmeasured(dropout=0.0, admin_profile_out=str(path))
    run(model.eval())
    assert not path.exists() and is_unmeasured(model.encoder.layers)
    run(model.train())
    path.unlink()
    run(model)
    assert not path.exists()


def test_names_of_the_picture(tmp_path):
    for name, picture in (("a.json", "a.png"), ("run.v1", "run.v1.png"), ("run", "run.png")):
        assert picture_of(tmp_path / name) == tmp_path / picture


def test_one_stack_measured(tmp_path, profile):
    """The other came from a checkpoint; the file still holds both and can be read."""
    path = tmp_path / "both.json"
    model = models.unmeasured(dropout=0.0, admin_profile_out=str(path))
    with torch.no_grad():
        for name, buffer in model.encoder.named_buffers():
            if name.endswith("_omega"):
                buffer.fill_(1.0)
    run(model)
    content = json.loads(path.read_text())
    assert content["encoder"] == {"omega": [1.0] * 4}
    assert content["decoder"]["omega"][-1] > 1.3
    run(models.unmeasured(dropout=0.0, admin_profile_in=str(path)))


def test_file_names_stay_out_of_checkpoints(profile):
    """Generation with the checkpoint must not look for a file of the training."""
    from argparse import Namespace

    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    args = Namespace(arch="admin_tiny", _name="admin_tiny", admin_profile_in=str(profile))
    ARCH_CONFIG_REGISTRY["admin_tiny"](args)
    model = ARCH_MODEL_REGISTRY["admin_tiny"].build_model(args, models.Task())
    assert args.admin_profile_in is None and args.admin_profile_out is None
    assert model.profile_in == str(profile)


def edited(profile, change):
    content = json.loads(profile.read_text())
    change(content)
    profile.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["encoder"]["omega"].pop(), "is for 3 encoder blocks, but this model has 4"),
        (lambda c: c["decoder"]["omega"].append(2.0), "is for 7 decoder blocks, but this model has 6"),
        (lambda c: c.pop("decoder"), "is no profile: it must hold JSON with encoder.omega and decoder.omega"),
        (lambda c: c["decoder"]["omega"].__setitem__(2, "x"), "is no profile"),
        (lambda c: c["decoder"]["omega"].__setitem__(2, 0), "every omega must be a positive number"),
        (lambda c: c["decoder"]["omega"].__setitem__(2, float("nan")), "every omega must be a positive number"),
        (lambda c: c["encoder"]["omega"].__setitem__(0, 1.5), "the first omega of the encoder must be 1, not 1.5"),
    ],
)
def test_refused_when_the_model_is_built(profile, change, message):
    edited(profile, change)
    with pytest.raises(UserError, match=message):
        models.unmeasured(dropout=0.0, admin_profile_in=str(profile))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1, 2]", b"{", b"3"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"--admin-profile-in .* is no "):
        models.unmeasured(dropout=0.0, admin_profile_in=str(path))


def test_a_missing_profile_is_an_error_of_the_first_update_only(tmp_path, profile):
    """A resumed run has its values in the checkpoint and needs no file."""
    with pytest.raises(UserError, match=r"missing\.json cannot be read: No such file"):
        run(models.unmeasured(dropout=0.0, admin_profile_in=str(tmp_path / "missing.json")))
    measured = models.unmeasured(dropout=0.0)
    run(measured)
    resumed = models.unmeasured(dropout=0.0, admin_profile_in=str(tmp_path / "missing.json"))
    resumed.load_state_dict(measured.state_dict())
    run(resumed)


@pytest.mark.parametrize(
    ("path", "message"),
    [("no/such/folder/p.json", "there is no folder"), ("", "it is a folder"), ("p.png", "is for JSON")],
)
def test_where_a_profile_cannot_go(tmp_path, path, message):
    with pytest.raises(UserError, match=message):
        models.unmeasured(dropout=0.0, admin_profile_out=str(tmp_path / path))
    assert not list(tmp_path.iterdir())
