"""``fairseq-rope-prepare``: from WMT's archives to binarised training data, in one restartable command."""

import argparse
from pathlib import Path

from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.errors import UserError
from fairseq_rope.prepare.corpora import NEWS_VERSIONS, RECIPES, VALID_SETS
from fairseq_rope.prepare.pipeline import Options, Preparation
from fairseq_rope.prepare.workers import cores

PROG = "fairseq-rope-prepare"
LEAST_VOCABULARY = 100


def positive(text):
    """A whole number of at least 1; an argparse type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a whole number of at least 1: {text!r}")
    return int(text)


def vocabulary(text):
    """The size of a dictionary: fairseq's special symbols and some words; an argparse type."""
    if positive(text) < LEAST_VOCABULARY:
        raise argparse.ArgumentTypeError(f"not at least {LEAST_VOCABULARY}: {text}")
    return int(text)


def folder(text):
    """A folder's path; an argparse type."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no folder")
    return Path(text)


def parser():
    """Return the argument parser."""
    p = Parser(
        prog=PROG,
        description="Download, unpack, normalise, tokenise, clean and split a corpus, learn and apply joint subwords, "
        "and binarise: what fairseq's prepare-wmt14en2de.sh and -en2fr.sh do, on all cores and in flat memory. The "
        "same command goes on where a stopped run ended and gives the same bytes.",
    )
    p.add_argument("corpus", choices=["wmt14"], help="which corpus")
    p.add_argument("--pair", required=True, choices=list(NEWS_VERSIONS), help="language pair")
    p.add_argument("--out", required=True, type=folder, metavar="DIR", help="folder to make")
    p.add_argument(
        "--recipe",
        choices=list(RECIPES),
        default="fairseq",
        help="whose cleaning, validation set and number of merges (default: fairseq). For en-de, fairseq: 1 to 250 "
        "subwords, length ratio at most 1.5, every 100th pair for validation, 40,000 merges; admin (Liu et al. 2020): "
        "1 to 80 words, newstest2013, 32,764 merges. For en-fr both: 1 to 250, ratio 1.5, every 1333rd, 40,000",
    )
    p.add_argument(
        "--news-commentary", choices=["v9", "v12"], help="v9 is WMT'14's, v12 WMT'17's, the scripts' default for en-de"
    )
    p.add_argument("--valid", choices=["every", "newstest2013"], help="other validation set than the recipe's")
    subwords = p.add_mutually_exclusive_group()
    subwords.add_argument("--bpe-merges", type=positive, metavar="N", help="joint BPE merges (default: the recipe's)")
    subwords.add_argument(
        "--sentencepiece", type=positive, metavar="N", help="a joint sentencepiece vocabulary of N, untokenised text"
    )
    p.add_argument(
        "--vocab-size", type=vocabulary, metavar="N", help="most entries of the dictionary, at least 100 (default: all)"
    )
    p.add_argument(
        "--downloads",
        type=folder,
        metavar="DIR",
        help="folder of the archives, to share among runs (default: OUT/download)",
    )
    p.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="URL-or-DIR",
        help="where HOST/PATH of the archives is found too, tried before the original servers; may be repeated",
    )
    p.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="only the first N pairs of each training corpus; archives and counts may then differ from the published",
    )
    p.add_argument("--workers", type=positive, default=cores(), metavar="N", help="processes (default: all cores)")
    return p


def read_options(args):
    """Complete the options by the recipe's values.

    Raises:
        UserError: a value that this pair does not have; what it has is named.
    """
    recipe = RECIPES[args.recipe][args.pair]
    for name, valid in (("news_commentary", NEWS_VERSIONS[args.pair]), ("valid", VALID_SETS[args.pair])):
        value = getattr(args, name)
        if value is not None and value not in valid:
            raise UserError(f"--{name.replace('_', '-')} {value} is not for {args.pair}, which has: {' '.join(valid)}")
    return Options(
        pair=args.pair,
        recipe=args.recipe,
        news_commentary=args.news_commentary or recipe.news,
        valid=args.valid or recipe.valid,
        bpe_merges=None if args.sentencepiece else args.bpe_merges or recipe.merges,
        sentencepiece=args.sentencepiece,
        vocab_size=args.vocab_size,
        limit=args.limit,
    )


def main(argv=None):
    """Entry point of ``fairseq-rope-prepare``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        Preparation(read_options(args), args.out, args.downloads, args.mirror, args.workers).run()


if __name__ == "__main__":
    main()
