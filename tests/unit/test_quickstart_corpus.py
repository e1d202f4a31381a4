"""The quick start's corpus: one translation a sentence, no overlap, lengths, and the command that writes it."""

import os
import random
import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))

import make_corpus
from grammar import REALISERS, concepts, french
from grammar.meaning import (
    Clause,
    Gap,
    Name,
    Noun,
)
from grammar.sampling import Sampler
from grammar_golden import ME, WE

# --------------------------------------------------------------------------------------------------- the corpus


def sample(deep, count, seed=5):
    sampler = Sampler(random.Random(seed), deep)
    return [sampler.sentence() for _ in range(count)]


@pytest.fixture(scope="module")
def realised():
    meanings = [*sample(False, 12000), *sample(True, 1000)]
    return [tuple(REALISERS[language](meaning) for language in ("en", "de", "fr")) for meaning in meanings]


def test_an_english_sentence_has_one_translation(realised):
    translations = {}
    for source, *targets in realised:
        assert translations.setdefault(source, targets) == targets
    assert len(translations) < len(realised)  # some are drawn twice, so that the test can fail


def test_spelling(realised):
    infinitives = {french._Verb(verb).infinitive for verb in concepts.FRAMES}
    for source, german_text, french_text in realised:
        for text in (source, german_text, french_text):
            assert text[0].isupper() and text[-1] in ".?" and "  " not in text and ",," not in text and " ," not in text
            assert ",." not in text and text[:-1].count(".") == 0
        words = french_text.lower().replace(",", "").split()
        for word, following, after in zip(words, words[1:], [*words[2:], ""], strict=False):
            assert not (
                word in ("le", "la", "je", "ne", "de", "que", "me", "se") and french.starts_with_vowel(following)
            )
            # the article joins de and à; a pronoun before an infinitive does not
            if word in ("de", "à") and following in ("le", "les"):
                assert following == "le" and after.rstrip(".?") in infinitives
        assert ", und," not in german_text and ", aber," not in german_text
        for article in (" in dem ", " in das ", " zu dem ", " zu der "):
            assert article not in " " + german_text.lower()


def test_sampler_never_draws_what_english_leaves_open():
    def clauses(node, found):
        if isinstance(node, Clause):
            found.append(node)
        for value in getattr(node, "__dict__", {}).values():
            for item in value if isinstance(value, tuple) else (value,):
                clauses(item, found)
        return found

    seen = [clause for meaning in [*sample(False, 5000), *sample(True, 1000)] for clause in clauses(meaning, [])]
    assert len(seen) > 8000
    for clause in seen:
        if clause.subject in (ME, WE):
            assert clause.kind == "verb"
            bare = clause.tense in ("past", "perfect") and not clause.modal and not clause.control
            assert not (bare and clause.verb in concepts.SHOWS_SUBJECT_GENDER)
            assert clause.direct not in (ME, WE) and clause.recipient not in (ME, WE)
        if clause.direct in (ME, WE):
            assert clause.tense in ("present", "future") or clause.modal or clause.control
        relative_object = isinstance(clause.direct, Noun) and clause.direct.relative
        if relative_object or clause.control or clause.complement:
            assert clause.time is None or clause.front == "time"
        if relative_object:
            assert not clause.places and not isinstance(clause.recipient, Noun | Name)
        if isinstance(clause.subject, Noun) and clause.subject.relative:
            assert clause.frequency is None and clause.polarity != "never"
        if Gap in (type(clause.subject), type(clause.direct)):
            assert clause.time is None
        if clause.polarity != "yes":
            for phrase in (clause.subject, clause.recipient):
                assert (
                    not isinstance(phrase, Noun)
                    or clause.kind != "verb"
                    or phrase.det not in ("some", "many", "every", "number")
                )
        assert clause.modal != "must" or clause.polarity == "yes"


SIZES = {"train": 2000, "valid": 100, "test": 100, "test_long": 60}


@pytest.fixture(scope="module", params=make_corpus.PAIRS)
def sets(request):
    return make_corpus.build(request.param, SIZES, seed=1)


