"""German realisation: four cases, three declensions of the adjective, and the verb bracket.

Word order, where German leaves a choice, is one fixed convention:
- middle field: subject, pronoun objects, time or frequency, dative, accusative, "nicht", prepositional phrases;
- a relative clause follows its noun at once if that noun is the subject, else it stands at the end of its clause;
- object clauses, infinitives with "zu" and "als" phrases stand behind the closing verbs;
- an indefinite object is negated by "kein"; English past is Präteritum, English perfect is Perfekt.
"""

from __future__ import annotations

from . import lexicon_de as lexicon
from . import number_words
from .meaning import (
    POSSESSIVES,
    Adverbial,
    Both,
    Clause,
    Complement,
    Gap,
    Joined,
    Name,
    Noun,
    Phrase,
    Place,
    Pronoun,
    Question,
    Sentence,
    Time,
    agreement,
)

CASES = ("nom", "acc", "dat", "gen")
# Each string gives the endings for masculine, feminine, neuter, plural; "-" is no ending.
ADJECTIVE_ENDINGS = {
    "strong": {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "en er en er"},
    "weak": {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"},
    "mixed": {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en", "gen": "en en en en"},
}
DER = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
DIESER = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}
EIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en", "gen": "es er es er"}
RELATIVE = {
    "nom": "der die das die",
    "acc": "den die das die",
    "dat": "dem der dem denen",
    "gen": "dessen deren dessen deren",
}


def sentence(meaning: Sentence) -> str:
    """The German sentence: cased, with its final mark."""
    words = _question(meaning) if isinstance(meaning, Question) else _main(meaning)
    text = _punctuate(words)
    return text[0].upper() + text[1:] + ("?" if isinstance(meaning, Question) else ".")


def _punctuate(words: list[str]) -> str:
    """Joins words. Clauses bring a comma at either end: two in a row are one, and none
    stands at the sentence's ends or after "und" and "aber"."""
    kept: list[str] = []
    for word in words:
        if word == "," and (not kept or kept[-1] in (",", "und", "aber")):
            continue
        kept.append(word)
    if kept[-1] == ",":
        kept.pop()
    return " ".join(kept).replace(" ,", ",")


def _main(meaning: Sentence) -> list[str]:
    if isinstance(meaning, Joined):
        return [*_main(meaning.left), ",", lexicon.LINKS[meaning.link], *_main(meaning.right)]
    if isinstance(meaning, Adverbial):
        sub = [",", lexicon.LINKS[meaning.link], *_clause(meaning.sub, "final"), ","]
        if meaning.front:
            return [*sub, *_clause(meaning.main, "first")]
        return [*_clause(meaning.main, "second"), *sub]
    return _clause(meaning, "second")


def _question(meaning: Question) -> list[str]:
    words = [lexicon.QUESTION_WORDS[meaning.word]] if meaning.word else []
    return [*words, *_clause(meaning.clause, "first")]


# ---------------------------------------------------------------------------------------------- noun phrases


def _pick(row: str, gender: str, plural: bool) -> str:
    ending = row.split(" ")[3 if plural else "mfn".index(gender)]
    return "" if ending == "-" else ending


def gender(noun: str) -> str:
    """m, f or n."""
    return lexicon.NOUNS[noun][0]


def noun_form(noun: str, case: str, plural: bool) -> str:
    """The noun itself in a case and number."""
    kind, singular, plural_form, *genitive = lexicon.NOUNS[noun].split(" ")
    if plural:
        return plural_form + ("n" if case == "dat" and plural_form[-1] not in "ns" else "")
    if genitive == ["weak"]:
        return singular if case == "nom" else plural_form
    if case == "gen" and kind != "f":
        return genitive[0] if genitive else singular + "s"
    return singular


def adjective_form(adjective: str, declension: str, case: str, gender: str, plural: bool) -> str:
    """An adjective with its ending; `declension` is strong, weak or mixed."""
    return lexicon.ADJECTIVES[adjective][1] + _pick(ADJECTIVE_ENDINGS[declension][case], gender, plural)


def _determiner(phrase: Noun, case: str, negated: bool) -> tuple[list[str], str]:
    """(determiner words, declension that they ask of the adjective)."""
    kind, plural, det = gender(phrase.noun), phrase.plural, phrase.det
    if negated and det in ("a", "mass"):
        return ["kein" + _pick(EIN[case], kind, plural)], "mixed"
    if det == "mass":
        return [], "strong"
    if det == "owner":
        if isinstance(phrase.owner, Name):  # "Annas Hund" has no article, so the adjective is strong
            return [phrase.owner.name + "s"], "strong"
        return [_pick(DER[case], kind, plural)], "weak"
    if det == "number":
        return [number_words.german(phrase.numeral)], "strong"
    if det in ("some", "many"):
        return [("einig" if det == "some" else "viel") + _pick(DIESER[case], kind, plural)], "strong"
    if det == "the":
        return [_pick(DER[case], kind, plural)], "weak"
    if det in ("this", "every"):
        return [("dies" if det == "this" else "jed") + _pick(DIESER[case], kind, plural)], "weak"
    assert det == "a" or det in POSSESSIVES, det
    return [("ein" if det == "a" else lexicon.POSSESSIVES[det]) + _pick(EIN[case], kind, plural)], "mixed"


def noun_phrase(phrase: Phrase, case: str, negated: bool = False) -> list[str]:
    """The words of a phrase in a case, without its relative clause; `negated` makes "ein" "kein"."""
    if isinstance(phrase, Pronoun):
        return [lexicon.PRONOUNS[phrase.who][case]]
    if isinstance(phrase, Name):
        return [phrase.name]
    if isinstance(phrase, Both):
        return [*noun_phrase(phrase.first, case), "und", *noun_phrase(phrase.second, case)]
    words, declension = _determiner(phrase, case, negated)
    for adjective in (phrase.quality, phrase.trait):
        if adjective:
            words.append(adjective_form(adjective, declension, case, gender(phrase.noun), phrase.plural))
    words.append(noun_form(phrase.noun, case, phrase.plural))
    if isinstance(phrase.owner, Noun):
        words += noun_phrase(phrase.owner, "gen")
    return words


def _relative(phrase: Phrase | Gap | None) -> list[str]:
    if not isinstance(phrase, Noun) or phrase.relative is None:
        return []
    clause = phrase.relative.clause
    case = "nom" if phrase.relative.role == "subject" else _object_case(clause.verb)
    return [",", _pick(RELATIVE[case], gender(phrase.noun), phrase.plural), *_clause(clause, "final"), ","]


# ---------------------------------------------------------------------------------------------------- verbs


class _Verb:
    """The forms of one verb, read from the lexicon."""

    def __init__(self, concept: str):
        infinitive, self.third, self.preterite, participle, *marks = lexicon.VERBS[concept].split(" ")
        self.prefix, bar, base = infinitive.rpartition("|")
        self.base = base
        self.infinitive = self.prefix + base
        self.participle = self.prefix + participle
        self.zu = [f"{self.prefix}zu{base}"] if bar else ["zu", base]
        self.auxiliary = "sein" if "sein" in marks else "haben"
        self.object_case = "dat" if "dat" in marks else "acc"
        self.first = lexicon.FIRST_PERSON.get(concept, base.removesuffix("n").removesuffix("e") + "e")

    def finite(self, tense: str, person: str) -> str:
        """Without the prefix; `person` as from `agreement`, `tense` is present or past."""
        if tense == "past":
            if person in ("1s", "3s"):
                return self.preterite
            return self.preterite + ("n" if self.preterite.endswith("e") else "en")
        if person == "1s":
            return self.first
        if person == "3s":
            return self.third
        return "sind" if self.base == "sein" else self.base


_AUXILIARIES = {
    "haben": {"1s": "habe", "3s": "hat", "1p": "haben", "3p": "haben"},
    "sein": {"1s": "bin", "3s": "ist", "1p": "sind", "3p": "sind"},
    "werden": {"1s": "werde", "3s": "wird", "1p": "werden", "3p": "werden"},
}


def _object_case(concept: str) -> str:
    return _Verb(concept).object_case


def _bracket(clause: Clause) -> tuple[str, str, list[str]]:
    """(finite verb, its separated prefix or "", the infinite verb forms that close the bracket)."""
    person = "3s" if clause.kind == "there" else agreement(clause.subject)
    verb = _Verb("there" if clause.kind == "there" else clause.verb)
    if clause.modal:
        return _Verb(clause.modal).finite(clause.tense, person), "", [verb.infinitive]
    if clause.control:
        verb = _Verb(clause.control)
    if clause.tense == "perfect":
        return _AUXILIARIES[verb.auxiliary][person], "", [verb.participle]
    if clause.tense == "future":
        return _AUXILIARIES["werden"][person], "", [verb.infinitive]
    return verb.finite(clause.tense, person), verb.prefix, []


# -------------------------------------------------------------------------------------------------- clauses


def _clause(clause: Clause, order: str) -> list[str]:
    """`order` says where the finite verb stands: "second", "first" (questions, after a clause) or "final"."""
    finite, prefix, closing = _bracket(clause)
    front: list[str] = []
    subject = _subject(clause)
    if order == "second":
        if clause.front == "time":
            front = _time(clause.time)
        elif clause.front == "place":
            front = _place(clause.places[-1])
        else:
            front, subject = subject, []
    middle = [*subject, *_middle(clause)]
    if order == "final":
        words = [*middle, *closing, prefix + finite]
    else:
        words = [*front, finite, *middle, *closing, *([prefix] if prefix else [])]
    return [*words, *_after_bracket(clause)]


def _subject(clause: Clause) -> list[str]:
    if clause.kind == "there":
        return ["es"]
    if isinstance(clause.subject, Gap):
        return []
    return [*noun_phrase(clause.subject, "nom"), *_relative(clause.subject)]


def _objects(clause: Clause) -> tuple[list[str], list[str]]:
    """(pronoun objects, other objects), dative before accusative."""
    roles = [(clause.recipient, "dat"), (clause.direct, _object_case(clause.verb))]
    if clause.kind == "there":
        roles = [(clause.subject, "acc")]
    pronouns, others = [], []
    for phrase, case in roles:
        if phrase is None or isinstance(phrase, Gap):
            continue
        target = pronouns if isinstance(phrase, Pronoun) else others
        negated = clause.polarity == "not" and not clause.control and phrase is clause.direct
        target += noun_phrase(phrase, case, negated)
    return pronouns, others


def _negation(clause: Clause) -> list[str]:
    if clause.polarity != "not":
        return []
    taken_by_kein = isinstance(clause.direct, Noun) and clause.direct.det in ("a", "mass") and not clause.control
    return [] if taken_by_kein else ["nicht"]


def _when(clause: Clause) -> list[str]:
    words = _time(clause.time) if clause.time and clause.front != "time" else []
    if clause.polarity == "never":
        words = [*words, lexicon.FREQUENCIES["never"]]
    if clause.frequency:
        words = [*words, lexicon.FREQUENCIES[clause.frequency]]
    return words


def _middle(clause: Clause) -> list[str]:
    """The middle field after the subject. With a control verb the objects belong to the infinitive behind it."""
    if clause.control:
        return [*_when(clause), *_negation(clause)]
    pronouns, others = _objects(clause)
    return [*pronouns, *_when(clause), *others, *_negation(clause), *_predicate(clause), *_places(clause)]


def _predicate(clause: Clause) -> list[str]:
    if clause.kind != "be":
        return []
    plain, _, comparative = lexicon.ADJECTIVES[clause.adjective]
    if clause.degree == "more":
        return [comparative]
    return ["sehr", plain] if clause.degree == "very" else [plain]


def _after_bracket(clause: Clause) -> list[str]:
    if clause.control:
        pronouns, others = _objects(clause)
        zu = _Verb(clause.verb).zu
        words = [*pronouns, *others, *_places(clause), *zu, *_relative(clause.direct)]
        # a bare infinitive group takes its comma too, so that there is one rule
        return [",", *words, ","]
    words = []
    if clause.than:
        words = ["als", *noun_phrase(clause.than, "nom")]
    words += _relative(clause.subject if clause.kind == "there" else clause.direct)
    if clause.complement:
        words += _complement(clause.complement)
    return words


def _complement(complement: Complement) -> list[str]:
    link = lexicon.LINKS[complement.link]
    content = complement.content
    if isinstance(content, Adverbial):
        words = [link, *_clause(content.main, "final")]
        words += [",", lexicon.LINKS[content.link], *_clause(content.sub, "final")]
    else:
        words = [link, *_clause(content, "final")]
    if complement.second:
        words += ["und", link, *_clause(complement.second, "final")]
    return [",", *words, ","]


def _places(clause: Clause) -> list[str]:
    places = clause.places[:-1] if clause.front == "place" else clause.places
    return [word for place in places for word in _place(place)]


def _place(place: Place) -> list[str]:
    preposition, case = lexicon.PREPOSITIONS[place.prep]
    words = noun_phrase(place.phrase, case)
    # names of owners ("Annas Garten") have no article; "dem" of a noun phrase is always the article here
    joined = lexicon.JOINED_ARTICLES.get((preposition, words[0]))
    return [joined, *words[1:]] if joined else [preposition, *words]


def _time(time: Time) -> list[str]:
    if time.kind == "day":
        return ["am", lexicon.DAYS[time.value]]
    if time.kind == "clock":
        return ["um", "ein" if time.value == 1 else number_words.german(time.value), "Uhr"]
    return [lexicon.TIMES[time.value]]
