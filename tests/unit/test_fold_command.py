"""``fairseq-rope-fold``: what it writes loads everywhere and translates alike; what it refuses, in one line."""

import os
import re
import resource
from argparse import Namespace
from pathlib import Path

import helpers
import models
import pytest
import runs
import torch
from fairseq.models.transformer import TransformerConfig

from fairseq_rope.cli import fold as command
from fairseq_rope.compat.fit import why_not
from fairseq_rope.models import TranslationTransformer

OMEGAS = ("_omega", "_omega_offset")


def fold(capsys, *args):
    """Run the command; (exit code, standard output, standard error)."""
    code = 0
    capsys.readouterr()
    try:
        command.main(list(map(str, args)))
    except SystemExit as stop:
        code = stop.code
    return (code, *capsys.readouterr())


def folded(capsys, *args):
    """The checkpoint that the command writes, and what it prints."""
    code, out, err = fold(capsys, *args)
    assert code == 0 and err == "", err
    return torch.load(args[1], weights_only=True), out


def refused(capsys, path, out, message):
    """One line on standard error, a non-zero exit, nothing on standard output, an older OUT as it was."""
    before = Path(out).read_bytes() if os.path.isfile(out) else None
    files = sorted(os.listdir(Path(out).parent)) if Path(out).parent.is_dir() else None
    code, printed, err = fold(capsys, path, out)
    assert code in (1, 2) and printed == ""
    assert err.count("\n") == 1 and err.startswith("fairseq-rope-fold: error: "), err
    assert re.search(message, err), err
    assert before is None or Path(out).read_bytes() == before
    assert files is None or sorted(os.listdir(Path(out).parent)) == files


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """Folder of two updates of ADMIN, with a moving average."""
    folder = tmp_path_factory.mktemp("admin")
    runs.train(digits, folder, "admin_tiny", "--store-ema", "--ema-fp32")
    return folder


@pytest.fixture
def path(trained):
    return trained / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def plain_path(trained, tmp_path_factory):
    """The folded checkpoint of ``trained``."""
    out = tmp_path_factory.mktemp("folded") / "plain.pt"
    command.main([str(trained / "checkpoint_last.pt"), str(out)])
    return out


@pytest.fixture(scope="module")
def translated(digits, plain_path):
    """fairseq-generate's output with the folded checkpoint."""
    return runs.generate(digits, plain_path).out


def made(folder, arch="admin_tiny", change=None, task=None, **flags):
    """A checkpoint that was not trained: a small model with every parameter away from its start."""
    built = models.build(arch, task, **flags)
    state = {
        key: torch.ones_like(x) if key.endswith("0.self_attn_omega") else x for key, x in built.state_dict().items()
    }
    checkpoint = {
        "args": None,
        "cfg": {"model": Namespace(arch=arch, _name=arch, **flags)},
        "model": state,
        "optimizer_history": [{"num_updates": 3}],
        "extra_state": {},
    }
    if change is not None:
        checkpoint = change(checkpoint) or checkpoint
    torch.save(checkpoint, folder / "made.pt")
    return folder / "made.pt"


# ---- what it writes ----


def test_plain_checkpoint(capsys, path, tmp_path):
    state, out = folded(capsys, path, tmp_path / "out.pt")
    original = torch.load(path, weights_only=True)
    model, options = state["model"], state["cfg"]["model"]
    assert list(model) == [key for key in original["model"] if not key.endswith(OMEGAS)]
    assert options.residual_init == "default" and options.arch == "admin_tiny"
    assert "last_optimizer_state" in original and "last_optimizer_state" not in state
    assert set(state) == set(original) - {"last_optimizer_state"}
    assert state["extra_state"]["folded"] == {"file": "checkpoint_last.pt", "residual_init": "admin"}
    assert state["extra_state"]["train_iterator"] == original["extra_state"]["train_iterator"]
    assert "ema_fp32_params" in original["extra_state"] and "ema_fp32_params" not in state["extra_state"]
    assert all(model[key].data_ptr() == x.data_ptr() for key, x in state["extra_state"]["ema"].items())
    tied = [key for key in model if key.endswith(("embed_tokens.weight", "output_projection.weight"))]
    assert len(tied) == 3 and len({model[key].data_ptr() for key in tied}) == 1
    assert (tmp_path / "out.pt").stat().st_size < 0.5 * path.stat().st_size

    lines = out.splitlines()
    assert lines[0].split() == ["stack", "blocks", "ω", "folded"]
    assert lines[1].split() == ["encoder", "1", "1", "nothing", "to", "do"]
    assert re.fullmatch(r"encoder +2-4 +[\d.]+ to [\d.]+ +into the LayerNorm before and .*", lines[2])
    assert re.fullmatch(r"decoder +2-6 +[\d.]+ to [\d.]+ +into the LayerNorm before and .*", lines[4])
    assert float(re.search(r"outputs differ by ([\d.e-]+)", out)[1]) < 1e-5
    assert "optimiser's state was left out" in out and "moving average (EMA) was replaced" in out
    assert lines[-1].startswith(f"wrote {tmp_path / 'out.pt'}: a plain post-norm checkpoint")


