"""Long inputs: memory and time of one self-attention with RoPE from 512 to 8192 tokens.

    python benchmarks/length.py                                    # about four minutes on two cores
    python benchmarks/length.py --lengths 512 1024 2048 --rounds 3 # twenty seconds

What is measured: this package's self-attention, width 512, 8 heads, one sentence, projections included. Cases: an
encoder without pads, an encoder whose last tenth is padding, a causal decoder; and, up to --weights-up-to tokens, one
whose attention weights are asked for, which has to hold them. Each forward without gradients, and forward with
backward. Memory is the most bytes that torch had allocated beyond inputs and weights, counted allocation by allocation;
beside it stands the largest single one. A (length, length) tensor, even of one byte an entry, would show as length²
there.

Written: length.md and length.json with a fit of memory = c length^p over the lengths (p is 1 where it grows linearly),
and the curves as length.png.
"""

import argparse
import logging
import math
from dataclasses import dataclass

import floor
import side_by_side
import torch
from attention import HEADS, WIDTH, moved, operations, our_attention, rotation_of
from torch.profiler import ProfilerActivity, profile

LENGTHS = (512, 1024, 2048, 4096, 8192)
CASES = ("encoder", "encoder, pads", "decoder, causal")
WITH_WEIGHTS = "encoder, weights asked for"


@dataclass
class Layer:
    """One attention and its input of one length."""

    attention: torch.nn.Module
    x: torch.Tensor
    arguments: dict

    def forward(self):
        """Without gradients."""
        with torch.no_grad():
            self.attention(self.x, **self.arguments)

    def train(self):
        """Forward and backward, gradients of the input and all weights."""
        out = self.attention(self.x, **self.arguments)[0]
        torch.autograd.grad(out, [self.x, *self.attention.parameters()], torch.ones_like(out))


def layer_of(case, length, device, dtype):
    """The attention of ``case`` for one sentence of ``length`` tokens."""
    attention = our_attention(device, dtype)
    x = torch.randn(length, 1, WIDTH, device=device, dtype=dtype, requires_grad=True)
    arguments = {"rotation": rotation_of(length, 1, device)}
    if case == "encoder, pads":
        arguments["mask"] = (torch.arange(length, device=device) < length - length // 10)[None, None, None]
    elif case == "decoder, causal":
        arguments["causal"] = True
    elif case == WITH_WEIGHTS:
        arguments["need_weights"] = True
    return Layer(attention, x, arguments)


def allocations(function, on_gpu):
    """Most bytes allocated at a time while ``function`` runs, and the largest single allocation (None on a GPU)."""
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most, largest = max(most, now), max(largest, event.nbytes())
    return most, largest


def exponent(lengths, values):
    """p of the fit values = c lengths^p, by least squares of the logarithms; None of fewer than two lengths."""
    if len(lengths) < 2:
        return None
    xs, ys = [math.log(x) for x in lengths], [math.log(y) for y in values]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return slope / sum((x - mean_x) ** 2 for x in xs)


def fits(rows):
    """Rows of the table of exponents: one a case and direction."""
    curves = {}
    for row in rows:
        curves.setdefault((row["case"], row["what"]), []).append(row)
    table = []
    for (case, what), points in curves.items():
        lengths = [row["length"] for row in points]
        table.append({
            "case": case,
            "what": what,
            "memory grows with length to the": exponent(lengths, [row["peak, MB"] for row in points]),
            "time grows with length to the": exponent(lengths, [row["ms"]["median"] for row in points]),
        })  # fmt: skip
    return table


def draw(rows, path):
    """Curves of memory and time by length, both axes logarithmic, as PNG."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # after fairseq's import everything is at DEBUG
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fairseq_rope.files import replacing

    figure = Figure(figsize=(11, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2)
    cases = list(dict.fromkeys(row["case"] for row in rows))
    for number, case in enumerate(cases):
        for what, style in (("forward", "--"), ("forward + backward", "-")):
            points = [row for row in rows if row["case"] == case and row["what"] == what]
            lengths = [row["length"] for row in points]
            for axis, values in zip(
                axes, ([r["peak, MB"] for r in points], [r["ms"]["median"] for r in points]), strict=True
            ):
                axis.plot(
                    lengths, values, style, color=f"C{number}", marker="osv."[number], markersize=9 - 2 * number,
                    label=f"{case}: {what}",
                )  # fmt: skip
    lengths = sorted({row["length"] for row in rows})
    entries = [HEADS * length**2 * 4 / 1e6 for length in lengths]
    axes[0].plot(lengths, entries, ":", color="gray", label=f"{HEADS} x length² float32, for comparison")
    for axis, label in zip(axes, ("most memory allocated, MB", "time, ms"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.set_xlabel("tokens")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    # Below the axes: the cases without weights lie on top of each other.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle("One self-attention with RoPE, width 512, 8 heads, one sentence")
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120)


def measure(case, length, args, speed):
    """Two rows, forward and forward + backward, of ``case`` at ``length``."""
    dtype = side_by_side.PRECISIONS[args.precision]
    layer = layer_of(case, length, args.device, dtype)
    rows = []
    for what, call in (("forward", layer.forward), ("forward + backward", layer.train)):
        backward = what != "forward"
        work = operations(length, 1, True, backward), moved(length, 1, True, backward, dtype.itemsize)
        call()  # what is made once, such as the kernels' own buffers, is no part of it
        most, largest = allocations(call, args.device == "cuda")
        seconds = side_by_side.alternate({case: call}, args.rounds, args.warmup)[case]
        rows.append({
            "case": case,
            "what": what,
            "length": length,
            "floor, ms": 1e3 * floor.seconds(*work, speed),
            "ms": side_by_side.summary([1e3 * value for value in seconds]),
            "peak, MB": most / 1e6,
            "peak a token, KB": most / 1e3 / length,
            "largest allocation, MB": None if largest is None else largest / 1e6,
            "length², MB": length**2 / 1e6,
        })  # fmt: skip
    return rows


def main():
    """Measure all cases, fit the exponents, and write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lengths", nargs="+", type=side_by_side.positive, default=list(LENGTHS), help="default: 512 1024 … 8192"
    )
    parser.add_argument(
        "--weights-up-to", type=side_by_side.natural, default=2048, metavar="LENGTH",
        help="longest sentence whose weights are asked for, 0 for none (default: %(default)s)",
    )  # fmt: skip
    side_by_side.add_options(parser, rounds=5, warmup=1)
    args = parser.parse_args()
    side_by_side.check_device(parser, args)
    torch.manual_seed(1)
    speed = floor.peaks(args.device, args.precision)
    notes, rows = [], []
    for length in args.lengths:
        work = operations(length, 1, True, True), moved(length, 1, True, True, 4)
        notes.append(floor.sentence(*work, speed, f"forward + backward of {length} tokens"))
        print(notes[-1], flush=True)
    for case in (*CASES, WITH_WEIGHTS):
        for length in sorted(set(args.lengths)):
            if case != WITH_WEIGHTS or length <= args.weights_up_to:
                rows += measure(case, length, args, speed)
    notes.append(side_by_side.table(fits(rows)))
    notes.append("The floor counts all pairs of positions; a causal decoder needs half of their products.")
    side_by_side.write_report(
        args.out / "length", "One self-attention with RoPE by length", side_by_side.command_line(), rows,
        side_by_side.machine(args), notes,
    )  # fmt: skip
    draw(rows, args.out / "length.png")


if __name__ == "__main__":
    main()
