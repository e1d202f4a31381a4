"""Which checkpoints a folder holds, and what a checkpoint says about itself."""

import re
from dataclasses import dataclass
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.positions import OPTION_READERS

# fairseq's names: at the end of an epoch; within an epoch (epoch, update); the best ones (metric, value)
EPOCH = re.compile(r"checkpoint(\d+)\.pt")
UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
BEST = re.compile(r"checkpoint\.best_(.+)_(-?\d+(?:\.\d*)?)\.pt")

# Options that decide what a model computes with given parameters. Everything else may differ between
# checkpoints of one run (data folder, dropout, learning rate after a restart).
_STRUCTURE = re.compile(
    r"arch|(encoder|decoder)_(layers|embed_dim|ffn_embed_dim|attention_heads|normalize_before|"
    r"input_dim|output_dim)|activation_fn|layernorm_embedding|no_scale_embedding|"
    r"cross_self_attention|no_cross_attention|adaptive_input|share_.*embed.*|"
    r"position_encoding|rope_.+|tupe_.+|relative_.+|residual_(attention|init|encoder_layers|decoder_layers)"
)


@dataclass(frozen=True)
class CheckpointInfo:
    """What is printed about a checkpoint.

    Attributes:
        path: the file.
        epoch: epoch in (or at the end of) which it was saved, from 1; None if not recorded.
        update: number of updates done; None if not recorded.
        metric: name of the validation figure, such as ``loss`` or ``bleu``.
        value: that figure; None if there was no validation.
    """

    path: str
    epoch: int | None
    update: int | None
    metric: str
    value: float | None

    @property
    def name(self):
        return Path(self.path).name


def describe(path, state):
    """Read a :class:`CheckpointInfo` from a loaded checkpoint; what is not recorded becomes None."""
    extra = state.get("extra_state") or {}
    iterator = extra.get("train_iterator") or {}
    epoch = iterator.get("epoch")
    if epoch is not None and iterator.get("version", 1) >= 2 and iterator.get("iterations_in_epoch") == 0:
        epoch = max(1, epoch - 1)  # at an epoch's end fairseq records where the next one starts
    history = state.get("optimizer_history") or [{}]
    value = extra.get("val_loss")
    return CheckpointInfo(
        path=str(path),
        epoch=epoch,
        update=history[-1].get("num_updates"),
        metric=option(state, "checkpoint", "best_checkpoint_metric") or "loss",
        value=float(value) if value is not None else None,
    )


def structure(state):
    """Return the options of a loaded checkpoint that decide what its model computes, as a flat dict."""
    options = _flat(_plain((state.get("cfg") or {}).get("model")) or _plain(state.get("args")) or {})
    if "arch" not in options and "_name" in options:
        options["arch"] = options["_name"]
    if "encoder_layers" in options:
        options["position_encoding"] = _position_encoding(options)
        for name, stock in (("residual_attention", "none"), ("residual_init", "default")):
            options[name] = options.get(name) or stock
    for prefix, readers in OPTION_READERS.items():  # recorded in every checkpoint, but not always read
        if options.get("position_encoding") not in readers:
            options = {name: value for name, value in options.items() if not name.startswith(prefix)}
    return {name: value for name, value in options.items() if value is not None and _STRUCTURE.fullmatch(name)}


def _position_encoding(options):
    """The encoding that was asked for, or that stock's flags stand for, so that both forms compare equal."""
    if options.get("position_encoding") is not None:
        return options["position_encoding"]
    if options.get("no_token_positional_embeddings"):
        return "none"
    sides = ["learned" if options.get(f"{stack}_learned_pos") else "sinusoidal" for stack in ("encoder", "decoder")]
    return sides[0] if sides[0] == sides[1] else f"{sides[0]} (encoder) and {sides[1]} (decoder)"


