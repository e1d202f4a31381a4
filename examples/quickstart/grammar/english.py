"""English realisation: do-support, third-person -s, a/an, 's before the noun, "who"/"whom"/"that" relatives."""

from __future__ import annotations

from . import lexicon_en as lexicon
from . import number_words
from .concepts import PERSONS
from .meaning import (
    POSSESSIVES,
    Adverbial,
    Both,
    Clause,
    Gap,
    Joined,
    Name,
    Noun,
    Phrase,
    Place,
    Pronoun,
    Question,
    Relative,
    Sentence,
    Time,
    agreement,
)

_BACK = "give back"  # "gives him back the hat"


def sentence(meaning: Sentence) -> str:
    """The English sentence: cased, with its final mark."""
    if isinstance(meaning, Question):
        words, mark = _question(meaning), "?"
    else:
        words, mark = _main(meaning), "."
    text = " ".join(words).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def _main(meaning: Sentence) -> list[str]:
    if isinstance(meaning, Joined):
        return [*_main(meaning.left), ",", meaning.link, *_main(meaning.right)]
    if isinstance(meaning, Adverbial):
        main, sub = _clause(meaning.main), [meaning.link, *_clause(meaning.sub)]
        return [*sub, ",", *main] if meaning.front else [*main, *sub]
    return _clause(meaning)


def noun_phrase(phrase: Phrase | Gap | None, oblique: bool = False) -> list[str]:
    """The words of a phrase; `oblique` asks for "him" rather than "he". A gap or None has no words."""
    if phrase is None or isinstance(phrase, Gap):
        return []
    if isinstance(phrase, Pronoun):
        return [lexicon.OBJECT_PRONOUNS[phrase.who] if oblique else phrase.who]
    if isinstance(phrase, Name):
        return [phrase.name]
    if isinstance(phrase, Both):
        return [*noun_phrase(phrase.first), "and", *noun_phrase(phrase.second)]
    words = [word for word in (phrase.quality, phrase.trait) if word]
    words.append(plural(phrase.noun) if phrase.plural else phrase.noun)
    return [*_determiner(phrase, words[0]), *words, *_relative(phrase)]


def plural(noun: str) -> str:
    """The plural of a noun."""
    return lexicon.PLURALS.get(noun, noun + "s")


def _determiner(phrase: Noun, following: str) -> list[str]:
    if phrase.det == "mass":
        return []
    if phrase.det == "owner":
        *words, last = noun_phrase(phrase.owner)
        return [*words, f"{last}'s"]
    if phrase.det == "number":
        return number_words.english(phrase.numeral).split(" ")
    if phrase.det == "a":
        return ["an" if following[0] in "aeiou" else "a"]
    if phrase.det == "this":
        return ["these" if phrase.plural else "this"]
    assert phrase.det in ("the", "every", "some", "many", *POSSESSIVES), phrase.det
    return [phrase.det]


def _relative(phrase: Noun) -> list[str]:
    relative: Relative | None = phrase.relative
    if relative is None:
        return []
    pronoun = "that" if phrase.noun not in PERSONS else "who" if relative.role == "subject" else "whom"
    return [pronoun, *_clause(relative.clause)]


def _verb(verb: str, form: str) -> list[str]:
    """`form` is base, 3s, past or participle; a particle stays behind the verb, or waits for the recipient."""
    base, *particle = verb.split(" ")
    if verb == _BACK:
        particle = []
    if form == "3s":
        word = base + "es" if base == "go" or base.endswith(("ch", "sh", "ss", "x")) else _y_to_i(base) + "s"
    elif form in ("past", "participle"):
        regular = base + "d" if base.endswith("e") else _y_to_i(base).removesuffix("e") + "ed"
        word = lexicon.PAST.get(base, (regular, regular))[form == "participle"]
    else:
        word = base
    return [word, *particle]


def _y_to_i(base: str) -> str:
    """try → trie, but stay → stay: the stem before "s" (and, less its e, before "ed")."""
    return base[:-1] + "ie" if base.endswith("y") and base[-2] not in "aeiou" else base


def _be(tense: str, person: str) -> str:
    if tense == "past":
        return "was" if person in ("1s", "3s") else "were"
    return {"1s": "am", "3s": "is"}.get(person, "are")


