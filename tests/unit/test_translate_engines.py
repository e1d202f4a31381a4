"""The same text by fairseq-interactive, by its checkpoint and by its export: translations, scores, order."""

import math
import random

import helpers
import pytest
import runs
import torch

from fairseq_rope.cli import export
from fairseq_rope.deploy import load_translator
from fairseq_rope.deploy.engines import CTranslate2Engine, Search
from fairseq_rope.deploy.fairseq_engine import FairseqEngine
from fairseq_rope.deploy.text import TextPipeline, TextSettings
from fairseq_rope.errors import UserError
from fairseq_rope.prepare.subwords import learn_bpe, learn_sentencepiece, load_segmenter

pytest.importorskip("ctranslate2")
LONGEST = 30
UPDATES = 60  # after which a translation has about the right length


def make_model(folder, arch, sentencepiece=False):
    """A checkpoint that was trained a little, its data and subwords: OUT/{data-bin,codes or model}."""
    text = helpers.write_digits(folder / "text")
    words = " ".join((text / f"train.{language}").read_text() for language in ("en", "de")).split()
    if sentencepiece:
        subwords = folder / "sentencepiece.model"
        learn_sentencepiece(words, len(words), 36, subwords)
    else:
        subwords = folder / "codes"
        learn_bpe({word: words.count(word) for word in sorted(set(words))}, 20, subwords)
    segment = load_segmenter(str(subwords))
    for path in list(text.iterdir()):
        path.write_text("".join(segment(line) + "\n" for line in path.read_text().splitlines()))
    data = helpers.binarize(text, folder / "data-bin")
    runs.train(data, folder / "run", arch, "--disable-validation", updates=UPDATES)
    state = runs.checkpoint(folder / "run")
    for kind in ("weight", "bias"):  # decisions as clear as a trained model's, which gives <pad> next to nothing
        state["model"][f"decoder.layers.1.final_layer_norm.{kind}"] *= 4
    torch.save(state, folder / "1.pt")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("bpe"), "roformer_tiny")


@pytest.fixture(scope="module")
def exported(model):
    export.main(["--path", f"{model / '1.pt'}", "--data", f"{model / 'data-bin'}", "--output", f"{model / 'ct2'}"])
    return model / "ct2"


@pytest.fixture(scope="module")
def lines():
    rng = random.Random(1)
    words = [
        "zero",
        "one",
        "two",
        "three",
        "seven",
        "nine",
        "null",
        "eins",
        "ten,",
        "sixteen",
        "&",
        "x-y.",
        "dog's",
        "狗",
    ]
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(40)] + ["seven"]


def interactive(folder, path, lines, *options, beam=4):
    """fairseq-interactive's translations and scores, by line."""
    result = helpers.run(
        "fairseq-interactive", folder / "data-bin", "--user-dir", helpers.USER_DIR, "--path", path, "--cpu",
        "--source-lang", "en", "--target-lang", "de", "--beam", beam, "--nbest", beam, "--lenpen", "0.6",
        "--max-len-b", LONGEST, "--buffer-size", 64, "--batch-size", 16, *options,
        stdin="".join(line + "\n" for line in lines),
    )  # fmt: skip
    rows = [line.split("\t") for line in result.out.splitlines() if line.startswith("D-")]
    found = [[] for _ in lines]
    for name, score, text in rows:
        found[int(name[2:])].append((text, float(score)))
    return found


def same(ours, theirs, tolerance):
    """Whether translations are the same and scores agree (unless ``tolerance`` is None).

    Returns:
        the number of n-best lists that have the same texts.
    """
    ours = list(ours)
    for result, hypotheses in zip(ours, theirs, strict=True):
        assert result.text == hypotheses[0][0], (result, hypotheses)
        if tolerance is not None:
            assert result.score == pytest.approx(hypotheses[0][1], abs=tolerance)
    return sum(
        [text for text, _ in result.nbest] == [text for text, _ in hypotheses]
        for result, hypotheses in zip(ours, theirs, strict=True)
    )


MOSES = ["--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes"]


@pytest.mark.parametrize("beam", [1, 4])
def test_bpe_model(model, exported, lines, beam):
    theirs = interactive(model, model / "1.pt", lines, *MOSES, model / "codes", beam=beam)
    assert len({text for (text, _), *_ in theirs}) > 4
    search = Search(beam=beam, nbest=beam, max_len_b=LONGEST, batch_tokens=60)
    with_checkpoint = load_translator(
        model / "1.pt", model / "data-bin", search=search, source_lang="en", target_lang="de"
    )
    assert same(with_checkpoint.translate(lines), theirs, 1e-4) == len(lines)
    # CTranslate2 takes what it excludes (<blank>, at first </s>) out of the softmax: it shows in the scores of a model
    # that was trained so little. The scores of forced decoding are compared in test_export_spec.
    assert same(load_translator(exported, search=search).translate(lines), theirs, None) >= len(lines) * 0.5


def test_sentencepiece_model_and_ensemble(tmp_path, lines):
    make_model(tmp_path, "baseline_tiny", sentencepiece=True)
    other = torch.load(tmp_path / "1.pt", weights_only=True)
    other["model"] = {name: tensor.flip(0) if tensor.dim() == 1 else tensor for name, tensor in other["model"].items()}
    torch.save(other, tmp_path / "2.pt")
    paths = f"{tmp_path / '1.pt'}:{tmp_path / '2.pt'}"
    options = ["--bpe", "sentencepiece", "--sentencepiece-model", tmp_path / "sentencepiece.model"]
    theirs = interactive(tmp_path, paths, lines, *options)
    search = Search(nbest=4, max_len_b=LONGEST)
    assert same(load_translator(paths, tmp_path / "data-bin", search=search).translate(lines), theirs, 1e-4) == len(
        lines
    )


