#!/usr/bin/env python
"""Parameters, memory and hours that the recipes of WMT'14 ask for: computed, not measured.

    python benchmarks/estimate.py en-de        # the table in examples/wmt14_en_de/README.md
    python benchmarks/estimate.py en-fr

What a recipe does (architecture, tokens an update, length) is read from its own --dry-run; parameters are counted in
the model that --arch builds (on torch's meta device, without memory). The rest is arithmetic with the assumptions
below.
"""

import argparse
import functools
import logging
import os
import re
import shlex
import subprocess
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_rope  # noqa: F401  registers the architectures

ROOT = Path(__file__).resolve().parents[1]

# Peak of dense half-precision products, in FLOP a second, and memory in GB (10^9 bytes), by the manufacturer.
HARDWARE = {"V100": 125e12, "A100": 312e12, "H100": 989e12}

# Share of that peak which a training reaches. Width 512: what RealFormer's published hours imply (6 to 10 %, second
# table), since its products are small and most of the time is spent between them. Width 1024: an assumption.
UTILISATION = {512: 0.08, 1024: 0.20}

# Subwords of the target side an epoch: for en-de from the log in Transformer-Clinic's issue 20 (6,441 updates of
# 21.4k); for en-fr 36 million pairs of 33 subwords, the second an assumption. The source counts as much.
TOKENS_PER_EPOCH = {"en-de": 138e6, "en-fr": 36e6 * 33}
# Tokens in a batch that are no padding: 30,000 of 32,768 (Transformer-Clinic's issue 6).
FILLED = 30_000 / 32_768
MEAN_LENGTH, LONGEST = 33, 250  # subwords of a sentence; batches hold one length, so the longest decide on memory

# Entries of the joint dictionary: 37,000 by --vocab-size; of 32,764 and 40,000 merges with their characters, about.
ENTRIES = {"37000": 37_000, "admin": 32_768, "": 44_500}

# Bytes a parameter: half-precision value and gradient, float32 value and gradient, two moments (fairseq's FP16Optimizer
# keeps all of them), and the half-precision buckets of several processes.
BYTES_PER_PARAMETER = 2 + 2 + 4 + 4 + 8 + 2

ROWS = {
    "en-de": [
        *[("roformer", "roformer_wmt")],
        *[("admin", f"admin_wmt{depth}") for depth in ("", "_12l", "_18l")],
        *[("realformer", f"realformer_admin_wmt{depth}") for depth in ("", "_12l", "_18l")],
        ("big", "roformer_wmt_big"),
    ],
    "en-fr": [
        *[("roformer", "roformer_wmt")],
        *[("admin", f"admin_wmt{depth}") for depth in ("", "_60l_12l")],
        *[("realformer", f"realformer_admin_wmt{depth}") for depth in ("", "_60l_12l")],
        ("big", "roformer_wmt_big"),
    ],
}  # fmt: skip

# He et al. 2021 (RealFormer), section 4.2 and appendix: A100s, hours of ADMIN and of RealFormer. Whether their
# deep models used activation checkpointing, as these recipes' do, is not said.
PUBLISHED_HOURS = {
    ("en-de", ""): (4, 9.3, 9.4),
    ("en-de", "_12l"): (4, 16, 16),
    ("en-de", "_18l"): (4, 23, 23),
    ("en-fr", ""): (8, 28, 28),
    ("en-fr", "_60l_12l"): (16, 70, 72),
}


@dataclass
class Run:
    """What a recipe's dry run says: sizes in tokens, ``epochs`` or ``updates`` None where the other one decides."""

    arch: str
    entries: int
    tokens: int
    batch: int
    updates: int | None
    epochs: int | None
    checkpointing: bool


