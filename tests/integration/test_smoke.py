import helpers


def test_digits(digits, tmp_path):
    helpers.run("fairseq-train", *helpers.train_args(digits, tmp_path, "transformer_tiny"))
    out = helpers.run("fairseq-generate", digits, "--user-dir", helpers.USER_DIR, "--path", tmp_path / "checkpoint_last.pt", "--beam", "2", "--cpu").out
    print(out)
