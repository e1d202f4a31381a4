"""Normaliser and tokeniser of fairseq-rope-prepare against sacremoses itself."""

import re
import tarfile

import helpers
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from fairseq_rope.prepare.moses import Normalizer, Tokenizer

LANGUAGES = ("en", "de", "fr")
TEST_SET = helpers.DATA / "wmt-layout" / "mirror" / "statmt.org" / "wmt14" / "test-full.tgz"
# what the rules are about, and what they must not be confused by
PIECES = [
    *"aZé9.,'\"-()[]<>&|;:%!?$€`´‘’‚“”„«»–—…/@#_",
    "\u00a0", " ", "  ", "\t", "\u2028", "\u200b", "\x00", "\x1c", "\x85", "\ue000", "\ufeff", "\r", "\u3000",
    "Mr.", "U.S.", "z.B.", "No.", "nº\u00a0", "12,5", "1\u00a0000", "p.m.", "...", "..", "l'eau", "don't", "'s", "x-y",
    "-5", "a.'", "M. ", "DOTMULTI", "bzw.", "ß", "Ж", "日", "\U0001f600", "¼",
]  # fmt: skip


def reference_normalize(text, language):
    """Both of Moses' Perl scripts by sacremoses and the regular expression of remove-non-printing-char.perl."""
    text = MosesPunctNormalizer(lang=language, perl_parity=True).normalize(text)
    return regex.sub(r"\p{C}", " ", text).strip()


@pytest.fixture(scope="module")
def references():
    return {language: MosesTokenizer(lang=language) for language in LANGUAGES}


def reference_tokenize(tokenizer, text):
    return tokenizer.tokenize(text, aggressive_dash_splits=True, return_str=True)


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_made_up_lines(references, language, pieces):
    text = "".join(pieces)
    assert Normalizer(language).normalize(text) == reference_normalize(text, language)
    assert Tokenizer(language).tokenize(text) == reference_tokenize(references[language], text)


@pytest.mark.parametrize("language", ["en", "fr"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30))
def test_any_characters(references, language, text):
    assert Normalizer(language).normalize(text) == reference_normalize(text, language)
    assert Tokenizer(language).tokenize(text) == reference_tokenize(references[language], text)


@pytest.mark.skipif(not TEST_SET.exists(), reason="needs wmt-layout of $FAIRSEQ_ROPE_DATA")
@pytest.mark.parametrize("member", ["deen-src.en", "deen-ref.de", "fren-ref.fr"])
def test_newstest2014(references, member):
    with tarfile.open(TEST_SET) as archive:
        text = archive.extractfile(f"test-full/newstest2014-{member}.sgm").read().decode("utf-8")
    lines = re.findall(r"<seg[^>]*>(.*)</seg>", text)
    language = member[-2:]
    assert len(lines) == 3003
    normalize, tokenize = Normalizer(language).normalize, Tokenizer(language).tokenize
    for line in lines[::3]:
        normal = normalize(line)
        assert normal == reference_normalize(line, language)
        assert tokenize(normal) == reference_tokenize(references[language], normal)


@pytest.mark.parametrize(
    "language, text, expected",
    [
        ("en", "Mr. Smith's dog (12,5 kg) isn't in.", "Mr. Smith &apos;s dog ( 12,5 kg ) isn &apos;t in ."),
        ("de", "Das ist z.B. ein Auto-Rennen (neu).", "Das ist z.B. ein Auto @-@ Rennen ( neu ) ."),
        ("fr", "L'eau, c'est bon !", "L&apos; eau , c&apos; est bon !"),
    ],
)  # fmt: skip
def test_tokens(language, text, expected):
    assert Tokenizer(language).tokenize(text) == expected


def test_normalisation():
    assert Normalizer("de").normalize("„Ja“, sagte er – dann…\u00a0!\u200b") == '"Ja", sagte er - dann...!'
    assert Normalizer("fr").normalize("« Bonjour » : 3\u00a0000 %") == '" Bonjour ": 3,000%'
