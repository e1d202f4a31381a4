"""Output layer and loss: this package's chunked label-smoothed cross-entropy against stock fairseq's.

    python benchmarks/criterion.py                                        # about five minutes on two cores
    python benchmarks/criterion.py --vocabulary 37000 --tokens 2000 --chunks 64 96 128 160 192 256 --rounds 5

What is measured: from the decoder's features (tokens, 512) on, the output layer (tokens, vocabulary), the criterion and
the backward pass to the gradients of features and output matrix, label smoothing 0.1, no pads. Stock's criterion makes
all logits and their log-probabilities; the chunked one goes from features to gradients a chunk of tokens at a time.
Both sides get the same features and matrix and are compared first; a side that differs ends the program. Times are
taken in one process, the sides in turn; memory is the growth at the peak of one pass, each side in a process of its own
that does nothing else (on a GPU: what torch allocated). The gradients themselves, which both sides have to make, count.

The report is written after each size; --resume keeps the sizes that an earlier run of the same options has written.
"""

import argparse
import ctypes
import gc
import json
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import floor
import memory
import profiling
import side_by_side
import torch
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion as StockCriterion
from fairseq.data import Dictionary

from fairseq_rope.criterions import LabelSmoothedCrossEntropyCriterion as ChunkedCriterion
from fairseq_rope.criterions.label_smoothed_cross_entropy_chunked import TOKENS_PER_CHUNK
from fairseq_rope.files import write_json

WIDTH, EPSILON = 512, 0.1
STOCK = "stock"
# Largest difference of loss and gradients, of the largest value.
TOLERANCE = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 5e-2}
SCALE = {"fp32": 1.0, "fp16": 128.0, "bf16": 1.0}  # of the loss: fairseq's first in fp16


