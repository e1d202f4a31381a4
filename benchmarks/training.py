"""Training: words a second and memory of this package's models against stock fairseq's `--arch transformer`.

    python benchmarks/training.py                                          # everything: about 25 minutes on two cores
    python benchmarks/training.py --families roformer --settings multi30k --rounds 5                     # two minutes
    python benchmarks/training.py --families baseline baseline@../before   # this checkout against another one

What is measured: fairseq's own `Trainer.train_step` (forward, backward, Adam) from a collated batch on, 6+6 layers,
width 512, Multi30k's 8,000 subwords, dropout .1, shared embeddings, label smoothing .1. Two settings: `multi30k`,
batches of real captions; `long`, pairs of 400 tokens on each side. Each side is a process of its own; they take the
same batches in turn, one process at a time, with the same seed. Reported: target words (subwords) a second; the ratio
to stock, median and quartiles of the batches' ratios (above 1: faster); the most memory during the timed updates, whole
process and growth above the process before it had a model (on a GPU: what torch allocated there).

Rows are written as soon as a family is done; --resume keeps those that an earlier run of the same options has written.
"""

import argparse
import contextlib
import json
import random
import statistics
import sys

import corpus
import floor
import profiling
import side_by_side
from sides import CRITERION, FAMILIES, SIZES, STOCK, Side
from worker import Process

CRITERIA = (CRITERION, f"{CRITERION}_chunked")
SETTINGS = ("multi30k", "long")
MAX_TOKENS = {"cpu": 2000, "cuda": 8192}


def parser():
    """Return the argument parser."""
    p = side_by_side.Parser(description=__doc__)
    p.add_argument(
        "--families", nargs="+", type=known, default=list(FAMILIES), metavar="SIDE",
        help="FAMILY or FAMILY@PATH, as another checkout of this package has it (default: all six)",
    )  # fmt: skip
    p.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, help="default: both")
    p.add_argument(
        "--criterion", nargs="+", default=list(CRITERIA), choices=CRITERIA, help="of our sides (default: both)"
    )
    p.add_argument("--max-tokens", type=side_by_side.positive, help="a batch (default: 2000, on a GPU 8192)")
    p.add_argument("--size", choices=sorted(SIZES), default="wmt", help="of the models (default: %(default)s)")
    p.add_argument("--dropout", type=float, default=0.1, help="default: %(default)s")
    p.add_argument(
        "--seed", type=int, default=1, help="of weights, dropout and choice of batches (default: %(default)s)"
    )
    p.add_argument("--resume", action="store_true", help="keep the rows that an earlier run has written")
    p.add_argument("--no-profile", action="store_true", help="leave out where the time goes")
    corpus.add_options(p)
    side_by_side.add_options(p)
    return p


def known(text):
    """An ``argparse`` type: a side of this package, or of another checkout of it."""
    if Side.parse(text).family == STOCK:
        raise argparse.ArgumentTypeError(f"'{STOCK}' is always measured; there are: {', '.join(FAMILIES)}")
    return text


def choose_batches(text, max_tokens, count, seed):
    """``count`` batches of ``text`` (a :class:`corpus.Text`), chosen at random by ``seed``.

    Raises:
        SystemExit: there are fewer.
    """
    batches = text.batches(max_tokens=max_tokens)
    if len(batches) < count:
        sys.exit(f"training: there are only {len(batches)} batches of {max_tokens} tokens, {count} are needed")
    return random.Random(seed).sample(batches, count)


def measure(stock, sides, batches, warmup):
    """Give each of ``batches`` to every side in turn.

    Args:
        stock, sides: a running side, and a dict from name to further ones.
        batches: lists of sentence numbers; the first ``warmup`` are not timed.

    Returns:
        dict from name (stock's too) to a dict with ``seconds`` and ``tokens``, one a timed batch, and ``peak``.
    """
    running = {STOCK: stock, **sides}
    results = {name: {"seconds": [], "tokens": []} for name in running}
    for turn, batch in enumerate(side_by_side.progress(batches, " ".join(sides))):
        for name, side in running.items():
            if turn == warmup:
                side.reset_peak()
            done = side.step(batch)
            if turn >= warmup:
                results[name]["seconds"].append(done["seconds"])
                results[name]["tokens"].append(done["tokens"])
    for name, side in running.items():
        results[name]["peak"] = side.peak()
    return results


def rows_of(setting, results, least):
    """Rows of the table: stock and each side of one family in one setting.

    Args:
        setting: its name.
        results: of :func:`measure`.
        least: seconds of stock's floor.
    """
    stock, rows = results[STOCK], []
    for name, result in results.items():
        peak = result["peak"]
        rows.append({
            "setting": setting,
            "side": name,
            "seconds_an_update": side_by_side.summary(result["seconds"]),
            "times_the_floor": statistics.fmean(result["seconds"]) / least,
            "words_a_second": round(sum(result["tokens"]) / sum(result["seconds"])),
            "speed_to_stock": side_by_side.ratio(stock["seconds"], result["seconds"]),
            "peak_gb": peak["total"] / 1e9,
            "peak_to_stock": share(peak["total"], stock["peak"]["total"]),
            "growth_gb": peak["growth"] / 1e9,
            "growth_to_stock": share(peak["growth"], stock["peak"]["growth"]),
        })  # fmt: skip
    return rows


