"""A synchronous grammar: one meaning, realised in English, German and French.

Data flow: `sampling` draws a meaning (`meaning`, built from the concepts of `concepts`); `english`, `german` and
`french` each turn the same meaning into one sentence, with the words of their `lexicon_*`. A concept is named by its
English word and has exactly one English form and one translation a language, and the sampler draws only meanings whose
English sentence does not leave open what the other language has to say (see `sampling` for the list). So each English
sentence has one translation in the corpus, whatever clause structure it stands in.
"""

from . import english, french, german

REALISERS = {"en": english.sentence, "de": german.sentence, "fr": french.sentence}

__all__ = ["REALISERS", "english", "french", "german"]