class Output(torch.nn.Module):
    """The end of a model: its features, as if a decoder had just computed them, and its output layer."""

    def __init__(self, tokens, vocabulary, device, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        features = torch.randn(1, tokens, WIDTH, generator=generator)
        self.features = torch.nn.Parameter(features.to(device, dtype))
        self.decoder = torch.nn.Module()
        self.decoder.output_projection = torch.nn.Linear(WIDTH, vocabulary, bias=False)
        torch.nn.init.normal_(self.decoder.output_projection.weight, std=WIDTH**-0.5, generator=generator)
        self.decoder.to(device, dtype)
        target = torch.randint(2, vocabulary, (1, tokens), generator=generator)  # 1 is the pad
        self.sample = {"net_input": {}, "target": target.to(device), "ntokens": tokens}

    def forward(self, head=None):
        projection = self.decoder.output_projection
        return (projection(self.features) if head is None else head(self.features, self.decoder)), {}

    def get_normalized_probs(self, net_output, log_probs):
        return utils.log_softmax(net_output[0], dim=-1)

    def get_targets(self, sample, net_output):
        return sample["target"]


def sides_of(tokens, vocabulary, chunks, device, precision):
    """The sides, each a function without arguments: a forward and backward pass from cleared gradients.

    Args:
        chunks: dict from a side's name to its tokens a chunk, None for stock's criterion.

    Returns:
        dict from a side's name to a function that returns the loss and the two gradients.
    """
    model = Output(tokens, vocabulary, device, side_by_side.PRECISIONS[precision])
    task = SimpleNamespace(target_dictionary=Dictionary())

    def side(chunk):
        kind = StockCriterion if chunk is None else partial(ChunkedCriterion, loss_chunk=chunk)
        criterion = kind(task, False, EPSILON)

        def run():
            model.zero_grad(set_to_none=True)
            loss = criterion(model, model.sample)[0]
            (loss * SCALE[precision]).backward()
            return loss.detach(), model.features.grad, model.decoder.output_projection.weight.grad

        return run

    return {name: side(chunk) for name, chunk in chunks.items()}


def compare(sides, tolerance):
    """End the program unless all sides have stock's loss and gradients; returns the largest relative difference."""
    want = [value.clone() for value in sides[STOCK]()]
    worst = 0.0
    for name, run in sides.items():
        for got, value in zip(run(), want, strict=True):
            difference = float((got - value).float().abs().max() / value.float().abs().max())
            if not difference <= tolerance:
                sys.exit(f"criterion: {name} differs from stock by {difference:.2g} of the largest value")
            worst = max(worst, difference)
    return worst


def work(tokens, vocabulary, itemsize):
    """Operations and bytes: three products; features and matrix read, their gradients written."""
    return 6 * tokens * WIDTH * vocabulary, 2 * (tokens + vocabulary) * WIDTH * itemsize


def growth(tokens, vocabulary, chunk, device, precision):
    """Bytes that one pass takes at its peak beyond what was there before; 0 where the system does not tell."""
    on_gpu = device == "cuda"
    sides_of(8, 16, {"": chunk}, device, precision)[""]()  # loads what the first product loads
    run = sides_of(tokens, vocabulary, {"": chunk}, device, precision)[""]
    gc.collect()
    if not on_gpu and sys.platform == "linux":  # what is free but still this process's would hide growth
        ctypes.CDLL(None).malloc_trim(0)
    if not memory.reset_peak(on_gpu):
        return 0
    before = torch.cuda.memory_allocated() if on_gpu else memory.resident()
    run()
    side_by_side.synchronize()
    return memory.peak(on_gpu) - before


def growth_apart(args, tokens, vocabulary, chunk):
    """:func:`growth` in a process of its own."""
    options = [tokens, vocabulary, chunk, args.device, args.precision]
    command = [sys.executable, str(Path(__file__).resolve()), "--growth", json.dumps(options)]
    done = subprocess.run([*command, "--threads", str(args.threads)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"criterion: the process that measures memory ended with {done.returncode}")
    return int(done.stdout.split()[-1])


def measure(tokens, vocabulary, args, speed):
    """Rows and notes of one size."""
    chunks = {STOCK: None, **{f"chunks of {chunk}": chunk for chunk in args.chunks}}
    sides = sides_of(tokens, vocabulary, chunks, args.device, args.precision)
    needed = work(tokens, vocabulary, side_by_side.PRECISIONS[args.precision].itemsize)
    least = floor.seconds(*needed, speed)
    notes = [floor.sentence(*needed, speed, f"{tokens:,} tokens, {vocabulary:,} symbols")]
    print(notes[0], flush=True)
    worst = compare(sides, TOLERANCE[args.precision])
    seconds = side_by_side.alternate(sides, args.rounds, args.warmup)
    peaks = {name: growth_apart(args, tokens, vocabulary, chunk) for name, chunk in chunks.items()}
    rows = []
    for name, chunk in chunks.items():
        rows.append({
            "tokens": tokens,
            "vocabulary": vocabulary,
            "side": name,
            "chunk_of_logits_mb": chunk and min(chunk, tokens) * vocabulary * 4 / 1e6,
            "seconds": side_by_side.summary(seconds[name]),
            "times_the_floor": side_by_side.summary(seconds[name])["median"] / least,
            "speed_to_stock": side_by_side.ratio(seconds[STOCK], seconds[name]),
            "peak_growth_mb": peaks[name] / 1e6 or None,
            "peak_to_stock": peaks[name] / peaks[STOCK] if peaks[STOCK] else None,
        })  # fmt: skip
    notes.append(f"Largest difference from stock, of the largest value: {worst:.1g}.")
    if not args.no_profile:
        shown = side_by_side.table(profiling.rows({name: profiling.measure(run) for name, run in sides.items()}))
        notes.append(f"Seconds of one pass, {tokens:,} tokens, {vocabulary:,} symbols, under the profiler:\n\n{shown}")
    return rows, notes


def parser():
    """Return the argument parser."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole = side_by_side.positive
    p.add_argument("--tokens", nargs="+", type=whole, default=[2000, 4000], help="target tokens (default: 2000 4000)")
    p.add_argument("--vocabulary", nargs="+", type=whole, default=[8000, 37000], help="symbols (default: 8000 37000)")
    p.add_argument(
        "--chunks", nargs="+", type=whole, default=[TOKENS_PER_CHUNK],
        help="tokens a chunk, a side each (default: that of --loss-chunk, %(default)s)",
    )  # fmt: skip
    p.add_argument("--resume", action="store_true", help="keep the rows that an earlier run has written")
    p.add_argument("--no-profile", action="store_true", help="leave out where the time goes")
    p.add_argument("--growth", help=argparse.SUPPRESS)
    side_by_side.add_options(p, rounds=7)
    return p


def main():
    """Measure the sizes asked for and write a report after each."""
    p = parser()
    args = p.parse_args()
    side_by_side.check_device(p, args)
    logging.disable(logging.WARNING)
    if args.growth:
        print(growth(*json.loads(args.growth)))
        return
    kind = "" if (args.device, args.precision) == ("cpu", "fp32") else f"-{args.device}-{args.precision}"
    stem = args.out / f"criterion{kind}"
    parts_path = stem.with_name(f"{stem.name}.parts.json")
    options = {name: getattr(args, name) for name in ("chunks", "rounds", "warmup", "threads", "no_profile")}
    parts = {}
    if args.resume and parts_path.is_file():
        earlier = json.loads(parts_path.read_text("utf-8"))
        if earlier["options"] != options:
            sys.exit(f"criterion: --resume: {parts_path} is of other options: {earlier['options']}")
        parts = earlier["parts"]
    speed = floor.peaks(args.device, args.precision)
    for vocabulary in args.vocabulary:
        for tokens in args.tokens:
            name = f"{tokens} {vocabulary}"
            if name not in parts:
                parts[name] = measure(tokens, vocabulary, args, speed)
            rows, notes = ([item for part in parts.values() for item in part[which]] for which in (0, 1))
            title = "Output layer and label-smoothed loss, forward and backward, beside stock fairseq"
            described = side_by_side.machine(args)
            side_by_side.write_report(stem, title, side_by_side.command_line(), rows, described, notes)
            write_json(parts_path, {"options": options, "parts": parts})


if __name__ == "__main__":
    side_by_side.one_line_errors(main)
