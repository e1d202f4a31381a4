"""``fairseq-rope-average``: the mean of several checkpoints as one checkpoint."""

import os
from pathlib import Path

import torch
from tqdm import tqdm

from fairseq_rope.averaging import average_checkpoints, check_weights, load_mapped
from fairseq_rope.checkpoint_files import choose
from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable, replacing, same_file

PROG = "fairseq-rope-average"


def parser():
    """Return the argument parser: the flags of fairseq's script, and ``--weights`` and ``--dtype``."""
    p = Parser(
        prog=PROG,
        description="Average the parameters of fairseq checkpoints. The result has no optimiser state; it "
        "loads in fairseq-generate, and in fairseq-train by --restore-file with --reset-optimizer.",
    )
    p.add_argument("--inputs", nargs="+", required=True, metavar="PATH", help="checkpoint files, or one folder")
    p.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")
    which = p.add_mutually_exclusive_group()
    which.add_argument(
        "--num-epoch-checkpoints", type=int, metavar="N", help="the folder's last N of checkpoint<EPOCH>.pt"
    )
    which.add_argument(
        "--num-update-checkpoints",
        type=int,
        metavar="N",
        help="the folder's last N of checkpoint_<EPOCH>_<UPDATE>.pt (--save-interval-updates)",
    )
    which.add_argument(
        "--num-best-checkpoints",
        type=int,
        metavar="N",
        help="the best N of checkpoint.best_<METRIC>_<VALUE>.pt (--keep-best-checkpoints), in the folder or "
        "among the files given; whether a higher value is better is read from the checkpoint",
    )
    p.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="M",
        help="no epoch (or update, as chosen) beyond M",
    )
    p.add_argument(
        "--weights",
        nargs="+",
        type=float,
        metavar="W",
        help="one non-negative weight a checkpoint, in the order of the files given, or latest (best) first "
        "for those found in a folder, as the table shows; they are divided by their sum (default: equal)",
    )
    p.add_argument(
        "--dtype",
        choices=["float64", "float32"],
        default="float64",
        help="type of the sums, whatever type is stored (default: %(default)s; float32 needs less memory)",
    )
    return p


def table(infos, weights=None):
    """Return what was averaged as aligned lines: file, epoch, update, validation figure, any weight."""
    header = ["file", "epoch", "update", "valid"]
    rows = [
        [
            info.name,
            _or_dash(info.epoch),
            _or_dash(info.update),
            "-" if info.value is None else f"{info.metric} {info.value:.3f}",
        ]
        for info in infos
    ]
    if weights is not None:
        total = sum(weights)
        header.append("weight")
        rows = [[*row, f"{weight / total:.4f}"] for row, weight in zip(rows, weights, strict=True)]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in [header, *rows]
    )


def save(state, path):
    """Write a checkpoint whole or not at all; raises :class:`UserError` if it cannot be written."""
    with replacing(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch's own writer reports a full disk this way
            raise UserError(f"cannot write {path}: {error}") from error


def main(argv=None):
    """Entry point of ``fairseq-rope-average``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        check_writable(args.output)
        paths = choose(
            args.inputs,
            epochs=args.num_epoch_checkpoints,
            updates=args.num_update_checkpoints,
            best=args.num_best_checkpoints,
            upper_bound=args.checkpoint_upper_bound,
            load=load_mapped,
        )
        for path in paths:
            if not Path(path).is_file():
                raise UserError(f"there is no checkpoint {path}")
            if same_file(path, args.output):
                raise UserError(f"--output {args.output} is one of the checkpoints to average: choose another name")
        weights = args.weights and check_weights(args.weights, len(paths))
        # The bar is closed before an error is printed, so that the error has a line of its own.
        with tqdm(desc="averaging", total=len(paths), unit="checkpoint") as bar:
            state, infos = average_checkpoints(
                paths, weights, getattr(torch, args.dtype), progress=lambda paths: _advancing(bar, paths)
            )
        print(table(infos, weights))
        save(state, args.output)
        size = os.path.getsize(args.output) / 1e6
        print(f"wrote {args.output}: the mean of {len(paths)} checkpoint{'s' * (len(paths) > 1)}, {size:.1f} MB")


def _advancing(bar, paths):
    for path in paths:
        yield path
        bar.update()


def _or_dash(value):
    return "-" if value is None else str(value)


if __name__ == "__main__":
    main()
