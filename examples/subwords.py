"""Turns raw text into subwords for fairseq: Moses normalisation and tokenisation, then joint BPE.

    python subwords.py --raw DIR --out DIR --pair en-de --merges 4000 --splits train valid test

reads ``DIR/SPLIT.LANGUAGE`` (UTF-8, one sentence a line) and writes ``OUT/SPLIT.LANGUAGE`` in subwords and
``OUT/codes``, the merges. The steps are those of ``fairseq-interactive --tokenizer moses --bpe subword_nmt
--bpe-codes OUT/codes``, so a trained model also takes raw sentences; only the normalisation of punctuation is
extra. 30,000 sentence pairs take about ten seconds.
"""

import argparse
import io
import sys
from collections import Counter
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe


def read_lines(path):
    """Lines of a UTF-8 file, split at newlines only; exits with one line that names a file which is unfit."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        sys.exit(f"subwords: cannot read {path}: {error.strerror}")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        sys.exit(f"subwords: {path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def tokenize(path, language):
    """Normalised, tokenised lines of one raw file; every kind of white space becomes one space."""
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    lines = (" ".join(normalizer.normalize(line).split()) for line in read_lines(path))
    return [tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True) for line in lines]


def learn(corpora, merges):
    """BPE merges of all ``corpora`` (lists of tokenised lines) together, as the text of a codes file."""
    words = Counter(word for lines in corpora for line in lines for word in line.split())
    codes = io.StringIO()
    learn_bpe([f"{word} {count}" for word, count in words.items()], codes, merges, is_dict=True)
    return codes.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--raw", type=Path, required=True, help="folder of the raw text")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--pair", required=True, help="source-target, e.g. en-de")
    parser.add_argument("--merges", type=int, required=True, help="number of BPE merges")
    parser.add_argument("--splits", nargs="+", required=True, help="splits; the first one teaches the BPE")
    args = parser.parse_args()
    languages = args.pair.split("-")
    files = [(split, language) for split in args.splits for language in languages]

    text = {}
    for split, language in files:
        print(f"tokenising {split}.{language}", flush=True)
        text[split, language] = tokenize(args.raw / f"{split}.{language}", language)

    print(f"learning up to {args.merges} merges", flush=True)
    codes = learn([text[args.splits[0], language] for language in languages], args.merges)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "codes").write_text(codes, encoding="utf-8")
    bpe = BPE(io.StringIO(codes))
    for (split, language), lines in text.items():
        print(f"applying the merges to {split}.{language}", flush=True)
        subwords = "".join(bpe.process_line(line) + "\n" for line in lines)
        (args.out / f"{split}.{language}").write_text(subwords, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
