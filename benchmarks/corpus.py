"""Real text for the benchmarks: Multi30k en-de in 8,000 joint BPE merges, and sentences of exactly 400 tokens.

    python benchmarks/corpus.py --work DIR

makes WORK/{raw,subwords,data-bin,long,data-bin-long}; what is there already is kept, so an interrupted run goes on. The
benchmarks call it themselves. It takes about a minute and a half on two cores.

Sentences of the `long` setting are consecutive training pairs of Multi30k joined until both sides are long enough, then
cut to 399 subwords, which makes 400 tokens with </s>, source and target.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from side_by_side import OUT, ROOT, Parser
from sides import STOCK, Side, configure

MERGES = 8000
LONG_TOKENS = 400  # with </s>
LONG_PAIRS = 256


@dataclass(frozen=True)
class Corpus:
    """Folders of binarised text: ``multi30k`` has train, valid, test (2016), test1 (2017); ``long`` has train."""

    multi30k: Path
    long: Path


def add_options(parser):
    """Add ``--work`` and ``--data`` to an ``argparse`` parser."""
    data = Path(os.environ.get("FAIRSEQ_ROPE_DATA", ROOT.parent / "shared" / "data"))
    group = parser.add_argument_group("corpus")
    group.add_argument(
        "--work", type=Path, default=OUT / "work", metavar="DIR",
        help="folder of the corpus and the weights, made on first use (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--data", type=Path, default=data, metavar="DIR",
        help="folder with multi30k/ in it; what is missing is downloaded (default: $FAIRSEQ_ROPE_DATA, %(default)s)",
    )  # fmt: skip


def prepare(work, data):
    """Make what is missing of the corpus under ``work``; returns its :class:`Corpus`.

    Raises:
        SystemExit: a step failed; its last line says which.
    """
    work = Path(work).resolve()
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"corpus: cannot make the folder {work}: {error.strerror}")
    python, splits = sys.executable, ["train", "valid", "test_2016", "test_2017"]
    corpus = Corpus(work / "data-bin", work / "data-bin-long")
    if not corpus.multi30k.exists():
        stage(
            work / "raw",
            lambda out: [
                python, ROOT / "examples" / "multi30k" / "prepare.py", "--pair", "en-de",
                "--data", Path(data) / "multi30k", "--download", work / "download", "--out", out,
            ],
        )  # fmt: skip
        stage(
            work / "subwords",
            lambda out: [
                python, ROOT / "examples" / "subwords.py", "--raw", work / "raw", "--out", out,
                "--pair", "en-de", "--merges", MERGES, "--splits", *splits,
            ],
        )  # fmt: skip
        text = work / "subwords"
        tests = f"{text / 'test_2016'},{text / 'test_2017'}"
        stage(
            corpus.multi30k,
            lambda out: [
                *preprocess(out), "--joined-dictionary",
                "--trainpref", text / "train", "--validpref", text / "valid", "--testpref", tests,
            ],
        )  # fmt: skip
    if not corpus.long.exists():
        write_long(work / "subwords", work / "long")
        dictionary = corpus.multi30k / "dict.en.txt"  # the German one has the same contents
        stage(
            corpus.long,
            lambda out: [
                *preprocess(out), "--srcdict", dictionary, "--tgtdict", dictionary,
                "--trainpref", work / "long" / "train",
            ],
        )  # fmt: skip
    return corpus


def program(name):
    """Path of an installed console script."""
    return Path(sysconfig.get_path("scripts")) / name


def preprocess(out):
    """The first words of a fairseq-preprocess command."""
    return [program("fairseq-preprocess"), "-s", "en", "-t", "de", "--destdir", out]


def stage(target, command):
    """Make the folder ``target`` unless it exists: ``command(folder)`` fills a temporary one, renamed at the end."""
    if target.exists():
        return
    print(f"corpus: making {target}", file=sys.stderr, flush=True)
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    done = subprocess.run(list(map(str, command(temporary))), capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        sys.exit(f"corpus: cannot make {target}: {last}")
    temporary.rename(target)


def join_pairs(pairs, length, count):
    """Join consecutive pairs into ``count`` long ones.

    Args:
        pairs: iterable of (source, target), each a list of tokens.
        length: tokens of each side of a result; what is beyond them is cut off.
        count: how many results; fewer where the pairs do not suffice.

    Returns:
        a list of (source, target).
    """
    joined, source, target = [], [], []
    for more_source, more_target in pairs:
        if len(joined) == count:
            break
        source, target = source + more_source, target + more_target
        if min(len(source), len(target)) >= length:
            joined.append((source[:length], target[:length]))
            source, target = [], []
    return joined


def write_long(subwords, out):
    """Write OUT/train.{en,de}: :data:`LONG_PAIRS` pairs of :data:`LONG_TOKENS` tokens, counting </s>."""
    sides = [(subwords / f"train.{language}").read_text("utf-8").split("\n") for language in ("en", "de")]
    pairs = ((source.split(), target.split()) for source, target in zip(*sides, strict=True))
    joined = join_pairs(pairs, LONG_TOKENS - 1, LONG_PAIRS)
    if len(joined) < LONG_PAIRS:
        sys.exit(f"corpus: {subwords} has text for {len(joined)} long pairs only, {LONG_PAIRS} are needed")
    out.mkdir(exist_ok=True)
    for language, lines in zip(("en", "de"), zip(*joined, strict=True), strict=True):
        (out / f"train.{language}").write_text("".join(f"{' '.join(line)}\n" for line in lines), "utf-8")


def spread(items, count):
    """Return ``count`` of ``items`` (all, where there are fewer), evenly spread, in order."""
    items = list(items)
    count = min(count, len(items))
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]


class Text:
    """One binarised set: lengths of its pairs, and its sentence numbers in batches as fairseq makes them.

    Args:
        data: folder of fairseq-preprocess.
        split: name of the set.
        numbers: the sentences to use; by default all.
    """

    def __init__(self, data, split, numbers=None):
        from fairseq import tasks

        import fairseq_rope  # noqa: F401  its batches hold every sentence

        task = tasks.setup_task(configure(Side(STOCK).flags(data, "tiny", "cpu")).task)
        task.load_dataset(split)
        self.dataset = task.dataset(split)
        self.numbers = None if numbers is None else set(numbers)

    def __len__(self):
        return len(self.dataset)

    def lengths(self, batch):
        """(source, target) lengths in tokens of these sentences."""
        sizes = self.dataset.src_sizes[batch].tolist(), self.dataset.tgt_sizes[batch].tolist()
        return list(zip(*sizes, strict=True))

    def batches(self, max_tokens=None, max_sentences=None, multiple=8):
        """Lists of sentence numbers, by length; fairseq's programs have multiples of 8 by default too."""
        order = self.dataset.ordered_indices()
        if self.numbers is not None:
            order = order[[number in self.numbers for number in order.tolist()]]
        made = self.dataset.batch_by_size(
            order, max_tokens=max_tokens, max_sentences=max_sentences, required_batch_size_multiple=multiple
        )
        return [[int(number) for number in batch] for batch in made]


def main():
    """Make the corpus and say where it is."""
    parser = Parser(description=__doc__)
    add_options(parser)
    args = parser.parse_args()
    corpus = prepare(args.work, args.data)
    print(f"{corpus.multi30k}\n{corpus.long}")


if __name__ == "__main__":
    main()