def test_translates_alike(digits, path, translated):
    before = runs.generate(digits, path).out
    assert helpers.hypotheses(before) == helpers.hypotheses(translated) and len(helpers.hypotheses(before)) == 20
    runs.assert_same_lines(translated, before, "HP")


def test_loads_in_python_as_the_plain_model(digits, plain_path):
    hub = TranslationTransformer.from_pretrained(str(plain_path.parent), plain_path.name, str(digits))
    assert not [name for name, _ in [*hub.named_parameters(), *hub.named_buffers()] if name.endswith(OMEGAS)]
    assert hub.translate("one two")


@pytest.mark.parametrize(
    "flags",
    [
        ("--arch", "baseline_tiny", "--finetune-from-model"),
        ("--arch", "admin_tiny", "--finetune-from-model"),
        ("--arch", "baseline_tiny", "--store-ema", "--reset-optimizer", "--restore-file"),
    ],
)
def test_training_goes_on_from_it(digits, plain_path, tmp_path, flags):
    result = runs.train(digits, tmp_path / "run", *flags[1:], plain_path, updates=4)
    assert "Loaded checkpoint" in result.log or "loading pretrained model" in result.log
    start = torch.load(plain_path, weights_only=True)["model"]
    end = runs.parameters(tmp_path / "run")
    for key, tensor in start.items():  # a few small steps away, not a new model
        assert float((end[key] - tensor).abs().max()) < 0.1, key
    if "admin_tiny" in flags:
        assert all(torch.equal(x, torch.ones_like(x)) for key, x in end.items() if key.endswith("_omega"))


@pytest.mark.parametrize(
    "arch, flags",
    [
        ("baseline_tiny", {"residual_init": "admin-torch"}),
        ("roformer_tiny", {"residual_init": "deepnorm", "no_scale_embedding": True}),
        ("realformer_admin_tiny", {"position_encoding": "tupe-r"}),
        ("admin_tiny", {"adaptive_softmax_cutoff": "9,20"}),
        ("admin_tiny", {"untied_embeddings": True, "no_cross_attention": True, "max_target_positions": 2}),
    ],
)
def test_other_models(capsys, tmp_path, arch, flags):
    state, out = folded(capsys, made(tmp_path, arch, **flags), tmp_path / "out.pt")
    assert not [key for key in state["model"] if key.endswith(OMEGAS)]
    model = models.build(arch, **{**flags, "residual_init": "default"})
    model.load_state_dict(state["model"])
    options = vars(state["cfg"]["model"])
    assert options["residual_encoder_layers"] is options["residual_decoder_layers"] is None
    assert ("exact up to LayerNorm's ε" in out) == ("residual_init" in flags)


def test_two_dictionaries(capsys, tmp_path):
    path = made(tmp_path, task=models.Task(40, 50))
    state, _ = folded(capsys, path, tmp_path / "out.pt")
    assert len(state["model"]["encoder.embed_tokens.weight"]) == 44
    assert len(state["model"]["decoder.embed_tokens.weight"]) == 54


def test_options_as_hydra_saves_them(capsys, digits, path, translated, tmp_path):
    state = torch.load(path, weights_only=True)
    state["cfg"]["model"] = vars(state["cfg"]["model"])
    torch.save(state, tmp_path / "hydra.pt")
    state, _ = folded(capsys, tmp_path / "hydra.pt", tmp_path / "out.pt")
    assert state["cfg"]["model"]["residual_init"] == "default"
    assert runs.generate(digits, tmp_path / "out.pt").out == translated


