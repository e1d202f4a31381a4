"""Language-neutral meanings: noun phrases, clauses and the ways to link clauses. Immutable, hashable, no words in them.

Concepts are strings (`"dog"`, `"look at"`); which ones exist, and what goes with what, stands in `concepts`.
"""

from __future__ import annotations

from dataclasses import dataclass

# Determiners of a Noun. "mass": no article ("cold milk"); "owner": "the king's"; "number": the words of `numeral`.
POSSESSIVES = ("my", "his", "her", "our", "their")
DETERMINERS = ("the", "a", "this", "every", "some", "many", "number", "mass", "owner", *POSSESSIVES)
PLURAL_DETERMINERS = ("some", "many", "number")
TENSES = ("present", "past", "perfect", "future")


@dataclass(frozen=True)
class Pronoun:
    """`who` is one of I, we, he, she, in the nominative; the role decides the form ("him")."""

    who: str

    @property
    def plural(self) -> bool:
        return self.who == "we"


@dataclass(frozen=True)
class Name:
    """A person's first name, the same in the three languages."""

    name: str
    plural: bool = False


@dataclass(frozen=True)
class Noun:
    """Determiner, up to two adjectives, noun and an optional relative clause.

    `quality` is an adjective that French puts before the noun, `trait` one that it puts after. `owner` (a Name or a
    singular Noun) goes with det="owner", `numeral` (2 or more) with det="number".
    """

    noun: str
    det: str = "the"
    plural: bool = False
    quality: str | None = None
    trait: str | None = None
    numeral: int | None = None
    owner: Noun | Name | None = None
    relative: Relative | None = None


@dataclass(frozen=True)
class Both:
    """Two noun phrases joined by "and"; always plural."""

    first: Noun | Name
    second: Noun | Name

    @property
    def plural(self) -> bool:
        return True


Phrase = Pronoun | Name | Noun | Both


@dataclass(frozen=True)
class Gap:
    """Stands in a relative clause for the phrase that the clause belongs to."""

    noun: str
    plural: bool


@dataclass(frozen=True)
class Relative:
    """`role` ("subject" or "direct") says where `clause` has its Gap."""

    role: str
    clause: Clause


@dataclass(frozen=True)
class Place:
    """A prepositional phrase: `prep` is a key of the lexicons' PREPOSITIONS."""

    prep: str
    phrase: Phrase


@dataclass(frozen=True)
class Time:
    """`kind` is "word" (value "today", …), "day" (value "Monday", …) or "clock" (value 1..12)."""

    kind: str
    value: str | int


@dataclass(frozen=True)
class Clause:
    """One finite clause.

    kind "verb": `subject` `verb` with `direct` and `recipient`, under an optional `modal` (can, must, want) or
    `control` verb (try, begin, forget); kind "be": `subject` is `adjective` (`degree` None, "very" or "more", the
    latter with `than`); kind "there": there is/are `subject`. `polarity` is "yes", "not" or "never"; `places` follow
    the objects. `front` ("time", "place" or None) names what stands first; "place" moves the last of `places`.
    """

    subject: Phrase | Gap | None
    verb: str
    kind: str = "verb"
    tense: str = "present"
    polarity: str = "yes"
    modal: str | None = None
    control: str | None = None
    direct: Phrase | Gap | None = None
    recipient: Phrase | None = None
    frequency: str | None = None
    time: Time | None = None
    places: tuple[Place, ...] = ()
    front: str | None = None
    adjective: str | None = None
    degree: str | None = None
    than: Phrase | None = None
    complement: Complement | None = None


@dataclass(frozen=True)
class Complement:
    """Object clause: `link` is "that" or "whether"; a second clause is joined by "and that" / "and whether"."""

    link: str
    content: Clause | Adverbial
    second: Clause | None = None


@dataclass(frozen=True)
class Adverbial:
    """`main` with a subordinate clause; `link` is because, if or while; `front` puts the subordinate clause first."""

    main: Clause
    link: str
    sub: Clause
    front: bool = False


@dataclass(frozen=True)
class Joined:
    """Two main clauses joined by `link` ("and" or "but"), always after a comma."""

    left: Clause | Adverbial | Joined
    link: str
    right: Clause | Adverbial


@dataclass(frozen=True)
class Question:
    """A yes/no question, or one with `word` where, when or why."""

    clause: Clause
    word: str | None = None


Sentence = Clause | Adverbial | Joined | Question


def agreement(phrase: Phrase | Gap) -> str:
    """The person and number that a finite verb agrees with: "1s", "3s", "1p" or "3p"."""
    if isinstance(phrase, Pronoun) and phrase.who in ("I", "we"):
        return "1p" if phrase.plural else "1s"
    return "3p" if phrase.plural else "3s"
