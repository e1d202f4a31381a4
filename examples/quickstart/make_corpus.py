#!/usr/bin/env python
"""Writes the quick start's parallel corpus: English with German or French, from the grammar beside this file.

    python make_corpus.py --pair en-de --out DIR [--train 20000 --valid 500 --test 500 --test-long 300 --seed 1]

DIR gets train, valid, test and test_long, one `.en` and one `.de` (`.fr`) file each, one sentence a line. train, valid
and test are drawn alike; every sentence of test_long is longer than every sentence of train, on both sides. No
sentence, of either language, stands in two of the sets. The same options give the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

from grammar import REALISERS
from grammar.sampling import Sampler

PAIRS = ("en-de", "en-fr")
SETS = ("train", "valid", "test", "test_long")
# Lengths in tokens: words and punctuation marks. Nothing lies between SHORT and LONG, so "longer" holds by design.
SHORT = {"en": (4, 18), "target": (3, 21)}
LONG = {"en": (22, 44), "target": (22, 52)}
MAX_SENTENCES = 1_000_000
_TOKEN = re.compile(r"[\w'-]+|[^\w\s]")

Pair = tuple[str, str]


def length(sentence: str) -> int:
    """Number of words and punctuation marks ("o'clock", "l'homme" and "twenty-three" are one each)."""
    return len(_TOKEN.findall(sentence))


class Corpus:
    """Draws distinct pairs for one language pair. Refuses an English sentence with two translations (ValueError)."""

    def __init__(self, pair: str, seed: int):
        self.target = pair.split("-")[1]
        self.seed = seed
        self.translation: dict[str, str] = {}
        self.taken: set[str] = set()  # target sentences

    def draw(self, count: int, deep: bool) -> list[Pair]:
        """`count` new pairs: of training length, or (`deep`) longer ones."""
        rng = random.Random(f"{self.seed} {'long' if deep else 'short'}")
        sampler, limits = Sampler(rng, deep), LONG if deep else SHORT
        pairs: list[Pair] = []
        while len(pairs) < count:
            meaning = sampler.sentence()
            source, target = REALISERS["en"](meaning), REALISERS[self.target](meaning)
            if self.translation.setdefault(source, target) != target:
                raise ValueError(f"two translations of {source!r}: {self.translation[source]!r} and {target!r}")
            if target in self.taken or not _fits(source, limits["en"]) or not _fits(target, limits["target"]):
                continue
            self.taken.add(target)
            pairs.append((source, target))
        rng.shuffle(pairs)  # the rarer, longer sentences come later in the draw, once the short ones are taken
        return pairs


def _fits(sentence: str, limits: tuple[int, int]) -> bool:
    return limits[0] <= length(sentence) <= limits[1]


def build(pair: str, sizes: dict[str, int], seed: int) -> dict[str, list[Pair]]:
    """The four sets; `sizes` gives the number of sentences of each name in SETS."""
    corpus = Corpus(pair, seed)
    short = corpus.draw(sizes["test"] + sizes["valid"] + sizes["train"], deep=False)
    sets = {}
    for name in ("test", "valid", "train"):
        sets[name], short = short[: sizes[name]], short[sizes[name] :]
    sets["test_long"] = corpus.draw(sizes["test_long"], deep=True)
    return sets


def write(sets: dict[str, list[Pair]], pair: str, out: Path) -> None:
    """All files or none: they are written to a new folder beside `out`, which then takes its place (if `out` holds
    files already, its own of the same names are replaced one by one). OSError where that cannot be done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        folder.chmod(0o755)
        for name, pairs in sets.items():
            for side, language in enumerate(pair.split("-")):
                text = "".join(f"{sentences[side]}\n" for sentences in pairs)
                (folder / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")
        if out.is_dir() and any(out.iterdir()):
            for path in sorted(folder.iterdir()):
                os.replace(path, out / path.name)
        else:
            os.replace(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}\n")  # one line, without the usage


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MAX_SENTENCES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sentences (0 to {MAX_SENTENCES})")
    return int(text)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; one line on standard error and exit status 2 where it is wrong."""
    parser = _Parser(prog="make_corpus.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", required=True, choices=PAIRS)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--train", type=_size, default=20000, metavar="N")
    parser.add_argument("--valid", type=_size, default=500, metavar="N")
    parser.add_argument("--test", type=_size, default=500, metavar="N")
    parser.add_argument("--test-long", type=_size, default=300, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="any whole number")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 if the folder cannot be written, 2 if an argument is wrong."""
    options = parse(arguments)
    out = options.out.absolute()
    if out.exists() and not out.is_dir():
        print(f"make_corpus.py: --out {options.out} is a file; give a folder", file=sys.stderr)
        return 1
    sizes = {name: getattr(options, name) for name in SETS}
    sets = build(options.pair, sizes, options.seed)
    try:
        write(sets, options.pair, out)
    except OSError as error:
        print(f"make_corpus.py: cannot write to --out {options.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"{options.out}: " + ", ".join(f"{name} {len(sets[name])}" for name in SETS) + " pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
