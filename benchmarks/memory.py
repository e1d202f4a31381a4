"""Memory of this process: on the CPU its resident size, as Linux counts it; on a GPU what torch allocated there."""

from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def _kilobytes(field):
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def resident():
    """Bytes resident now; 0 where the system does not tell (it is not Linux)."""
    return (_kilobytes("VmRSS") or 0) * 1024


def reset_peak(on_gpu=False):
    """Start a new peak; returns whether the system could do it."""
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to the current size
    except OSError:
        return False
    return True


def peak(on_gpu=False):
    """Most bytes since :func:`reset_peak`; 0 where the system does not tell."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    return (_kilobytes("VmHWM") or 0) * 1024
