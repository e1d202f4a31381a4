"""The concepts, each named by its English word, and what goes with what: noun classes, verb frames, adjectives.

A noun whose German or French form depends on a sex that English leaves open ("teacher", "friend") is not here; nor is a
verb whose tense English leaves open ("read", "put"), nor an English word with two everyday translations.
"""

from __future__ import annotations

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words("woman girl queen sister aunt mother widow grandmother princess actress witch")
MEN = _words("man boy king brother uncle father son grandfather prince monk knight")
PERSONS = (*WOMEN, *MEN, "child")
NAMES = _words("Anna Emma Julia Laura David Martin Oskar Paul")
ANIMALS = _words("dog cat horse bird cow bear lion mouse wolf fox rabbit elephant goat duck")
READABLE = ("book", "newspaper", "novel", "poem")
CLOTHES = ("hat", "coat", "shirt")
DEVICES = ("lamp", "computer", "radio")
OPENABLE = ("window", "door", "bottle", "suitcase")
BREAKABLE = ("cup", "bottle", "mirror", "lamp", "window", "chair")
REPAIRABLE = ("car", "bicycle", "boat", "chair", "table", "radio", "computer", "roof", "umbrella")
SNACKS = ("apple", "egg", "cake")
PORTABLE = (
    *READABLE,
    *CLOTHES,
    *("lamp", "radio", "bottle", "suitcase", "cup", "mirror", "bicycle", "umbrella", "key", "knife", "gift"),
    *("flower", "basket", "painting", "stone", "chair"),
)
THINGS = (*PORTABLE, "computer", "window", "door", "table", "car", "boat", "tree", "roof", "star", *SNACKS)
DRINKS = ("water", "milk", "coffee", "tea", "beer", "wine")
FOODS = ("bread", "cheese", "soup", "honey", "butter")
MASS = (*DRINKS, *FOODS)
ROOMS = ("kitchen", "office", "library")
PLACES = (
    *(
        "garden",
        "kitchen",
        "forest",
        "city",
        "castle",
        "church",
        "school",
        "hotel",
        "office",
        "village",
        "library",
    ),
    *("station", "market", "museum", "hospital", "house"),
)
NOUNS = (*PERSONS, *ANIMALS, *THINGS, *MASS, *PLACES)

# Prepositions that say where, with the nouns that fit them.
WHERE = {
    "in": tuple(place for place in PLACES if place != "market"),
    "behind": ("tree", "door", "table", "car", "church", "castle", "house", "school", "station", "hotel"),
    "in front of": (
        "tree",
        "door",
        "house",
        "window",
        "mirror",
        "church",
        "castle",
        "museum",
        "station",
        "hospital",
        "hotel",
    ),
    "under": ("tree", "table", "chair", "roof", "window"),
    "next to": (
        "tree",
        "house",
        "table",
        "door",
        "car",
        "lamp",
        "church",
        "station",
        "market",
        "school",
        "window",
    ),
    "on": ("table", "chair", "roof", "boat", "suitcase", "stone"),
}

DIRECTIONS = {
    "into": _words("garden kitchen forest city house castle church office village hotel library"),
    "to": _words("station market school church castle hotel museum hospital library"),
}

# Adjectives: QUALITIES stand before the noun in French, TRAITS after it.
QUALITIES = {
    "person": ("old", "young", "small", "big", "good", "beautiful"),
    "animal": ("old", "young", "small", "big", "beautiful"),
    "thing": ("old", "new", "small", "big", "beautiful"),
    "mass": ("good", "bad"),
    "place": ("old", "new", "small", "big", "beautiful"),
}
TRAITS = {
    "person": _words("tired happy sad rich famous sick lazy brave strong clever strange"),
    "animal": _words("black white grey tired dangerous strong sick lazy"),
    "thing": _words("red green blue yellow black white expensive heavy dirty clean strange"),
    "mass": ("cold", "warm", "expensive"),
    "place": _words("modern dark empty clean dirty famous quiet"),
}
ADJECTIVES = tuple(dict.fromkeys(word for table in (QUALITIES, TRAITS) for row in table.values() for word in row))
NOT_PREDICATIVE = ("new",)  # French says "neuf" or "nouveau" here, which English does not tell apart
COLOURS = ("black", "white", "grey", "red", "green", "blue", "yellow")
NOT_COMPARED = ("new", "good", "bad", "empty", *COLOURS)


_KINDS = {
    **dict.fromkeys(THINGS, "thing"),
    **dict.fromkeys(PERSONS, "person"),
    **dict.fromkeys(ANIMALS, "animal"),
    **dict.fromkeys(MASS, "mass"),
    **dict.fromkeys(PLACES, "place"),
}


def kind_of(noun: str) -> str:
    """The class of a noun: person, animal, mass, place or thing."""
    return _KINDS[noun]


