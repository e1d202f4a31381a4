"""The sides of a comparison: stock fairseq's Transformer and this package's, built as fairseq's programs build them.

A side is written ``stock``, ``FAMILY`` (roformer, …) or ``FAMILY@PATH``, the family as another checkout of this package
has it. Stock is fairseq as installed: its process never imports fairseq_rope, whose import mends fairseq. The others
load it as users do, by ``--user-dir``.
"""

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import memory
import profiling
import torch
from side_by_side import PRECISIONS, ROOT, synchronize

STOCK = "stock"
FAMILIES = ("baseline", "roformer", "admin", "tupe_a", "tupe_r", "realformer")
SIZES = {"wmt": (6, 512, 2048, 8), "tiny": (2, 64, 128, 4)}  # layers, width, feed-forward width, heads
CRITERION = "label_smoothed_cross_entropy"


@dataclass(frozen=True)
class Side:
    """One side: a family, possibly of another checkout, and its criterion."""

    family: str
    checkout: str | None = None
    criterion: str = CRITERION

    @classmethod
    def parse(cls, text, criterion=CRITERION):
        """Read ``stock``, ``FAMILY`` or ``FAMILY@PATH``.

        Raises:
            argparse.ArgumentTypeError: there is no such family, or no checkout at PATH.
        """
        family, at, path = text.partition("@")
        if family not in (STOCK, *FAMILIES) or (family == STOCK and at):
            valid = ", ".join(FAMILIES)
            raise argparse.ArgumentTypeError(f"no side '{text}'; there are: {valid}, each also with @PATH; and {STOCK}")
        if not at:
            return cls(family, None, criterion)
        if not path or not (Path(path) / "fairseq_rope" / "__init__.py").is_file():
            raise argparse.ArgumentTypeError(f"'{text}': {path or 'the empty path'} is no checkout of this package")
        return cls(family, str(Path(path).resolve()), criterion)

    @property
    def name(self):
        """The side as tables show it."""
        of_checkout = f"@{self.checkout}" if self.checkout else ""
        return self.family + of_checkout + (" chunked" if self.criterion.endswith("_chunked") else "")

    @property
    def user_dir(self):
        """What ``--user-dir`` gets, or None for stock."""
        return None if self.family == STOCK else str(Path(self.checkout or ROOT) / "fairseq_rope")

    def flags(self, data, size, device, precision="fp32", dropout=0.1, seed=1, max_tokens=2000, **other):
        """Flags of fairseq-train for this side, as a list of text.

        Args:
            data: folder of fairseq-preprocess.
            size: a key of :data:`SIZES`.
            other: further flags by their names with underscores, such as ``lr=5e-4``.
        """
        layers, width, ffn, heads = SIZES[size]
        arch = "transformer" if self.family == STOCK else f"{self.family}_{size}"
        named = {
            "arch": arch, "task": "translation", "criterion": self.criterion, "label_smoothing": 0.1,
            "optimizer": "adam", "adam_betas": "(0.9, 0.98)", "lr": 5e-4, "clip_norm": 0.0,
            "dropout": dropout, "seed": seed, "max_tokens": max_tokens, "num_workers": 0, "distributed_world_size": 1,
            **other,
        }  # fmt: skip
        if self.family == STOCK:
            for stack in ("encoder", "decoder"):
                sizes = {"layers": layers, "embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}
                named.update({f"{stack}_{name}": value for name, value in sizes.items()})
        flags = [str(data), "-s", "en", "-t", "de", "--share-all-embeddings"]
        for name, value in named.items():
            flags += [f"--{name.replace('_', '-')}", str(value)]
        flags += [f"--{precision}"] if precision != "fp32" else []
        flags += ["--cpu"] if device == "cpu" else []
        return flags + (["--user-dir", self.user_dir] if self.user_dir else [])


def configure(flags, precision="fp32"):
    """Turn flags of fairseq-train into fairseq's configuration."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    argv, sys.argv = sys.argv, ["fairseq-train", *flags]  # options reads --user-dir from the command line
    try:
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
    finally:
        sys.argv = argv
    if precision == "bf16":  # stock takes --bf16 for a request for a TPU; neither side shall
        cfg.common.tpu = cfg.distributed_training.tpu = False
    return cfg


def sizes(model):
    """Parameters of a model by part, in numbers of elements, and its width and depths (see :mod:`floor`)."""

    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    layers = model.decoder.layers
    cross = [getattr(layer.encoder_attn, f"{kind}_proj") for layer in layers for kind in "kv"]
    return {
        "encoder": count(model.encoder.layers),
        "decoder": count(layers),
        "cross": sum(map(count, cross)),
        "output": model.decoder.output_projection.weight.numel(),
        "total": count(model),
        "width": model.decoder.output_projection.weight.shape[1],
        "encoder_layers": len(model.encoder.layers),
        "decoder_layers": len(layers),
    }


def load_weights(model, path, strict):
    """Load a file of plain tensors into a model; without ``strict`` its new parameters keep their initial values.

    ADMIN's omegas count as measured then, with the value 1.
    """
    weights = torch.load(path, map_location="cpu", weights_only=True)
    if not strict:
        state = model.state_dict()
        weights = {**state, **{key: value for key, value in weights.items() if key in state}}
        for key, value in weights.items():
            if re.fullmatch(r".*_omega", key) and not value.any():
                weights[key] = torch.ones_like(value)
    model.load_state_dict(weights, strict=True)


class TrainingSide:
    """A model with fairseq's Trainer.

    Args:
        flags: of :meth:`Side.flags`.
        precision: as in the flags.
        weights: file to start from (see :func:`load_weights`), or None.
    """

    def __init__(self, flags, precision="fp32", weights=None):
        from fairseq import tasks, utils
        from fairseq.trainer import Trainer

        cfg = configure(flags, precision)
        self.task = tasks.setup_task(cfg.task)
        self.task.load_dataset("train")
        self.before = memory.resident()
        utils.set_torch_seed(cfg.common.seed)
        model, criterion = self.task.build_model(cfg.model), self.task.build_criterion(cfg.criterion)
        if weights:
            load_weights(model, weights, strict=False)
        self.trainer = Trainer(cfg, self.task, model, criterion)
        self.trainer.begin_epoch(1)

    def about(self):
        """Sizes of the model."""
        return sizes(self.trainer.get_model())

    def sample(self, batch):
        """The mini-batch of these sentence numbers."""
        dataset = self.task.dataset("train")
        return dataset.collater([dataset[index] for index in batch])

    def step(self, batch):
        """One update; returns its seconds (from the collated batch on), target tokens and loss (base 2, a token)."""
        from fairseq.logging import metrics

        sample = self.sample(batch)
        synchronize()
        begin = time.perf_counter()
        with metrics.aggregate(new_root=True) as logged:
            self.trainer.train_step([sample])
            synchronize()
            seconds = time.perf_counter() - begin
            loss = logged.get_smoothed_values().get("loss")
        return {"seconds": seconds, "tokens": sample["ntokens"], "loss": None if loss is None else float(loss)}

    def profile(self, batch):
        """Where one more update's time goes: :func:`profiling.measure`."""
        return profiling.measure(lambda: self.step(batch))

    def reset_peak(self):
        """Start to watch the memory."""
        return memory.reset_peak(self.trainer.cuda)

    def peak(self):
        """Most memory since then: ``total`` bytes, and ``growth`` above the process before it had a model."""
        total = memory.peak(self.trainer.cuda)
        return {"total": total, "growth": total if self.trainer.cuda else total - self.before}

    def save(self, path):
        """Write the parameters as a file of plain tensors, in float32."""
        state = self.trainer.get_model().state_dict()
        torch.save({key: value.float().cpu() for key, value in state.items()}, path)

    def checkpoint(self, path):
        """Write a checkpoint of fairseq's, with optimiser state."""
        self.trainer.consolidate_optimizer()
        self.trainer.save_checkpoint(path, {"train_iterator": {"epoch": 1}, "val_loss": None})


class DecodingSide:
    """A model with the beam search that ``fairseq-generate`` builds.

    Args:
        flags: of :meth:`Side.flags`.
        split: set to translate.
        weights: file of plain tensors.
        search: flags of fairseq-generate, such as ``["--beam", "4"]``.
        device, precision: where and in what the model computes.
    """

    def __init__(self, flags, split, weights, search, device="cpu", precision="fp32"):
        from fairseq import options, tasks
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        cfg = configure(flags)
        self.task = tasks.setup_task(cfg.task)
        self.task.load_dataset(split)
        self.dataset, self.device = self.task.dataset(split), device
        model = self.task.build_model(cfg.model)
        load_weights(model, weights, strict=True)
        self.model = model.to(device=device, dtype=PRECISIONS[precision])
        parser = options.get_generation_parser()
        args = options.parse_args_and_arch(parser, [flags[0], "--path", str(weights), *search])
        self.generation = convert_namespace_to_omegaconf(args)
        self.model.prepare_for_inference_(self.generation)
        self.generator = self.task.build_generator([self.model], self.generation.generation)
        self.work = {"steps": 0, "rows": 0, "attended": 0, "sources": 0}
        self._count_work()

    def _count_work(self):
        """Let the search count what :func:`floor.decoding` needs: a few additions a step of the decoder."""
        decode, work = self.generator.model.forward_decoder, self.work

        def forward_decoder(tokens, *args, **kwargs):
            rows, length = tokens.shape
            work["steps"] += 1
            work["rows"] += rows
            work["attended"] += rows * (length + self.mean_length)
            return decode(tokens, *args, **kwargs)

        vars(self.generator.model)["forward_decoder"] = forward_decoder  # past nn.Module's __setattr__

    def about(self):
        """Sizes of the model."""
        return sizes(self.model)

    def sample(self, batch):
        """The mini-batch of these sentence numbers, on the device."""
        from fairseq import utils

        sample = self.dataset.collater([self.dataset[index] for index in batch])
        return utils.move_to_cuda(sample) if self.device == "cuda" else sample

    def step(self, batch):
        """Translate a batch; returns seconds, all hypotheses' tokens of each sentence, and the work that was done."""
        sample = self.sample(batch)
        sources = sample["net_input"]["src_lengths"].sum().item()
        self.mean_length = sources / len(batch)
        self.work.update(steps=0, rows=0, attended=0, sources=sources)
        synchronize()
        begin = time.perf_counter()
        hypotheses = self.task.inference_step(self.generator, [self.model], sample)
        synchronize()
        seconds = time.perf_counter() - begin
        found = {
            number: [one["tokens"].tolist() for one in several]
            for number, several in zip(sample["id"].tolist(), hypotheses, strict=True)
        }
        return {"seconds": seconds, "tokens": [found[number] for number in batch], "work": dict(self.work)}

    def profile(self, batch):
        """Where the time of one more batch goes: :func:`profiling.measure`."""
        search = self.generator.model
        regions = [
            (search, "forward_encoder", "encoder"),
            (search, "forward_decoder", "decoder"),
            (search, "reorder_incremental_state", "reordering"),
            (search, "reorder_encoder_out", "reordering"),
            (self.model, "get_normalized_probs", "output softmax"),
            (self.model.decoder.output_projection, "forward", "output layer"),
            (self.task, "inference_step", "search"),
        ]
        return profiling.measure(lambda: self.step(batch), regions)


KINDS = {"training": TrainingSide, "decoding": DecodingSide}


def as_json(value):
    """One line of JSON; numbers of NumPy and torch become plain ones."""
    return json.dumps(value, default=lambda number: number.item())
