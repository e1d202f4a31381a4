"""The floor: operations and bytes of the mathematics, and how fast this machine does the one and moves the other.

An update or a translated batch cannot take less than its floating-point operations at the speed of one large matrix
product, nor less than reading the weights at the speed of memory. What real runs take beyond that is what the
benchmarks' profiles explain.
"""

import time

import torch
from side_by_side import PRECISIONS, synchronize


def peaks(device, precision, seconds=0.5):
    """Measure operations a second (a 2048-wide matrix product) and bytes a second (reading a large tensor).

    Returns:
        dict with ``flops`` and ``bytes``, the best of repeats during about ``seconds`` seconds each.
    """
    dtype, size = PRECISIONS[precision], 2048
    a = torch.randn(size, size, device=device).to(dtype)
    block = torch.zeros(2**26, device=device)  # 256 MB: beyond every cache
    out = torch.empty_like(a)
    product = best(lambda: torch.mm(a, a, out=out), seconds)
    reading = best(block.sum, seconds)
    return {"flops": 2 * size**3 / product, "bytes": block.nbytes / reading}


def best(function, seconds):
    """Least seconds of one call, repeated for ``seconds``, at least three times."""
    function()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        synchronize()
        begin = time.perf_counter()
        function()
        synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def training(sizes, pairs):
    """Operations and bytes of one update in float32.

    Each weight of a layer takes 2 operations a token forward and 4 backward; attention's two products 4 x length x
    width a query and layer, three times that with backward (half of it in the causal self-attention). Bytes: the
    parameters' part only, which Adam reads and writes (value, gradient, two moments; the gradient also cleared).

    Args:
        sizes: what a side tells about its model, see ``sides.sizes``.
        pairs: list of (source length, target length) in tokens.

    Returns:
        (operations, bytes)
    """
    src, tgt = sum(s for s, _ in pairs), sum(t for _, t in pairs)
    weights = sizes["encoder"] * src + (sizes["decoder"] - sizes["cross"]) * tgt + sizes["cross"] * src
    weights += sizes["output"] * tgt
    products = sizes["encoder_layers"] * sum(s * s for s, _ in pairs)
    products += sizes["decoder_layers"] * sum(t * t / 2 + s * t for s, t in pairs)
    return 6 * weights + 12 * sizes["width"] * products, 9 * 4 * sizes["total"]


def decoding(sizes, sources, steps, rows, attended, itemsize=4):
    """Operations and bytes of translating one batch, the keys and values of cross-attention computed once a sentence.

    Args:
        sizes: as in :func:`training`.
        sources: source tokens of the batch.
        steps: decoder steps.
        rows: hypotheses computed, summed over the steps.
        attended: keys attended to (own and source), summed over rows and steps.
        itemsize: bytes a weight.

    Returns:
        (operations, bytes): bytes of reading the decoder's weights once a step and the encoder's once.
    """
    step_weights = sizes["decoder"] - sizes["cross"] + sizes["output"]
    operations = 2 * (sizes["encoder"] + sizes["cross"]) * sources + 2 * step_weights * rows
    operations += 4 * sizes["width"] * sizes["decoder_layers"] * attended
    return operations, itemsize * (step_weights * steps + sizes["encoder"] + sizes["cross"])


def seconds(operations, moved, speed):
    """The floor in seconds: the larger of computing and moving at the speeds of :func:`peaks`."""
    return max(operations / speed["flops"], moved / speed["bytes"])


def sentence(operations, moved, speed, what):
    """The floor in words."""
    by_flops, by_bytes = operations / speed["flops"], moved / speed["bytes"]
    return (
        f"Floor of {what}: {operations / 1e9:,.1f} GFLOP at {speed['flops'] / 1e9:,.0f} GFLOP/s take {by_flops:.3g} s, "
        f"{moved / 1e9:,.2f} GB at {speed['bytes'] / 1e9:,.1f} GB/s take {by_bytes:.3g} s."
    )