def test_half_precision_is_stored_in_float32(capsys, path, tmp_path):
    state = torch.load(path, weights_only=True)
    state["model"] = {key: x if key.endswith("_omega") else x.half() for key, x in state["model"].items()}
    torch.save(state, tmp_path / "half.pt")
    state, out = folded(capsys, tmp_path / "half.pt", tmp_path / "out.pt")
    assert {x.dtype for x in state["model"].values()} == {torch.float32}
    assert "half precision and are stored in float32" in out


def test_missing_embedding_files_do_not_matter(capsys, tmp_path):
    def change(state):
        state["cfg"]["model"].encoder_embed_path = "gone/embeddings.txt"

    state, _ = folded(capsys, made(tmp_path, change=change), tmp_path / "out.pt")
    assert state["cfg"]["model"].encoder_embed_path == "gone/embeddings.txt"


def test_an_older_file_is_replaced(capsys, path, tmp_path):
    (tmp_path / "out.pt").write_text("old")
    folded(capsys, path, tmp_path / "out.pt")
    assert os.listdir(tmp_path) == ["out.pt"]


# ---- the check ----


def test_another_function_is_refused(capsys, path, tmp_path, monkeypatch):
    real = command.fold

    def broken(model, cfg):
        state, blocks = real(model, cfg)
        state["encoder.layers.1.self_attn.k_proj.weight"] = -state["encoder.layers.1.self_attn.k_proj.weight"]
        return state, blocks

    monkeypatch.setattr(command, "fold", broken)
    (tmp_path / "out.pt").write_text("old")
    refused(capsys, path, tmp_path / "out.pt", r"checkpoint_last\.pt: .* not the same function: .* limit is 0\.0001$")


def test_no_number_is_refused(capsys, path, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "compare", lambda expected, given: float("nan"))
    refused(capsys, path, tmp_path / "out.pt", "not the same function")


def test_first_block_that_is_too_small_for_its_epsilon(capsys, tmp_path):
    def change(state):
        for key in ("embed_tokens.weight", "layers.0.self_attn.out_proj.weight", "layers.0.self_attn.out_proj.bias"):
            state["model"][f"encoder.{key}"] = state["model"][f"encoder.{key}"] * 1e-3

    path = made(tmp_path, "roformer_tiny", change, residual_init="admin-torch", untied_embeddings=True)
    refused(capsys, path, tmp_path / "out.pt", "not the same function.*up to LayerNorm's ε")


def test_compare():
    a, b = torch.tensor([[1.0, -4.0]]), torch.tensor([[1.5]])
    assert command.compare([a, b], [a, b]) == 0
    assert command.compare([a, b], [a, b - 1]) == 0.25


def test_outputs_leave_pads_out():
    model = models.build("admin_tiny")
    results = command.outputs(model)
    assert [x.size(0) for x in results] == [1, 1 + 3 + 16 + 24, 48]
    assert all(torch.equal(x, y) for x, y in zip(results, command.outputs(model), strict=True))


# ---- refusals ----


def test_out(capsys, path, tmp_path):
    before = path.read_bytes()
    refused(capsys, path, path, "is the checkpoint to fold: choose another name")
    (tmp_path / "link.pt").symlink_to(path)
    refused(capsys, path, tmp_path / "link.pt", "is the checkpoint to fold")
    refused(capsys, path, tmp_path / "no" / "out.pt", "there is no folder")
    refused(capsys, path, tmp_path, "it is a folder")
    assert path.read_bytes() == before


def test_full_disk(capsys, path, tmp_path):
    (tmp_path / "out.pt").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        code, _, err = fold(capsys, path, tmp_path / "out.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1 and "error: cannot write" in err and err.count("\n") == 1
    assert (tmp_path / "out.pt").read_text() == "old" and os.listdir(tmp_path) == ["out.pt"]


@pytest.mark.parametrize("arguments", [(), ("a.pt",), ("a.pt", "b.pt", "c.pt"), ("a.pt", "b.pt", "--force")])
def test_arguments(capsys, arguments):
    code, out, err = fold(capsys, *arguments)
    assert code == 2 and out == "" and err.count("\n") == 1 and "fairseq-rope-fold --help" in err


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "foreign", "forbidden", "no model"])
def test_damaged_file(capsys, path, tmp_path, damage):
    bad, out = tmp_path / "bad.pt", tmp_path / "out.pt"
    out.write_text("old")
    if damage in ("truncated", "empty"):
        bad.write_bytes(path.read_bytes()[: 5000 if damage == "truncated" else 0])
    elif damage == "foreign":
        bad.write_text("not a checkpoint\n")
    elif damage != "missing":
        content = {"x": pytest.Config, "model": {}} if damage == "forbidden" else {"weights": {}}
        torch.save(content, bad)
    refused(capsys, bad, out, r"bad\.pt")


