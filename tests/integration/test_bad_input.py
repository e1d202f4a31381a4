"""Bad input: one clear line that names what is wrong and what is valid, an error exit, and nothing lost."""

import hashlib
import os
import shutil

import helpers
import pytest

from fairseq_rope.errors import UserError


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """Folder of a run of two updates."""
    folder = tmp_path_factory.mktemp("trained")
    helpers.run("fairseq-train", *helpers.train_args(digits, folder, "transformer_tiny"))
    return folder


@pytest.fixture(scope="module")
def other_words(tmp_path_factory):
    """A data folder like ``digits`` whose dictionary is larger."""
    folder = tmp_path_factory.mktemp("other")
    text = helpers.write_digits(folder / "text")
    for language in ("en", "de"):
        with open(text / f"train.{language}", "a", encoding="utf-8") as file:
            file.write(" ".join(f"word{n}" for n in range(50)) + "\n")
    return helpers.binarize(text, folder / "bin")


def snapshot(folder):
    """{file: digest} of everything below ``folder``."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(program, args, *expected, stdin=""):
    """Assert that ``program`` ends with one line which contains each of ``expected``; returns the line."""
    result = helpers.run(program, *args, stdin=stdin, check=False)
    assert isinstance(result.error, UserError), (result.error, result.text[-2000:])
    message = str(result.error)
    assert result.code != 0 and "\n" not in message
    for part in expected:
        assert str(part) in message, message
    assert "train_inner" not in result.text and not helpers.hypotheses(result.out)
    return message


def train(data, folder, *extra, updates=4):
    return helpers.train_args(data, folder, "transformer_tiny", *extra, updates=updates)


def decode(program, data, path, *extra):
    fixed = {"fairseq-interactive": ["-s", "en", "-t", "de"], "fairseq-validate": ["--max-tokens", "400"]}
    return [data, "--user-dir", helpers.USER_DIR, "--path", path, "--cpu", *fixed.get(program, []), *extra]


DECODERS = ["fairseq-generate", "fairseq-interactive", "fairseq-validate"]


def data_folders(top, digits):
    """{what is wrong: (data folder, what the message has to say)}."""
    empty, strange, no_train, no_words, no_sentences = (top / name for name in ("e", "s", "t", "w", "n"))
    empty.mkdir()
    strange.mkdir()
    (strange / "notes.txt").write_text("no data\n")
    for folder in (no_train, no_words, no_sentences):
        shutil.copytree(digits, folder)
    for path in [*no_train.glob("train*"), *no_train.glob("test*"), no_words / "dict.de.txt"]:
        path.unlink()
    for path in [*no_sentences.glob("*.bin")]:
        path.write_bytes(b"")
    return {
        "missing": (top / "nowhere", ("nowhere does not exist", "fairseq-preprocess")),
        "empty": (empty, ("is empty", "fairseq-preprocess")),
        "no data": (strange, ("has no dict.LANG.txt", "fairseq-preprocess")),
        "no set": (no_train, ("has no set", "it has valid")),
        "no dictionary": (no_words, ("has no dict.de.txt", "its languages are en")),
        "no sentences": (no_sentences, ("has no sentences",)),
    }


WRONG = ["missing", "empty", "no data", "no set", "no dictionary", "no sentences"]


@pytest.mark.parametrize("wrong", WRONG)
def test_data_folder_in_training(digits, tmp_path, wrong):
    data, expected = data_folders(tmp_path, digits)[wrong]
    save = tmp_path / "save"
    refused("fairseq-train", train(data, save, "-s", "en", "-t", "de"), *expected)
    assert not save.exists()


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_data_folder_in_generation(digits, trained, tmp_path, wrong):
    if wrong is None:
        data, expected = digits, ("has no set 'dev'", "it has test, train, valid")
        extra = ["--gen-subset", "dev"]
    else:
        data, expected = data_folders(tmp_path, digits)[wrong]
        extra = ["-s", "en", "-t", "de"]
    args = decode("fairseq-generate", data, trained / "checkpoint_last.pt", *extra)
    refused("fairseq-generate", args, *expected)


def test_data_folder_in_interactive_translation(trained, tmp_path):
    args = decode("fairseq-interactive", tmp_path / "nowhere", trained / "checkpoint_last.pt")
    refused("fairseq-interactive", args, "nowhere does not exist", stdin="one\n")


def test_set_in_validation(digits, trained):
    args = decode("fairseq-validate", digits, trained / "checkpoint_last.pt", "--valid-subset", "valid,dev")
    refused("fairseq-validate", args, "has no set 'dev'", "it has test, train, valid")


def checkpoints(top, trained):
    """{what is wrong: (checkpoint, what the message has to say)}."""
    whole = (trained / "checkpoint_last.pt").read_bytes()
    (top / "half.pt").write_bytes(whole[: len(whole) // 2])
    (top / "text.pt").write_text("not a checkpoint\n" * 20)
    return {
        "missing": (top / "nowhere.pt", ("nowhere.pt",)),
        "truncated": (top / "half.pt", ("half.pt is truncated",)),
        "foreign": (top / "text.pt", ("text.pt is damaged or not a checkpoint",)),
    }


@pytest.mark.parametrize("wrong", ["missing", "truncated", "foreign"])
@pytest.mark.parametrize("program", DECODERS)
def test_checkpoint_in_decoding(digits, trained, tmp_path, program, wrong):
    path, expected = checkpoints(tmp_path, trained)[wrong]
    refused(program, decode(program, digits, path), *expected, stdin="one\n")


@pytest.mark.parametrize("wrong", ["missing", "truncated", "foreign"])
@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_checkpoint_to_start_from(digits, trained, tmp_path, flag, wrong):
    path, expected = checkpoints(tmp_path, trained)[wrong]
    save = shutil.copytree(trained, tmp_path / "save") if flag == "--restore-file" else tmp_path / "save"
    before = snapshot(save)
    refused("fairseq-train", train(digits, save, flag, path), *expected)
    assert snapshot(save) == before


def test_truncated_last_checkpoint_stays_as_it_is(digits, trained, tmp_path):
    save = shutil.copytree(trained, tmp_path / "save")
    last = save / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:5000])
    before = snapshot(save)
    refused("fairseq-train", train(digits, save), last, "is truncated")
    assert snapshot(save) == before


def test_own_last_checkpoint_may_be_missing(digits, tmp_path):
    # scripts that start and resume by one command name it from the first start on
    last = tmp_path / "checkpoint_last.pt"
    helpers.run("fairseq-train", *train(digits, tmp_path, "--restore-file", last, updates=1))
    assert last.exists()


@pytest.mark.parametrize("program", DECODERS)
def test_dictionary_that_does_not_fit(other_words, trained, program):
    args = decode(program, other_words, trained / "checkpoint_last.pt")
    words = "the source dictionary does not fit the checkpoint", "types, the checkpoint was trained with"
    refused(program, args, *words, stdin="one\n")


def test_dictionary_that_does_not_fit_in_resuming(other_words, trained, tmp_path):
    save = shutil.copytree(trained, tmp_path / "save")
    before = snapshot(save)
    expected = save / "checkpoint_last.pt", "the source dictionary does not fit the checkpoint"
    refused("fairseq-train", train(other_words, save), *expected)
    assert snapshot(save) == before


def test_other_size_in_resuming(digits, trained, tmp_path):
    save = shutil.copytree(trained, tmp_path / "save")
    before = snapshot(save)
    args = train(digits, save, "--encoder-ffn-embed-dim", "32")
    refused("fairseq-train", args, "cannot continue from", "layers.0.fc1.weight has the shape [64, 64]", "[32, 64]")
    args = train(digits, save, "--encoder-layers", "3")
    refused("fairseq-train", args, "the checkpoint lacks encoder.layers.2.")
    args = train(digits, save, "--decoder-layers", "1")
    refused("fairseq-train", args, "the checkpoint has decoder.layers.1.")
    assert snapshot(save) == before


@pytest.mark.parametrize("place", ["below a file", "a file", "read-only"])
def test_save_folder_that_cannot_be_written(digits, tmp_path, place):
    (tmp_path / "file").write_text("precious")
    save = {"below a file": tmp_path / "file" / "save", "a file": tmp_path / "file"}.get(place)
    if place == "read-only":
        save = tmp_path / "locked"
        save.mkdir(mode=0o500)
        if os.access(save, os.W_OK):
            save = "/proc/fairseq_rope"  # for root no folder is read-only, but here nothing can be made
    refused("fairseq-train", train(digits, save), f"--save-dir {save} cannot be written: ")
    assert (tmp_path / "file").read_text() == "precious"


def test_results_folder_that_cannot_be_written(digits, trained, tmp_path):
    (tmp_path / "file").write_text("precious")
    extra = ["--results-path", tmp_path / "file"]
    args = decode("fairseq-generate", digits, trained / "checkpoint_last.pt", *extra)
    refused("fairseq-generate", args, f"--results-path {tmp_path / 'file'} cannot be written")
    assert (tmp_path / "file").read_text() == "precious"


def test_check_leaves_nothing_in_the_save_folder(digits, tmp_path):
    helpers.run("fairseq-train", *train(digits, tmp_path / "a", updates=1))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["checkpoint_best.pt", "checkpoint_last.pt"]


@pytest.mark.parametrize(
    "flag, value, valid",
    [
        ("--arch", "transformer_smal", "transformer_tiny"),
        ("--optimizer", "adamm", "adam"),
        ("--ddp-backend", "fast", "legacy_ddp"),
        ("--max-update", "many", "invalid int value"),
        ("--no-such-flag", "1", "unrecognized arguments"),
    ],
)
def test_unknown_flag_value(digits, tmp_path, flag, value, valid):
    args = train(digits, tmp_path / "save")
    arch = args.index("--arch")
    args = args[:arch] + args[arch + 2 :] if flag == "--arch" else args
    result = helpers.run("fairseq-train", *args, flag, value, check=False)
    assert result.code == 2
    lines = [line for line in result.log.splitlines() if line.strip() and " | " not in line]
    assert len(lines) == 1, result.log[:2000]
    assert flag in lines[0] and value in lines[0] and valid in lines[0]
    assert not (tmp_path / "save").exists()


@pytest.mark.real_programs
def test_real_program_ends_with_one_line(trained, tmp_path):
    data = tmp_path / "nowhere"
    args = decode("fairseq-generate", data, trained / "checkpoint_last.pt")
    result = helpers.run_program("fairseq-generate", *args, check=False)
    assert result.code == 1 and "Traceback" not in result.out
    last = result.out.strip().splitlines()[-1]
    assert last.startswith(f"fairseq-generate: error: data folder {data} does not exist")


@pytest.mark.real_programs
def test_hydra_ends_with_one_line(tmp_path):
    (tmp_path / "file").write_text("precious")
    settings = [
        f"common.user_dir={helpers.USER_DIR}", "common.cpu=true", f"task.data={tmp_path / 'nowhere'}",
        f"checkpoint.save_dir={tmp_path / 'file'}", f"hydra.run.dir={tmp_path / 'hydra'}",
        "task=language_modeling", "model=transformer_lm", "criterion=cross_entropy", "optimizer=adam",
        "lr_scheduler=fixed", "dataset.max_tokens=100", "optimization.max_update=1",
    ]  # fmt: skip
    result = helpers.run_program("fairseq-hydra-train", *settings, check=False)
    assert result.code == 1 and "Traceback" not in result.out, result.out[-3000:]
    last = result.out.strip().splitlines()[-1]
    assert last.startswith(f"fairseq-hydra-train: error: --save-dir {tmp_path / 'file'} cannot be written")
    assert (tmp_path / "file").read_text() == "precious"
