"""French realisation: agreement, elision, contraction, object pronouns before the verb, ne … pas around it.

Where French leaves a choice, one fixed convention: English past and perfect are both the passé composé (the verbs of
concepts.STATES take the imparfait), questions have "est-ce que", times stand at the end or first with a comma.
"""

from __future__ import annotations

from . import lexicon_fr as lexicon
from . import number_words
from .concepts import STATES
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

_PERSONS = ("1s", "3s", "1p", "3p")
_AVOIR = dict(zip(_PERSONS, ("ai", "a", "avons", "ont"), strict=True))
_ETRE = dict(zip(_PERSONS, ("suis", "est", "sommes", "sont"), strict=True))
_FUTURE = dict(zip(_PERSONS, ("ai", "a", "ons", "ont"), strict=True))
_IMPERFECT = dict(zip(_PERSONS, ("ais", "ait", "ions", "aient"), strict=True))
_REFLEXIVE = dict(zip(_PERSONS, ("me", "se", "nous", "se"), strict=True))
_ELIDED = ("le", "la", "de", "que", "ne", "je", "me", "se")


def sentence(meaning: Sentence) -> str:
    """The French sentence: cased, with its final mark (a space stands before "?", as French sets it)."""
    if isinstance(meaning, Question):
        word = [lexicon.QUESTION_WORDS[meaning.word]] if meaning.word else []
        words, mark = [*word, "est-ce", "que", *_clause(meaning.clause)], " ?"
    else:
        words, mark = _main(meaning), "."
    text = elide(words)
    return text[0].upper() + text[1:] + mark


def _main(meaning: Sentence) -> list[str]:
    if isinstance(meaning, Joined):
        return [*_main(meaning.left), ",", lexicon.LINKS[meaning.link], *_main(meaning.right)]
    if isinstance(meaning, Adverbial):
        main, sub = _clause(meaning.main), [*lexicon.LINKS[meaning.link].split(" "), *_clause(meaning.sub)]
        return [*sub, ",", *main] if meaning.front else [*main, *sub]
    return _clause(meaning)


# -------------------------------------------------------------------------------------------- sound and spelling


def starts_with_vowel(word: str) -> bool:
    """Whether "le" becomes "l'" before `word`: a vowel or a mute h, but not huit and onze."""
    if word.startswith(("huit", "onze")):
        return False
    return word[0].lower() in "aàâeéèêiîoôuhœ"


def elide(words: list[str]) -> str:
    """Joins words: "le homme" → "l'homme", "si il" → "s'il"; commas lean on the word before."""
    text = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if following and ((word in _ELIDED and starts_with_vowel(following)) or (word == "si" and following == "il")):
            text += word[:-1] + "'"
        else:
            text += word + " "
    return text.strip().replace(" ,", ",")


def _contract(preposition: str, words: list[str]) -> list[str]:
    """`preposition` before a noun phrase: de + le → du, à + les → aux; not where "le" is elided."""
    *before, last = preposition.split(" ")
    joined = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}.get((last, words[0]))
    if joined and not (words[0] == "le" and starts_with_vowel(words[1])):
        return [*before, joined, *words[1:]]
    return [*before, last, *words]


# ---------------------------------------------------------------------------------------------- noun phrases


def gender(phrase: Phrase) -> str:
    """m or f; a mixed pair is masculine. "I" and "we" count as masculine: the sampler never lets it show."""
    if isinstance(phrase, Pronoun):
        return "f" if phrase.who == "she" else "m"
    if isinstance(phrase, Name):
        return "f" if phrase.name in lexicon.FEMININE_NAMES else "m"
    if isinstance(phrase, Both):
        return "f" if gender(phrase.first) == gender(phrase.second) == "f" else "m"
    return lexicon.NOUNS[phrase.noun][0]


def plural(noun: str) -> str:
    """The plural of a concept's noun."""
    _, singular, *irregular = lexicon.NOUNS[noun].split(" ")
    if irregular:
        return irregular[0]
    if singular.endswith(("s", "x", "z")):
        return singular
    if singular.endswith("al"):
        return singular[:-2] + "aux"
    return singular + ("x" if singular.endswith("eau") else "s")


def adjective_form(adjective: str, gender: str, plural: bool, before: str | None = None) -> str:
    """An adjective that agrees; `before` is the noun that follows at once (beau → bel before a vowel)."""
    masculine, feminine, masculine_plural, *vowel_form = lexicon.ADJECTIVES[adjective].split(" ")
    if gender == "f":
        return feminine + ("s" if plural else "")
    if plural:
        return masculine_plural
    return vowel_form[0] if vowel_form and before and starts_with_vowel(before) else masculine


