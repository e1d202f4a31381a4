"""The weighted mean of several checkpoints of one model, one checkpoint in memory at a time.

The command is ``fairseq-rope-average``; this module is the same as a library::

    state, infos = average_checkpoints(["checkpoint4.pt", "checkpoint5.pt"])

Checkpoint averaging follows Vaswani et al. 2017, section 6.1; the treatment of keys, integer tensors and
metadata follows fairseq's ``scripts/average_checkpoints.py``.
"""

import copy
import math
from collections import OrderedDict

import torch

from fairseq_rope.checkpoint_files import describe, structure
from fairseq_rope.compat.checkpoints import load_state
from fairseq_rope.errors import UserError

MOST_NAMED = 6  # keys that an error names before it goes on with "and N more"


def load_mapped(path):
    """Load a checkpoint with its tensors left in the file until used: its optimiser state is never read."""
    return load_state(path, mmap=True)


def average_checkpoints(paths, weights=None, dtype=torch.float64, load=load_mapped, progress=iter):
    """Average fairseq checkpoints.

    In memory at any moment: the sums (one model in ``dtype``) and one checkpoint.

    Args:
        paths: checkpoint files; everything but the parameters is taken from the first.
        weights: one non-negative number a file (they need not sum to 1), or None for equal weights.
        dtype: type of the sums, ``torch.float64`` or ``torch.float32``; results have the type that the first
            file stores.
        load: function from a path to the checkpoint's dictionary.
        progress: wraps the list of paths in an iterator that shows progress, such as ``tqdm.tqdm``.

    Returns:
        tuple (state, infos): the averaged checkpoint's dictionary, without optimiser state, and one
        :class:`~fairseq_rope.checkpoint_files.CheckpointInfo` a file. ``state["extra_state"]["averaged"]``
        lists what was averaged.

    Raises:
        UserError: no file; wrong weights; a file that ``load`` refuses; different architectures, key sets,
            shapes or types; a parameter that is not a number.
    """
    paths = list(paths)
    if not paths:
        raise UserError("there is no checkpoint to average")
    weights = check_weights(weights, len(paths))
    mean = ModelMean(weights, dtype)
    result, infos = None, []
    for path in progress(paths):
        state = load(path)
        model = state.pop("model", None) if isinstance(state, dict) else None
        if not isinstance(model, dict) or not model:
            raise UserError(f"{path} is not a fairseq checkpoint: it has no model parameters")
        # The optimiser's state is twice the model and belongs to a single point of the training.
        state.pop("last_optimizer_state", None)
        infos.append(describe(path, state))
        this_structure = structure(state)
        if result is None:
            result, first_structure = state, this_structure
        _refuse_differences(paths[0], path, first_structure, this_structure, mean.differences(model))
        del state
        mean.add(model, path)
        del model
    result["model"] = mean.result()
    extra = result["extra_state"] = dict(result.get("extra_state") or {})
    if "ema" in extra:
        # The moving average of one point of the training is not the mean's; fairseq needs the key to restore
        # with --store-ema, so it restarts from the mean. The memory is shared: no cost in the file.
        extra["ema"] = result["model"]
        extra.pop("ema_fp32_params", None)
    extra["averaged"] = [
        {"file": info.name, "epoch": info.epoch, "update": info.update, "weight": weight}
        for info, weight in zip(infos, weights, strict=True)
    ]
    return result, infos


def check_weights(weights, count):
    """Return ``count`` floats; :class:`UserError` for a wrong number of them, negative ones or only zeros."""
    if weights is None:
        return [1.0] * count
    weights = [float(weight) for weight in weights]
    shown = " ".join(f"{weight:g}" for weight in weights)
    if len(weights) != count:
        raise UserError(f"{len(weights)} weights ({shown}) for {count} checkpoints: give one a checkpoint")
    if any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise UserError(f"weights must be finite and not negative: {shown}")
    if not any(weights):
        raise UserError("at least one weight must be above 0")
    return weights


