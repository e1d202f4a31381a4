"""The quick start's grammar: hand-written pairs and morphology tables."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))

from grammar import REALISERS, concepts, english, french, german, lexicon_de, lexicon_en, lexicon_fr, number_words
from grammar.meaning import (
    Noun,
)
from grammar_golden import GOLDEN


def test_there_are_enough_golden_pairs():
    assert len(GOLDEN) >= 40


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    meaning, *sentences = GOLDEN[name]
    assert [REALISERS[language](meaning) for language in ("en", "de", "fr")] == sentences


# ------------------------------------------------------------------------------------------------- number words

NUMBERS = {
    0: ("zero", "null", "zéro"),
    1: ("one", "eins", "un"),
    11: ("eleven", "elf", "onze"),
    12: ("twelve", "zwölf", "douze"),
    16: ("sixteen", "sechzehn", "seize"),
    17: ("seventeen", "siebzehn", "dix-sept"),
    20: ("twenty", "zwanzig", "vingt"),
    21: ("twenty-one", "einundzwanzig", "vingt et un"),
    22: ("twenty-two", "zweiundzwanzig", "vingt-deux"),
    30: ("thirty", "dreißig", "trente"),
    37: ("thirty-seven", "siebenunddreißig", "trente-sept"),
    40: ("forty", "vierzig", "quarante"),
    56: ("fifty-six", "sechsundfünfzig", "cinquante-six"),
    61: ("sixty-one", "einundsechzig", "soixante et un"),
    70: ("seventy", "siebzig", "soixante-dix"),
    71: ("seventy-one", "einundsiebzig", "soixante et onze"),
    72: ("seventy-two", "zweiundsiebzig", "soixante-douze"),
    77: ("seventy-seven", "siebenundsiebzig", "soixante-dix-sept"),
    80: ("eighty", "achtzig", "quatre-vingts"),
    81: ("eighty-one", "einundachtzig", "quatre-vingt-un"),
    90: ("ninety", "neunzig", "quatre-vingt-dix"),
    91: ("ninety-one", "einundneunzig", "quatre-vingt-onze"),
    99: ("ninety-nine", "neunundneunzig", "quatre-vingt-dix-neuf"),
    100: ("one hundred", "einhundert", "cent"),
    101: ("one hundred and one", "einhunderteins", "cent un"),
    116: ("one hundred and sixteen", "einhundertsechzehn", "cent seize"),
    180: ("one hundred and eighty", "einhundertachtzig", "cent quatre-vingts"),
    200: ("two hundred", "zweihundert", "deux cents"),
    271: ("two hundred and seventy-one", "zweihunderteinundsiebzig", "deux cent soixante et onze"),
    700: ("seven hundred", "siebenhundert", "sept cents"),
    999: ("nine hundred and ninety-nine", "neunhundertneunundneunzig", "neuf cent quatre-vingt-dix-neuf"),
}


@pytest.mark.parametrize("number", NUMBERS)
def test_number_words(number):
    assert (number_words.english(number), number_words.german(number), number_words.french(number)) == NUMBERS[number]


def test_every_number_has_words_of_its_own():
    for words in (number_words.english, number_words.german, number_words.french):
        assert len({words(number) for number in range(1000)}) == 1000
        for outside in (-1, 1000):
            with pytest.raises(ValueError, match="0 to 999"):
                words(outside)


def test_french_numbers_agree_in_gender_only_at_one():
    ends_in_one = {n for n in range(1000) if number_words.french(n) != number_words.french(n, feminine=True)}
    assert ends_in_one == {n for n in range(1000) if n % 100 in (1, 21, 31, 41, 51, 61, 81)}
    assert number_words.french(381, feminine=True) == "trois cent quatre-vingt-une"


# --------------------------------------------------------------------------------------------------- morphology

# masculine, feminine, neuter, plural of "gut" with its determiner and noun, in the order of german.CASES
NOUN_PHRASES = {
    ("the", False): {
        "man": "der gute Mann|den guten Mann|dem guten Mann|des guten Mannes",
        "woman": "die gute Frau|die gute Frau|der guten Frau|der guten Frau",
        "child": "das gute Kind|das gute Kind|dem guten Kind|des guten Kindes",
    },
    ("a", False): {
        "man": "ein guter Mann|einen guten Mann|einem guten Mann|eines guten Mannes",
        "woman": "eine gute Frau|eine gute Frau|einer guten Frau|einer guten Frau",
        "child": "ein gutes Kind|ein gutes Kind|einem guten Kind|eines guten Kindes",
    },
    ("our", True): {
        "man": "unsere guten Männer|unsere guten Männer|unseren guten Männern|unserer guten Männer",
    },
    ("the", True): {
        "woman": "die guten Frauen|die guten Frauen|den guten Frauen|der guten Frauen",
        "child": "die guten Kinder|die guten Kinder|den guten Kindern|der guten Kinder",
    },
    ("some", True): {
        "man": "einige gute Männer|einige gute Männer|einigen guten Männern|einiger guter Männer",
    },
    ("this", False): {
        "prince": "dieser gute Prinz|diesen guten Prinzen|diesem guten Prinzen|dieses guten Prinzen",
    },
    ("every", False): {
        "girl": "jedes gute Mädchen|jedes gute Mädchen|jedem guten Mädchen|jedes guten Mädchens",
    },
    ("mass", False): {
        "wine": "guter Wein|guten Wein|gutem Wein|guten Weins",
        "milk": "gute Milch|gute Milch|guter Milch|guter Milch",
        "beer": "gutes Bier|gutes Bier|gutem Bier|guten Biers",
    },
}


@pytest.mark.parametrize(
    ("det", "plural", "noun"), [(*key, noun) for key, nouns in NOUN_PHRASES.items() for noun in nouns]
)
def test_german_declension(det, plural, noun):
    phrase = Noun(noun, det, plural, quality="good")
    forms = "|".join(" ".join(german.noun_phrase(phrase, case)) for case in german.CASES)
    assert forms == NOUN_PHRASES[det, plural][noun]


def test_adjective_endings_are_the_whole_table():
    table = {
        "strong": ["er e es e", "en e es e", "em er em en", "en er en er"],
        "weak": ["e e e en", "en e e en", "en en en en", "en en en en"],
        "mixed": ["er e es en", "en e es en", "en en en en", "en en en en"],
    }
    for declension, rows in table.items():
        for case, row in zip(german.CASES, rows, strict=True):
            forms = [german.adjective_form("new", declension, case, gender, False) for gender in "mfn"]
            forms.append(german.adjective_form("new", declension, case, "m", True))
            assert forms == ["neu" + ending for ending in row.split()]


def test_french_agreement():
    forms = {
        "white": "blanc blanche blancs blanches",
        "happy": "heureux heureuse heureux heureuses",
        "expensive": "cher chère chers chères",
        "old": "vieux vieille vieux vieilles",
        "grey": "gris grise gris grises",
    }
    for adjective, expected in forms.items():
        made = [french.adjective_form(adjective, g, plural) for plural in (False, True) for g in "mf"]
        assert made == expected.split()
    assert french.adjective_form("new", "m", False, before="hôtel") == "nouvel"
    assert french.adjective_form("new", "m", False, before="lit") == "nouveau"
    assert [french.plural(noun) for noun in ("horse", "castle", "bear", "grandmother", "hospital", "dog")] == [
        *("chevaux", "châteaux", "ours", "grands-mères", "hôpitaux", "chiens")
    ]


def test_lexicons_hold_every_concept_and_nothing_else():
    verbs = {
        *concepts.FRAMES,
        *concepts.CONTROLS,
        *concepts.MODALS,
        *concepts.THAT_VERBS,
        *concepts.WHETHER_VERBS,
        "be",
    }
    for lexicon in (lexicon_de, lexicon_fr):
        assert set(lexicon.NOUNS) == set(concepts.NOUNS)
        assert set(lexicon.ADJECTIVES) == set(concepts.ADJECTIVES)
        assert set(lexicon.VERBS) - {"there"} == verbs
        assert set(lexicon.PREPOSITIONS) == {*concepts.WHERE, *concepts.DIRECTIONS, "with", "without", "for"}
    assert set(lexicon_en.COMPARATIVES) <= set(concepts.ADJECTIVES) - set(concepts.NOT_COMPARED)
    assert set(lexicon_en.PLURALS) <= set(concepts.NOUNS)


def test_english_forms_name_one_concept_each():
    """No English form of one noun or verb is a form of another, and no verb has one form for present and past."""
    nouns = [form for noun in concepts.NOUNS for form in {noun, english.plural(noun)}]
    assert len(set(nouns)) == len(nouns)
    seen = {}
    for verb in (*concepts.FRAMES, *concepts.CONTROLS, *concepts.THAT_VERBS, "ask", "want"):
        base, third, past, _ = (" ".join(english._verb(verb, form)) for form in ("base", "3s", "past", "participle"))
        if verb != "give back":  # told from "give" by the "back" behind its recipient
            assert past not in (base, third)
            for form in {base, third, past}:
                assert seen.setdefault(form, verb) == verb


def test_verbs_that_show_their_subjects_gender_are_those_with_etre():
    with_etre = {verb for verb in concepts.FRAMES if french._Verb(verb).with_etre}
    assert with_etre == set(concepts.SHOWS_SUBJECT_GENDER)
