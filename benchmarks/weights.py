"""Weights for translating: a model that has never been trained never ends a sentence.

`baseline` is trained first, by fairseq-train (resumable, its progress is shown); the other families take its weights
and train a few updates more, with what is new in them at its initial values (ADMIN's omegas 1). All are kept under
WORK: ck/baseline is fairseq-train's folder, weights/*.pt are files of plain tensors, which stock loads too.
"""

import random
import re
import subprocess
import sys

import corpus
import torch
from side_by_side import progress
from sides import Side

TRAINING = {
    "max_tokens": 1500, "lr": 5e-4, "lr_scheduler": "inverse_sqrt", "warmup_updates": 300, "clip_norm": 1.0,
    "dropout": 0.0, "seed": 1,
}  # fmt: skip
BASE = "baseline"


def name_of(family, size):
    """How the files of a family are called: the size is named where it is not the usual one."""
    return family if size == "wmt" else f"{family}_{size}"


def updates_of(checkpoint):
    """Number of updates of a checkpoint of fairseq's; 0 where there is none."""
    from fairseq_rope.compat.checkpoints import load_state

    if not checkpoint.exists():
        return 0
    return load_state(checkpoint, mmap=True)["optimizer_history"][-1]["num_updates"]


def plain(checkpoint, path):
    """Write the parameters of a checkpoint of fairseq's as a file of plain tensors."""
    from fairseq_rope.compat.checkpoints import load_state

    save({key: value.clone() for key, value in load_state(checkpoint, mmap=True)["model"].items()}, path)


def save(tensors, path):
    """Write a dict of tensors; the file appears whole."""
    from fairseq_rope.files import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, "wb") as file:
        torch.save(tensors, file)


def train_base(args, folders):
    """Train ``baseline`` for ``args.train_updates`` updates, unless that was done; returns its file of weights.

    Args:
        args: with ``work``, ``size``, ``device``, ``threads``, ``train_updates``.
        folders: a :class:`corpus.Corpus`.

    Raises:
        SystemExit: fairseq-train failed.
    """
    work = args.work.resolve()
    folder = work / "ck" / name_of(BASE, args.size)
    last = folder / "checkpoint_last.pt"
    path = work / "weights" / f"{name_of(BASE, args.size)}.{args.train_updates}.pt"
    if path.exists():
        return path
    if updates_of(last) < args.train_updates:
        flags = Side(BASE).flags(
            folders.multi30k, args.size, args.device, max_update=args.train_updates, save_dir=folder,
            save_interval_updates=max(1, args.train_updates // 2), keep_interval_updates=2, log_format="simple",
            log_interval=20, **TRAINING,
        )  # fmt: skip
        flags += ["--no-epoch-checkpoints", "--disable-validation"]
        print(f"weights: training {BASE} for {args.train_updates} updates into {folder}", file=sys.stderr, flush=True)
        run_training(flags)
    plain(last, path)
    return path


def run_training(flags):
    """fairseq-train in a process of its own; shows its progress on standard error."""
    command = [str(corpus.program("fairseq-train")), *flags]
    latest = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            latest = line.strip() or latest
            if re.search(r"num_updates=|done training|rror", line):
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        sys.exit(f"weights: fairseq-train failed: {latest}")


def adapt(args, folders, family, base, start):
    """Train ``family`` from the weights in the file ``base`` for ``args.adapt_updates`` updates, unless that was done.

    Args:
        start: how a side is started (``worker.Process``).

    Returns:
        the file of weights.
    """
    if family == BASE:
        return base
    path = (
        args.work.resolve() / "weights" / f"{name_of(family, args.size)}.{args.train_updates}+{args.adapt_updates}.pt"
    )
    if path.exists():
        return path
    settings = {**TRAINING, "warmup_updates": max(1, args.adapt_updates // 4)}
    flags = Side(family).flags(folders.multi30k, args.size, args.device, **settings)
    batches = corpus.Text(folders.multi30k, "train").batches(max_tokens=TRAINING["max_tokens"])
    random.Random(TRAINING["seed"]).shuffle(batches)
    side = start("training", {"flags": flags, "weights": str(base)}, args.threads)
    try:
        for number in progress(range(args.adapt_updates), f"adapting {family}"):
            side.step(batches[number % len(batches)])
        temporary = path.with_name(f".{path.name}.tmp")
        side.save(str(temporary))
    finally:
        side.close()
    temporary.replace(path)
    return path