def _verbs(clause: Clause) -> tuple[str | None, list[str]]:
    """(auxiliary or None, other verb words); the auxiliary is what questions put first and "not" follows."""
    third = agreement(clause.subject) == "3s"
    # what the finite verb is, and the infinitive that hangs on it
    head, rest = clause.verb, []
    if clause.control:
        head, rest = clause.control, ["to", *_verb(clause.verb, "base")]
    elif clause.modal == "want":
        head, rest = "want", ["to", *_verb(clause.verb, "base")]
    elif clause.modal:
        return clause.modal, _verb(clause.verb, "base")
    if clause.tense == "future":
        return "will", [*_verb(head, "base"), *rest]
    if clause.tense == "perfect":
        return "has" if third else "have", [*_verb(head, "participle"), *rest]
    if head == "be":
        return _be(clause.tense, agreement(clause.subject)), rest
    if clause.polarity == "not":
        do = "did" if clause.tense == "past" else "does" if third else "do"
        return do, [*_verb(head, "base"), *rest]
    form = "past" if clause.tense == "past" else "3s" if third else "base"
    return None, [*_verb(head, form), *rest]


def _question_verbs(clause: Clause) -> tuple[str, list[str]]:
    """As `_verbs`, but with "do" where no other auxiliary is there to be put first."""
    auxiliary, verbs = _verbs(clause)
    if auxiliary is None:
        third = agreement(clause.subject) == "3s"
        auxiliary = "did" if clause.tense == "past" else "does" if third else "do"
        base = clause.control or ("want" if clause.modal == "want" else clause.verb)
        tail = verbs[len(_verb(base, "base")) :]
        verbs = [*_verb(base, "base"), *tail]
    return auxiliary, verbs


def _clause(clause: Clause) -> list[str]:
    front = []
    if clause.front == "time":
        front = _time(clause.time)
    elif clause.front == "place":
        front = [*_place(clause.places[-1]), ","]
    if clause.kind == "there":
        return [*front, "there", *_there(clause), *noun_phrase(clause.subject), *_trailing(clause)]
    auxiliary, verbs = _verbs(clause)
    middle = []
    if clause.polarity == "never":
        middle = ["never"]
    elif clause.frequency:
        middle = [clause.frequency]
    if clause.polarity == "not":
        start = ["cannot"] if auxiliary == "can" else [auxiliary, "not"]
    else:
        start = [auxiliary] if auxiliary else []
    return [*front, *noun_phrase(clause.subject), *start, *middle, *verbs, *_after_verb(clause)]


def _question(meaning: Question) -> list[str]:
    clause = meaning.clause
    word = [meaning.word] if meaning.word else []
    if clause.kind == "there":
        be, *verbs = _there(clause)
        return [*word, be, "there", *verbs, *noun_phrase(clause.subject), *_trailing(clause)]
    auxiliary, verbs = _question_verbs(clause)
    middle = [clause.frequency] if clause.frequency else []
    return [*word, auxiliary, *noun_phrase(clause.subject), *middle, *verbs, *_after_verb(clause)]


def _there(clause: Clause) -> list[str]:
    person = agreement(clause.subject)
    return ["will", "be"] if clause.tense == "future" else [_be(clause.tense, person)]


def _after_verb(clause: Clause) -> list[str]:
    words = []
    if clause.kind == "be":
        words = _predicate(clause)
    words += noun_phrase(clause.recipient, oblique=True)
    if clause.verb == _BACK:
        words.append("back")
    words += noun_phrase(clause.direct, oblique=True)
    if clause.complement:
        words += _complement(clause.complement)
    return [*words, *_trailing(clause)]


def _predicate(clause: Clause) -> list[str]:
    if clause.degree == "more":
        word = lexicon.COMPARATIVES.get(clause.adjective, f"more {clause.adjective}")
        return [*word.split(" "), "than", *noun_phrase(clause.than)]
    return [*(["very"] if clause.degree == "very" else []), clause.adjective]


def _complement(complement) -> list[str]:
    words = [complement.link, *_main(complement.content)]
    if complement.second:
        words += ["and", complement.link, *_clause(complement.second)]
    return words


def _trailing(clause: Clause) -> list[str]:
    places = clause.places[:-1] if clause.front == "place" else clause.places
    words = [word for place in places for word in _place(place)]
    if clause.time and clause.front != "time":
        words += _time(clause.time)
    return words


def _place(place: Place) -> list[str]:
    return [*place.prep.split(" "), *noun_phrase(place.phrase, oblique=True)]


def _time(time: Time) -> list[str]:
    if time.kind == "day":
        return ["on", time.value]
    if time.kind == "clock":
        return ["at", number_words.english(time.value), "o'clock"]
    return [time.value]
