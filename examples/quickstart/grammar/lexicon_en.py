"""English forms that are not regular. A concept is its own English word, so most need no entry here."""

from __future__ import annotations

PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "witch": "witches",
    "actress": "actresses",
    "princess": "princesses",
    "mouse": "mice",
    "wolf": "wolves",
    "fox": "foxes",
    "church": "churches",
    "knife": "knives",
    "city": "cities",
    "library": "libraries",
}

# verb -> (past, past participle) where they do not end in "ed"; a particle ("up") is not part of the key
PAST = {
    "be": ("was", "been"),
    "begin": ("began", "begun"),
    "bite": ("bit", "bitten"),
    "break": ("broke", "broken"),
    "bring": ("brought", "brought"),
    "buy": ("bought", "bought"),
    "come": ("came", "come"),
    "draw": ("drew", "drawn"),
    "drink": ("drank", "drunk"),
    "eat": ("ate", "eaten"),
    "fall": ("fell", "fallen"),
    "feed": ("fed", "fed"),
    "find": ("found", "found"),
    "forget": ("forgot", "forgotten"),
    "get": ("got", "got"),
    "give": ("gave", "given"),
    "go": ("went", "gone"),
    "hear": ("heard", "heard"),
    "lend": ("lent", "lent"),
    "lose": ("lost", "lost"),
    "run": ("ran", "run"),
    "say": ("said", "said"),
    "see": ("saw", "seen"),
    "sell": ("sold", "sold"),
    "send": ("sent", "sent"),
    "show": ("showed", "shown"),
    "sing": ("sang", "sung"),
    "sleep": ("slept", "slept"),
    "steal": ("stole", "stolen"),
    "swim": ("swam", "swum"),
    "understand": ("understood", "understood"),
    "wake": ("woke", "woken"),
    "write": ("wrote", "written"),
}

# "more" forms that are not "more" + adjective
COMPARATIVES = {
    **{word: word + "er" for word in ("old", "young", "small", "rich", "sick", "strong", "clever")},
    **{word: word + "er" for word in ("cold", "warm", "clean", "dark", "quiet")},
    "big": "bigger",
    "happy": "happier",
    "sad": "sadder",
    "lazy": "lazier",
    "brave": "braver",
    "dirty": "dirtier",
    "strange": "stranger",
    "heavy": "heavier",
}

OBJECT_PRONOUNS = {"I": "me", "we": "us", "he": "him", "she": "her"}
