"""Draws noun phrases, places and times: the part of the sampler that knows no clauses."""

from __future__ import annotations

import random
from dataclasses import replace

from . import concepts
from .concepts import kind_of
from .meaning import POSSESSIVES, Both, Gap, Name, Noun, Phrase, Place, Pronoun, Time

_NUMERALS = tuple(number for number in range(2, 1000) if number % 100 != 1)  # German wavers before "hundertein"


class PhraseSampler:
    """Draws from `rng`."""

    def __init__(self, rng: random.Random):
        self.rng = rng

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _weighted(self, **weights: float) -> str:
        return self.rng.choices(list(weights), list(weights.values()))[0]

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
        """A noun; kinds of nouns weigh alike, so that the few animals are not lost among the things."""
        kinds = sorted({kind_of(noun) for noun in nouns})
        kind = self.rng.choices(kinds, [2 if kind == "thing" else 1 for kind in kinds])[0]
        return self.rng.choice([noun for noun in nouns if kind_of(noun) == kind])

    def _noun(
        self, noun: str, definite: bool = False, det: str = "", subject: bool = False, simple: bool = False
    ) -> Noun:
        """`definite`: with the, this, a possessive or an owner; `simple`: the bare determiner and noun, mostly."""
        mass = noun in concepts.MASS
        if not det and mass:
            det = self._weighted(the=4, this=1, my=1, owner=1) if definite else self._weighted(mass=5, the=3, this=1)
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
                number=20,
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
