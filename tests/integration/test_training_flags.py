"""What stock's Transformer offers by flags works in both families: trained, and compared with stock or a plain run.

A group of flags is trained for two updates, with dropout, once by the baseline and once by stock's own
``transformer``; the parameters afterwards agree, so losses and gradients did. A RoFormer with the same flags has no
such reference; it is held to a finite loss, to parameters that all moved, and to translating alike in any batch.

fairseq 0.12 made switches of two older flags: ``--left-pad-source`` (turns it off) and ``--left-pad-target``; their
former values ("False", "True") are refused as unrecognized arguments, in stock too.
"""

import helpers
import pytest
import runs
import torch

PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
# Plain SGD: Adam would blow the rounding noise of gradients that are zero (key biases) up to its step size.
SGD = ["--optimizer", "sgd", "--lr", 0.5]

# Flags that do not touch one another are tried together.
GROUPS = {
    "pre-norm, other padding sides": [
        *PRE_NORM, "--layernorm-embedding", "--left-pad-source", "--left-pad-target",
        "--share-all-embeddings", "--no-decoder-final-norm",
    ],
    "layerdrop": [
        "--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5, "--share-decoder-input-output-embed",
        "--attention-dropout", 0.1, "--activation-dropout", 0.1, "--activation-fn", "gelu", "--no-scale-embedding",
    ],
    "odd widths, no vectors at the input": [
        "--encoder-embed-dim", 36, "--encoder-ffn-embed-dim", 50, "--encoder-attention-heads", 2,
        "--decoder-embed-dim", 24, "--decoder-ffn-embed-dim", 20, "--decoder-output-dim", 26, "--untied-embeddings",
        "--no-token-positional-embeddings",
    ],
    "no cross-attention, update-freq": ["--no-cross-attention", "--share-all-embeddings", "--update-freq", 2],
    "adaptive softmax, checkpointed": [
        "--adaptive-softmax-cutoff", "10,15", "--adaptive-softmax-dropout", 0.1, "--criterion", "adaptive_loss",
        "--ddp-backend", "legacy_ddp", "--checkpoint-activations", "--offload-activations",
    ],
}  # fmt: skip
ONLY_BASELINE = {
    "learned": ["--encoder-learned-pos", "--decoder-learned-pos", "--share-all-embeddings"],
    "cross-self-attention": ["--cross-self-attention", "--share-all-embeddings"],
}


def arguments(flags):
    """The flags for our models and for stock's; stock has no --untied-embeddings, since it ties nothing unasked."""
    return flags, [flag for flag in flags if flag != "--untied-embeddings"]


def train(data, folder, arch, *flags, **kwargs):
    """A run with dropout; the adaptive loss has no label smoothing, so those groups come without."""
    if "adaptive_loss" not in flags:
        return runs.train(data, folder, arch, *flags, **kwargs)
    sizes = runs.STOCK_TINY if arch == "transformer" else []
    args = helpers.train_args(data, folder, arch, "--num-workers", 0, *sizes)
    at = args.index("--label-smoothing")
    return helpers.run("fairseq-train", *args[:at], *args[at + 2 :], *flags)


@pytest.mark.parametrize("group", [*GROUPS, *ONLY_BASELINE])
def test_baseline_trains_as_stock_does(digits, tmp_path, group):
    ours, theirs = arguments({**GROUPS, **ONLY_BASELINE}[group])
    result = train(digits, tmp_path / "ours", "baseline_tiny", *SGD, *ours)
    stock = train(digits, tmp_path / "stock", "transformer", *SGD, *theirs)
    assert runs.losses(result) == runs.losses(stock) and runs.losses(result)
    runs.assert_close(runs.parameters(tmp_path / "ours"), runs.parameters(tmp_path / "stock"))
    runs.assert_same_lines(runs.generate(digits, tmp_path / "ours").out, runs.generate(digits, tmp_path / "stock").out)


@pytest.mark.parametrize("group", GROUPS)
def test_roformer_trains_with_the_same_flags(digits, tmp_path, group):
    flags, _ = arguments(GROUPS[group])
    start = train(digits, tmp_path / "start", "roformer_tiny", *flags, "--lr", 0, updates=1)
    result = train(digits, tmp_path / "end", "roformer_tiny", *flags)
    loss = runs.losses(result)[0]
    assert 0 < loss < 12 and 0 < runs.losses(start)[0] < 12
    before, after = runs.parameters(tmp_path / "start"), runs.parameters(tmp_path / "end")
    for name, value in after.items():
        assert bool(torch.isfinite(value).all()), name
        dropped = group == "layerdrop" and ".layers." in name
        unused = group.startswith("no cross") and name.startswith("encoder.layers")
        assert name.endswith("version") or dropped or unused or not torch.equal(value, before[name]), name
    one = runs.generate(digits, tmp_path / "end", "--batch-size", 1)
    seven = runs.generate(digits, tmp_path / "end", "--batch-size", 7)
    assert len(helpers.hypotheses(one.out)) == 20
    runs.assert_same_lines(one.out, seven.out)


