"""Translating: sentences a second of this package's models against stock fairseq's, through stock's own beam search.

    python benchmarks/decoding.py                                          # everything: about half an hour on two cores
    python benchmarks/decoding.py --families roformer --settings 32 --sentences 64      # two minutes, weights at hand
    python benchmarks/decoding.py --families baseline baseline@../before   # this checkout against another one

What is measured: `fairseq-generate --beam 4 --lenpen 0.6` as fairseq's translation task builds and calls it, from a
collated batch to the finished hypotheses: 6+6 layers, width 512, Multi30k's test_2016 (8,000 subwords, the sentences
spread evenly over the set). Settings: batches of `1` and `32` sentences; `default`, fairseq-generate's own 12,000
tokens; `equal`, the same with hypotheses of exactly 16 tokens, so that families whose weights differ do the same work;
`long`, four sources of 400 tokens and hypotheses of exactly 400. Each side is a process of its own; all take
the same batches in turn, one process at a time. Stock has the weights of `baseline`, so those two must find the same
hypotheses, and so must FAMILY and FAMILY@PATH; the table says how many sentences agree (best hypothesis; whole beam).

The first run prepares the corpus and trains the weights (`--train-updates`, half an hour on two cores for the default;
then `--adapt-updates` for each other family, two minutes); both are kept under --work and resumed.
"""

import contextlib
import statistics

import corpus
import floor
import profiling
import side_by_side
import weights
from sides import FAMILIES, SIZES, STOCK, Side
from training import known
from worker import Process

SETTINGS = ("1", "32", "default", "equal", "long")
EQUAL_TOKENS = 16  # about the length of a caption
LONG_SENTENCES = 4
DEFAULT_TOKENS = 12_000


def parser():
    """Return the argument parser."""
    p = side_by_side.Parser(description=__doc__)
    p.add_argument(
        "--families", nargs="+", type=known, default=list(FAMILIES), metavar="SIDE",
        help="FAMILY or FAMILY@PATH, as another checkout of this package has it (default: all six)",
    )  # fmt: skip
    p.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, help="default: all five")
    p.add_argument("--sentences", type=side_by_side.positive, default=200, help="of test_2016 (default: %(default)s)")
    p.add_argument("--beam", type=side_by_side.positive, default=4, help="default: %(default)s")
    p.add_argument("--lenpen", type=float, default=0.6, help="default: %(default)s")
    p.add_argument(
        "--max-len-b", type=side_by_side.positive, default=200,
        help="longest hypothesis, fairseq-generate's default: %(default)s (the setting long has its own)",
    )  # fmt: skip
    p.add_argument(
        "--train-updates", type=side_by_side.positive, default=700, help="of baseline (default: %(default)s)"
    )
    p.add_argument(
        "--adapt-updates", type=side_by_side.positive, default=60, help="of the others (default: %(default)s)"
    )
    p.add_argument("--size", choices=sorted(SIZES), default="wmt", help="of the models (default: %(default)s)")
    p.add_argument("--no-profile", action="store_true", help="leave out where the time goes")
    corpus.add_options(p)
    side_by_side.add_options(p, rounds=3)
    return p


def plan(setting, folders, sentences):
    """What a setting translates.

    Returns:
        (data folder, set, batches of sentence numbers, further flags of fairseq-generate)
    """
    if setting == "long":
        text = corpus.Text(folders.long, "train", range(LONG_SENTENCES))
        tokens = corpus.LONG_TOKENS
        return folders.long, "train", text.batches(max_sentences=LONG_SENTENCES), of_length(tokens)
    every = corpus.Text(folders.multi30k, "test")
    text = corpus.Text(folders.multi30k, "test", corpus.spread(range(len(every)), sentences))
    if setting in ("1", "32"):
        return folders.multi30k, "test", text.batches(max_sentences=int(setting)), []
    search = of_length(EQUAL_TOKENS) if setting == "equal" else []
    return folders.multi30k, "test", text.batches(max_tokens=DEFAULT_TOKENS), search


def of_length(tokens):
    """Flags for hypotheses of exactly ``tokens`` tokens; fairseq does not count </s>."""
    return ["--min-len", str(tokens - 1), "--max-len-b", str(tokens - 1)]


