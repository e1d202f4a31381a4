"""Average what fairseq-train saved; the result translates, and training goes on from it.

Training has a data worker here, as by default; other tests do without.
"""

import json

import helpers
import pytest
import torch

from fairseq_rope.compat.checkpoints import load_state

ARCHITECTURE = "roformer_tiny"


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """Folder of three epochs' checkpoints, with all embeddings tied and an exponential moving average."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = [
        argument
        for argument in helpers.train_args(digits, folder, ARCHITECTURE, updates=100)
        if argument != "--no-epoch-checkpoints"
    ]
    helpers.run(
        "fairseq-train", *arguments, "--max-epoch", 3, "--keep-best-checkpoints", 2,
        "--save-interval-updates", 3, "--store-ema", "--ema-fp32", "--num-workers", 1,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def averaged(trained):
    out = trained / "averaged.pt"
    result = helpers.run("fairseq-rope-average", "--inputs", trained, "--output", out, "--num-epoch-checkpoints", 3)
    assert [line.split()[0] for line in result.out.splitlines()[1:4]] == [f"checkpoint{n}.pt" for n in (3, 2, 1)]
    return out


def test_parameters_are_the_mean(trained, averaged):
    inputs = [load_state(trained / f"checkpoint{n}.pt")["model"] for n in (1, 2, 3)]
    result = load_state(averaged)
    assert list(result["model"]) == list(inputs[0])
    changed = 0
    for key, tensor in result["model"].items():
        assert torch.equal(tensor, (sum(model[key].double() for model in inputs) / 3).float()), key
        changed += not torch.equal(tensor, inputs[2][key])
    assert changed > 20
    embeddings = [key for key in result["model"] if key.endswith(("embed_tokens.weight", "output_projection.weight"))]
    assert len(embeddings) == 3 and len({result["model"][key].data_ptr() for key in embeddings}) == 1
    assert "last_optimizer_state" not in result
    assert averaged.stat().st_size < 0.5 * (trained / "checkpoint3.pt").stat().st_size


@pytest.mark.parametrize("choice", ["--num-update-checkpoints", "--num-best-checkpoints"])
def test_fairseqs_own_file_names_are_found(trained, tmp_path, choice):
    out = tmp_path / "mean.pt"
    helpers.run("fairseq-rope-average", "--inputs", trained, "--output", out, choice, 2)
    names = [entry["file"] for entry in load_state(out)["extra_state"]["averaged"]]
    assert len(names) == 2
    if choice == "--num-best-checkpoints":
        values = [float(name.split("_")[-1].removesuffix(".pt")) for name in names]
        assert values == sorted(values)


def test_mean_of_copies_of_a_real_checkpoint(trained, tmp_path):
    path = trained / "checkpoint3.pt"
    helpers.run("fairseq-rope-average", "--inputs", *[path] * 7, "--output", tmp_path / "mean.pt")
    mean, original = load_state(tmp_path / "mean.pt")["model"], load_state(path)["model"]
    assert all(torch.equal(mean[key].view(torch.int32), original[key].view(torch.int32)) for key in original)


def test_generates_from_the_average_and_scores(digits, averaged, tmp_path):
    output = helpers.run(
        "fairseq-generate", digits, "--user-dir", helpers.USER_DIR, "--path", averaged, "--cpu", "--beam", 2,
        "--max-len-b", 12,
    ).out  # fmt: skip
    assert len(helpers.hypotheses(output)) == 20
    (tmp_path / "generate.out").write_text(output, encoding="utf-8")
    targets = {line.split("\t")[0]: line.split("\t")[1] for line in output.splitlines() if line.startswith("T-")}
    (tmp_path / "ref.de").write_text("".join(targets[f"T-{n}"] + "\n" for n in range(20)), encoding="utf-8")
    helpers.run(
        "fairseq-rope-score", tmp_path / "generate.out", "--ref", tmp_path / "ref.de", "--pair", "en-de",
        "--json", tmp_path / "scores.json",
    )  # fmt: skip
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert 0 < scores["chrf"] <= 100 and scores["sentences"] == 20


@pytest.mark.parametrize("ema", [[], ["--store-ema"]], ids=["plain", "ema"])
def test_training_goes_on_from_the_average(digits, averaged, tmp_path, ema):
    result = helpers.run(
        "fairseq-train",
        *helpers.train_args(digits, tmp_path, ARCHITECTURE, *ema, updates=1),
        "--restore-file", averaged, "--reset-optimizer", "--reset-dataloader", "--reset-meters",
        "--lr", "1e-9",
    )  # fmt: skip
    assert f"Loaded checkpoint {averaged}" in result.text
    before, after = load_state(averaged)["model"], load_state(tmp_path / "checkpoint_last.pt")["model"]
    for key, tensor in before.items():
        torch.testing.assert_close(after[key], tensor, rtol=0, atol=1e-6)


def test_another_architecture_is_refused(digits, trained, tmp_path):
    # The same keys and shapes: only the options tell them apart.
    helpers.run("fairseq-train", *helpers.train_args(digits, tmp_path, "baseline_tiny", updates=1))
    baseline, out = tmp_path / "checkpoint_last.pt", tmp_path / "mean.pt"
    result = helpers.run(
        "fairseq-rope-average", "--inputs", trained / "checkpoint3.pt", baseline, "--output", out, check=False
    )
    assert result.code == 1 and "--arch baseline_tiny instead of roformer_tiny" in result.log
    assert not out.exists()


@pytest.mark.real_programs
def test_console_script(trained, tmp_path):
    result = helpers.run_program(
        "fairseq-rope-average", "--inputs", trained, "--output", tmp_path / "mean.pt",
        "--num-epoch-checkpoints", 9, check=False,
    )  # fmt: skip
    assert result.code == 1 and "Traceback" not in result.out
    last = result.out.strip().splitlines()[-1]
    assert last == f"fairseq-rope-average: error: 9 epoch checkpoints were asked for but 3 found in {trained}"
    assert not (tmp_path / "mean.pt").exists()
