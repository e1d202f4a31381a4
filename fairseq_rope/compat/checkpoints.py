"""Checkpoints: loads fairseq's own, and never runs what a foreign one carries.

torch>=2.6 unpickles only types that are known to be harmless. fairseq's checkpoints hold a few more, which
are named here one by one; everything else is refused with its name.
"""

import argparse
import os
import re
import zipfile

import numpy as np
import torch

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError

# How torch's safe unpickler names what it refuses (no other interface tells it for every file format).
_REFUSED = re.compile(
    r"GLOBAL ([\w.<>]+)|whose module ([\w.]+) is blocked|but got <class '([\w.]+)'>|unsafe class ([\w.]+)"
)


class CheckpointError(UserError):
    """A checkpoint file that cannot be used; the message names the file and what is wrong with it."""


def safe_types():
    """What fairseq's checkpoints hold beyond tensors and plain Python values.

    ``argparse.Namespace`` carries the options of models without a dataclass. ``--eval-bleu`` adds the counts
    of the BLEU meters, NumPy arrays: their constructor, their scalars and their element types, under the
    module name that NumPy 1 wrote and under that of NumPy 2. Arrays of objects are left out.

    Returns:
        a list for ``torch.serialization.add_safe_globals``: types, or pairs of a function and its name in
        the file.
    """
    try:
        from numpy._core import multiarray
    except ImportError:  # NumPy 1.26 calls it numpy.core
        from numpy.core import multiarray
    functions = [
        (function, f"{module}.multiarray.{function.__name__}")
        for module in ("numpy.core", "numpy._core")
        for function in (multiarray._reconstruct, multiarray.scalar)
    ]
    elements = [
        kind
        for kind in vars(np.dtypes).values()
        if isinstance(kind, type) and issubclass(kind, np.dtype) and kind is not np.dtypes.ObjectDType
    ]
    return [argparse.Namespace, np.ndarray, np.dtype, *functions, *elements]


def load_state(path, mmap=False):
    """Read a fairseq checkpoint to the CPU; nothing that it carries is executed.

    Args:
        path: the file, as written by ``torch.save``.
        mmap: leave the tensors in the file until they are used: fast where only the options are wanted.

    Returns:
        the checkpoint's dict, with at least the key ``model``.

    Raises:
        CheckpointError: one line: the file is missing, unreadable, truncated, not a checkpoint, or carries
            objects of a forbidden type (named).
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise CheckpointError(f"checkpoint {path} does not exist")
    if not os.path.isfile(path):
        raise CheckpointError(f"checkpoint {path} is a folder, give a file such as {path}/checkpoint_best.pt")
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    if not start:
        raise CheckpointError(f"checkpoint {path} is truncated: the file is empty")
    is_zip = start == b"PK\x03\x04"
    if is_zip and not zipfile.is_zipfile(path):
        raise CheckpointError(f"checkpoint {path} is truncated: the end of the file is missing")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and is_zip)
    except MemoryError:
        raise
    except Exception as error:  # a foreign file can make an unpickler fail in any way
        raise CheckpointError(f"checkpoint {path} {_what_is_wrong(error)}") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        held = (
            f"a dict with the keys {sorted(map(str, state))[:5]}" if isinstance(state, dict) else type(state).__name__
        )
        raise CheckpointError(f"checkpoint {path} is not one of fairseq's: it holds {held}, not a dict with 'model'")
    return state


def _what_is_wrong(error):
    refused = _REFUSED.search(str(error))
    if refused:
        name = next(group for group in refused.groups() if group)
        return f"carries an object of the forbidden type {name}, which was not loaded"
    # torch says what it found behind a paragraph of advice
    reason = str(error).split("WeightsUnpickler error:")[-1].strip().split("\n")[0][:200] or type(error).__name__
    return f"is damaged or not a checkpoint ({reason})"


def _allow_own_types():
    torch.serialization.add_safe_globals(safe_types())


def _check_before_loading():
    from fairseq import checkpoint_utils

    @wrap(checkpoint_utils, "load_checkpoint_to_cpu")
    def load_checkpoint_to_cpu(stock):
        def load(path, *args, **kwargs):
            # Without reading the tensors, so cheap; it keeps loading safe even with a fairseq whose own call
            # says weights_only=False. An address such as s3://… is left to fairseq's PathManager.
            if "://" not in os.fspath(path):
                load_state(path, mmap=True)
            return stock(path, *args, **kwargs)

        return load


MENDS = [
    Mend(
        name="own checkpoint types",
        reason="torch>=2.6 refuses fairseq's own checkpoints: they hold argparse.Namespace and, with "
        "--eval-bleu, NumPy arrays",
        apply=_allow_own_types,
    ),
    Mend(
        name="checkpoint check",
        reason="a truncated or foreign checkpoint ends stock fairseq with a traceback; here with one line "
        "that names the file and what is wrong, before anything in it could run",
        apply=_check_before_loading,
    ),
]
