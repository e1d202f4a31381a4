"""Raw text to subwords and back: fairseq-interactive's own steps, any input, and what is found beside a data folder."""

import re
from argparse import ArgumentParser, Namespace

import pytest
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.deploy.text import RESERVED, UNKNOWN, TextPipeline, TextSettings
from fairseq_rope.deploy.text_options import add_text_options, find_subwords, languages, read_symbols, settings_for
from fairseq_rope.errors import UserError
from fairseq_rope.prepare.subwords import learn_bpe, learn_sentencepiece

WORDS = "a the dog dogs cat runs running run black white on grass man's men woman women & well-known 3.5 e.g. naïve"
SAMPLES = [
    "Two men, well-known; 3.5% (e.g. dogs)...",
    'The "dog\'s" run -- running & white <b>[x]|y</b> naïve',
    "&amp; &lt;b&gt; &#91; @-@ @@ foo@@ ▁ ▁a",
    "  many   spaces \t here ",
    "狗在草地上跑。 สุนัขวิ่ง कुत्ता दौड़ता है। الكلب يجري؟ 👨‍👩‍👧 👍🏽",
    "U.S.A. Mr. Smith's No. 5 a-b-c d..e ....",
    "a" * 300,
]
PLAIN = {"source_lang": "en", "target_lang": "de", "normalize": False, "tokenizer": "moses", "subwords": "subword_nmt"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with BPE codes and a sentencepiece model."""
    folder = tmp_path_factory.mktemp("subwords")
    learn_bpe({word: 20 + number for number, word in enumerate(WORDS.split())}, 60, folder / "codes")
    learn_sentencepiece([WORDS, *SAMPLES[:2]] * 5, 15, 60, folder / "sentencepiece.model")
    return folder


@pytest.fixture(scope="module")
def bpe(files):
    return TextPipeline(TextSettings(**PLAIN), files / "codes")


@pytest.fixture(scope="module")
def normalizing(files):
    return TextPipeline(TextSettings(**{**PLAIN, "normalize": True}), files / "codes")


@pytest.fixture(scope="module")
def pieces(files):
    chosen = {**PLAIN, "tokenizer": "none", "subwords": "sentencepiece", "normalize": True}
    return TextPipeline(TextSettings(**chosen), files / "sentencepiece.model")


@pytest.fixture(scope="module")
def fairseq_bpe(files):
    tokenizer = MosesTokenizer(MosesTokenizerConfig(source_lang="en", target_lang="de"))
    return tokenizer, SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=str(files / "codes")))


def interactive(line, tokenizer, bpe):
    """What fairseq-interactive gives its dictionary for a line of input."""
    line = line.strip()
    line = tokenizer.encode(line) if tokenizer else line
    return re.sub(r"\s+", " ", bpe.encode(line)).strip().split()


def known(tokens):
    return [UNKNOWN if token in RESERVED else token for token in tokens]


@pytest.mark.parametrize("line", SAMPLES)
def test_bpe_is_what_fairseq_interactive_does(line, bpe, fairseq_bpe):
    tokenizer, subwords = fairseq_bpe
    tokens = bpe.encode(line)
    assert tokens == interactive(line, tokenizer, subwords)
    assert bpe.decode(tokens) == tokenizer.decode(subwords.decode(" ".join(tokens)))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_as_in_fairseq_interactive(bpe, fairseq_bpe, line):
    line = line.encode("utf-8", "replace").decode()
    assert bpe.encode(line) == known(interactive(line, *fairseq_bpe))


@pytest.mark.parametrize("line", [*SAMPLES[:5], "tab\tand \u00a0 \u3000 spaces"])
def test_sentencepiece_is_what_fairseq_interactive_does(files, line):
    chosen = {**PLAIN, "tokenizer": "none", "subwords": "sentencepiece"}
    pipeline = TextPipeline(TextSettings(**chosen), files / "sentencepiece.model")
    theirs = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=str(files / "sentencepiece.model")))
    tokens = pipeline.encode(line)
    assert tokens == known(interactive(line, None, theirs))
    assert pipeline.decode(tokens) == theirs.decode(" ".join(tokens))


ODD = st.text(
    alphabet=st.sampled_from(list("ab.,'\"&<>/|[]@-s▁ \t\r\n\0\x1b\x85\u2028\u200d\u00a0\ud800\ufeff狗ก👍")),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(st.one_of(ODD, st.text(max_size=80)))
def test_every_line_becomes_words_of_a_dictionary_and_a_line_again(normalizing, pieces, line):
    for pipeline in (normalizing, pieces):
        tokens = pipeline.encode(line)
        assert all(token and len(token.split()) == 1 for token in tokens)
        assert RESERVED.isdisjoint(token for token in tokens if token != UNKNOWN)
        "".join(tokens).encode("utf-8")  # no half of a surrogate pair is left
        assert len(pipeline.decode(tokens).splitlines()) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), max_size=8))
def test_whatever_a_model_says_is_one_line(bpe, pieces, tokens):
    for pipeline in (bpe, pieces):
        assert len(pipeline.decode(tokens).splitlines()) <= 1


def test_symbols_of_the_model_typed_as_text_are_unknown_words():
    pipeline = TextPipeline(TextSettings(**{**PLAIN, "tokenizer": "none", "subwords": "none"}), None)
    assert pipeline.encode("a </s> <s> <pad> <blank> <unk> b</s>") == ["a", *["<unk>"] * 5, "b</s>"]
    assert pipeline.decode(["<s>", "a", "<unk>", "<blank>", "b", "</s>", "<pad>"]) == "a <unk> b"


def test_entities_typed_as_text_are_not_resolved(bpe):
    """A copy is the text as Moses spaces it: ``&amp;`` never becomes ``&``."""
    for line, copy in (("a &amp; b", "a & amp; b"), ("&lt;", "& lt;"), ("1 < 2 & 3", "1 < 2 & 3")):
        assert bpe.decode(bpe.encode(line)) == copy


def test_long_words_take_no_minutes_and_lose_nothing(normalizing):
    for line in ("dog" * 3500, "a" * 10_000, "狗" * 10_000, "a-" * 5000, "." * 10_000):
        tokens = normalizing.encode(line)
        assert normalizing.decode(tokens) == line
        assert len(tokens) > 1000


def test_normalisation_comes_first(normalizing, bpe):
    line = "“dog”\u00a0… \x07run"
    assert normalizing.encode(line) == bpe.encode('"dog" ... run')
    assert bpe.encode(line) != normalizing.encode(line)


def test_settings_survive_json_and_refuse_what_is_wrong():
    chosen = TextSettings(**PLAIN)
    assert TextSettings.from_dict(chosen.to_dict()) == chosen
    for change, message in (
        ({"tokenizer": "spacy"}, "tokenizer is 'spacy'.*moses, none"),
        ({"normalize": 1}, "normalize is 1.*true or false"),
        ({"subwords": ["x"]}, "subwords is"),
        ({"source_lang": ""}, "source_lang is ''"),
        ({"more": 1}, "have the unknown more"),
    ):
        with pytest.raises(UserError, match=message):
            TextSettings.from_dict({**PLAIN, **change})
    with pytest.raises(UserError, match="lack normalize, tokenizer"):
        TextSettings.from_dict({name: PLAIN[name] for name in ("source_lang", "target_lang", "subwords")})
    with pytest.raises(UserError, match="no table"):
        TextSettings.from_dict(None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#version: 0.2\na b\nabc\n", "line 3 is not two symbols"),
        (b"#version: 0.9\na b\n", "unknown version"),
        (b"#version: 0.2\n", "holds no BPE codes"),
        (b"\xff\xfe", "cannot read"),
        (b"", "line 1 is not two"),
        (None, "no file of subwords"),
    ],
)
def test_wrong_codes_are_refused_in_a_sentence(tmp_path, content, message):
    if content is not None:
        (tmp_path / "codes").write_bytes(content)
    with pytest.raises(UserError, match=message):
        TextPipeline(TextSettings(**PLAIN), tmp_path / "codes")


@pytest.mark.parametrize("content", [b"", b"#version: 0.2\na b\n", "truncated"])
def test_a_wrong_sentencepiece_model_is_refused_in_a_sentence(tmp_path, files, content):
    if content == "truncated":
        content = (files / "sentencepiece.model").read_bytes()[:-50]
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(UserError, match="is no sentencepiece model, or a damaged one"):
        TextPipeline(TextSettings(**{**PLAIN, "subwords": "sentencepiece"}), tmp_path / "x.model")


def options(*arguments) -> Namespace:
    parser = ArgumentParser()
    add_text_options(parser)
    return parser.parse_args(list(map(str, arguments)))


@pytest.fixture
def data(tmp_path, files, bpe):
    """A data folder whose dictionaries were made with the codes that lie beside it."""
    folder = tmp_path / "data-bin"
    folder.mkdir()
    symbols = dict.fromkeys(token for sample in [WORDS, *SAMPLES[:2]] for token in bpe.encode(sample))
    for language in ("en", "de"):
        write_dictionary(folder / f"dict.{language}.txt", symbols)
    (folder / "train.en-de.en.idx").touch()
    (tmp_path / "subwords").mkdir()
    (tmp_path / "subwords" / "codes").write_bytes((files / "codes").read_bytes())
    return folder


def write_dictionary(path, symbols):
    path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")


def test_languages_come_from_options_checkpoint_and_names(data):
    assert languages(options(), data) == ("en", "de")
    assert languages(options("-s", "de", "-t", "en"), data) == ("de", "en")
    assert languages(options(), data, ("de", "en")) == ("de", "en")
    assert languages(options("-s", "en"), data) == ("en", "de")
    for arguments, message in (
        (["-s", "xx", "-t", "de"], "no dictionary of the language 'xx'.*it has: de, en"),
        (["-s", "de"], "give --source-lang and --target-lang"),
    ):
        with pytest.raises(UserError, match=message):
            languages(options(*arguments), data)
    with pytest.raises(UserError, match="no data folder"):
        languages(options(), data / "missing")
    with pytest.raises(UserError, match="has no dictionary"):
        languages(options(), data.parent)


def test_subwords_are_found_beside_the_data(data, files, monkeypatch):
    choice = settings_for(options(), data, "en", "de")
    assert choice.settings == TextSettings("en", "de", True, "moses", "subword_nmt")
    assert choice.subword_file == data.parent / "subwords" / "codes"
    assert str(choice.subword_file) in choice.found[0] and not choice.warnings
    monkeypatch.chdir(data)
    assert find_subwords(".").samefile(choice.subword_file)
    (data.parent / "link").symlink_to(data)
    assert find_subwords(data.parent / "link") == choice.subword_file


def test_options_say_how_text_is_prepared(data, files):
    chosen = settings_for(
        options("--bpe-codes", files / "codes", "--no-normalize", "--tokenizer", "none"), data, "en", "de"
    )
    assert chosen.settings == TextSettings("en", "de", False, "none", "subword_nmt")
    assert chosen.subword_file == files / "codes" and not chosen.found
    chosen = settings_for(options("--no-subwords"), data, "en", "de")
    assert chosen.settings.subwords == "none" and chosen.subword_file is None
    assert "has to be in subwords already" in chosen.warnings[0]


def test_nothing_found_names_where_it_looked(data):
    (data.parent / "subwords" / "codes").unlink()
    with pytest.raises(
        UserError, match=r"--bpe-codes, --sentencepiece-model or --no-subwords.*looked for codes"
    ) as error:
        settings_for(options(), data, "en", "de")
    assert str(data.parent / "subwords") in str(error.value)
    write_dictionary(data / "dict.en.txt", ["one", "two"])
    with pytest.raises(UserError, match="--no-subwords is likely right"):
        settings_for(options(), data, "en", "de")


def test_subwords_of_another_kind_or_corpus_are_told(data, files, tmp_path):
    with pytest.raises(UserError, match=r"has the subwords of subword-nmt.*give --bpe-codes"):
        settings_for(options("--sentencepiece-model", files / "sentencepiece.model"), data, "en", "de")
    learn_bpe({"xyzzy": 9, "quux": 9, "quuz": 9}, 10, tmp_path / "other")
    choice = settings_for(options("--bpe-codes", tmp_path / "other"), data, "en", "de")
    assert "may not be the subwords" in choice.warnings[0]


def test_a_sentencepiece_model_is_found_by_its_dictionary(data, files, pieces):
    symbols = dict.fromkeys(token for sample in [WORDS, *SAMPLES[:2]] for token in pieces.encode(sample))
    write_dictionary(data / "dict.en.txt", symbols)
    (data.parent / "spm.en.model").write_bytes((files / "sentencepiece.model").read_bytes())
    choice = settings_for(options(), data, "en", "de")  # the codes beside it are another model's
    assert choice.settings == TextSettings("en", "de", True, "none", "sentencepiece") and not choice.warnings
    assert choice.subword_file.name == "spm.en.model"
    with pytest.raises(UserError, match=r"subwords of sentencepiece.*give --sentencepiece-model"):
        settings_for(options("--bpe-codes", files / "codes"), data, "en", "de")
    (data.parent / "second.model").touch()
    with pytest.raises(UserError, match="several sentencepiece models"):
        settings_for(options(), data, "en", "de")


def test_a_file_that_is_no_dictionary_is_told(tmp_path):
    (tmp_path / "dict.en.txt").write_text("dog 5\ncat\n")
    with pytest.raises(UserError, match="line 2 is not a symbol and its number"):
        read_symbols(tmp_path / "dict.en.txt")
    (tmp_path / "dict.en.txt").write_text("dog 5\n<unk> 3 #fairseq:overwrite\n")
    assert read_symbols(tmp_path / "dict.en.txt") == ["dog", "<unk>"]