@pytest.fixture(scope="module")
def engines(model, exported):
    trained = FairseqEngine([model / "1.pt"], model / "data-bin", "en", "de")
    return trained, CTranslate2Engine(exported, threads=2)


@pytest.fixture(scope="module")
def sentences(model, lines):
    pipeline = TextPipeline(TextSettings("en", "de", False, "moses", "subword_nmt"), model / "codes")
    return [pipeline.encode(line) for line in lines]


def test_forced_log_probabilities_agree(engines, sentences):
    targets = [sentence[::-1] for sentence in sentences]
    ours, theirs = (engine.forced_log_probs(sentences, targets) for engine in engines)
    assert [len(row) for row in ours] == [len(target) + 1 for target in targets]
    assert max(abs(x - y) for a, b in zip(ours, theirs, strict=True) for x, y in zip(a, b, strict=True)) < 1e-4


def test_scores_are_those_of_the_tokens(engines, sentences):
    """CTranslate2's are so but for the probability of an empty translation, which it gives to the other symbols."""
    trained, exported = engines
    empty = trained.forced_log_probs(sentences, [[]] * len(sentences))
    for engine, beam in ((trained, 4), (exported, 4), (exported, 1)):
        best = [hypotheses[0] for hypotheses in engine.translate(sentences, Search(beam=beam, max_len_b=LONGEST))]
        log_probs = trained.forced_log_probs(sentences, [hypothesis.tokens for hypothesis in best])
        assert sum(len(hypothesis.tokens) < LONGEST for hypothesis in best) > len(sentences) / 2
        for hypothesis, row, (nothing,) in zip(best, log_probs, empty, strict=True):
            given_away = math.log1p(-math.exp(nothing)) if engine is exported else 0
            if len(hypothesis.tokens) < LONGEST:  # else the </s> was not the model's
                assert hypothesis.score == pytest.approx((sum(row) - given_away) / len(row) ** 0.6, abs=1e-4)


@pytest.mark.parametrize("limits", [{"max_len_a": 0.1, "max_len_b": 1}, {"max_len_b": 1}])
def test_limits_of_length_are_a_sentence_s_own(engines, sentences, limits):
    """Whatever it is translated together with. (At its limit CTranslate2 ends a translation without a ``</s>``.)"""
    search = Search(beam=2, **limits)
    longest = [search.longest(len(sentence) + 1) for sentence in sentences]
    for engine in engines:
        whole = [found[0].tokens for found in engine.translate(sentences, search)]
        assert all(len(tokens) <= limit for tokens, limit in zip(whole, longest, strict=True))
        assert any(len(tokens) == limit for tokens, limit in zip(whole, longest, strict=True))
        assert [engine.translate([sentence], search)[0][0].tokens for sentence in sentences[:4]] == whole[:4]


def test_translation_goes_on_while_text_is_prepared(engines, sentences):
    for engine in engines:
        first, second = (engine.start(part, Search(max_len_b=LONGEST)) for part in (sentences[:20], sentences[20:]))
        later, earlier = second.result(), first.result()
        assert first.ready() and first.done() == 20
        found = [hypotheses[0].tokens for hypotheses in earlier + later]
        assert found == [engine.translate([sentence], Search(max_len_b=LONGEST))[0][0].tokens for sentence in sentences]


def test_a_beam_wider_than_the_vocabulary_is_refused(engines, sentences):
    for engine in engines:
        with pytest.raises(UserError, match="--beam 5000 is not possible: the model knows"):
            engine.translate(sentences[:2], Search(beam=5000))


def test_sources_longer_than_ctranslate2_cuts_them_are_whole(engines):
    source = [["seven"] * 1100]
    ours, theirs = (engine.forced_log_probs(source, [["neun"]])[0] for engine in engines)
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_what_does_not_fit_is_told_in_a_sentence(model, exported, tmp_path):
    with pytest.raises(UserError, match="leave --data out"):
        load_translator(exported, model / "data-bin")
    with pytest.raises(UserError, match="leave --no-normalize out"):
        load_translator(exported, normalize=False)
    (tmp_path / "data-bin").mkdir()
    for language in ("en", "de"):
        (tmp_path / "data-bin" / f"dict.{language}.txt").write_text("one 1\ntwo 1\n")
    with pytest.raises(UserError, match=r"is not the data of .*knows \d+ symbols, and .*dict.en.txt has 6"):
        load_translator(model / "1.pt", tmp_path / "data-bin", no_subwords=True, source_lang="en", target_lang="de")
    with pytest.raises(UserError, match="no dictionary of the language 'fr'"):
        load_translator(model / "1.pt", model / "data-bin", source_lang="fr", target_lang="de")
    (exported / "model.bin").rename(exported / "model")
    try:
        with pytest.raises(UserError, match=r"model.bin is missing"):
            load_translator(exported)
        (exported / "model.bin").write_bytes(b"x" * (exported / "model").stat().st_size)
        with pytest.raises(UserError, match="CTranslate2 cannot load"):
            load_translator(exported)
    finally:
        (exported / "model").rename(exported / "model.bin")


def test_scores_are_natural_logarithms_inside_and_base_2_outside(exported):
    translator = load_translator(exported, search=Search(max_len_b=LONGEST))
    ((inside,),) = translator.engine.translate([translator.text.encode("seven one, nine")], translator.search)
    (outside,) = translator.translate(["seven one, nine"])
    assert outside.score == pytest.approx(inside.score / math.log(2), rel=1e-6)
    assert outside.text == translator.text.decode(inside.tokens)
