"""Decoding's flags, for both families: stock's `transformer` with the baseline's weights is the reference.

The baseline's checkpoint is relabelled as one of stock's `transformer`, so every flag is tried on the same weights;
the RoFormer, which has no such twin, is held to what each flag says.

What stock 0.12.3 itself cannot do, whatever the model:
    --print-step ends with KeyError: 'steps', except with the iterative decoders of non-autoregressive models;
    --replace-unk fails on every hypothesis with an unknown word: it gets no alignment, or with --print-alignment pairs;
    --diverse-beam-groups ends with an IndexError in fairseq-generate, which takes sentence ids for rows of a batch
        (fairseq-interactive has no ids, and works);
    --no-repeat-ngram-size does nothing without fairseq's CUDA extension: it compares with the buffer's padding;
    --match-source-len counts the source's end, so a translation has one word more; --sampling needs --nbest = --beam;
    the hub's `.score` needs a language model.
"""

import math
import re

import helpers
import pytest
import runs
import torch

BOTH = ["baseline", "roformer"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The digits with 40 test sentences."""
    folder = tmp_path_factory.mktemp("digits_40")
    splits = (("train", 200), ("valid", 20), ("test", 40))
    return helpers.binarize(helpers.write_digits(folder / "text", splits), folder / "bin")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """{name: checkpoint} of both families after 80 updates, and of `stock`: the baseline's weights in stock's model."""
    folder = tmp_path_factory.mktemp("trained")
    for name in BOTH:
        runs.train(
            data, folder / name, f"{name}_tiny", "--validate-interval", 100, "--save-interval", 100,
            "--label-smoothing", 0, "--max-tokens", 1000,
            "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 10, updates=80,
        )  # fmt: skip
    state = runs.checkpoint(folder / "baseline")
    state["cfg"]["model"].arch = state["cfg"]["model"]._name = "transformer"
    (folder / "stock").mkdir()
    torch.save(state, folder / "stock" / "checkpoint_last.pt")
    return {name: folder / name / "checkpoint_last.pt" for name in (*BOTH, "stock")}


def short(data, path, *flags, **kwargs):
    """fairseq-generate of the 20 validation sentences."""
    return runs.generate(data, path, "--gen-subset", "valid", *flags, **kwargs)


def words(text, kind):
    """{sentence id: [words of each of its rows]} of the rows ``kind`` (H, T, …)."""
    rows = {}
    for key, columns in runs.lines(text, kind):
        rows.setdefault(int(key[2:]), []).append(columns[-1].split())
    return rows


@pytest.mark.parametrize("name", BOTH)
def test_batches_change_nothing(data, trained, name):
    """All 40 sentences are translated, alike in batches of 1, 7 and 64."""
    one = runs.generate(data, trained[name], "--batch-size", 1, beam=4)
    best = helpers.hypotheses(one.out)
    assert sorted(best) == list(range(40))
    assert len(set(best.values())) > 20  # not one and the same sentence for all
    for size in (7, 64):
        runs.assert_same_lines(runs.generate(data, trained[name], "--batch-size", size, beam=4).out, one.out)


@pytest.mark.parametrize("name", BOTH)
def test_length_limit_by_source_length(data, trained, name):
    """--max-len-a above 0: stock's limit depends on the padded batch, but equal hypotheses have equal scores."""
    limit = ["--max-len-a", 0.7, "--max-len-b", 2]
    one, many = (runs.generate(data, trained[name], "--batch-size", size, *limit) for size in (1, 64))
    texts, scores = helpers.hypotheses(one.out), helpers.hypothesis_scores(one.out)
    equal = [i for i, text in helpers.hypotheses(many.out).items() if text == texts[i]]
    assert len(equal) > 20
    for i in equal:
        assert helpers.hypothesis_scores(many.out)[i] == pytest.approx(scores[i], abs=1e-4)


FLAGS = {  # flags that do not touch one another are tried together
    "prefix, hard alignment": ["--prefix-size", 2, "--print-alignment"],
    "unknown words, soft alignment": ["--unkpen", -20, "--print-alignment", "soft"],
    "penalties, diverse siblings": [
        "--lenpen", 2, "--temperature", 0.9, "--unkpen", 3, "--no-repeat-ngram-size", 2, "--diversity-rate", 0.5,
        "--beam", 4, "--nbest", 4,
    ],
    "source length": ["--match-source-len"],
    "sampling": ["--sampling", "--sampling-topk", 5, "--nbest", 2, "--seed", 3],
    "reference": ["--score-reference", "--print-alignment"],
    "all dropout": ["--retain-dropout", "--seed", 5],
    "some dropout": ["--retain-dropout", "--retain-dropout-modules", "TransformerEncoderLayerBase", "--seed", 5],
}  # fmt: skip


def _prefix(out, plain):
    target = words(out, "T")
    for i, rows in words(out, "H").items():
        assert rows[0][:2] == target[i][0][:2]


def _four(out, plain):
    length = [sum(len(rows[0]) for rows in words(text, "H").values()) for text in (out, plain)]
    assert length[0] != length[1]
    for rows in words(out, "H").values():
        assert len(rows) == 4 and len({" ".join(row) for row in rows}) > 1


def _unknown(out, plain):
    assert "<unk>" in out and "<unk>" not in plain


def _source_length(out, plain):
    source = words(out, "S")
    assert all(len(rows[0]) == len(source[i][0]) + 1 for i, rows in words(out, "H").items())


def _reference(out, plain):
    target = words(out, "T")
    assert all(rows == target[i] for i, rows in words(out, "H").items())


def _differs(out, plain):
    assert runs.lines(out, "P") != runs.lines(plain, "P")


CHECKS = {
    "prefix, hard alignment": _prefix,
    "unknown words, soft alignment": _unknown,
    "penalties, diverse siblings": _four,
    "source length": _source_length,
    "sampling": _differs,
    "reference": _reference,
    "all dropout": _differs,
    "some dropout": _differs,
}


@pytest.mark.parametrize("name", FLAGS)
def test_flag(data, trained, plain, name):
    """Same words, scores and alignments as stock's; and in both families the flag does what it says."""
    outputs = {model: short(data, trained[model], *FLAGS[name]).out for model in ("stock", *BOTH)}
    runs.assert_same_lines(outputs["baseline"], outputs["stock"])
    for model in BOTH:
        CHECKS[name](outputs[model], plain[model])


@pytest.fixture(scope="module")
def plain(data, trained):
    """{family: output without any flag}"""
    return {name: short(data, trained[name]).out for name in BOTH}


def test_quiet(data, trained):
    out = short(data, trained["roformer"], "--quiet").out
    assert not runs.lines(out, "STHDP") and "BLEU4 = " in out


def test_dropout_is_retained_in_the_named_modules_only(data, trained, plain):
    """A seed repeats a sample, and a name that no module has retains nothing.

    Layers go by the names of fairseq's documentation; stock 0.12.3 itself has renamed them (…LayerBase), which works
    here too, since fairseq looks whether a module's name occurs in the text of the flag.
    """
    flags = ["--retain-dropout", "--seed", 5, "--retain-dropout-modules"]
    some, again = (short(data, trained["roformer"], *flags, "TransformerDecoderLayer") for _ in range(2))
    assert runs.lines(some.out) == runs.lines(again.out) != runs.lines(plain["roformer"])
    enabled = re.findall(r"Enabling dropout during inference for module: (\S+)", some.log)
    assert any("layers" in name for name in enabled) and all(name.startswith("decoder") for name in enabled)
    nothing = short(data, trained["roformer"], *flags, "NoSuchModule")
    runs.assert_same_lines(nothing.out, plain["roformer"])


def load(path, data=None):
    from fairseq import checkpoint_utils

    overrides = {"data": str(data)} if data else None
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
    return models[0].eval(), task


@pytest.mark.parametrize("name", BOTH)
def test_alignment_is_the_attention(data, trained, name):
    """Soft: the last decoder layer's attention, mean of the heads, as a full pass gives it; hard: its largest word."""
    soft = short(data, trained[name], "--print-alignment", "soft", "--beam", 1)
    hard = short(data, trained[name], "--print-alignment", "hard", "--beam", 1)
    model, task = load(trained[name])
    texts = {kind: words(soft.out, kind) for kind in "SHA"}
    aligned = words(hard.out, "A")
    for i, (source,) in texts["S"].items():
        tokens = task.source_dictionary.encode_line(" ".join(source), add_if_not_exist=False).long()[None]
        hypothesis = task.target_dictionary.encode_line(" ".join(texts["H"][i][0]), add_if_not_exist=False).long()
        previous = torch.cat((hypothesis[-1:], hypothesis[:-1]))[None]
        with torch.no_grad():
            attention = model(tokens, torch.tensor([tokens.size(1)]), previous)[1]["attn"][0][0]  # (tgt_len, src_len)
        rows = [[float(value) for value in row.split(",")] for row in texts["A"][i][0]]
        assert torch.allclose(torch.tensor(rows), attention, atol=2e-6)
        pairs = [tuple(map(int, pair.split("-"))) for pair in aligned[i][0]]
        best = attention[:-1, :-1].argmax(dim=1).tolist()  # words only, not the ends of the sentences
        assert pairs == [(word, position) for position, word in enumerate(best)]


def interactive(data, path, text, *flags, check=True):
    return helpers.run(
        "fairseq-interactive", data, "--user-dir", helpers.USER_DIR, "--path", path, "--cpu", "--beam", 2,
        "--max-len-a", 0, "--max-len-b", 12, *flags, stdin=text, check=check,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_constraints(data, trained, order):
    """Words that a translation must contain, by fairseq-interactive; all models find them and stock agrees."""
    text = "three one two\tzwei\tfünf\nnine\nseven six\tacht null\n"
    flags = ["--constraints", order, "--beam", 6, "--batch-size", 3, "--buffer-size", 3]
    outputs = {name: interactive(data, trained[name], text, *flags).out for name in ("stock", *BOTH)}
    runs.assert_same_lines(outputs["baseline"], outputs["stock"])
    for out in outputs.values():
        rows = words(out, "H")
        first, last = rows[0][0], " ".join(rows[2][0])
        assert "zwei" in first and "fünf" in first and "acht null" in last and 1 in rows
        if order == "ordered":
            assert first.index("zwei") < len(first) - 1 - first[::-1].index("fünf")


@pytest.mark.parametrize("name", BOTH)
def test_interactive(data, trained, name):
    """An empty line, one word, unknown words, and any buffer; as stock, and as fairseq-generate."""
    text = "three one two\n\nnine\nfour owl seven\nfive five five five five five five five five\n"
    plain = interactive(data, trained[name], text)
    assert [key for key, _ in runs.lines(plain.out, "H")] == [f"H-{i}" for i in range(5)]
    buffered = interactive(data, trained[name], text, "--buffer-size", 3, "--batch-size", 3)
    runs.assert_same_lines(buffered.out, plain.out)
    if name == "baseline":
        runs.assert_same_lines(interactive(data, trained["stock"], text).out, plain.out)


def test_diverse_groups(data, trained):
    """--diverse-beam-groups: the groups begin differently (one certain sentence may not); as stock."""
    text = "three one two\nnine\nfour eight seven\n"
    flags = ["--beam", 4, "--nbest", 4, "--diverse-beam-groups", 2, "--diverse-beam-strength", 2, "--buffer-size", 3]
    outputs = {name: interactive(data, trained[name], text, *flags, "--batch-size", 3).out for name in ("stock", *BOTH)}
    runs.assert_same_lines(outputs["baseline"], outputs["stock"])
    for name in BOTH:
        starts = [{row[0] for row in rows if row} for rows in words(outputs[name], "H").values()]
        assert len(starts) == 3 and sum(len(first) > 1 for first in starts) >= 2


def test_ensembles(data, trained):
    """Probabilities are averaged: over a model and itself nothing changes, over two families it is their mean."""
    both = f"{trained['baseline']}:{trained['roformer']}"
    twice = f"{trained['roformer']}:{trained['roformer']}"
    runs.assert_same_lines(short(data, twice).out, short(data, trained["roformer"]).out)
    assert len(helpers.hypotheses(runs.generate(data, both, "--batch-size", 7).out)) == 40

    def reference(path):
        rows = runs.lines(short(data, path, "--score-reference").out, "P")
        return [[2 ** float(value) for value in columns[0].split()] for _, columns in rows]

    for a, b, mean in zip(*(reference(path) for path in (trained["baseline"], trained["roformer"], both)), strict=True):
        assert mean == pytest.approx([(x + y) / 2 for x, y in zip(a, b, strict=True)], rel=1e-3, abs=1e-5)


def test_context_extension_at_decoding(data, trained):
    """--model-overrides turns dynamic NTK on: within the training length nothing changes, beyond it scores do."""
    overrides = "{'rope_scaling':'dynamic-ntk','rope_train_length':5,'rope_scaling_factor':2.0}"
    flags = ["--score-reference", "--model-overrides", overrides]
    before = short(data, trained["roformer"], "--score-reference")
    after = short(data, trained["roformer"], *flags)
    lengths = {i: len(rows[0]) + 1 for i, rows in words(before.out, "S").items()}  # with the end of the sentence
    seen = set()
    for (key, (a,)), (_, (b,)) in zip(runs.lines(before.out, "P"), runs.lines(after.out, "P"), strict=True):
        within = lengths[int(key[2:])] <= 5
        seen.add(within)
        assert (a == b) == within, key
    assert seen == {True, False}
    one, seven = (
        runs.generate(data, trained["roformer"], "--model-overrides", overrides, "--batch-size", size)
        for size in (1, 7)
    )
    runs.assert_same_lines(one.out, seven.out)


@pytest.mark.parametrize("name", BOTH)
def test_validate(data, trained, name):
    """fairseq-validate's loss is that of the reference's scores: -ln p per target token, in base 2."""
    validated = helpers.run(
        "fairseq-validate", data, "--user-dir", helpers.USER_DIR, "--path", trained[name], "--cpu", "--batch-size", 7,
        "--task", "translation", "--num-workers", 0,
    )  # fmt: skip
    rows = runs.lines(short(data, trained[name], "--score-reference").out, "P")
    scores = [float(value) for _, columns in rows for value in columns[0].split()]
    nll = float(validated.text.split("nll_loss ")[1].split()[0])
    assert nll == pytest.approx(-sum(scores) / len(scores), abs=2e-3)


@pytest.mark.parametrize("name", BOTH)
def test_hub_interface(data, trained, name):
    """Raw sentences in Python: the translations and scores of fairseq-interactive."""
    from fairseq_rope.models import TranslationTransformer

    hub = TranslationTransformer.from_pretrained(str(trained[name].parent), "checkpoint_last.pt", str(data)).eval()
    sentences = ["three one two", "nine", "four five six seven eight nine one"]
    wanted = words(interactive(data, trained[name], "\n".join(sentences) + "\n").out, "H")
    options = {"beam": 2, "max_len_a": 0, "max_len_b": 12}
    assert hub.translate(sentences, **options) == [" ".join(wanted[i][0]) for i in range(3)]
    assert hub.translate(sentences[0], **options) == " ".join(wanted[0][0])


@pytest.mark.parametrize("name", BOTH)
def test_torchscript_is_refused(trained, name):
    from fairseq.sequence_generator import SequenceGenerator

    from fairseq_rope.errors import UserError

    model, task = load(trained[name])
    generator = SequenceGenerator([model], task.target_dictionary)
    for module in (model, model.encoder, model.decoder, model.decoder.layers[0].self_attn, generator):
        with pytest.raises(UserError, match="does not support TorchScript"):
            torch.jit.script(module)


def test_any_working_folder(data, trained, tmp_path, monkeypatch):
    """A checkpoint and its dictionaries are all that decoding needs."""
    text = "three one two\nnine\n"
    folder = tmp_path / "dictionaries"
    folder.mkdir()
    for language in ("en", "de"):
        name = f"dict.{language}.txt"
        (folder / name).write_bytes((data / name).read_bytes())
    monkeypatch.chdir(folder)
    copy = tmp_path / "model.pt"
    copy.write_bytes(trained["roformer"].read_bytes())
    # Languages are known from the file names of a data set, or from the checkpoint.
    here = interactive(".", "../model.pt", text, "-s", "en", "-t", "de")
    runs.assert_same_lines(here.out, interactive(data, trained["roformer"], text).out)


def test_rope_goes_beyond_its_training_length(data, trained):
    """Sources of four times the longest training source are translated, alike in any batch and with any padding."""
    longest = 9
    rng = torch.Generator().manual_seed(2)
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

    def sentence(length):
        return " ".join(digits[i] for i in torch.randint(10, (length,), generator=rng).tolist())

    text = "".join(sentence(length) + "\n" for length in (4 * longest, 3, 2 * longest, 4 * longest))
    flags = ["--max-len-b", 4 * longest, "--min-len", 4 * longest]
    one = interactive(data, trained["roformer"], text, *flags)
    four = interactive(data, trained["roformer"], text, *flags, "--buffer-size", 4, "--batch-size", 4)
    runs.assert_same_lines(one.out, four.out)
    for _, (score, hypothesis) in runs.lines(one.out, "H"):
        assert len(hypothesis.split()) == 4 * longest and math.isfinite(float(score))


def test_source_longer_than_a_length_limited_model_allows(data, tmp_path):
    flags = ["--max-source-positions", 10, "--max-target-positions", 10]
    runs.train(data, tmp_path, "baseline_tiny", "--position-encoding", "learned", *flags, updates=1)
    path = tmp_path / "checkpoint_last.pt"
    assert len(helpers.hypotheses(interactive(data, path, "nine " * 9, "--max-len-b", 8).out)) == 1
    refused = interactive(data, path, "nine " * 10, "--max-len-b", 8, check=False)
    assert refused.code != 0
    message = str(refused.error)
    assert "\n" not in message and "11" in message and "10" in message