def read_recipe(pair, preset, arch):
    """Return the :class:`Run` of ``examples/wmt14_*/run.sh --dry-run`` on one GPU."""
    environment = {"PATH": os.environ["PATH"], "PRESET": preset, "ARCH": arch, "GPUS": "1"}
    script = ROOT / "examples" / f"wmt14_{pair.replace('-', '_')}" / "run.sh"
    text = subprocess.run(
        ["bash", str(script), "--dry-run", "prepare", "train"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    words = {line.split()[0]: shlex.split(line) for line in text.splitlines() if line.startswith("fairseq-")}
    prepare, train = words["fairseq-rope-prepare"], words["fairseq-train"]

    def option(command, name):
        return command[command.index(name) + 1] if name in command else None

    def number(name):
        value = option(train, name)
        return int(value) if value else None

    epochs = number("--max-epoch")
    return Run(
        arch=option(train, "--arch"),
        entries=ENTRIES[option(prepare, "--vocab-size") or ("admin" if "admin" in prepare else "")],
        tokens=int(re.search(r"the preset's: ([\d,]+)\)", text)[1].replace(",", "")),
        batch=number("--max-tokens"),
        updates=None if epochs else number("--max-update"),
        epochs=epochs,
        checkpointing="--checkpoint-activations" in train,
    )


@functools.cache
def dictionary_of(entries):
    """Return a dictionary of ``entries`` entries."""
    dictionary = Dictionary()
    for number in range(entries - len(dictionary)):
        dictionary.add_symbol(str(number))
    return dictionary


def build(arch, entries):
    """Return the options of ``arch`` and its model with a joint dictionary of ``entries``, on the meta device."""
    dictionary = dictionary_of(entries)
    args = Namespace(arch=arch, share_all_embeddings=True, max_source_positions=1024, max_target_positions=1024)
    ARCH_CONFIG_REGISTRY[arch](args)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, args=args, cfg=args)
    with torch.device("meta"):
        return args, ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def count(module):
    """Return the number of parameters of ``module``."""
    return sum(parameter.numel() for parameter in module.parameters())


class Estimate:
    """What :class:`Run` ``run`` of language pair ``pair`` costs.

    Attributes:
        parameters: of the whole model.
        flops: of the whole training: 6 a parameter and token, the two products of attention, and the output layer
            (the embedding matrix once more); a third more in the layers with activation checkpointing.
        fixed, per_token: bytes a GPU: whatever the batch, and for each token of a batch of the longest sentences.
    """

    def __init__(self, pair, run):
        args, model = build(run.arch, run.entries)
        width, heads = args.encoder_embed_dim, args.encoder_attention_heads
        encoder, decoder = args.encoder_layers, args.decoder_layers
        self.run, self.width, self.parameters = run, width, count(model)

        tokens = run.epochs * TOKENS_PER_EPOCH[pair] if run.epochs else run.updates * run.tokens * FILLED
        # each layer's two products of attention: 2 x 2 x length x width forward, three times that with backward
        attention = 12 * MEAN_LENGTH * width * (encoder + 2 * decoder)
        layers = 6 * (count(model.encoder.layers) + count(model.decoder.layers)) + attention
        self.flops = tokens * (layers * (4 / 3 if run.checkpointing else 1) + 6 * width * run.entries)

        # Korthikanti et al. 2022 (arXiv 2205.05198), equation 1, in half precision: 11 width + 5 heads x length an
        # attention, 19 width a feed-forward block, 2 width a LayerNorm. RealFormer's scores: up to 12 bytes each.
        scores = (5 + 12 * (args.residual_attention != "none")) * heads * LONGEST
        in_encoder, in_decoder = 34 * width + scores, 47 * width + 2 * scores
        if run.checkpointing:  # a layer's input, its stream of scores, and one layer at a time
            kept = 2 * width + 4 * heads * LONGEST * (args.residual_attention != "none")
            layers = encoder * kept + decoder * 2 * kept + max(in_encoder, in_decoder)
        else:
            layers = encoder * in_encoder + decoder * in_decoder
        # logits and their gradient in half precision, their float32 copy, log-probabilities and gradient
        self.per_token = layers + (2 + 2 + 4 + 4 + 4) * run.entries
        self.fixed = BYTES_PER_PARAMETER * self.parameters + 1e9  # CUDA's own share: about 1 GB

    def hours(self, gpu, gpus=8):
        """Hours on ``gpus`` GPUs of a kind in HARDWARE."""
        return self.flops / (gpus * HARDWARE[gpu] * UTILISATION[self.width]) / 3600

    def utilisation(self, gpu, gpus, hours):
        """Share of the peak at which ``gpus`` GPUs take ``hours``."""
        return self.flops / (gpus * HARDWARE[gpu] * hours * 3600)

    @property
    def gigabytes(self):
        return (self.fixed + self.run.batch * self.per_token) / 1e9

    def tokens_within(self, gigabytes):
        """Most tokens a batch, a multiple of 256, that fit into nine tenths of ``gigabytes``; at most the preset's."""
        free = 0.9 * gigabytes * 1e9 - self.fixed
        return max(0, min(self.run.batch, int(free / self.per_token) // 256 * 256))


def table(header, rows):
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, ["---"] * len(header), *rows])


def report(pair):
    """Return both tables of ``pair`` as text."""
    rows, published = [], []
    for preset, arch in ROWS[pair]:
        estimate = Estimate(pair, read_recipe(pair, preset, arch))
        run = estimate.run
        rows.append([
            f"`{preset}`", f"`{arch}`", f"{estimate.parameters / 1e6:.0f} M",
            f"{run.epochs} epochs" if run.epochs else f"{run.updates:,} updates",
            *[f"{estimate.hours(gpu):.0f}" for gpu in HARDWARE],
            f"{run.batch:,}", f"{estimate.gigabytes:.0f} GB",
            f"{estimate.tokens_within(16):,}",
        ])  # fmt: skip
        depth = re.sub(r".*_wmt", "", arch)
        if preset in ("admin", "realformer") and (pair, depth) in PUBLISHED_HOURS:
            gpus, *hours = PUBLISHED_HOURS[pair, depth]
            hours = hours[preset == "realformer"]
            if preset == "admin" and run.epochs != 50:
                continue  # the paper's hours are of 50 epochs
            published.append([
                f"`{arch}`", f"{gpus} A100", hours, f"{estimate.hours('A100', gpus):.1f}",
                f"{estimate.utilisation('A100', gpus, hours):.1%}",
            ])  # fmt: skip
    first = ["preset", "arch", "parameters", "length", *[f"hours, 8 {gpu}" for gpu in HARDWARE]]
    first += ["tokens a batch", "memory a GPU", "MAX_TOKENS in 16 GB"]
    second = [
        "arch",
        "GPUs",
        "hours, published (RealFormer)",
        "hours, computed",
        "share of peak that the published imply",
    ]
    return f"{table(first, rows)}\n\n{table(second, published)}\n"


def main(argv=None):
    """Print the tables of the language pair on the command line."""
    parser = argparse.ArgumentParser(description="Parameters, memory and hours of the WMT'14 recipes, computed.")
    parser.add_argument("pair", choices=sorted(ROWS))
    args = parser.parse_args(argv)
    logging.getLogger("fairseq_rope").setLevel(logging.WARNING)  # each model notes its positions
    print(report(args.pair), end="")


if __name__ == "__main__":
    main()
