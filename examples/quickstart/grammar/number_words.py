"""Whole numbers from 0 to 999 as words: English (British "and"), German, French (as counted in France)."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


_EN_UNITS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_EN_TENS = _words("zero ten twenty thirty forty fifty sixty seventy eighty ninety")
_DE_UNITS = _words(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn"
    " achtzehn neunzehn"
)
_DE_TENS = _words("null zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_FR_UNITS = _words(
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit"
    " dix-neuf"
)
_FR_TENS = _words("zéro dix vingt trente quarante cinquante soixante")


def _check(number: int) -> None:
    if not 0 <= number <= 999:
        raise ValueError(f"number words go from 0 to 999, not {number}")


def english(number: int) -> str:
    """23 → "twenty-three", 105 → "one hundred and five". ValueError outside 0..999."""
    _check(number)
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_EN_UNITS[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    if number < 20:
        return _EN_UNITS[number]
    tens, unit = divmod(number, 10)
    return _EN_TENS[tens] + (f"-{_EN_UNITS[unit]}" if unit else "")


def german(number: int) -> str:
    """23 → "dreiundzwanzig", 105 → "einhundertfünf", 1 → "eins" (counting form). ValueError outside 0..999."""
    _check(number)
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{'ein' if hundreds == 1 else _DE_UNITS[hundreds]}hundert{german(rest) if rest else ''}"
    if number < 20:
        return _DE_UNITS[number]
    tens, unit = divmod(number, 10)
    return (f"{'ein' if unit == 1 else _DE_UNITS[unit]}und" if unit else "") + _DE_TENS[tens]


def french(number: int, feminine: bool = False) -> str:
    """91 → "quatre-vingt-onze", 21 → "vingt et un" ("vingt et une" before a feminine). ValueError outside 0..999."""
    _check(number)
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        if hundreds == 1:
            return "cent" + (f" {french(rest, feminine)}" if rest else "")
        # cent takes an s only as the last word: deux cents, deux cent un
        return f"{_FR_UNITS[hundreds]} " + (f"cent {french(rest, feminine)}" if rest else "cents")
    one = "une" if feminine else "un"
    if number < 20:
        return one if number == 1 else _FR_UNITS[number]
    if number >= 80:
        rest = number - 80
        # vingt takes an s only as the last word: quatre-vingts, quatre-vingt-un; no "et" in this score
        return "quatre-vingt" + (f"-{one if rest == 1 else _FR_UNITS[rest]}" if rest else "s")
    tens, unit = divmod(number, 10)
    if tens == 7:
        tens, unit = 6, unit + 10
    word = _FR_TENS[tens]
    if unit == 0:
        return word
    if unit in (1, 11):
        return f"{word} et {one if unit == 1 else 'onze'}"
    return f"{word}-{_FR_UNITS[unit]}"
