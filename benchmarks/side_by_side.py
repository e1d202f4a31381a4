"""What the benchmarks share: sides in turn, medians with spreads, ratios, tables, reports, the machine's description.

A benchmark compares *sides* that do the same work. They run in turn (A B C A B C …), so that whatever else slows the
machine down hits all of them, and each round gives one ratio; the median of the ratios is reported with its quartiles.
Importing this module imports neither fairseq nor fairseq_rope: the process of a stock side must not be mended.
"""

import argparse
import datetime
import logging
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "out"
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def cores():
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def add_options(parser, rounds=10, warmup=1):
    """Add the options that all benchmarks share to an ``argparse`` parser, with these defaults."""
    group = parser.add_argument_group("all benchmarks")
    group.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="folder of the reports (default: %(default)s)"
    )
    group.add_argument("--rounds", type=positive, default=rounds, help="timed rounds (default: %(default)s)")
    group.add_argument("--warmup", type=natural, default=warmup, help="rounds before them (default: %(default)s)")
    group.add_argument(
        "--threads", type=positive, default=cores(), help="CPU threads a side (default: all, %(default)s)"
    )
    group.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    group.add_argument("--precision", choices=sorted(PRECISIONS), default="fp32", help="default: %(default)s")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help keeps the lines of the description."""

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def positive(text):
    """An ``argparse`` type: a whole number of at least 1."""
    return _whole_number(text, 1)


def natural(text):
    """An ``argparse`` type: a whole number of at least 0."""
    return _whole_number(text, 0)


def _whole_number(text, least):
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")
    return int(text)


def check_device(parser, args):
    """End the program with one line where ``--device`` or ``--out`` cannot be had here; set the threads."""
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; there is: --device cpu")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        writable = os.access(args.out, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:  # found before the work rather than after it
        parser.error(f"--out: cannot write into the folder {args.out}")
    torch.set_num_threads(args.threads)


def one_line_errors(main):
    """Call ``main`` as a program; what a user can cause ends it with one line and exit code 1, Ctrl-C with 130."""
    logging.disable(logging.INFO)  # fairseq tells about every dictionary and data set
    warnings.simplefilter("ignore")  # and hydra about itself
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except ValueError as error:
        if type(error).__name__ != "UserError":  # known by name, since its module is not imported before it is raised
            raise
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")


def synchronize():
    """Wait for the GPU, where this process uses one: until then its work is only enqueued."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def alternate(sides, rounds, warmup=1):
    """Time sides in turn, ``rounds`` times A B C.

    Args:
        sides: dict from name to a function without arguments.
        rounds: timed rounds.
        warmup: rounds before them, whose times are not kept.

    Returns:
        dict from name to a list of ``rounds`` wall-clock seconds.
    """
    seconds = {name: [] for name in sides}
    for turn in progress(range(-warmup, rounds), "rounds"):
        for name, side in sides.items():
            synchronize()
            begin = time.perf_counter()
            side()
            synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def progress(items, what):
    """Iterate over ``items`` with a bar on standard error."""
    return tqdm(items, desc=what, file=sys.stderr, mininterval=1, leave=False)


def summary(values):
    """Median and quartiles of at least one number: ``{"median", "low", "high"}``."""
    low, median, high = quartiles(values)
    return {"median": median, "low": low, "high": high}


def ratio(base, other):
    """How many times as fast as ``base`` is ``other``: median and quartiles of the rounds' ratios base/other.

    Args:
        base, other: seconds, one a round, of two sides that ran in turn. Above 1, ``other`` is faster.
    """
    if len(base) != len(other):
        raise ValueError(f"{len(base)} rounds of one side and {len(other)} of the other")
    return summary([b / o for b, o in zip(base, other, strict=True)])


def quartiles(values):
    """Lower quartile, median and upper quartile of at least one number, interpolated between neighbours."""
    values = sorted(values)
    if not values:
        raise ValueError("no value")
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def machine(args=None):
    """Describe the machine, the software and the commit.

    Args:
        args: options of :func:`add_options`, for the number of threads and the device; None for torch's own.

    Returns:
        dict from a readable name to text or a number.
    """
    described = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": cores(),
        "threads": getattr(args, "threads", torch.get_num_threads()),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "device": getattr(args, "device", "cpu"),
        "precision": getattr(args, "precision", "fp32"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": fairseq_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    return described


def cpu_model():
    """Name of the processor, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def fairseq_version():
    """Name and version of the installed fairseq distribution."""
    for name in ("ve-fairseq", "fairseq"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def commit(folder=ROOT):
    """The checkout's commit, with "+" where tracked files differ from it; "unknown" outside git."""
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return shown.stdout.strip()


def table(rows, columns=None):
    """Return a Markdown table.

    Args:
        rows: dicts. Values are text, numbers, booleans, None (empty) or dicts of :func:`summary`.
        columns: keys in the wanted order, or a dict from key to heading; by default all keys as they first appear.
    """
    if columns is None:
        columns = dict.fromkeys(key for row in rows for key in row)
    if not isinstance(columns, dict):
        columns = dict.fromkeys(columns)
    head = [str(heading or key).replace("_", " ") for key, heading in columns.items()]
    body = [[show(row.get(key)) for key in columns] for row in rows]
    right = [any(isinstance(row.get(key), (int, float, dict)) for row in rows) for key in columns]
    rule = ["---:" if aligned else "---" for aligned in right]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *body])


def show(value):
    """One cell of a table: four significant digits, thousands apart, a summary as ``median (low–high)``."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return f"{show(value['median'])} ({show(value['low'])}–{show(value['high'])})"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value == 0 or not math.isfinite(value):
            return f"{value:g}"
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:,.{min(digits, 6)}f}"
    return str(value).replace("|", "\\|")


def command_line():
    """The command as it was typed, with the benchmark's path from the repository's root."""
    program = os.path.relpath(sys.argv[0] or "benchmark", ROOT)
    return shlex.join(["python", program, *sys.argv[1:]])


def write_report(path_stem, title, command, rows, machine, notes=(), columns=None, quiet=False):
    """Write ``path_stem``.json and ``path_stem``.md, each whole or not at all; print the table unless ``quiet``.

    Args:
        path_stem: path without ending; its folder is made.
        title: heading.
        command: how to run it again (see :func:`command_line`).
        rows, columns: as for :func:`table`; the JSON file holds the rows unrounded.
        machine: dict of :func:`machine`.
        notes: lines below the table, such as the floor and what the rest of the time is made of.

    Raises:
        UserError: the files cannot be written.
    """
    from fairseq_rope.errors import UserError
    from fairseq_rope.files import replacing, write_json  # late: this import mends fairseq

    path_stem = Path(path_stem)
    try:
        path_stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path_stem.parent}: {error.strerror or error}") from error
    shown = table(rows, columns)
    content = {"title": title, "command": command, "machine": machine, "rows": rows, "notes": list(notes)}
    write_json(f"{path_stem}.json", content)
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if value is not None)
    parts = [f"# {title}", f"`{command}`", about, shown, *(note.rstrip() for note in notes)]
    with replacing(f"{path_stem}.md") as file:
        file.write("\n\n".join(parts) + "\n")
    if not quiet:
        print("\n\n".join(["", title, shown, *(note.rstrip() for note in notes)]))
        print(f"\nwritten: {path_stem}.md, {path_stem}.json", flush=True)
