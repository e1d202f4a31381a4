"""Small models and checkpoints for the tests of averaging."""

from argparse import Namespace
from collections import OrderedDict

import helpers
import torch

from fairseq_rope.averaging import ModelMean

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def model(seed=0, dtype=torch.float32, words=7, width=4, layers=1):
    generator = torch.Generator().manual_seed(seed)
    state = OrderedDict()
    state["encoder.embed_tokens.weight"] = torch.randn(words, width, generator=generator).to(dtype)
    for layer in range(layers):
        state[f"encoder.layers.{layer}.fc1.weight"] = torch.randn(width, width, generator=generator).to(dtype)
    state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    return state


def checkpoint(parameters, epoch=1, update=10, loss=3.25, arch="roformer_tiny", heads=4, metric="loss", **more):
    """A checkpoint as fairseq's trainer writes it at an epoch's end."""
    return {
        "args": None,
        "cfg": {
            "model": Namespace(arch=arch, encoder_attention_heads=heads, dropout=0.1 * epoch),
            "checkpoint": {
                "best_checkpoint_metric": metric,
                "maximize_best_checkpoint_metric": metric == "bleu",
            },
        },
        "model": parameters,
        "criterion": None,
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "num_updates": update}],
        "extra_state": {
            "train_iterator": {"version": 2, "epoch": epoch + 1, "iterations_in_epoch": 0},
            "val_loss": loss,
            **more,
        },
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.ones(50)}}},
    }


def write(folder, *states, names=None):
    """Save checkpoints as checkpoint1.pt, checkpoint2.pt, …; returns their paths."""
    names = names or [f"checkpoint{number}.pt" for number in range(1, len(states) + 1)]
    paths = [str(folder / name) for name in names]
    for path, state in zip(paths, states, strict=True):
        torch.save(state, path)
    return paths


def mean_of(models, weights=None, dtype=torch.float64):
    mean = ModelMean(weights or [1.0] * len(models), dtype)
    for number, parameters in enumerate(models):
        assert mean.differences(parameters) == []
        mean.add(dict(parameters), f"model {number}")
    return mean.result()


def bits(tensor):
    """The tensor's bytes: tells -0.0 from 0.0."""
    return tensor.contiguous().view(torch.uint8).tolist()


def average(*args, check=True):
    return helpers.run("fairseq-rope-average", *args, check=check)