def other(name, value):
    def change(state):
        setattr(state["cfg"]["model"], name, value)

    return change


def without(key):
    def change(state):
        del state[key]

    return change


def tensor(key, change):
    def apply(state):
        old = state["model"].pop(key)
        if change is not None:
            state["model"][key] = change(old)

    return apply


REFUSED = {
    "default": ("baseline_tiny", {}, None, "nothing to fold: .*--residual-init default"),
    "stock": ("admin_tiny", {}, other("_name", "transformer_iwslt_de_en"), "nothing to fold: --arch transformer_iwslt"),
    "unknown": ("admin_tiny", {}, other("_name", "nothing_known"), "--arch nothing_known is not one of fairseq_rope's"),
    "no configuration": ("admin_tiny", {}, without("cfg"), "holds no configuration"),
    "no model options": ("admin_tiny", {}, lambda s: s.update(cfg={"model": None}), "holds no configuration"),
    "option of a wrong type": (
        "admin_tiny", {}, other("encoder_layers", "two"), "cannot be built as its configuration says",
    ),
    "other depth": ("admin_tiny", {}, other("decoder_layers", 3), r"lacks decoder\.layers\.2"),
    "other heads": ("admin_tiny", {}, other("encoder_attention_heads", 5), "--encoder-attention-heads 5 does not"),
    "pre-norm": ("admin_tiny", {}, other("encoder_normalize_before", True), "pre-norm.*--encoder-normalize-before"),
    "cross-self-attention": ("admin_tiny", {"cross_self_attention": True}, None, "--cross-self-attention"),
    "unmeasured": ("admin_tiny", {}, tensor("encoder.layers.0.self_attn_omega", lambda x: x * 0), "not measured"),
    "not a number": ("admin_tiny", {}, tensor("encoder.layers.1.fc1.weight", lambda x: x / 0), "no finite"),
    "no embedding": ("admin_tiny", {}, tensor("encoder.embed_tokens.weight", None), "cannot be built"),
    "no parameters": ("admin_tiny", {}, lambda s: s.update(model={}), "cannot be built"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_checkpoints_that_cannot_be_folded(capsys, tmp_path, case):
    arch, flags, change, message = REFUSED[case]
    (tmp_path / "out.pt").write_text("old")
    refused(capsys, made(tmp_path, arch, change, **flags), tmp_path / "out.pt", rf"made\.pt: .*{message}")


def test_folded_twice(capsys, plain_path, tmp_path):
    refused(capsys, plain_path, tmp_path / "out.pt", r"a folded checkpoint already, made from checkpoint_last\.pt")


def test_admin_checkpoint_in_a_plain_model_is_told_about_folding():
    plain, admin = models.build("baseline_tiny").state_dict(), models.build("admin_tiny").state_dict()
    assert re.search("lacks .*--residual-init admin: .*fairseq-rope-fold$", why_not(plain, admin))
    closed = models.build("baseline_tiny", residual_init="admin-torch").state_dict()
    assert re.search("--residual-init admin-torch: .*fairseq-rope-fold$", why_not(plain, closed))
    assert "fold" not in why_not(plain, {**admin, "encoder.more": torch.ones(1)})
    assert why_not(admin, plain) is not None and "fold" not in why_not(admin, plain)


def test_every_option_that_is_reset_is_one_of_this_package():
    from fairseq_rope.config import RopeTransformerConfig

    own = set(RopeTransformerConfig.__dataclass_fields__) - set(TransformerConfig.__dataclass_fields__)
    assert set(command.PLAIN) <= own
    for name, value in command.PLAIN.items():
        assert RopeTransformerConfig.__dataclass_fields__[name].default == value
