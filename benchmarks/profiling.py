"""Where the time goes: torch's profile of one call, grouped in words.

An operator's own time (without the operators it calls) is counted in the group of the region it ran in, such as
"optimizer" or "search", or else in the group of its name, such as "GEMM". What no operator accounts for is Python and,
on a GPU, waiting.
"""

import contextlib
import re
import resource
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

# name of an operator -> group; the first that matches
OPERATORS = [
    ("GEMM", r"aten::(mm|addmm|addmv|mv|linear|mkldnn_linear|matmul)|mkldnn::_linear.*"),
    ("attention", r"aten::(bmm|baddbmm|_softmax.*|softmax|.*scaled_dot_product.*)|.*flash.*"),
    ("dropout", r"aten::(native_dropout.*|dropout|bernoulli.*|_fused_dropout|_masked_scale)"),
    ("output softmax, loss", r"aten::(_log_softmax.*|log_softmax|nll_loss.*|gather.*|logsumexp)|.*[Ss]mooth.*"),
    ("normalisation", r"aten::(native_layer_norm.*|layer_norm|_fused_rms_norm.*)"),
    ("copies, fills", r"aten::(copy_|cat|clone|contiguous|to|_to_copy|index_select|index|index_put_|index_copy_|stack|"
                      r"fill_|zero_|zeros|zeros_like|slice_backward|repeat|repeat_interleave|scatter_?|_index_put_impl_)"),
    ("embedding", r"aten::embedding.*"),
    ("elementwise, sums", r"aten::(add|mul|div|sub|rsub|neg|relu|threshold_backward|sum|mean|where|masked_fill|eq|ne|"
                          r"gt|lt|ge|le|logical_.*|bitwise_.*|addcmul|addcdiv|pow|sqrt|exp|any|all|maximum|clamp.*)_?"),
]  # fmt: skip
OPERATORS = [(group, re.compile(pattern)) for group, pattern in OPERATORS]
OTHER = "other operators"

# names of regions -> group; None: by the operators within
REGIONS = {
    "Optimizer.step": "optimizer",
    "clip-grads": "scaling and norm of gradients",
    "multiply-grads": "scaling and norm of gradients",
    "region: output softmax": "output softmax",
    "region: output layer": "output layer (GEMM)",
    "region: reordering": "reordering caches",
    "region: encoder": "encoder",
    "region: decoder": None,
    "region: search": "search",
}


def group_of(event):
    """Return the group that the own time of a profiler's event belongs to."""
    region = event
    while region is not None:
        for start, group in REGIONS.items():
            if region.name.startswith(start):
                if group is None:
                    return operator_group(event.name) if region is not event else "decoder: Python"
                return group
        region = region.cpu_parent
    return operator_group(event.name)


def operator_group(name):
    """Return the group of an operator by its name."""
    return next((group for group, pattern in OPERATORS if pattern.fullmatch(name)), OTHER)


def measure(function, regions=()):
    """Call ``function`` once under torch's profiler.

    Args:
        function: without arguments.
        regions: triples (object, name of a method, region): the method's calls are marked as that region.

    Returns:
        dict with ``seconds`` (wall clock, profiler's cost included), ``groups`` (dict from group to seconds, the
        largest first, the rest as "Python and rest"), ``page_faults`` (number).
    """
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with marked(regions), profile(activities=activities) as recorded:
        begin = time.perf_counter()
        function()
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    groups = {}
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CPU:
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            group = group_of(event)
            groups[group] = groups.get(group, 0.0) + microseconds * 1e-6
    groups = {group: spent for group, spent in groups.items() if spent >= 0.0005 * seconds}
    groups = dict(sorted(groups.items(), key=lambda item: -item[1]))
    groups["Python and rest"] = max(0.0, seconds - sum(groups.values()))
    return {"seconds": seconds, "groups": groups, "page_faults": faults}


@contextlib.contextmanager
def marked(regions):
    """Mark the calls of methods as regions of the profile, meanwhile."""
    with contextlib.ExitStack() as stack:
        for owner, name, region in regions:
            stack.enter_context(_marked(owner, name, f"region: {region}"))
        yield


@contextlib.contextmanager
def _marked(owner, name, label):
    method, own = getattr(owner, name), vars(owner).get(name)

    def call(*args, **kwargs):
        with record_function(label):
            return method(*args, **kwargs)

    vars(owner)[name] = call  # past nn.Module's own __setattr__; shadows the class's method
    try:
        yield
    finally:
        if own is None:
            del vars(owner)[name]
        else:
            vars(owner)[name] = own


def rows(profiles):
    """Rows of a table: one a group, with the seconds of each side.

    Args:
        profiles: dict from a side's name to the result of :func:`measure`.
    """
    groups = dict.fromkeys(group for one in profiles.values() for group in one["groups"])
    lines = [{"group": g, **{side: one["groups"].get(g) for side, one in profiles.items()}} for g in groups]
    lines.append({"group": "all, under the profiler", **{side: one["seconds"] for side, one in profiles.items()}})
    lines.append({"group": "page faults", **{side: one["page_faults"] for side, one in profiles.items()}})
    return lines