def choose(inputs, epochs=None, updates=None, best=None, upper_bound=None, load=None):
    """Choose checkpoint files as fairseq's averaging script does.

    Args:
        inputs: paths: files, or one folder.
        epochs, updates, best: at most one is given: how many to take of a folder's last epoch checkpoints,
            last update checkpoints, or best checkpoints (also among files, by name).
        upper_bound: with ``epochs`` or ``updates``, leave out later epochs or updates.
        load: function from a path to a checkpoint's dictionary, asked with ``best`` whether more is better.

    Returns:
        list of paths, latest or best first; ``inputs`` itself if none of the three numbers is given.

    Raises:
        UserError: too few checkpoints (names both numbers), or a combination that has no meaning.
    """
    inputs = [str(path) for path in inputs]
    chosen = [(number, kind, flag) for number, kind, flag in (
        (epochs, "epoch", "--num-epoch-checkpoints"),
        (updates, "update", "--num-update-checkpoints"),
        (best, "best", "--num-best-checkpoints"),
    ) if number is not None]  # fmt: skip
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(flag for _, _, flag in chosen)} exclude one another")
    if upper_bound is not None and epochs is None and updates is None:
        raise UserError("--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints")
    if not chosen:
        for path in inputs:
            if Path(path).is_dir():
                raise UserError(
                    f"{path} is a folder: say which of its checkpoints by --num-epoch-checkpoints, "
                    "--num-update-checkpoints or --num-best-checkpoints"
                )
        return inputs
    number, kind, flag = chosen[0]
    if number < 1:
        raise UserError(f"{flag} must be at least 1, not {number}")
    folder = inputs[0] if len(inputs) == 1 and Path(inputs[0]).is_dir() else None
    if folder is None and kind != "best":
        missing = [path for path in inputs if not Path(path).exists()]
        if missing:
            raise UserError(f"there is no folder {missing[0]}")
        raise UserError(f"{flag} needs one folder as --inputs, not {' '.join(inputs)}")
    where = f"in {folder}" if folder else "among the files given"
    if kind == "best":
        found = _best(inputs, folder, load)
    else:
        found = _numbered(folder, EPOCH if kind == "epoch" else UPDATE, upper_bound)
        where += f" up to {kind} {upper_bound}" if upper_bound is not None else ""
    if len(found) < number:
        raise UserError(f"{number} {kind} checkpoints were asked for but {len(found)} found {where}")
    return found[:number]


def _numbered(folder, pattern, upper_bound):
    matches = ((pattern.fullmatch(path.name), path) for path in Path(folder).iterdir())
    found = [(int(match[1]), str(path)) for match, path in matches if match]
    return [path for number, path in sorted(found, reverse=True) if upper_bound is None or number <= upper_bound]


def _best(inputs, folder, load):
    paths = sorted(Path(folder).iterdir()) if folder else [Path(path) for path in inputs]
    found = []
    for path in paths:
        match = BEST.fullmatch(path.name)
        if match:
            found.append((match[1], float(match[2]), str(path)))
        elif not folder:
            raise UserError(f"{path} is not named checkpoint.best_METRIC_VALUE.pt, so its value is not known")
    metrics = sorted({metric for metric, _, _ in found})
    if len(metrics) > 1:
        raise UserError(f"the best checkpoints are by different metrics ({', '.join(metrics)}): give the files of one")
    if not found:
        return []
    more_is_better = bool(option(load(found[0][2]), "checkpoint", "maximize_best_checkpoint_metric"))
    return [path for _, _, path in sorted(found, key=lambda entry: entry[1], reverse=more_is_better)]


def option(state, group, name):
    """One option of the training run: in ``cfg`` by group, or flat in the ``args`` of older checkpoints."""
    options = _plain((state.get("cfg") or {}).get(group)) or _plain(state.get("args")) or {}
    return options.get(name)


def _plain(options):
    """A Namespace or any mapping as a mapping; None stays None."""
    return options if options is None or hasattr(options, "items") else vars(options)


def _flat(options, prefix=""):
    """Nested groups to one level: ``{"encoder": {"layers": 6}}`` to ``{"encoder_layers": 6}``."""
    flat = {}
    for name, value in options.items():
        if hasattr(value, "items"):
            flat.update(_flat(value, f"{prefix}{name}_"))
        else:
            flat[prefix + name] = value
    return flat