@pytest.mark.parametrize("arch", ["baseline_tiny", "roformer_tiny"])
def test_checkpointed_activations_change_nothing(digits, tmp_path, arch):
    """The same losses and gradients with dropout: the recomputed pass draws the same."""
    flags = [*SGD, "--attention-dropout", 0.1, "--activation-dropout", 0.1]
    runs.train(digits, tmp_path / "plain", arch, *flags)
    runs.train(digits, tmp_path / "checkpointed", arch, *flags, "--checkpoint-activations")
    runs.assert_close(runs.parameters(tmp_path / "checkpointed"), runs.parameters(tmp_path / "plain"))


@pytest.mark.parametrize("arch", ["baseline_tiny", "roformer_tiny"])
def test_quantisation_noise(digits, tmp_path, arch):
    """--quant-noise-pq zeroes blocks of the weights, and scales the rest, as fairseq does: in place, each pass.

    Stock's fused attention reads its projections' weights past the noise while it trains; here they get theirs too.
    """
    flags = ["--quant-noise-pq", 0.3, "--quant-noise-pq-block-size", 4, "--lr", 0]
    # Next to no noise builds the same model: with none at all fewer initial weights are drawn.
    runs.train(digits, tmp_path / "plain", arch, *flags, "--quant-noise-pq", 1e-9, updates=1)
    runs.train(digits, tmp_path / "noise", arch, *flags, updates=1)
    plain, noise = (runs.parameters(tmp_path / name) for name in ("plain", "noise"))
    projections = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2"]
    for name in ["decoder.layers.1.encoder_attn.q_proj", *(f"encoder.layers.0.{name}" for name in projections)]:
        before, after = (model[f"{name}.weight"].unflatten(1, (-1, 4)) for model in (plain, noise))
        zero = (after == 0).all(dim=-1)
        assert 0.2 < float(zero.float().mean()) < 0.4, name
        assert torch.allclose(after[~zero], before[~zero] / 0.7), name
    assert len(helpers.hypotheses(runs.generate(digits, tmp_path / "noise").out)) == 20