def measure(sides, batches, rounds, warmup):
    """Give each batch to every side in turn, all batches again until there are at least ``rounds`` rounds.

    Args:
        sides: dict from name to a running side.
        batches: lists of sentence numbers.
        warmup: how many batches to translate before, the first ones.

    Returns:
        dict from name to a dict with ``seconds`` and ``work``, one a round, ``sentences``, their number, and
        ``tokens``, from sentence to hypotheses.
    """
    order = [batches[number % len(batches)] for number in range(warmup)]
    order += batches * max(1, -(-rounds // len(batches)))
    results = {name: {"seconds": [], "tokens": {}, "sentences": 0, "work": []} for name in sides}
    for turn, batch in enumerate(side_by_side.progress(order, "batches")):
        for name, side in sides.items():
            done = side.step(batch)
            if turn >= warmup:
                results[name]["seconds"].append(done["seconds"])
                results[name]["sentences"] += len(batch)
                results[name]["work"].append(done["work"])
                results[name]["tokens"].update(zip(batch, done["tokens"], strict=True))
    return results


def rows_of(setting, results):
    """Rows of the table, one a side.

    Args:
        setting: its name.
        results: of :func:`measure`.
    """
    rows = []
    for name, result in results.items():
        found = result["tokens"]
        peer = results.get(peer_of(name, results), {}).get("tokens")
        best = [hypotheses[0] for hypotheses in found.values()]
        rows.append({
            "setting": setting,
            "side": name,
            "rounds": len(result["seconds"]),
            "sentences_a_second": result["sentences"] / sum(result["seconds"]),
            "speed_to_stock": side_by_side.ratio(results[STOCK]["seconds"], result["seconds"]),
            "tokens_a_hypothesis": statistics.fmean(map(len, best)),
            "same_as": peer_of(name, results),
            "best_the_same": peer and f"{agreeing(found, peer, 1)} of {len(found)}",
            "beam_the_same": peer and f"{agreeing(found, peer, None)} of {len(found)}",
        })  # fmt: skip
    return rows


def peer_of(name, names):
    """The side whose hypotheses ``name`` must find too, or None: stock for baseline, FAMILY for FAMILY@PATH."""
    if name == "baseline":
        return STOCK
    family, at, _ = name.partition("@")
    return family if at and family in names else None


def agreeing(found, peer, count):
    """Number of sentences whose first ``count`` hypotheses (None: all) are the same tokens."""
    return sum(hypotheses[:count] == peer[number][:count] for number, hypotheses in found.items())


def notes_of(setting, results, sizes, speed, itemsize):
    """The floor of one setting in words, stock's and baseline's alike: of all timed batches together."""
    work = [floor.decoding(sizes, itemsize=itemsize, **one) for one in results[STOCK]["work"]]
    operations, moved = (sum(part) for part in zip(*work, strict=True))
    steps = sum(one["steps"] for one in results[STOCK]["work"])
    what = f"setting {setting}, {len(work)} batches, {steps} steps of stock's decoder"
    least, taken = floor.seconds(operations, moved, speed), sum(results[STOCK]["seconds"])
    return f"{floor.sentence(operations, moved, speed, what)} Stock took {taken:.3g} s, {taken / least:.1f} times that."


def profile_note(setting, sides, batch):
    """Where the time of one more batch goes, stock and the first side of this package, as text."""
    profiles = {name: sides[name].profile(batch) for name in list(sides)[:2]}
    shown = side_by_side.table(profiling.rows(profiles))
    return f"Seconds of a batch of {len(batch)} sentences, setting {setting}, under the profiler:\n\n{shown}"


def run(args, folders, start=Process):
    """Measure all settings; writes the report after each and returns its rows.

    Args:
        args: of :func:`parser`.
        folders: a :class:`corpus.Corpus`.
        start: how a side is started: ``worker.Process`` or, in tests, ``worker.Local``.
    """
    base = weights.train_base(args, folders)
    sides = {STOCK: Side(STOCK), **{side.name: side for side in map(Side.parse, args.families)}}
    files = {
        name: base if name == STOCK else weights.adapt(args, folders, side.family, base, start)
        for name, side in sides.items()
    }
    speed, itemsize = floor.peaks(args.device, args.precision), side_by_side.PRECISIONS[args.precision].itemsize
    rows, notes = [], []
    kind = "" if (args.device, args.precision) == ("cpu", "fp32") else f"-{args.device}-{args.precision}"
    title = f"fairseq-generate --beam {args.beam} --lenpen {args.lenpen} beside stock fairseq"
    stem = args.out / f"decoding{kind}"
    for group in (("1", "32", "default"), ("equal",), ("long",)):  # what one process can do
        settings = [setting for setting in args.settings if setting in group]
        with contextlib.ExitStack() as stack:
            running = {}
            for setting in settings:
                data, split, batches, further = plan(setting, folders, args.sentences)
                search = ["--beam", str(args.beam), "--lenpen", str(args.lenpen)]
                search += further or ["--max-len-b", str(args.max_len_b)]
                for name, side in sides.items() if not running else ():
                    options = {
                        "flags": side.flags(data, args.size, args.device), "split": split, "weights": str(files[name]),
                        "search": search, "device": args.device, "precision": args.precision,
                    }  # fmt: skip
                    running[name] = stack.enter_context(contextlib.closing(start("decoding", options, args.threads)))
                results = measure(running, batches, args.rounds, args.warmup)
                more = rows_of(setting, results)
                rows += more
                notes.append(notes_of(setting, results, running[STOCK].about(), speed, itemsize))
                # torch needs minutes to read the profile of the 400 steps of `long`
                if not args.no_profile and setting != "long":
                    notes.append(profile_note(setting, running, batches[len(batches) // 2]))
                print("\n".join([side_by_side.table(more), "", *notes[-2:], ""]), flush=True)
                machine, command = side_by_side.machine(args), side_by_side.command_line()
                side_by_side.write_report(stem, title, command, rows, machine, notes, quiet=True)
    print(f"written: {stem}.md, {stem}.json", flush=True)
    return rows


def main(argv=None):
    """Run the benchmark."""
    p = parser()
    args = p.parse_args(argv)
    side_by_side.check_device(p, args)
    run(args, corpus.prepare(args.work, args.data))


if __name__ == "__main__":
    side_by_side.one_line_errors(main)
