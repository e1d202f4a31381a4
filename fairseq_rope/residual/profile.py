"""ADMIN's measured profile as a file: JSON for ``--admin-profile-in``, and a picture."""

import json
import math
from pathlib import Path

import torch

from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable, replacing
from fairseq_rope.residual.build import blocks_of

STACKS = ("encoder", "decoder")


def picture_of(path) -> Path:
    """Where the picture of the profile ``path`` lies: ``.png`` in place of ``.json``, or after any other name."""
    path = Path(path)
    return path.with_suffix(".png") if path.suffix == ".json" else path.with_name(path.name + ".png")


def check_profile_out(path):
    """Raise a UserError, before training, unless both files can be written."""
    if Path(path).suffix == ".png":
        raise UserError(f"--admin-profile-out {path} is for JSON; give it another ending, the picture gets .png")
    check_writable(path)
    check_writable(picture_of(path))


def blocks(layers) -> list[tuple]:
    """(layer, name of its buffer) of every block of a stack, in order of execution."""
    return [(layer, f"{block}_omega") for layer in layers.children() for block in blocks_of(layer)]


def read_profile(path, model) -> dict[str, list[float]]:
    """ω of every block, by stack, from a file that ``--admin-profile-out`` wrote.

    Args:
        path: JSON file.
        model: what it is for; the number of its blocks must agree.

    Raises:
        UserError: the file is missing, is no profile, or is one of a model of another depth.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--admin-profile-in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--admin-profile-in {path} is no JSON file: it holds bytes that are no text") from error
    try:
        content = json.loads(text)
        profile = {stack: [float(omega) for omega in content[stack]["omega"]] for stack in STACKS}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--admin-profile-in {path} is no profile: it must hold JSON with encoder.omega and decoder.omega, as "
            "--admin-profile-out writes it"
        ) from error
    for stack in STACKS:
        expected = len(blocks(getattr(model, stack).layers))
        if len(profile[stack]) != expected:
            raise UserError(
                f"--admin-profile-in {path} is for {len(profile[stack])} {stack} blocks, but this model has {expected}"
            )
        if not all(math.isfinite(omega) and omega > 0 for omega in profile[stack]):
            raise UserError(f"--admin-profile-in {path}: every omega must be a positive number ({stack})")
        if profile[stack][0] != 1:
            raise UserError(
                f"--admin-profile-in {path}: the first omega of the {stack} must be 1, not {profile[stack][0]:g}"
            )
    return profile


def fill(model, profile: dict[str, list[float]]):
    """Set every ω of ``model`` as if it had been measured."""
    with torch.no_grad():
        for stack in STACKS:
            for (layer, name), omega in zip(blocks(getattr(model, stack).layers), profile[stack], strict=True):
                getattr(layer, name).fill_(omega)


def write_profile(path, model, measurements):
    """Write a measured profile as JSON and as a picture.

    Args:
        path: JSON file; the picture lies beside it.
        model: what was measured.
        measurements: finished :class:`~fairseq_rope.residual.admin.Measurement` of encoder and decoder, or of one of
            them; the other's ω then come from the model, where a checkpoint has put them.
    """
    measured = {measurement.stack: measurement for measurement in measurements}
    content = {}
    for stack in STACKS:
        known = [float(getattr(layer, name)[0]) for layer, name in blocks(getattr(model, stack).layers)]
        content[stack] = {"omega": measured[stack].omegas if stack in measured else known}
        if stack in measured:
            content[stack]["shortcut_variance"] = measured[stack].shortcut_variances
            content[stack]["branch_variance"] = measured[stack].branch_variances
    with replacing(path) as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    figure = draw({stack: part["omega"] for stack, part in content.items()})
    with replacing(picture_of(path), "wb") as file:
        figure.savefig(file, format="png", dpi=120)


def draw(profile: dict[str, list[float]]):
    """ω of every block by its number, one line a stack, as a matplotlib Figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for stack, omegas in profile.items():
        axes.plot(range(1, len(omegas) + 1), omegas, marker="." if len(omegas) < 50 else None, label=stack)
    axes.set_xlabel("residual block")
    axes.set_ylabel("ω, factor of the shortcut")
    axes.set_title("ADMIN profile")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