def share(part, whole):
    """``part`` / ``whole``, None where the system does not tell memory."""
    return part / whole if whole else None


def mean_work(sizes, text, batches):
    """Operations and bytes of one update, the mean of ``batches``: see :func:`floor.training`."""
    work = [floor.training(sizes, text.lengths(batch)) for batch in batches]
    return [sum(part) / len(work) for part in zip(*work, strict=True)]


def profile_note(setting, sides, batch):
    """Where the time of one more update of each side goes, as text."""
    profiles = {name: side.profile(batch) for name, side in sides.items()}
    shown = side_by_side.table(profiling.rows(profiles))
    return f"Seconds of one update, {setting}, under the profiler:\n\n{shown}"


def run(args, folders, start=Process):
    """Measure all settings and families; writes the report after each family and returns its rows.

    Args:
        args: of :func:`parser`.
        folders: a :class:`corpus.Corpus`.
        start: how a side is started: ``worker.Process`` or, in tests, ``worker.Local``.
    """
    max_tokens = args.max_tokens or MAX_TOKENS[args.device]
    report = Report(args, max_tokens)
    speed = floor.peaks(args.device, args.precision)
    for setting in args.settings:
        families = [family for family in args.families if not report.has(setting, family)]
        if not families:
            continue
        data = getattr(folders, setting)
        text = corpus.Text(data, "train")
        batches = choose_batches(text, max_tokens, args.warmup + args.rounds, args.seed)

        def open_side(side, data=data):
            flags = side.flags(data, args.size, args.device, args.precision, args.dropout, args.seed, max_tokens)
            return start("training", {"flags": flags, "precision": args.precision}, args.threads)

        with contextlib.ExitStack() as stack:
            stock = stack.enter_context(contextlib.closing(open_side(Side(STOCK))))
            work = mean_work(stock.about(), text, batches[args.warmup :])
            least = floor.seconds(*work, speed)
            print(floor.sentence(*work, speed, f"an update of stock's, {setting}"), flush=True)
            for family in families:
                # two or three processes at a time: a machine's memory does not hold all families at once
                with contextlib.ExitStack() as these:
                    sides = {}
                    for criterion in args.criterion:
                        side = Side.parse(family, criterion)
                        sides[side.name] = these.enter_context(contextlib.closing(open_side(side)))
                    results = measure(stock, sides, batches, args.warmup)
                    notes = [floor.sentence(*work, speed, f"an update of stock's, {setting}, beside {family}")]
                    if not args.no_profile:
                        notes.append(profile_note(setting, {STOCK: stock, **sides}, batches[-1]))
                    report.add(setting, family, rows_of(setting, results, least), notes)
    return report.write()


class Report:
    """The rows so far, written after each family.

    Args:
        args: of :func:`parser`.
        max_tokens: of a batch.
    """

    def __init__(self, args, max_tokens):
        kind = "" if (args.device, args.precision) == ("cpu", "fp32") else f"-{args.device}-{args.precision}"
        self.args, self.stem = args, args.out / f"training{kind}"
        self.parts_path = self.stem.with_name(f"{self.stem.name}.parts.json")
        names = ("size", "dropout", "seed", "rounds", "warmup", "threads", "device", "precision", "criterion")
        self.options = {**{name: getattr(args, name) for name in names}, "max_tokens": max_tokens}
        self.parts = []
        if args.resume and self.parts_path.is_file():
            earlier = json.loads(self.parts_path.read_text("utf-8"))
            if earlier["options"] != self.options:
                sys.exit(f"training: --resume: {self.parts_path} is of other options: {earlier['options']}")
            self.parts = earlier["parts"]

    def has(self, setting, family):
        """Say whether this family has been measured in this setting."""
        return any((part["setting"], part["family"]) == (setting, family) for part in self.parts)

    def add(self, setting, family, rows, notes):
        """Take one family's rows and notes, show them, and write everything so far."""
        self.parts.append({"setting": setting, "family": family, "rows": rows, "notes": notes})
        print("\n".join([side_by_side.table(rows), "", *notes]), flush=True)
        self.write(quiet=True)

    def write(self, quiet=False):
        """Write the report, print it unless ``quiet``; returns its rows."""
        from fairseq_rope.files import write_json

        rows = [row for part in self.parts for row in part["rows"]]
        notes = [note for part in self.parts for note in part["notes"]]
        title = f"Training beside stock fairseq, --max-tokens {self.options['max_tokens']}"
        machine = side_by_side.machine(self.args)
        side_by_side.write_report(self.stem, title, side_by_side.command_line(), rows, machine, notes, quiet=quiet)
        write_json(self.parts_path, {"options": self.options, "parts": self.parts})
        return rows


def main(argv=None):
    """Run the benchmark."""
    p = parser()
    args = p.parse_args(argv)
    side_by_side.check_device(p, args)
    if args.device == "cpu" and args.precision == "fp16":
        p.error("--precision fp16 needs --device cuda: fairseq trains in fp16 on a GPU only")
    run(args, corpus.prepare(args.work, args.data))


if __name__ == "__main__":
    side_by_side.one_line_errors(main)