def noun_phrase(phrase: Phrase, negated: bool = False) -> list[str]:
    """The words of a phrase with its relative clause; pronouns in their stressed form. `negated`: "un" → "de"."""
    if isinstance(phrase, Pronoun):
        return [lexicon.PRONOUNS[phrase.who][3]]
    if isinstance(phrase, Name):
        return [phrase.name]
    if isinstance(phrase, Both):
        return [*noun_phrase(phrase.first), "et", *noun_phrase(phrase.second)]
    kind = gender(phrase)
    words = [plural(phrase.noun) if phrase.plural else lexicon.NOUNS[phrase.noun].split(" ")[1]]
    if phrase.quality:
        words.insert(0, adjective_form(phrase.quality, kind, phrase.plural, before=words[0]))
    if phrase.trait:
        words.append(adjective_form(phrase.trait, kind, phrase.plural))
    words = [*_determiner(phrase, words[0], negated), *words]
    if phrase.owner:
        words += _contract("de", noun_phrase(phrase.owner))
    return [*words, *_relative(phrase)]


def _determiner(phrase: Noun, following: str, negated: bool) -> list[str]:
    feminine, det, vowel = gender(phrase) == "f", phrase.det, starts_with_vowel(following)
    if negated and det in ("a", "mass"):
        return ["de"]
    if det == "a":
        return ["une" if feminine else "un"]
    if det == "number":
        return number_words.french(phrase.numeral, feminine).split(" ")
    if det == "this":
        return ["ces" if phrase.plural else "cette" if feminine else "cet" if vowel else "ce"]
    if det in POSSESSIVES:
        masculine_form, feminine_form, plural_form = lexicon.POSSESSIVES[det]
        if phrase.plural:
            return [plural_form]
        return [feminine_form if feminine and not vowel else masculine_form]
    article = "les" if phrase.plural else "la" if feminine else "le"
    fixed = {"every": ["chaque"], "some": ["quelques"], "many": ["beaucoup", "de"]}
    if det == "mass":
        return ["du"] if article == "le" and not vowel else ["de", article]
    assert det in ("the", "owner", *fixed), det
    return fixed.get(det, [article])


def _relative(phrase: Noun) -> list[str]:
    if phrase.relative is None:
        return []
    clause = phrase.relative.clause
    pronoun = ["qui"] if phrase.relative.role == "subject" else ["à", "qui"] if _Verb(clause.verb).indirect else ["que"]
    return [*pronoun, *_clause(clause)]


# ---------------------------------------------------------------------------------------------------- verbs


class _Verb:
    """The forms of one verb, read from the lexicon."""

    def __init__(self, concept: str):
        words = lexicon.VERBS[concept].split(" ")
        self.reflexive, self.indirect = "se" in words, "à" in words
        self.with_etre = self.reflexive or "être" in words[1:]
        forms = [word for index, word in enumerate(words) if index == 0 or word not in ("se", "à", "être")]
        self.infinitive = forms[0]
        if len(forms) == 1:
            stem = forms[0].removesuffix("er")
            forms += [stem + ending for ending in ("e", "e", "ons", "ent", "é", "er")]
        self.present = dict(zip(_PERSONS, forms[1:5], strict=True))
        self.participle, self.future_stem = forms[5:]
        self.imperfect_stem = "ét" if concept == "be" else self.present["1p"].removesuffix("ons")

    def finite(self, tense: str, person: str) -> str:
        """`tense` is present, imperfect or future; `person` as from `agreement`."""
        if tense == "present":
            return self.present[person]
        if tense == "future":
            return self.future_stem + _FUTURE[person]
        return self.imperfect_stem + _IMPERFECT[person]

    def agreeing(self, gender: str, plural: bool) -> str:
        """The participle with the endings of gender and number."""
        word = self.participle + ("e" if gender == "f" else "")
        return word + ("s" if plural and not word.endswith("s") else "")


def _clitics(clause: Clause) -> list[str]:
    """Object pronouns, and the reflexive one, that stand before the verb `clause.verb`."""
    verb = _Verb(clause.verb)
    if verb.reflexive:
        return [_REFLEXIVE[agreement(clause.subject)]]
    if isinstance(clause.recipient, Pronoun):
        return [lexicon.PRONOUNS[clause.recipient.who][2]]
    if isinstance(clause.direct, Pronoun):
        return [lexicon.PRONOUNS[clause.direct.who][2 if verb.indirect else 1]]
    return []