@dataclass(frozen=True)
class Frame:
    """What a verb takes: nouns for its `subject`, for its `direct` object (None: none), a recipient, a direction."""

    subject: tuple[str, ...] = PERSONS
    direct: tuple[str, ...] | None = None
    recipient: bool = False
    towards: tuple[str, ...] = ()  # obligatory direction: prepositions "into" and "to"


LIVING = (*PERSONS, *ANIMALS)
ANYTHING = (*LIVING, *THINGS, *PLACES)
FRAMES = {
    **{verb: Frame(LIVING) for verb in ("sleep", "swim", "wait", "wake up", "get up", "fall asleep", "stay")},
    **{verb: Frame() for verb in ("work", "laugh", "dance", "sing", "cry", "smile", "arrive", "return")},
    **{verb: Frame(LIVING, towards=("into", "to")) for verb in ("go", "run", "come")},
    "see": Frame(LIVING, ANYTHING),
    "hear": Frame(LIVING, LIVING),
    "find": Frame(LIVING, ANYTHING),
    "look for": Frame(LIVING, ANYTHING),
    "look at": Frame(LIVING, ANYTHING),
    "love": Frame(PERSONS, (*LIVING, *PLACES)),
    "buy": Frame(PERSONS, (*ANIMALS, *THINGS, *MASS)),
    "sell": Frame(PERSONS, (*ANIMALS, *THINGS, *MASS)),
    "steal": Frame(PERSONS, (*PORTABLE, *SNACKS, *MASS)),
    "lose": Frame(PERSONS, PORTABLE),
    "carry": Frame(PERSONS, PORTABLE),
    "wash": Frame(PERSONS, ("dog", "horse", "car", "bicycle", "bottle", "cup", "window", "apple", *CLOTHES)),
    "draw": Frame(PERSONS, (*ANIMALS, "flower", "tree", "boat", "castle", "church", "star", "king", "queen")),
    "write": Frame(PERSONS, ("book", "novel", "poem")),
    "understand": Frame(PERSONS, (*PERSONS, *READABLE)),
    "visit": Frame(PERSONS, ("museum", "city", "castle", "church", "village", "market")),
    "eat": Frame(PERSONS, (*FOODS, *FOODS, *SNACKS)),
    "drink": Frame(PERSONS, DRINKS),
    "open": Frame(PERSONS, OPENABLE),
    "close": Frame(PERSONS, OPENABLE),
    "turn on": Frame(PERSONS, DEVICES),
    "turn off": Frame(PERSONS, DEVICES),
    "try on": Frame(PERSONS, CLOTHES),
    "tidy up": Frame(PERSONS, ROOMS),
    "break": Frame(PERSONS, BREAKABLE),
    "repair": Frame(PERSONS, REPAIRABLE),
    "invite": Frame(PERSONS, PERSONS),
    "call": Frame(PERSONS, PERSONS),
    "feed": Frame(PERSONS, ANIMALS),
    "chase": Frame(ANIMALS, ANIMALS),
    "bite": Frame(ANIMALS, LIVING),
    "help": Frame(PERSONS, LIVING),
    "thank": Frame(PERSONS, PERSONS),
    "follow": Frame(LIVING, LIVING),
    "listen to": Frame(PERSONS, PERSONS),
    "answer": Frame(PERSONS, PERSONS),
    **{verb: Frame(PERSONS, PORTABLE, recipient=True) for verb in ("give", "show", "send", "lend", "give back")},
    "bring": Frame(PERSONS, (*PORTABLE, *SNACKS, *MASS), recipient=True),
}
# Verbs that go with "with"/"without" somebody, with "for" somebody, and verbs that take no place.
COMPANY = _words("work dance sing laugh swim eat drink visit stay arrive return wait")
BENEFIT = _words("buy draw write sing work carry open close repair wash steal dance find")
NOWHERE = ("arrive", "return", "go", "run", "come", "visit", "believe", "give back", "tidy up", "love")
# Verbs that make no sense as an infinitive after try, begin or forget.
UNINTENDED = ("arrive", "lose", "break", "love", "fall asleep", "stay", "wake up", "see", "hear", "return")
CONTROLS = ("try", "begin", "forget")
MODALS = ("can", "must", "want")
# Verbs with an object clause, and its links. Only where French has the indicative, so that none of the three but
# "know" and "say" may be negated (sampling sees to it).
THAT_VERBS = ("say", "know", "think", "hope", "believe")
WHETHER_VERBS = ("ask", "know")
# States: their English past is a French imparfait, and they have no perfect here.
STATES = ("love", "know", "think", "hope", "believe", "want", "be")
# French builds the perfect of these with être, so that the participle shows a sex that "I" and "we" do not.
SHOWS_SUBJECT_GENDER = ("arrive", "return", "go", "come", "stay", "get up", "wake up", "fall asleep")

TIME_WORDS = {
    "present": ("today", "now"),
    "past": ("yesterday",),
    "perfect": ("today",),
    "future": ("tomorrow", "soon"),
}
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
FREQUENCIES = ("often", "always", "sometimes")