class ModelMean:
    """Running weighted mean of ``state_dict``s: ``add`` one model a weight, then ``result``.

    Args:
        weights: non-negative floats, one a model, not all 0.
        dtype: floating-point type of the sums.
    """

    def __init__(self, weights, dtype=torch.float64):
        weights = list(weights)
        if len(set(weights)) == 1:
            weights = [1.0] * len(weights)
        # Scaled by a power of two (which rounds nothing) to a total in [1/2, 1), so that no sum overflows.
        exponent = math.frexp(math.fsum(weights))[1]
        self.weights = [math.ldexp(weight, -exponent) for weight in weights]
        self.dtype = dtype
        self.added = 0
        self.means = None  # list of (keys that share memory, mean)
        self.kinds = None  # key -> (shape, dtype), in the first model's order
        self.metadata = None

    def differences(self, model):
        """Say in words how ``model`` differs from the first one added; an empty list if it can be added."""
        if self.kinds is None:
            return []
        found = []
        missing = [key for key in self.kinds if key not in model]
        more = [key for key in model if key not in self.kinds]
        if missing:
            found.append(f"it lacks {_name_some(missing)}")
        if more:
            found.append(f"it has besides {_name_some(more)}")
        shapes, types = [], []
        for key, (shape, dtype) in self.kinds.items():
            tensor = model.get(key)
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.shape != shape:
                what = "dictionary of " if key.endswith(("embed_tokens.weight", "output_projection.weight")) else ""
                shapes.append(f"{key} ({what}{_show(tensor.shape)} instead of {_show(shape)})")
            elif _mean_class(tensor.dtype) is not _mean_class(dtype):
                types.append(f"{key} ({tensor.dtype} instead of {dtype})")
        if shapes:
            found.append(f"other shapes: {_name_some(shapes)}")
        if types:
            found.append(f"other types: {_name_some(types)}")
        return found

    def add(self, model, name):
        """Add the next model.

        Args:
            model: dict from key to tensor; emptied meanwhile, so that its memory is free as soon as possible.
            name: what error messages call this model, normally its path.

        Raises:
            UserError: an entry that is not a tensor or not a number, or a tensor of a type that has no mean.
        """
        for key, tensor in model.items():
            if not isinstance(tensor, torch.Tensor):
                raise UserError(f"{name}: cannot average {key}, which is a {type(tensor).__name__}, not a tensor")
            if _mean_class(tensor.dtype) is None:
                raise UserError(f"{name}: cannot average {key}, which is of type {tensor.dtype}")
            if tensor.is_floating_point() and torch.isnan(tensor).any():
                raise UserError(f"{name}: {key} holds a NaN (not a number); leave this checkpoint out")
        weight = self.weights[self.added]
        if self.means is None:
            self.kinds = {key: (tensor.shape, tensor.dtype) for key, tensor in model.items()}
            self.metadata = getattr(model, "_metadata", None)
            self.means = [
                (keys, _mean_class(model[keys[0]].dtype)(model[keys[0]].dtype, self.dtype))
                for keys in tied_groups(model)
            ]
        else:
            self.means = [part for keys, mean in self.means for part in _untie(keys, mean, model)]
        for keys, mean in self.means:
            tensor = model[keys[0]]
            for key in keys:
                del model[key]
            try:
                mean.add(tensor, weight)
            except ValueError as error:
                raise UserError(f"{name}: cannot average {keys[0]}: {error}") from error
        self.added += 1

    def result(self):
        """Return the mean as an OrderedDict in the first model's order; the sums are used up."""
        if self.added != len(self.weights):
            raise ValueError(f"{self.added} models added for {len(self.weights)} weights")
        averaged = dict.fromkeys(self.kinds)
        while self.means:
            keys, mean = self.means.pop()
            averaged.update(dict.fromkeys(keys, mean.result()))
        averaged = OrderedDict(averaged)
        if self.metadata is not None:
            averaged._metadata = self.metadata  # versions of modules, which load_state_dict reads
        return averaged