def test_sizes_and_no_overlap(sets):
    assert {name: len(pairs) for name, pairs in sets.items()} == SIZES
    for side in (0, 1):
        sentences = [pair[side] for pairs in sets.values() for pair in pairs]
        assert len(set(sentences)) == len(sentences)


def test_lengths(sets):
    for side in (0, 1):
        lengths = {name: [make_corpus.length(pair[side]) for pair in pairs] for name, pairs in sets.items()}
        longest = max(lengths["train"])
        assert min(lengths["test_long"]) > longest
        assert max(lengths["test"] + lengths["valid"]) <= longest <= 21
        mean = {name: sum(values) / len(values) for name, values in lengths.items()}
        assert abs(mean["test"] - mean["train"]) < 1.5
        assert mean["test_long"] > 2 * mean["train"]


def test_length_counts_words_and_marks():
    assert make_corpus.length("At two o'clock, l'homme voit vingt-trois chiens.") == 9


def run(*arguments):
    return make_corpus.main([str(argument) for argument in arguments])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SMALL = ("--train", 50, "--valid", 5, "--test", 5, "--test-long", 3)


@pytest.mark.parametrize("pair", make_corpus.PAIRS)
def test_the_command_is_deterministic_and_complete(tmp_path, pair, capsys):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("--pair", pair, "--out", tmp_path / name, *SMALL, "--seed", seed) == 0
    first = contents(tmp_path / "a")
    assert set(first) == {f"{name}.{language}" for name in make_corpus.SETS for language in pair.split("-")}
    assert first == contents(tmp_path / "b")
    assert first["train.en"] != contents(tmp_path / "c")["train.en"]
    target = pair[-2:]
    assert len(first["train.en"].decode().splitlines()) == len(first[f"train.{target}"].decode().splitlines()) == 50
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]  # nothing left beside them
    assert "train 50, valid 5, test 5, test_long 3" in capsys.readouterr().out


def test_a_folder_in_use_keeps_its_other_files(tmp_path):
    (tmp_path / "notes").write_text("mine")
    assert run("--pair", "en-de", "--out", tmp_path, *SMALL) == 0
    assert (tmp_path / "notes").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 9


def test_empty_sets(tmp_path):
    assert (
        run("--pair", "en-fr", "--out", tmp_path / "x", "--train", 0, "--valid", 0, "--test", 0, "--test-long", 0) == 0
    )
    assert set(contents(tmp_path / "x").values()) == {b""}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pair", "en-xx"), "invalid choice: 'en-xx'"),
        (("--pair", "en-de", "--train", "-5"), "'-5' is not a number of sentences (0 to 1000000)"),
        (("--pair", "en-de", "--test-long", "many"), "'many' is not a number of sentences"),
        (("--pair", "en-de", "--valid", "1.5"), "'1.5' is not a number of sentences"),
        (("--pair", "en-de", "--train", "9999999"), "'9999999' is not a number of sentences"),
        (("--pair", "en-de", "--seed", "x"), "invalid int value: 'x'"),
        ((), "required: --pair"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        run("--out", tmp_path / "x", *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert run("--pair", "en-de", "--out", out, *SMALL) == 1
        error = capsys.readouterr().err
        assert str(out) in error and error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(tmp_path, capsys):
    tmp_path.chmod(0o555)
    assert run("--pair", "en-de", "--out", tmp_path / "x", *SMALL) == 1
    assert "Permission denied" in capsys.readouterr().err


def test_two_translations_are_refused(monkeypatch):
    answers = iter(range(10**6))
    monkeypatch.setitem(make_corpus.REALISERS, "de", lambda meaning: f"Satz {next(answers)}.")
    with pytest.raises(ValueError, match="two translations"):
        make_corpus.Corpus("en-de", 1).draw(3000, deep=False)


def test_no_write_error_leaves_half_a_corpus(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        if self.name == "test.de":
            raise OSError(28, "No space left on device")
        return original(self, *args, **kwargs)

    original = Path.write_text
    monkeypatch.setattr(Path, "write_text", full)
    assert run("--pair", "en-de", "--out", tmp_path / "x", *SMALL) == 1
    assert not list(tmp_path.iterdir())
