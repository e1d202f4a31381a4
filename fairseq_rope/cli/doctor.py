"""``fairseq-rope-doctor``: says what this package runs on here, and what could not work."""

import importlib
import importlib.metadata
import os
import sys

import numpy as np
import torch

import fairseq_rope
from fairseq_rope import compat
from fairseq_rope.cli.program import Parser
from fairseq_rope.compat import versions
from fairseq_rope.compat.user_dir import usable_user_dir

CTRANSLATE2 = "ctranslate2>=4.8"  # as the extra `deploy` of setup.py


def stack():
    """What is installed and what the machine has, as (name, value) pairs to print."""
    name, version = versions.fairseq_distribution()
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return [
        ("fairseq_rope", fairseq_rope.__version__),
        ("fairseq", f"{name} {version}"),
        ("Python", sys.version.split()[0]),
        ("torch", torch.__version__),
        ("NumPy", np.__version__),
        ("sacrebleu", _version("sacrebleu")),
        ("CTranslate2", ctranslate2()),
        ("CPU", f"{torch.get_num_threads()} threads of {os.cpu_count()} processors"),
        ("GPU", ", ".join(gpus) or "none"),
        ("bf16", _bfloat16(gpus)),
    ]


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def ctranslate2():
    """What can be said of CTranslate2, which only exported models need: its version, and what it computes with here."""
    version, what = _version("ctranslate2"), "optional: fairseq-rope-export, and translating with what it writes"
    if version == "not installed":
        return f"not installed ({what}): pip install '{CTRANSLATE2}'"
    try:
        module = importlib.import_module("ctranslate2")
        if _numbers(version) < _numbers(CTRANSLATE2.partition(">=")[2]):
            return f"{version} is too old ({what}): pip install '{CTRANSLATE2}'"
        types = ", ".join(sorted(module.get_supported_compute_types("cpu")))
    except (ImportError, OSError, RuntimeError) as error:
        return f"{version} cannot be imported ({what}): {' '.join(str(error).split())}"
    gpus = module.get_cuda_device_count()
    return f"{version} ({what}); CPU: {types}; {f'{gpus} GPUs' if gpus else 'no GPU'}"


def _numbers(version):
    return [int(part) for part in version.split(".")[:2]]


def _bfloat16(gpus):
    cpu = "CPU yes" if _multiplies("cpu") else "CPU no"
    if not gpus:
        return cpu
    return f"{cpu}, GPU {'yes' if torch.cuda.is_bf16_supported() else 'no'}"


def _multiplies(device):
    ones = torch.ones(2, 2, dtype=torch.bfloat16, device=device)
    try:
        return bool(((ones @ ones) == 2).all())
    except RuntimeError:
        return False


def architectures():
    """{name of ``--arch``: name of its model} of everything that this package has registered."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY

    package = fairseq_rope.__name__ + "."
    return {
        arch: ARCH_MODEL_NAME_REGISTRY[arch]
        for arch, model in sorted(ARCH_MODEL_REGISTRY.items())
        if model.__module__.startswith(package)
    }


def problems():
    """Sentences about what cannot work here; empty where everything can."""
    found = []
    # fairseq's compiled parts: batching and language-model blocks need them, and a source checkout lacks them
    for module in ("fairseq.data.data_utils_fast", "fairseq.data.token_block_utils_fast"):
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            found.append(f"fairseq's compiled module {module} cannot be imported: {error}")
    for distribution in ("sacrebleu", "hydra-core", "omegaconf"):
        if _version(distribution) == "not installed":
            found.append(f"{distribution} is not installed: pip install {distribution}")
    found += [f"the mend '{mend.name}' {why}" for mend, why in compat.status() if str(why).startswith("cannot")]
    if not architectures():
        found.append("no architecture of fairseq_rope is registered: the package is not installed whole")
    if torch.cuda.is_available():
        try:
            torch.ones(1, device="cuda").add_(1).item()
        except RuntimeError as error:
            found.append(f"torch sees a GPU but cannot compute on it: {' '.join(str(error).split())}")
    return found


def report():
    """Print the whole report; returns what :func:`problems` found."""
    print("Stack")
    for name, value in stack():
        print(f"  {name:<13}{value}")
    print("Mends of stock fairseq")
    for mend, why in compat.status():
        print(f"  {mend.name}: {'active' if why is None else f'not active ({why})'}")
        print(f"      {mend.reason}")
    known = architectures()
    print(f"Architectures ({len(known)}), for --arch")
    for arch, model in known.items():
        print(f"  {arch:<32}{model}")
    print("Use it from any folder with")
    print(f"  --user-dir {usable_user_dir()}")
    found = problems()
    print("Problems" if found else "No problems found.")
    for problem in found:
        print(f"  {problem}")
    return found


def main():
    """Entry point; returns 1 where something cannot work."""
    parser = Parser(
        prog="fairseq-rope-doctor",
        description="Print what fairseq_rope runs on: versions, mends of fairseq, architectures, --user-dir.",
    )
    parser.parse_args()
    return 1 if report() else 0


if __name__ == "__main__":
    sys.exit(main())
