"""Which Python, torch and fairseq this package runs on, told in one sentence where it is another one."""

import importlib.metadata
import logging
import sys

logger = logging.getLogger("fairseq_rope")

# (first that can work, first that is untested again)
PYTHON = ((3, 11), (3, 13))
TORCH = ((2, 6), (2, 14))
TESTED_TORCH = (2, 13)
TESTED_FAIRSEQ = ("ve-fairseq", "0.12.3")
TESTED = "tested are Python 3.11 and 3.12, torch 2.13 and ve-fairseq 0.12.3"

# What the mends hold on to; a fairseq without one of these is another program.
NEEDED = [
    ("fairseq.checkpoint_utils", "load_checkpoint_to_cpu"),
    ("fairseq.checkpoint_utils", "load_model_ensemble_and_task"),
    ("fairseq.data.data_utils", "batch_by_size"),
    ("fairseq.distributed.utils", "call_main"),
    ("fairseq.options", "parse_args_and_arch"),
    ("fairseq.utils", "import_user_module"),
    ("fairseq.dataclass.utils", "convert_namespace_to_omegaconf"),
    ("fairseq.models.transformer", "TransformerConfig"),
]


class UnsupportedStack(ImportError):
    """This package cannot run here; the message says what was found and what is supported."""


def fairseq_distribution():
    """Name and version of the distribution that provides ``fairseq``; ("fairseq", "?") if unknown."""
    for name in ("ve-fairseq", "fairseq"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "fairseq", "?"


def _numbers(version):
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def check():
    """Check the stack once.

    Returns:
        sentences about what is untested here but may work.

    Raises:
        UnsupportedStack: it cannot work.
    """
    doubts = []
    python = sys.version_info[:2]
    found = f"Python {python[0]}.{python[1]}"
    if python < PYTHON[0]:
        raise UnsupportedStack(f"fairseq_rope does not run on {found}: {TESTED}")
    if python >= PYTHON[1]:
        doubts.append(f"fairseq_rope is untested on {found}: {TESTED}")

    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedStack(f"fairseq_rope needs torch, which is not installed: {TESTED}") from None
    if _numbers(torch_version) < TORCH[0]:
        raise UnsupportedStack(f"fairseq_rope does not run on torch {torch_version}: it needs 2.6 or later; {TESTED}")
    if _numbers(torch_version) != TESTED_TORCH:
        doubts.append(f"fairseq_rope is untested on torch {torch_version}: {TESTED}")

    doubts += _check_fairseq()
    return doubts


def _check_fairseq():
    name, version = fairseq_distribution()
    found = f"{name} {version}"
    try:
        import fairseq  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise UnsupportedStack(f"{found} cannot be imported, since {error.name} is missing: {TESTED}") from error
        raise UnsupportedStack(f"fairseq_rope needs fairseq, which is not installed: {TESTED}") from None
    except Exception as error:
        # PyPI's fairseq (up to 0.12.2) ends here on Python 3.11: "mutable default … is not allowed"
        reason = " ".join(str(error).split())[:120]
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        raise UnsupportedStack(
            f"{found} cannot be imported on {python} ({type(error).__name__}: {reason}): {TESTED}; "
            "install ve-fairseq in its place"
        ) from error
    for module, attribute in NEEDED:
        try:
            present = hasattr(importlib.import_module(module), attribute)
        except ImportError:
            present = False
        if not present:
            raise UnsupportedStack(f"{found} has no {module}.{attribute}, which fairseq_rope needs: {TESTED}")
    if (name, version) == TESTED_FAIRSEQ:
        return []
    return [f"fairseq_rope is untested on {found}, whose checks pass: {TESTED}"]
