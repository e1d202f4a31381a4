"""Draws meanings at random, and only those whose English sentence fixes the translation.

What English would leave open is never drawn:
- no you, it, they; no "me"/"us" before a participle, no "I"/"we" with a participle or adjective that agrees (French);
- nothing follows an object's relative clause in its clause, so that a phrase at the end has one place to belong to;
  for the same reason relative clauses and infinitives carry no time, and a negated clause with an object no place;
- no "often", "always", "sometimes", "never" after a subject's relative clause ("the man who sleeps often works");
- "not" stands only beside definite phrases or an object with "a" (or none), where its scope does not matter;
- clauses are joined by "and"/"but" only at the top and after a comma, object clauses only as "that … and that …";
- the tenses of linked clauses are such that no language shifts them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from . import concepts
from .concepts import FRAMES, kind_of
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
    Relative,
    Sentence,
    Time,
)

_VERBS = tuple(FRAMES)
_NUMERALS = tuple(
    number for number in range(2, 1000) if number % 100 != 1
)  # German wavers before "hundertein"


class Sampler:
    """Draws from `rng`. `deep` asks for long sentences: more clauses, and clauses within clauses."""

    def __init__(self, rng: random.Random, deep: bool = False):
        self.rng = rng
        self.deep = deep

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _weighted(self, **weights: float) -> str:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    # ------------------------------------------------------------------------------------------- sentences

    def sentence(self) -> Sentence:
        """One sentence."""
        if not self.deep:
            kind = self._weighted(clause=60, statement=15, adverbial=10, joined=10, question=7)
            if kind == "question":
                return self._question()
            if kind == "joined":
                left, right = self._clause(front=True), self._clause(front=True)
                return Joined(left, self.rng.choice(("and", "but")), right)
            if kind == "adverbial":
                return self._adverbial(front=True)
            if kind == "statement":
                return self._statement(2 if self._chance(0.1) else 1)
            return self._clause(front=True)
        parts = [self._long_part() for _ in range(self.rng.choice((1, 2, 2, 3)))]
        sentence = parts[0]
        for part in parts[1:]:
            sentence = Joined(sentence, self.rng.choice(("and", "but")), part)
        return sentence

    def _long_part(self) -> Clause | Adverbial:
        kind = self._weighted(clause=30, statement=40, adverbial=30)
        if kind == "adverbial":
            return self._adverbial(front=True)
        return self._statement(self.rng.choice((1, 2))) if kind == "statement" else self._clause(front=True)

    def _adverbial(self, front: bool) -> Adverbial:
        link = self.rng.choice(("because", "if", "while"))
        if link == "because":
            tense = self._weighted(present=5, past=5, perfect=3, future=3)
            after = {"present": ("present", "past", "perfect"), "future": ("present",)}.get(tense, ("past",))
            main, sub = tense, self.rng.choice(after)
        elif link == "if":
            main, sub = self.rng.choice(("present", "future")), "present"
        else:
            main = sub = "present"
        first = front and link != "because" and self._chance(0.5)
        return Adverbial(self._clause(main), link, self._clause(sub), front=first)

    def _question(self) -> Question:
        word = self.rng.choice((None, None, None, "where", "when", "why"))
        clause = self._clause(front=False, question=True)
        place = self.rng.choice(concepts.WHERE["in"])
        if word is None and self._chance(0.1):
            there = Noun(self._noun_for(concepts.ANIMALS), "a")
            return Question(Clause(there, "be", kind="there", places=(Place("in", Noun(place)),)))
        if word == "where":
            while clause.kind != "verb" or (clause.verb in concepts.NOWHERE):
                clause = self._clause(front=False, question=True)
            clause = replace(clause, places=())
        elif word == "when":
            while clause.kind != "verb" or clause.tense == "perfect":
                clause = self._clause(front=False, question=True)
            clause = replace(clause, time=None, frequency=None)
        return Question(clause, word)

    def _statement(self, depth: int) -> Clause:
        """A clause with an object clause; `depth` is how many object clauses lie in one another."""
        whether = self._chance(0.35)
        verb = self.rng.choice(concepts.WHETHER_VERBS if whether else concepts.THAT_VERBS)
        tense, polarity = "present", "yes"
        if verb in ("say", "ask") and self._chance(0.35):
            tense = "perfect"
        if verb == "know" and (whether or self._chance(0.3)):
            polarity = "not"
        subject = self._subject(concepts.PERSONS, definite=True)
        inner = "present" if tense == "perfect" else None
        second = None
        if depth > 1:
            content = self._statement(depth - 1)
            while inner and content.tense != inner:
                content = self._statement(depth - 1)
        elif self._chance(0.15 if self.deep else 0.08):
            content = self._clause(inner, closed=True)
            second = self._clause(inner)
        elif not inner and self._chance(0.3 if self.deep else 0.06):
            content = self._adverbial(front=False)
        else:
            content = self._clause(inner)
        clause = Clause(subject, verb, tense=tense, polarity=polarity)
        if self._chance(0.15):
            clause = replace(clause, time=self._time(tense), front="time")
        elif polarity == "yes" and self._chance(0.1):
            clause = replace(clause, frequency=self.rng.choice(concepts.FREQUENCIES))
        return replace(clause, complement=Complement("whether" if whether else "that", content, second))

    # --------------------------------------------------------------------------------------------- clauses

    def _clause(
        self,
        tense: str | None = None,
        *,
        front: bool = False,
        question: bool = False,
        closed: bool = False,
        gap: tuple[str, Gap] | None = None,
    ) -> Clause:
        """`front`: may start with a time or place; `closed`: no relative clause at its end; `gap`: (role, Gap) if the
        clause is a relative one."""
        tense = tense or self._weighted(present=45, past=25, perfect=18, future=12)
        if not gap and not question and self._chance(0.06) and tense != "perfect":
            return self._there(tense, front, closed)
        if not gap and self._chance(0.13) and tense != "perfect":
            return self._be(tense, front, question)
        role, hole = gap or (None, None)
        verb = self._verb_for(role, hole, tense)
        frame = FRAMES[verb]
        tense, modal, control = self._helper(verb, tense)
        agrees = tense in ("past", "perfect") and not (modal or control)
        allow_we = not (agrees and verb in concepts.SHOWS_SUBJECT_GENDER)
        polarity = "yes"
        if not question and modal != "must" and control != "begin" and self._chance(0.17):
            polarity = self._weighted(**{"not": 4, "never": 1})
            if tense == "past" and polarity == "never" and verb in concepts.STATES:
                polarity = "not"
        limited = polarity != "yes"
        subject = hole if role == "subject" else self._subject(frame.subject, limited or question, allow_we)
        if (
            isinstance(subject, Noun)
            and not (limited or question or gap)
            and self._chance(0.3 if self.deep else 0.1)
        ):
            subject = self._with_relative(subject)
        has_relative = isinstance(subject, Noun) and subject.relative is not None
        if has_relative and polarity == "never":
            polarity = "not"
        clause = Clause(subject, verb, tense=tense, polarity=polarity, modal=modal, control=control)
        clause = self._add_objects(clause, frame, role, hole, agrees)
        heavy = False
        if not (question or closed):
            clause, heavy = self._maybe_heavy(clause)
        if not heavy:
            clause = self._add_places(clause, frame)
        timed = not (gap or has_relative and limited)
        if timed and self._chance(0.4):
            if self._chance(0.35) and polarity == "yes" and not has_relative and not control:
                return replace(clause, frequency=self.rng.choice(concepts.FREQUENCIES))
            first = front and self._chance(0.55)
            if first or not (heavy or control):
                clause = replace(clause, time=self._time(tense), front="time" if first else None)
        if front and clause.front is None and clause.places and not frame.towards and self._chance(0.35):
            if clause.places[-1].prep in concepts.WHERE and not control and not modal:
                clause = replace(clause, front="place")
        return clause

    def _verb_for(self, role: str | None, hole: Gap | None, tense: str) -> str:
        while True:
            verb = self.rng.choice(_VERBS)
            frame = FRAMES[verb]
            if tense == "perfect" and verb in concepts.STATES:
                continue
            if role == "subject" and hole.noun not in frame.subject:
                continue
            if role == "direct" and (
                frame.recipient or frame.direct is None or hole.noun not in frame.direct
            ):
                continue
            return verb

    def _helper(self, verb: str, tense: str) -> tuple[str, str | None, str | None]:
        """(tense, modal, control): a modal has no perfect or future here, and only "want" has a past."""
        if verb in concepts.STATES:
            return tense, None, None
        if tense in ("present", "past") and self._chance(0.2):
            return tense, "want" if tense == "past" else self.rng.choice(concepts.MODALS), None
        if verb not in concepts.UNINTENDED and self._chance(0.09):
            return tense, None, self.rng.choice(concepts.CONTROLS)
        return tense, None, None

    def _add_objects(self, clause: Clause, frame, role: str | None, hole: Gap | None, agrees: bool) -> Clause:
        if frame.direct is None:
            return clause
        limited = clause.polarity != "yes"
        plain_verb = clause.verb not in ("help", "thank", "follow", "listen to", "answer")
        if role == "direct":
            return replace(clause, direct=hole)
        if frame.recipient:
            recipient = self._person(clause.subject)
            direct = self._object(frame.direct, clause, plain=True)
            while recipient == Pronoun("she") and direct.det in ("mass", "number", "some", "many"):
                direct = self._object(frame.direct, clause, plain=True)  # "brings her soup": whose, or to whom?
            return replace(clause, recipient=recipient, direct=direct)
        persons = any(noun in concepts.PERSONS for noun in frame.direct)
        if persons and self._chance(0.25):
            whos = ["he", "she"] if agrees else ["he", "she", "I", "we"]
            return replace(clause, direct=self._pronoun(whos, clause.subject))
        if persons and self._chance(0.15):
            return replace(clause, direct=Name(self.rng.choice(concepts.NAMES)))
        direct = self._object(frame.direct, clause, plain_verb)
        if plain_verb and not limited and not role and isinstance(direct, Noun) and self._chance(0.04):
            pair = self._pair(frame.direct)
            direct = pair or direct
        return replace(clause, direct=direct)

    def _object(self, nouns: tuple[str, ...], clause: Clause, plain: bool) -> Noun:
        """A nominal object; in a negated clause definite, or with "a" where German can say "kein"."""
        indefinite = plain and not clause.control
        noun = self._noun_for(nouns)
        if clause.polarity == "yes":
            return self._noun(noun)
        if indefinite and self._chance(0.4):
            return self._adorn(Noun(noun, "mass" if noun in concepts.MASS else "a"))
        return self._noun(noun, definite=True)

    def _maybe_heavy(self, clause: Clause) -> tuple[Clause, bool]:
        """Gives a nominal object a relative clause, where nothing has to follow it."""
        direct, recipient = clause.direct, clause.recipient
        fits = isinstance(direct, Noun) and direct.det not in ("mass", "every")
        if fits and (recipient is None or isinstance(recipient, Pronoun)) and clause.polarity == "yes":
            if self._chance(0.3 if self.deep else 0.16):
                return replace(clause, direct=self._with_relative(direct)), True
        return clause, False

    def _add_places(self, clause: Clause, frame) -> Clause:
        if frame.towards:
            prep = self.rng.choice(frame.towards)
            return replace(clause, places=(Place(prep, self._place_noun(concepts.DIRECTIONS[prep])),))
        if clause.polarity == "not" and isinstance(clause.direct, Noun | Name | Both | Gap):
            return clause
        if isinstance(clause.direct, Gap) and clause.verb in ("try on", "turn on"):  # "that he turns on on the table"
            return clause
        places = []
        if clause.verb in concepts.COMPANY and self._chance(0.25):
            places.append(Place(self.rng.choice(("with", "with", "without")), self._person(clause.subject)))
        elif clause.verb in concepts.BENEFIT and self._chance(0.2):
            places.append(Place("for", self._person(clause.subject)))
        if clause.verb not in concepts.NOWHERE and self._chance(0.28):
            places.append(self._where())
        return replace(clause, places=tuple(places))

    def _there(self, tense: str, front: bool, closed: bool) -> Clause:
        noun = self._noun_for((*concepts.ANIMALS, *concepts.ANIMALS, *concepts.THINGS, *concepts.PERSONS))
        det = self._weighted(a=3, number=5, some=2, many=2)
        subject = self._noun(noun, det=det)
        clause = Clause(subject, "be", kind="there", tense=tense)
        if not closed and self._chance(0.2):
            return replace(clause, subject=self._with_relative(subject))
        clause = replace(clause, places=(self._where(),))
        if front and self._chance(0.4):
            return replace(clause, front="place")
        return clause

    def _be(self, tense: str, front: bool, question: bool) -> Clause:
        nouns = (*concepts.LIVING, *concepts.THINGS, *concepts.MASS, *concepts.PLACES)
        subject = self._subject(nouns, definite=True, allow_we=False)
        kind = kind_of(subject.noun) if isinstance(subject, Noun) else "person"
        words = (*concepts.QUALITIES[kind], *concepts.TRAITS[kind])
        adjective = self.rng.choice([word for word in words if word not in concepts.NOT_PREDICATIVE])
        degree, than = self.rng.choice((None, None, "very")), None
        if adjective not in concepts.NOT_COMPARED and not question and self._chance(0.3):
            same = {"person": concepts.PERSONS, "animal": concepts.ANIMALS, "mass": concepts.MASS, "place": concepts.PLACES}
            degree, than = "more", self._noun(self.rng.choice(same.get(kind, concepts.THINGS)), definite=True)
        clause = Clause(subject, "be", kind="be", tense=tense, adjective=adjective, degree=degree, than=than)
        if not question and not than and self._chance(0.2):
            return replace(clause, polarity="not")
        if self._chance(0.2) and tense != "future":
            return replace(clause, frequency=self.rng.choice(concepts.FREQUENCIES))
        if self._chance(0.2) and (front or not than):
            return replace(
                clause,
                time=self._time(tense),
                front="time" if front and (than or self._chance(0.5)) else None,
            )
        return clause

    # --------------------------------------------------------------------------------------------- phrases

    def _subject(self, nouns: tuple[str, ...], definite: bool = False, allow_we: bool = True) -> Phrase:
        persons = any(noun in concepts.PERSONS for noun in nouns)
        kind = self._weighted(noun=60, pronoun=25, name=10, pair=5)
        if kind == "pronoun" and persons:
            return Pronoun(self.rng.choice(("he", "she", "I", "we") if allow_we else ("he", "she")))
        if kind == "name" and persons:
            return Name(self.rng.choice(concepts.NAMES))
        if kind == "pair":
            pair = self._pair(nouns)
            if pair:
                return pair
        noun = self._noun_for(nouns)
        return self._noun(noun, definite=definite or noun in concepts.MASS, subject=True)

    def _pair(self, nouns: tuple[str, ...]) -> Both | None:
        """Two different nouns of one kind, or two names; None where the frame has too few."""
        first, second = (self._noun_for(nouns) for _ in range(2))
        if first == second or kind_of(first) != kind_of(second) or first in concepts.MASS:
            return None
        if kind_of(first) == "person" and self._chance(0.4):
            return Both(*(Name(name) for name in self.rng.sample(concepts.NAMES, 2)))
        return Both(Noun(first, self._pair_det()), Noun(second, self._pair_det()))

    def _pair_det(self) -> str:
        return "the" if self._chance(0.7) else self.rng.choice(POSSESSIVES)

    def _pronoun(self, whos: list[str], subject: Phrase | Gap) -> Pronoun:
        """An object pronoun; not one of the speaker's group where the speaker is the subject."""
        if isinstance(subject, Pronoun) and subject.who in ("I", "we"):
            whos = ["he", "she"]
        return Pronoun(self.rng.choice(whos))

    def _person(self, subject: Phrase | Gap) -> Phrase:
        """Somebody to give to or to work with: definite, so that "not" has one scope."""
        kind = self._weighted(noun=55, pronoun=30, name=15)
        if kind == "pronoun":
            return self._pronoun(["he", "she", "I", "we"], subject)
        if kind == "name":
            return Name(self.rng.choice(concepts.NAMES))
        return self._noun(self.rng.choice(concepts.PERSONS), definite=True, simple=True)

    def _noun_for(self, nouns: tuple[str, ...]) -> str:
        """A noun; kinds of nouns weigh alike, so that the few animals are as frequent as the many things."""
        kinds = sorted({kind_of(noun) for noun in nouns})
        kind = self.rng.choice(kinds)
        return self.rng.choice([noun for noun in nouns if kind_of(noun) == kind])

    def _noun(
        self, noun: str, definite: bool = False, det: str = "", subject: bool = False, simple: bool = False
    ) -> Noun:
        """`definite`: with the, this, a possessive or an owner; `simple`: the bare determiner and noun, mostly."""
        mass = noun in concepts.MASS
        if not det and mass:
            det = (
                self._weighted(the=4, this=1, my=1, owner=1)
                if definite
                else self._weighted(mass=5, the=3, this=1)
            )
        elif not det and definite:
            det = self._weighted(the=12, this=3, possessive=6, owner=3)
        elif not det:
            det = self._weighted(
                the=36,
                a=18,
                this=8,
                possessive=12,
                owner=8,
                every=3 if subject else 1,
                some=5,
                many=4,
                number=14,
            )
        if det in ("possessive", "my"):
            det = self.rng.choice(POSSESSIVES)
        plural = det in ("some", "many", "number")
        if not mass and det in ("the", "this", "owner", *POSSESSIVES):
            plural = self._chance(0.3)
        phrase = Noun(noun, det, plural)
        if det == "number":
            phrase = replace(phrase, numeral=self._numeral())
        if det == "owner":
            phrase = replace(phrase, owner=self._owner(noun))
        return phrase if simple and self._chance(0.7) else self._adorn(phrase)

    def _numeral(self) -> int:
        return self.rng.choice(range(2, 100)) if self._chance(0.85) else self.rng.choice(_NUMERALS)

    def _owner(self, noun: str) -> Noun | Name:
        if self._chance(0.35):
            return Name(self.rng.choice(concepts.NAMES))
        owner = self.rng.choice([person for person in concepts.PERSONS if person != noun])
        det = "the" if self._chance(0.6) else self.rng.choice(("this", *POSSESSIVES))
        quality = self.rng.choice(concepts.QUALITIES["person"]) if self._chance(0.2) else None
        return Noun(owner, det, quality=quality)

    def _adorn(self, phrase: Noun) -> Noun:
        kind = kind_of(phrase.noun)
        quality = self.rng.choice(concepts.QUALITIES[kind]) if self._chance(0.27) else None
        trait = self.rng.choice(concepts.TRAITS[kind]) if self._chance(0.27) else None
        return replace(phrase, quality=quality, trait=trait)

    def _with_relative(self, phrase: Noun) -> Noun:
        """Adds a relative clause, except to "the king's dog" (whose would it be?)."""
        if phrase.det == "owner":
            return phrase
        gap = Gap(phrase.noun, phrase.plural)
        possible = ["subject"] if phrase.noun in concepts.LIVING else []
        if any(FRAMES[verb].direct and phrase.noun in FRAMES[verb].direct for verb in _VERBS):
            possible.append("direct")
        role = self.rng.choice(possible)
        tense = self._weighted(present=50, past=25, perfect=25)
        return replace(phrase, relative=Relative(role, self._clause(tense, gap=(role, gap))))

    def _place_noun(self, nouns: tuple[str, ...]) -> Noun:
        noun = self.rng.choice(nouns)
        det = self._weighted(the=14, this=2, a=2, possessive=3, owner=2)
        phrase = self._noun(noun, det=det, simple=True)
        return replace(phrase, plural=False)

    def _where(self) -> Place:
        prep = self._weighted(**{"in": 10, "behind": 2, "in front of": 2, "under": 2, "next to": 3, "on": 2})
        return Place(prep, self._place_noun(concepts.WHERE[prep]))

    def _time(self, tense: str) -> Time:
        kind = self._weighted(word=5, day=3, clock=2)
        if kind == "word" or tense == "perfect":
            return Time("word", self.rng.choice(concepts.TIME_WORDS[tense]))
        if kind == "day":
            return Time("day", self.rng.choice(concepts.DAYS))
        return Time("clock", self.rng.randint(1, 12))