def _participle(clause: Clause, verb: _Verb, antecedent_counts: bool) -> str:
    """Agrees with the subject (être), or with a direct object that stands before it (avoir)."""
    if verb.with_etre:
        return verb.agreeing(_gap_gender(clause.subject), clause.subject.plural)
    direct = clause.direct
    if antecedent_counts and not verb.indirect and isinstance(direct, Gap | Pronoun):
        return verb.agreeing(_gap_gender(direct), direct.plural)
    return verb.participle


def _gap_gender(phrase: Phrase | Gap) -> str:
    return lexicon.NOUNS[phrase.noun][0] if isinstance(phrase, Gap) else gender(phrase)


def _verb_group(clause: Clause) -> list[str]:
    """ne, pronouns, finite verb, pas or adverb, and what follows of the verb."""
    person = agreement(clause.subject)
    head = clause.control or clause.modal or clause.verb
    verb = _Verb(head)
    clitics = _clitics(clause)
    before, tail = clitics, []
    if clause.control or clause.modal:
        link = [lexicon.CONTROL_LINKS[clause.control]] if clause.control else []
        before, tail = [], [*link, *clitics, _Verb(clause.verb).infinitive]
    tense = clause.tense
    if tense == "past" and head in STATES:
        finite = verb.finite("imperfect", person)
    elif tense in ("past", "perfect"):
        finite = (_ETRE if verb.with_etre else _AVOIR)[person]
        tail = [_participle(clause, verb, antecedent_counts=not clause.control), *tail]
    else:
        finite = verb.finite(tense, person)
    adverb = {"yes": [], "not": ["pas"], "never": ["jamais"]}[clause.polarity]
    if clause.frequency:
        adverb = [lexicon.FREQUENCIES[clause.frequency]]
    return [*(["ne"] if clause.polarity != "yes" else []), *before, finite, *adverb, *tail]


# -------------------------------------------------------------------------------------------------- clauses


def _clause(clause: Clause) -> list[str]:
    front = []
    if clause.front == "time":
        front = [*_time(clause.time), ","]
    elif clause.front == "place":
        front = [*_place(clause.places[-1]), ","]
    if clause.kind == "there":
        there = {"past": "avait", "future": "aura"}.get(clause.tense, "a")
        return [*front, "il", "y", there, *noun_phrase(clause.subject), *_trailing(clause)]
    words = [*front, *_subject(clause.subject), *_verb_group(clause), *_predicate(clause)]
    negated = clause.polarity != "yes" and not clause.control
    if clause.direct and not isinstance(clause.direct, Pronoun | Gap):
        direct = noun_phrase(clause.direct, negated)
        words += _contract("à", direct) if _Verb(clause.verb).indirect else direct
    if clause.recipient and not isinstance(clause.recipient, Pronoun):
        words += _contract("à", noun_phrase(clause.recipient))
    if clause.complement:
        words += _complement(clause.complement)
    return [*words, *_trailing(clause)]


def _subject(subject: Phrase | Gap) -> list[str]:
    if isinstance(subject, Gap):
        return []
    return [lexicon.PRONOUNS[subject.who][0]] if isinstance(subject, Pronoun) else noun_phrase(subject)


def _predicate(clause: Clause) -> list[str]:
    if clause.kind != "be":
        return []
    subject = clause.subject
    word = adjective_form(clause.adjective, _gap_gender(subject), subject.plural)
    if clause.degree == "more":
        return ["plus", word, "que", *noun_phrase(clause.than)]
    return ["très", word] if clause.degree == "very" else [word]


def _complement(complement: Complement) -> list[str]:
    link = lexicon.LINKS[complement.link]
    words = [link, *_main(complement.content)]
    if complement.second:
        words += ["et", link, *_clause(complement.second)]
    return words


def _trailing(clause: Clause) -> list[str]:
    places = clause.places[:-1] if clause.front == "place" else clause.places
    words = [word for place in places for word in _place(place)]
    if clause.time and clause.front != "time":
        words += _time(clause.time)
    return words


def _place(place: Place) -> list[str]:
    return _contract(lexicon.PREPOSITIONS[place.prep], noun_phrase(place.phrase))


def _time(time: Time) -> list[str]:
    if time.kind == "day":
        return [lexicon.DAYS[time.value]]
    if time.kind == "clock":
        return ["à", number_words.french(time.value, feminine=True), "heure" if time.value == 1 else "heures"]
    return [lexicon.TIMES[time.value]]
