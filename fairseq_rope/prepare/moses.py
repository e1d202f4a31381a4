"""Moses normalisation and tokenisation: sacremoses' rules, and its output, in a third of its time.

sacremoses ports Moses' Perl scripts expression by expression. Most of its time goes into expressions that cannot
match (a line without commas is searched for commas three times), into replacing each single space by a single space,
and into building the set of all Unicode letters anew for each abbreviation. The classes here are sacremoses' own,
their rules untouched and in the same order; they only pass over a rule whose characters the line does not hold.
The tests compare every line of genuine newstest2014 and generated ones with sacremoses itself.
"""

import re

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer

# An expression without operators: plain characters and escaped punctuation.
_PLAIN = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^\w\s])+")
# For the normaliser's other expressions: what a line must hold for the rule to change it. A rule that is not listed
# (another version of sacremoses) is always tried.
_NEEDS = {
    r"\r": "\r",
    r" +": "  ",
    r"\) ([.!:?;,])": ") ",
    r"(\d) %": " %",
    "([a-zA-Z])‘([a-zA-Z])": "‘",
    "([a-zA-Z])’([a-zA-Z])": "’",
    r'"([,.]+)': '"',
    r'(\.+)"(\s*[^<])': '."',
    "(\\d)\u00a0(\\d)": "\u00a0",
}
_NON_PRINTING = regex.compile(r"\p{C}")
_XML = re.compile(r"""[&|<>'"\[\]]""")


class Normalizer(MosesPunctNormalizer):
    """Moses' ``normalize-punctuation.perl`` followed by ``remove-non-printing-char.perl``.

    Args:
        language: two-letter code; quotation marks and decimal points have rules by language.
    """

    def __init__(self, language):
        super().__init__(lang=language, perl_parity=True)
        self._rules = [self._rule(pattern, replacement) for pattern, replacement in self.substitutions]

    @staticmethod
    def _rule(pattern, replacement):
        if _PLAIN.fullmatch(pattern) and "\\" not in replacement:
            return None, re.sub(r"\\(.)", r"\1", pattern), replacement
        return re.compile(pattern), _NEEDS.get(pattern, ""), replacement

    def normalize(self, text):
        """Return ``text`` with punctuation normalised, without characters of Unicode's category C (control, format,
        private use, unassigned: a space each) and without outer white space."""
        for pattern, needed, replacement in self._rules:
            if needed in text:
                text = text.replace(needed, replacement) if pattern is None else pattern.sub(replacement, text)
        if not text.isprintable():  # also false for spaces other than " ", which stay
            text = _NON_PRINTING.sub(" ", text)
        return text.strip()


class Tokenizer(MosesTokenizer):
    """Moses' ``tokenizer.perl -a``: aggressive hyphen splitting, XML characters escaped.

    Args:
        language: two-letter code; apostrophes and abbreviations have rules by language.
    """

    def __init__(self, language):
        super().__init__(lang=language)
        self._lower, self._alpha = frozenset(self.IsLower), frozenset(self.IsAlpha)
        self._prefixes, self._numeric = frozenset(self.NONBREAKING_PREFIXES), frozenset(self.NUMERIC_ONLY_PREFIXES)
        if language == "en":
            self._apostrophes = self.ENGLISH_SPECIFIC_APOSTROPHE
        elif language in ("fr", "it"):
            self._apostrophes = self.FR_IT_SPECIFIC_APOSTROPHE
        else:
            self._apostrophes = [self.NON_SPECIFIC_APOSTROPHE]

    def tokenize(self, text):
        """Return the tokens of one line, separated by single spaces: what
        ``MosesTokenizer.tokenize(text, aggressive_dash_splits=True, return_str=True)`` returns."""
        text = " ".join(text.split())
        if not text.isprintable():
            text = _apply(self.ASCII_JUNK, text).strip()
        text = _apply(self.PAD_NOT_ISALNUM, text)
        if "-" in text:
            text = _apply(self.AGGRESSIVE_HYPHEN_SPLIT, text)
        if ".." in text:
            text = self.replace_multidots(text)
        if "," in text:
            for rule in (self.COMMA_SEPARATE_1, self.COMMA_SEPARATE_2, self.COMMA_SEPARATE_3):
                text = _apply(rule, text)
        if "'" in text:
            for rule in self._apostrophes:
                text = _apply(rule, text)
        text = self.handles_nonbreaking_prefixes(text)
        if "'" in text:
            text = _apply(self.TRAILING_DOT_APOSTROPHE, text)
        if "MULTI" in text:
            text = self.restore_multidots(text)
        return self.escape_xml(text) if _XML.search(text) else text

    def handles_nonbreaking_prefixes(self, text):
        """Separate the full stops that end a sentence, not those of abbreviations; returns single-spaced tokens."""
        tokens = text.split()
        last = len(tokens) - 1
        for i, token in enumerate(tokens):
            if (
                token[-1] == "."
                and len(token) > 1
                and not self._keeps_stop(token[:-1], tokens[i + 1] if i < last else "")
            ):
                tokens[i] = token[:-1] + " ."
        return " ".join(tokens)

    def _keeps_stop(self, prefix, following):
        """Whether the full stop after ``prefix`` belongs to it; ``following`` is the next token, "" at the end."""
        if "." in prefix and not self._alpha.isdisjoint(prefix):
            return True
        if prefix in self._prefixes and prefix not in self._numeric:
            return True
        if following[:1] in self._lower:
            return True
        return prefix in self._numeric and "0" <= following[:1] <= "9"


def _apply(rule, text):
    pattern, replacement = rule
    return pattern.sub(replacement, text)