@pytest.mark.parametrize("arch", ["baseline_tiny", "roformer_tiny"])
def test_pruned_layers(digits, tmp_path, arch):
    """A model trained with layerdrop is loaded with some of its layers, as fairseq documents for LayerDrop."""
    layerdrop = ["--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5]
    runs.train(digits, tmp_path, arch, *layerdrop)
    whole = runs.generate(digits, tmp_path)
    pruned = runs.generate(
        digits, tmp_path, "--model-overrides", "{'encoder_layers_to_keep':'1','decoder_layers_to_keep':'0'}"
    )
    # The same, made by hand: layer 1 of the encoder and layer 0 of the decoder, in a model of one layer each.
    state = runs.checkpoint(tmp_path)
    kept = {}
    for name, value in state["model"].items():
        if name.startswith(("encoder.layers.0.", "decoder.layers.1.")):
            continue
        kept[name.replace("encoder.layers.1.", "encoder.layers.0.")] = value
    state["model"] = kept
    state["cfg"]["model"].encoder_layers = state["cfg"]["model"].decoder_layers = 1
    torch.save(state, tmp_path / "by_hand.pt")
    runs.assert_same_lines(pruned.out, runs.generate(digits, tmp_path / "by_hand.pt").out)
    assert runs.lines(pruned.out) != runs.lines(whole.out)


SHARED = "embeddings: encoder input, decoder input and output share one matrix (same dictionary)"
APART = "embeddings: decoder input and output share one matrix, the encoder has its own"


def tied(folder):
    """Which embedding matrices of a run's checkpoint share their memory: (all three, the decoder's two)."""
    model = runs.parameters(folder)
    source, target = model["encoder.embed_tokens.weight"], model["decoder.embed_tokens.weight"]
    output = model["decoder.output_projection.weight"]
    return source.data_ptr() == target.data_ptr() == output.data_ptr(), target.data_ptr() == output.data_ptr()


@pytest.mark.parametrize(
    ("flags", "joined", "want", "said"),
    [
        ([], True, (True, True), SHARED),
        (["--share-all-embeddings"], True, (True, True), None),
        (["--share-decoder-input-output-embed"], True, (False, True), None),
        (["--untied-embeddings"], True, (False, False), None),
        ([], False, (False, True), f"{APART} (the two dictionaries differ)"),
        (["--encoder-embed-dim", 32], True, (True, True), SHARED),  # the decoder's width follows
        (["--decoder-embed-dim", 32], True, (False, True), f"{APART} (the widths or embedding files differ)"),
        (["--decoder-output-dim", 32], True, (False, False), None),
    ],
)
def test_embeddings(digits, digits_separate, tmp_path, flags, joined, want, said):
    result = runs.train(digits if joined else digits_separate, tmp_path, "roformer_tiny", *flags, updates=1)
    assert tied(tmp_path) == want
    lines = [line.split(" | ")[-1] for line in result.log.splitlines() if "| embeddings: " in line]
    assert lines == ([said] if said else [])


def test_embedding_file(digits, tmp_path):
    """Vectors of a text file, as --encoder-embed-path reads them, stand in the embedding; the encoder has its own."""
    words = {"eins": 0.25, "three": -0.5}
    table = tmp_path / "vectors.txt"
    rows = "".join(f"{word} {' '.join([str(value)] * 64)}\n" for word, value in words.items())
    table.write_text(f"{len(words)} 64\n{rows}", encoding="utf-8")
    result = runs.train(digits, tmp_path / "run", "roformer_tiny", "--encoder-embed-path", table, "--lr", 0, updates=1)
    assert "the encoder has its own (the widths or embedding files differ)" in result.log
    assert tied(tmp_path / "run") == (False, True)
    symbols = ["<s>", "<pad>", "</s>", "<unk>"]
    symbols += [line.split()[0] for line in (digits / "dict.en.txt").read_text(encoding="utf-8").splitlines()]
    weight = runs.parameters(tmp_path / "run")["encoder.embed_tokens.weight"]
    for word, value in words.items():
        assert torch.equal(weight[symbols.index(word)], torch.full((64,), value)), word


def test_feed_forward_initialisation(digits, tmp_path):
    """xavier: uniform within sqrt(6 / (fan_in + fan_out)) and zero biases; stock's: within 1 / sqrt(fan_in)."""
    for how, bound, zero in (("xavier", (6 / (64 + 128)) ** 0.5, True), ("default", 64**-0.5, False)):
        runs.train(digits, tmp_path / how, "baseline_tiny", "--ffn-init", how, "--lr", 0, updates=1)
        model = runs.parameters(tmp_path / how)
        for stack in ("encoder", "decoder"):
            weight, bias = (model[f"{stack}.layers.1.fc1.{kind}"] for kind in ("weight", "bias"))
            assert 0.95 * bound < float(weight.abs().max()) <= bound
            assert bool((bias == 0).all()) == zero


@pytest.mark.parametrize(
    ("arch", "flag", "keys"),
    [
        ("baseline_tiny", "sinusoidal", 0),
        ("roformer_tiny", "learned", 2),
        ("roformer_tiny", "none", 0),
        ("baseline_tiny", "rope", 0),
    ],
)
def test_each_position_encoding(digits, tmp_path, arch, flag, keys):
    """--position-encoding overrides the family's, in the log, the parameters and the loss."""
    result = runs.train(digits, tmp_path, arch, "--position-encoding", flag)
    assert f"positions: encoder {flag}, decoder {flag}" in result.log
    assert len([name for name in runs.parameters(tmp_path) if "embed_positions.weight" in name]) == keys
    family = {"sinusoidal": "baseline_tiny", "rope": "roformer_tiny"}.get(flag)
    if family:  # the flag and the preset are one thing
        runs.train(digits, tmp_path / "family", family)
        runs.assert_equal(runs.parameters(tmp_path / "family"), runs.parameters(tmp_path))


def test_rope_flags_reach_the_model(digits, tmp_path):
    flags = ["--rope-base", 500, "--rope-scaling", "yarn", "--rope-scaling-factor", 2, "--rope-train-length", 10]
    runs.train(digits, tmp_path / "plain", "roformer_tiny")
    result = runs.train(digits, tmp_path / "yarn", "roformer_tiny", *flags)
    assert "RopeScaling(head_dim=16, base=500.0, mode='yarn', factor=2.0, train_length=10)" in result.log
    model = runs.checkpoint(tmp_path / "yarn")["cfg"]["model"]
    assert (model.rope_base, model.rope_scaling, model.rope_scaling_factor) == (500.0, "yarn", 2.0)
    plain, yarn = runs.parameters(tmp_path / "plain"), runs.parameters(tmp_path / "yarn")
    name = "encoder.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(plain[name], yarn[name])


@pytest.mark.parametrize("arch", ["baseline_tiny", "roformer_tiny"])
def test_bfloat16(digits, tmp_path, arch):
    """--bf16 on a CPU: weights of bfloat16 precision (saved as float32), and a loss near that of float32."""
    plain = runs.train(digits, tmp_path / "plain", arch)
    half = runs.train(digits, tmp_path / "half", arch, "--bf16")
    assert runs.losses(half)[0] == pytest.approx(runs.losses(plain)[0], rel=0.02)
    for name, value in runs.parameters(tmp_path / "half").items():
        assert torch.equal(value, value.bfloat16().float()), name
    assert len(helpers.hypotheses(runs.generate(digits, tmp_path / "half").out)) == 20


def test_moving_average(digits, tmp_path):
    """--store-ema: the checkpoint carries the mean that moves with the stated decay, from the first update on.

    Of a matrix that goes by several names stock takes the mean once a name, so tied embeddings decay faster.
    """
    flags = ["--store-ema", "--ema-decay", 0.75, "--ema-fp32", "--untied-embeddings"]
    runs.train(digits, tmp_path / "first", "roformer_tiny", *flags, updates=1)
    runs.train(digits, tmp_path / "second", "roformer_tiny", *flags, updates=2)
    first, second = runs.checkpoint(tmp_path / "first"), runs.checkpoint(tmp_path / "second")
    for name, mean in second["extra_state"]["ema"].items():
        if name.endswith("version"):
            continue
        want = 0.75 * first["extra_state"]["ema"][name] + 0.25 * second["model"][name]
        assert torch.allclose(mean, want, atol=1e-6), name
    assert set(second["extra_state"]["ema"]) == set(second["model"])


def test_patience(digits, tmp_path):
    """A run whose validation loss stands still ends after the stated number of validations."""
    import fairseq_cli.train

    vars(fairseq_cli.train.should_stop_early).clear()  # fairseq keeps the best loss of this process's runs there
    result = runs.train(
        digits, tmp_path, "roformer_tiny", "--patience", 2, "--lr", 0, "--validate-interval-updates", 1, updates=30
    )
    assert "early stop since valid performance hasn't improved for last 2 runs" in result.log
    assert runs.checkpoint(tmp_path)["optimizer_history"][-1]["num_updates"] == 3
    vars(fairseq_cli.train.should_stop_early).clear()


def test_stock_checkpoints_go_on_as_baseline(digits, tmp_path):
    """--finetune-from-model and --restore-file of a stock `transformer` checkpoint: as if stock itself went on."""
    tie, momentum = "--share-all-embeddings", [*SGD, "--lr", 0.1, "--momentum", 0.5]
    runs.train(digits, tmp_path / "stock", "transformer", *momentum, tie)
    last = tmp_path / "stock" / "checkpoint_last.pt"
    for flag, updates in (("--finetune-from-model", 2), ("--restore-file", 4)):
        for name, arch in (("ours", "baseline_tiny"), ("theirs", "transformer")):
            result = runs.train(digits, tmp_path / flag / name, arch, *momentum, tie, flag, last, updates=updates)
            assert f"Loaded checkpoint {last}" in result.log
        ours, theirs = (runs.checkpoint(tmp_path / flag / name) for name in ("ours", "theirs"))
        runs.assert_close(ours["model"], theirs["model"])
        assert ours["optimizer_history"][-1]["num_updates"] == updates
        assert ours["cfg"]["model"]._name == "baseline_tiny"


def test_a_save_folder_is_gone_on_with(digits, tmp_path):
    first = runs.train(digits, tmp_path, "roformer_tiny")
    second = runs.train(digits, tmp_path, "roformer_tiny", updates=4)
    assert "Loaded checkpoint" not in first.log and "(epoch 1 @ 2 updates)" in second.log
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    refused = runs.train(digits, tmp_path, "roformer_tiny", "--encoder-embed-dim", 32, updates=6, check=False)
    assert "checkpoint" in runs.reason(refused)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
