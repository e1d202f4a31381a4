"""Averaging checkpoints: `fairseq-rope-average` against loading each whole and summing, seconds and memory.

    python benchmarks/averaging.py                       # 5 and 10 checkpoints of _wmt size: about four minutes
    python benchmarks/averaging.py --counts 5 --rounds 3

What is measured: real checkpoints of `baseline_wmt` with Multi30k's dictionary and Adam's state (0.6 GB each), written
by fairseq's Trainer, all in the page cache. The usual way loads every checkpoint whole, sums the parameters in their
own type, divides them, and saves the first checkpoint with them, optimiser state included. Each average is a process of
its own, the two in turn; its seconds are those of averaging and saving, without the start of Python; its memory is the
largest resident size meanwhile, and the growth above the process just before (pages of a mapped file count as resident,
although the system can take them back at any time).

The checkpoints (6 GB under --work) are removed at the end, unless --keep is given; those that are there are used.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import corpus
import memory
import side_by_side
from sides import SIZES, Side
from worker import Process

FAMILY = "baseline"
WAYS = ("usual", "ours")


def parser():
    """Return the argument parser."""
    p = side_by_side.Parser(description=__doc__)
    p.add_argument(
        "--counts", nargs="+", type=side_by_side.positive, default=[5, 10], help="checkpoints averaged (default: 5 10)"
    )
    p.add_argument("--size", choices=sorted(SIZES), default="wmt", help="of the model (default: %(default)s)")
    p.add_argument("--keep", action="store_true", help="keep the checkpoints for another run")
    corpus.add_options(p)
    side_by_side.add_options(p, rounds=5)
    return p


def usual(paths, output):
    """The usual way: every checkpoint whole in memory, sums in the parameters' own type."""
    import torch

    from fairseq_rope.compat.checkpoints import load_state

    total = None
    for path in paths:
        state = load_state(path)
        if total is None:
            total, first = {key: value.clone() for key, value in state["model"].items()}, state
        else:
            for key, value in state["model"].items():
                total[key] += value
    for value in total.values():
        if value.is_floating_point():
            value /= len(paths)
        else:
            value //= len(paths)
    first["model"] = total
    torch.save(first, output)


def ours(paths, output):
    """fairseq-rope-average as a user calls it."""
    from fairseq_rope.cli import average

    argv, sys.argv = sys.argv, ["fairseq-rope-average", "--inputs", *paths, "--output", output]
    stdout, sys.stdout = sys.stdout, sys.stderr  # its table of checkpoints
    try:
        average.main()
    finally:
        sys.argv, sys.stdout = argv, stdout


def average_once(way, paths, output):
    """Average in this process; returns seconds, and peak and growth of resident memory in bytes."""
    from fairseq_rope.cli import average  # noqa: F401  imported before the clock starts

    before = memory.resident()
    memory.reset_peak()
    begin = time.perf_counter()
    {"usual": usual, "ours": ours}[way](paths, output)
    seconds = time.perf_counter() - begin
    peak = memory.peak()
    return {"seconds": seconds, "peak": peak, "growth": peak - before}


def average_in_process(way, paths, output, threads):
    """:func:`average_once` in a process of its own."""
    code = "import json, sys, averaging as a; print(json.dumps(a.average_once(sys.argv[1], sys.argv[3:], sys.argv[2])))"
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", code, way, str(output), *map(str, paths)],
        cwd=Path(__file__).parent, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"averaging: the {way} way failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def make_checkpoints(folder, data, size, count, threads, start=Process):
    """Write checkpoint1.pt … of consecutive updates into ``folder``, those that are missing; returns their paths."""
    paths = [folder / f"checkpoint{number}.pt" for number in range(1, count + 1)]
    missing = [path for path in paths if not path.exists()]
    if not missing:
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    batches = corpus.Text(data, "train").batches(max_tokens=200)
    side = start("training", {"flags": Side(FAMILY).flags(data, size, "cpu")}, threads)
    try:
        for number, path in enumerate(side_by_side.progress(missing, "writing checkpoints")):
            side.step(batches[number % len(batches)])
            temporary = path.with_name(f".{path.name}.tmp")
            side.checkpoint(str(temporary))
            temporary.replace(path)
    finally:
        side.close()
    return paths


def measure(paths, folder, rounds, warmup, threads, average=average_in_process):
    """Average ``paths`` in both ways in turn.

    Returns:
        dict from way to a list of what ``average`` returned, one a round.
    """
    for path in paths:  # into the page cache
        with open(path, "rb") as file:
            while file.read(2**24):
                pass
    results = {way: [] for way in WAYS}
    for turn in side_by_side.progress(range(-warmup, rounds), f"{len(paths)} checkpoints"):
        for way in WAYS:
            output = folder / f"average-{way}.pt"
            output.unlink(missing_ok=True)
            done = average(way, list(map(str, paths)), str(output), threads)
            if turn >= 0:
                results[way].append(done)
    return results


def rows_of(count, results):
    """Rows of the table: both ways for ``count`` checkpoints."""
    usual_seconds = [one["seconds"] for one in results["usual"]]
    usual_growth = max(one["growth"] for one in results["usual"])
    rows = []
    for way, found in results.items():
        seconds, growth = [one["seconds"] for one in found], max(one["growth"] for one in found)
        rows.append({
            "checkpoints": count,
            "way": "fairseq-rope-average" if way == "ours" else "whole checkpoints, summed",
            "seconds": side_by_side.summary(seconds),
            "speed_to_usual": side_by_side.ratio(usual_seconds, seconds),
            "peak_gb": max(one["peak"] for one in found) / 1e9,
            "growth_gb": growth / 1e9,
            "growth_to_usual": growth / usual_growth if usual_growth else None,
        })  # fmt: skip
    return rows


def floor_note(path, count):
    """The floor in words: what has to be read and written at least."""
    import torch

    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    model = sum(tensor.nbytes for tensor in {t.data_ptr(): t for t in state["model"].values()}.values())
    needed, written, stored = (number / 1e9 for number in (count * model, model, count * path.stat().st_size))
    return (
        f"Floor: the parameters of {count} checkpoints, {needed:.2f} GB, have to be read and {written:.2f} GB written; "
        f"{count} whole files with Adam's state are {stored:.2f} GB."
    )


def run(args, data, start=Process, average=average_in_process):
    """Measure all counts; writes the report and returns its rows."""
    from fairseq_rope.cli import average as _  # noqa: F401  its import lets torch load fairseq's checkpoints

    folder = args.work.resolve() / f"averaging-{args.size}"
    rows, notes = [], []
    try:
        paths = make_checkpoints(folder, data, args.size, max(args.counts), args.threads, start)
        for count in args.counts:
            notes.append(floor_note(paths[0], count))
            print(notes[-1], flush=True)
            rows += rows_of(count, measure(paths[:count], folder, args.rounds, args.warmup, args.threads, average))
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    title, command = "Averaging checkpoints", side_by_side.command_line()
    side_by_side.write_report(args.out / "averaging", title, command, rows, side_by_side.machine(args), notes)
    return rows


def main(argv=None):
    """Run the benchmark."""
    p = parser()
    args = p.parse_args(argv)
    if args.device != "cpu" or args.precision != "fp32":
        p.error("averaging runs on the CPU, in the precision of the checkpoints: leave --device and --precision out")
    side_by_side.check_device(p, args)
    run(args, corpus.prepare(args.work, args.data).multi30k)


if __name__ == "__main__":
    side_by_side.one_line_errors(main)