class _FloatMean:
    """Mean of floating-point tensors, exact for equal ones.

    Sums wider than the stored type (the usual case): the weighted sum, divided once. The float64 sum of up to
    2**29 equal float32 values rounds nothing, and with uneven weights its error vanishes when the result
    is rounded to the stored type. Sums as wide as the stored type (float32 in float32) have no such reserve:
    there a running mean, whose corrections are exactly 0 for equal values.
    """

    def __init__(self, stored, dtype):
        self.stored = stored
        self.dtype = torch.promote_types(stored, dtype)
        self.wider = torch.finfo(self.dtype).eps < torch.finfo(stored).eps
        self.total = None
        self.weight = 0.0

    def add(self, tensor, weight):
        weight = torch.tensor(weight, dtype=self.dtype).item()  # as it takes part: a tiny one can become 0
        if weight == 0:  # else 0 * inf would be NaN
            return
        self.weight += weight
        if self.total is None:
            total = tensor.detach().to(self.dtype, copy=True).contiguous()
            self.total = total.mul_(weight) if self.wider else total
        elif self.wider:
            self.total.add_(tensor, alpha=weight)  # each element is widened before it is multiplied
        else:
            tensor = tensor.to(self.dtype)
            # Subtracted, not added: -0.0 - 0.0 stays -0.0. Masked, because inf - inf is NaN.
            excess = (self.total - tensor).masked_fill_(self.total == tensor, 0)
            self.total.sub_(excess, alpha=weight / self.weight)

    def result(self):
        mean = self.total.div_(self.weight) if self.wider else self.total
        return mean.to(self.stored)


class _IntegerMean:
    """Mean of integer tensors, rounded down as fairseq does; from differences, against overflow."""

    def __init__(self, stored, dtype):
        self.stored = stored
        self.first = None
        self.difference = 0.0
        self.weight = 0.0

    def add(self, tensor, weight):
        if weight == 0:
            return
        self.weight += weight
        if self.first is None:
            self.first = tensor.to(torch.int64, copy=True)
        else:
            self.difference = self.difference + (tensor.to(torch.int64) - self.first).to(torch.float64) * weight

    def result(self):
        if isinstance(self.difference, torch.Tensor):
            self.first += torch.floor(self.difference / self.weight).to(torch.int64)
        return self.first.to(self.stored)


class _SameEverywhere:
    """ "Mean" of boolean tensors: there is none, unless all are equal."""

    def __init__(self, stored, dtype):
        self.first = None

    def add(self, tensor, weight):
        if self.first is None:
            self.first = tensor.clone()
        elif not torch.equal(self.first, tensor):
            raise ValueError("it is boolean and differs between the checkpoints")

    def result(self):
        return self.first


def _mean_class(dtype):
    """The class that averages tensors of ``dtype``, or None."""
    if dtype.is_floating_point:
        return _FloatMean
    if dtype is torch.bool:
        return _SameEverywhere
    if dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        return _IntegerMean
    return None


def tied_groups(model):
    """Group the keys of ``model`` whose tensors are the same memory: a list of lists of keys, in order."""
    groups = {}
    for key, tensor in model.items():
        groups.setdefault(_memory(tensor), []).append(key)
    return list(groups.values())


def _memory(tensor):
    # Tensors without elements all live at address 0 and are nobody's copy.
    where = tensor.data_ptr() or id(tensor)
    return (where, tensor.dtype, tensor.shape, tensor.stride())


def _untie(keys, mean, model):
    """Split a group of tied keys where ``model`` holds different values: a list of (keys, mean)."""
    parts = [([keys[0]], mean)]
    for key in keys[1:]:
        for known, _ in parts:
            tensor = model[known[0]]
            # fairseq unties on saving from a GPU or from half precision: equal values count as tied.
            if _memory(tensor) == _memory(model[key]) or torch.equal(tensor, model[key]):
                known.append(key)
                break
        else:
            parts.append(([key], copy.deepcopy(mean)))
    return parts


def _refuse_differences(first, path, first_structure, this_structure, differences):
    options = [
        f"--{name.replace('_', '-')} {this_structure[name]} instead of {value}"
        for name, value in first_structure.items()
        if name in this_structure and this_structure[name] != value
    ]
    if options:
        differences = [f"another architecture: {_name_some(options)}", *differences]
    if differences:
        raise UserError(f"{path} cannot be averaged with {first}: {'; '.join(differences)}")


def _name_some(names):
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _show(shape):
    return " x ".join(map(str, shape)) or "scalar"
