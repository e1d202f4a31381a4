"""``fairseq-rope-plot``: training and validation loss by update, from logs of ``fairseq-train``."""

from pathlib import Path

from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable, replacing
from fairseq_rope.training_log import read_training_log

PROG = "fairseq-rope-plot"
FORMATS = (".png", ".pdf", ".svg")


def parser():
    """Return the argument parser."""
    p = Parser(
        prog=PROG,
        description="Draw training (thin) and validation loss (dots) by update, from one or more logs of "
        "fairseq-train with --log-format simple or json.",
    )
    p.add_argument("logs", nargs="+", metavar="LOG", help="log of fairseq-train; resumed runs may follow one another")
    p.add_argument("--out", required=True, metavar="PNG", help=f"picture to write ({', '.join(FORMATS)})")
    p.add_argument("--only", choices=["training", "validation"], help="draw this loss and leave out the other")
    p.add_argument("--label", nargs="+", metavar="TEXT", help="one a log (default: the names of the logs' folders)")
    return p


def default_labels(paths):
    """Name each log by its folder; by folder and file where folders are shared."""
    paths = [Path(path).absolute() for path in paths]
    folders = [path.parent.name for path in paths]
    return [
        folder if folders.count(folder) == 1 else f"{folder}/{path.name}"
        for folder, path in zip(folders, paths, strict=True)
    ]


def draw(logs, labels, only=None):
    """Draw losses into a new matplotlib Figure.

    Args:
        logs: list of :class:`~fairseq_rope.training_log.TrainingLog`.
        labels: one text a log.
        only: ``training`` or ``validation``, or None for both.

    Returns:
        the Figure. It belongs to no window and no global list, so nothing has to be closed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (log, label) in enumerate(zip(logs, labels, strict=True)):
        color = f"C{number % 10}"
        for losses, kind, style in (
            (
                log.train,
                "training",
                {"linewidth": 1, "alpha": 0.6, "marker": "." if len(log.train) == 1 else None},
            ),
            (log.valid, "validation", {"linewidth": 1.5, "marker": "o", "markersize": 4}),
        ):
            if losses and only in (None, kind):
                # matplotlib leaves labels that begin with "_" out of the legend
                text = f"{label}, {kind}".lstrip("_")
                axes.plot(list(losses), list(losses.values()), color=color, label=text, **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("update")
    axes.set_ylabel("loss (bits per target token)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def summary(log, label):
    """Say in one line what a log holds: its last training loss and its best validation loss."""
    parts = []
    if log.train:
        update, loss = next(reversed(log.train.items()))
        parts.append(f"training {loss:.3f} at update {update}")
    if log.valid:
        update, loss = min(log.valid.items(), key=lambda item: item[1])
        parts.append(f"best validation {loss:.3f} at update {update}")
    return f"{label}: {', '.join(parts)}"


def main(argv=None):
    """Entry point of ``fairseq-rope-plot``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        kind = Path(args.out).suffix.lower()
        if kind not in FORMATS:
            raise UserError(f"--out {args.out} must end in {', '.join(FORMATS)}")
        check_writable(args.out)
        labels = args.label or default_labels(args.logs)
        if len(labels) != len(args.logs):
            raise UserError(f"{len(labels)} labels for {len(args.logs)} logs: give one a log")
        logs = [read_training_log(path) for path in args.logs]
        for path, log in zip(args.logs, logs, strict=True):
            if args.only and not (log.train if args.only == "training" else log.valid):
                raise UserError(f"{path} holds no {args.only} loss")
        figure = draw(logs, labels, args.only)
        with replacing(args.out, "wb") as file:
            figure.savefig(file, format=kind[1:], dpi=120)
        for log, label in zip(logs, labels, strict=True):
            print(summary(log, label))
        print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
