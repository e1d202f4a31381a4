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
    Adverbial,
    Both,
    Clause,
    Complement,
    Gap,
    Joined,
    Name,
    Noun,
    Place,
    Pronoun,
    Question,
    Relative,
    Sentence,
)
from .phrases import PhraseSampler


class Sampler(PhraseSampler):
    """Draws from `rng`. `deep` asks for long sentences: more clauses, and clauses within clauses."""

    def __init__(self, rng: random.Random, deep: bool = False):
        super().__init__(rng)
        self.deep = deep

    # ------------------------------------------------------------------------------------------- sentences

    def sentence(self) -> Sentence:
        """One sentence."""
        if not self.deep:
            kind = self._weighted(clause=60, statement=15, adverbial=10, joined=10, question=7)
            if kind == "question":
                return self._question()
            if kind == "joined":
                return self._join(
                    self._clause(front=True), self._part() if self._chance(0.3) else self._clause(front=True)
                )
            if kind == "adverbial":
                return self._adverbial(front=True)
            if kind == "statement":
                return self._statement(2 if self._chance(0.1) else 1)
            return self._clause(front=True)
        sentence = self._part()
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            sentence = self._join(sentence, self._part())
        return sentence

    def _join(self, left: Clause | Adverbial | Joined, right: Clause | Adverbial) -> Joined:
        return Joined(left, self.rng.choice(("and", "but")), right)

    def _part(self) -> Clause | Adverbial:
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
        if isinstance(subject, Noun) and not (limited or question or gap) and self._chance(0.3 if self.deep else 0.1):
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
        timed = not (gap or (has_relative and limited))
        if timed and self._chance(0.4):
            # "always" and the like turn a French past into an imparfait or not, as the speaker sees it: not with a past
            habit = tense != "past" or verb in concepts.STATES or modal
            if self._chance(0.35) and polarity == "yes" and habit and not (has_relative or control):
                return replace(clause, frequency=self.rng.choice(concepts.FREQUENCIES))
            first = front and self._chance(0.55)
            if first or not (heavy or control):
                clause = replace(clause, time=self._time(tense), front="time" if first else None)
        movable = clause.front is None and clause.places and clause.places[-1].prep in concepts.WHERE
        if front and movable and not (control or modal) and self._chance(0.35):
            clause = replace(clause, front="place")
        return clause

    def _verb_for(self, role: str | None, hole: Gap | None, tense: str) -> str:
        fitting = []
        for verb, frame in FRAMES.items():
            if tense == "perfect" and verb in concepts.STATES:
                continue
            if role == "subject" and hole.noun not in frame.subject:
                continue
            if role == "direct" and (frame.recipient or hole.noun not in (frame.direct or ())):
                continue
            fitting.append(verb)
        return self.rng.choice(fitting)

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
        fits = fits and (recipient is None or isinstance(recipient, Pronoun)) and clause.polarity == "yes"
        if fits and self._chance(0.3 if self.deep else 0.16):
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
        degree, than = self.rng.choice((None, "very")), None
        if adjective not in concepts.NOT_COMPARED and not question and self._chance(0.45):
            same = {
                "person": concepts.PERSONS,
                "animal": concepts.ANIMALS,
                "mass": concepts.MASS,
                "place": concepts.PLACES,
            }
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

    def _with_relative(self, phrase: Noun) -> Noun:
        """Adds a relative clause, except to "the king's dog" (whose would it be?)."""
        if phrase.det == "owner":
            return phrase
        gap = Gap(phrase.noun, phrase.plural)
        possible = ["subject"] if phrase.noun in concepts.LIVING else []
        if any(phrase.noun in (frame.direct or ()) for frame in FRAMES.values() if not frame.recipient):
            possible.append("direct")
        role = self.rng.choice(possible)
        tense = self._weighted(present=50, past=25, perfect=25)
        return replace(phrase, relative=Relative(role, self._clause(tense, gap=(role, gap))))
