"""Attention alone: this package's self-attention with RoPE against HF transformers' RoFormer and x-transformers.

    python benchmarks/attention.py                          # about five minutes on two cores
    python benchmarks/attention.py --lengths 128 --rounds 5 # half a minute

What is measured: one self-attention of width 512 with 8 heads and no dropout, 4096 tokens a batch (32 sentences of 128
tokens, for example), the tables of angles given, since a model computes them once for all layers. Two tables: with the
four projections, and without them, from projected queries, keys and values to heads put together. Each forward without
gradients, and forward with backward (gradients of the input and of all weights). All sides have the same weights; what
they return and their gradients are compared first, and a side that differs ends the program.

Each library computes in the order that it is made for: (length, batch, width) here, (batch, length, width) there.
RoFormer of transformers has one way of computing; x-transformers has two (flash or not), and the ratio is to the faster
one of each row. x-transformers' projections have no biases, so they are zero everywhere; only the other two add them.
"""

import argparse
import importlib.util
import sys
from dataclasses import dataclass

import floor
import profiling
import side_by_side
import torch

from fairseq_rope.attention import MultiheadAttention, attend
from fairseq_rope.positions import RopeScaling, RotaryPositions

WIDTH, HEADS, TOKENS = 512, 8, 4096
HEAD_DIM = WIDTH // HEADS
LENGTHS = (32, 128, 512, 2048)
OURS, HF, XT = "fairseq_rope", "HF RoFormer", "x-transformers"
XT_FLASH = f"{XT}, flash"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
# Largest difference of results, of the largest value: rounding, and in half precision the others' rounded angles.
TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}


@dataclass
class AttentionSide:
    """One library's attention.

    Attributes:
        run: function of the inputs.
        inputs: one tensor (length and batch in the library's order, width), or three: queries, keys, values.
        weights: what else has gradients.
        batch_first: whether the batch comes before the length.
    """

    run: object
    inputs: list
    weights: list
    batch_first: bool

    def forward(self):
        """Without gradients."""
        with torch.no_grad():
            return self.run(*self.inputs)

    def train(self, gradient):
        """Forward and backward; returns the result and the gradients of inputs and weights."""
        out = self.run(*self.inputs)
        return out, torch.autograd.grad(out, [*self.inputs, *self.weights], gradient)


class Given(torch.nn.Module):
    """Takes a projection's place and returns what it would have."""

    def __init__(self, projected):
        super().__init__()
        self.projected = projected

    def forward(self, x):
        return self.projected


def rotation_of(length, batch, device):
    """Our rotation of ``length`` positions."""
    positions = RotaryPositions(RopeScaling(head_dim=HEAD_DIM), padding_idx=1)
    return positions.rotation(torch.zeros(batch, length, dtype=torch.long, device=device), length, causal=False)


def our_attention(device, dtype):
    """This package's attention as the benchmarks use it."""
    return MultiheadAttention(WIDTH, HEADS, dropout=0.0, self_attention=True).to(device, dtype)


def hf_attention():
    """RoFormer's self-attention of HF transformers, and the module of its sinusoids."""
    import transformers.utils

    # It would load torchaudio, whose build need not fit the torch at hand, for nothing that is used here.
    for module in (transformers.utils, transformers.utils.import_utils):
        module.is_torchaudio_available = lambda: False
    from transformers.models.roformer import modeling_roformer as roformer

    config = transformers.RoFormerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_probs_dropout_prob=0.0, max_position_embeddings=2048
    )

    def sinusoids(length):
        table = roformer.RoFormerSinusoidalPositionalEmbedding(length, HEAD_DIM)
        table.weight = torch.nn.Parameter(table.create_weight(), requires_grad=False)
        return table(torch.Size((1, length)))[None, None]  # (1, 1, length, head_dim)

    return roformer.RoFormerSelfAttention(config), sinusoids


def sides_of(length, batch, device, dtype, projected):
    """The four sides for ``batch`` sentences of ``length`` tokens.

    Args:
        projected: True to measure the projections too.
    """
    generator = torch.Generator().manual_seed(length)
    count = 1 if projected else 3
    given = [torch.randn(length, batch, WIDTH, generator=generator).to(device, dtype) for _ in range(count)]

    def inputs(batch_first):
        return [
            (x.transpose(0, 1) if batch_first else x).clone(memory_format=torch.contiguous_format).requires_grad_()
            for x in given
        ]

    ours = our_attention(device, dtype)
    with torch.no_grad():
        for name in PROJECTIONS:
            getattr(ours, name).bias.zero_()
    rotation = rotation_of(length, batch, device)

    def run_parts(q, k, v):
        q, k, v = (x.unflatten(-1, (HEADS, HEAD_DIM)).permute(1, 2, 0, 3) for x in (q, k, v))
        out, _, _ = attend(rotation.rotate(q), rotation.rotate(k), v, None, False, HEAD_DIM**-0.5)
        return out.permute(2, 0, 1, 3).flatten(2)

    if projected:
        weights = list(ours.parameters())
        sides = {OURS: AttentionSide(lambda x: ours(x, rotation=rotation)[0], inputs(False), weights, False)}
    else:
        sides = {OURS: AttentionSide(run_parts, inputs(False), [], False)}
    sides[HF] = _hf_side(ours, length, inputs(True), device, dtype, projected)
    for name, flash in ((XT, False), (XT_FLASH, True)):
        sides[name] = _xt_side(ours, length, inputs(True), flash, device, dtype, projected)
    return sides


def _hf_side(ours, length, inputs, device, dtype, projected):
    attention, sinusoids = hf_attention()
    angles = sinusoids(length).to(device, dtype)
    if not projected:
        return AttentionSide(_without_projections(attention, ("query", "key", "value"), angles), inputs, [], True)
    attention.to(device, dtype)
    out_proj = torch.nn.Linear(WIDTH, WIDTH).to(device, dtype)  # of RoFormerSelfOutput, without its normalisation
    for theirs, name in zip((attention.query, attention.key, attention.value, out_proj), PROJECTIONS, strict=True):
        theirs.load_state_dict(getattr(ours, name).state_dict())
    weights = [*attention.parameters(), *out_proj.parameters()]
    return AttentionSide(lambda x: out_proj(attention(x, sinusoidal_pos=angles)[0]), inputs, weights, True)


def _without_projections(attention, names, angles):
    def run(*projected):
        for name, x in zip(names, projected, strict=True):
            setattr(attention, name, Given(x))
        return attention(projected[0], sinusoidal_pos=angles)[0]

    return run


def _xt_side(ours, length, inputs, flash, device, dtype, projected):
    from x_transformers.x_transformers import Attention, RotaryEmbedding

    attention = Attention(WIDTH, dim_head=HEAD_DIM, heads=HEADS, flash=flash)
    angles = RotaryEmbedding(HEAD_DIM).to(device).forward_from_seq_len(length)
    if not projected:
        attention.to_out = torch.nn.Identity()

        def run(*projected):
            for name, x in zip(("to_q", "to_k", "to_v"), projected, strict=True):
                setattr(attention, name, Given(x))
            return attention(projected[0], rotary_pos_emb=angles)

        return AttentionSide(run, inputs, [], True)
    attention.to(device, dtype)
    for theirs, name in zip(("to_q", "to_k", "to_v", "to_out"), PROJECTIONS, strict=True):
        with torch.no_grad():
            getattr(attention, theirs).weight.copy_(getattr(ours, name).weight)
    return AttentionSide(lambda x: attention(x, rotary_pos_emb=angles), inputs, list(attention.parameters()), True)


def compare(sides, gradients, tolerance):
    """End the program unless all sides return the same, and the same gradients of their inputs.

    Args:
        gradients: dict from a side's name to the gradient of its result.
        tolerance: largest difference, of the largest value.

    Returns:
        dict from a side's name to its largest difference from ours, of the largest value.
    """
    worst, want = {}, None
    for name, side in sides.items():
        out, grads = side.train(gradients[name])
        got = [x.detach().float() for x in (out, *grads[: len(side.inputs)])]
        got = [x.transpose(0, 1) if side.batch_first else x for x in got]
        if want is None:
            want = got
            continue
        worst[name] = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))
        if not worst[name] <= tolerance:
            sys.exit(f"attention: {name} differs from {OURS} by {worst[name]:.2g} of the largest value")
    return worst


def operations(length, batch, projected, backward):
    """Floating-point operations: projections 2 a weight and token, products 4 x length x width a query; 3x to train."""
    tokens = length * batch
    forward = 4 * tokens * length * WIDTH + (8 * tokens * WIDTH**2 if projected else 0)
    return forward * (3 if backward else 1)


def moved(length, batch, projected, backward, itemsize):
    """Bytes: each input read and result written once (weights too); to train also the gradients, and all again."""
    tokens = length * batch * WIDTH
    forward = (2 * tokens + 4 * WIDTH**2 if projected else 4 * tokens) * itemsize
    return forward * (3 if backward else 1)


def row_of(length, batch, what, seconds, least):
    """One row of a table: milliseconds of each side and of the floor, and how many times as fast as others ours is."""
    fastest = min((XT, XT_FLASH), key=lambda name: side_by_side.summary(seconds[name])["median"])
    row = {"length": length, "batch": batch, "what": what, "floor, ms": 1e3 * least}
    for name, values in seconds.items():
        row[f"{name}, ms"] = side_by_side.summary([1e3 * value for value in values])
    row[f"to {HF}"] = side_by_side.ratio(seconds[HF], seconds[OURS])
    row[f"to {XT}"] = side_by_side.ratio(seconds[fastest], seconds[OURS])
    return row


def measure(length, args, projected, speed):
    """Rows and notes of one length."""
    dtype, batch = side_by_side.PRECISIONS[args.precision], max(1, args.tokens // length)
    sides = sides_of(length, batch, args.device, dtype, projected)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(length, batch, WIDTH, generator=generator).to(args.device, dtype)
    first = gradient.transpose(0, 1).contiguous()
    gradients = {name: first if side.batch_first else gradient for name, side in sides.items()}
    worst = compare(sides, gradients, TOLERANCE[args.precision])
    rows, notes = (
        [],
        [f"Largest differences at length {length}: " + ", ".join(f"{k} {v:.1g}" for k, v in worst.items())],
    )
    for what, backward in (("forward", False), ("forward + backward", True)):
        calls = {
            name: (lambda s=side, g=gradients[name]: s.train(g)) if backward else side.forward
            for name, side in sides.items()
        }
        work = operations(length, batch, projected, backward), moved(length, batch, projected, backward, dtype.itemsize)
        notes.append(floor.sentence(*work, speed, f"{what} at length {length}"))
        print(notes[-1], flush=True)
        seconds = side_by_side.alternate(calls, args.rounds, args.warmup)
        rows.append(row_of(length, batch, what, seconds, floor.seconds(*work, speed)))
        if backward and not args.no_profile and length in (args.lengths[0], args.lengths[-1]):
            shown = side_by_side.table(profiling.rows({name: profiling.measure(call) for name, call in calls.items()}))
            notes.append(f"Seconds of {what} at length {length}, under the profiler:\n\n{shown}")
    return rows, notes


def main():
    """Measure the lengths asked for and write a report each with and without projections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lengths", nargs="+", type=side_by_side.positive, default=list(LENGTHS), help="default: 32 128 512 2048"
    )
    parser.add_argument(
        "--tokens", type=side_by_side.positive, default=TOKENS, help="of a batch (default: %(default)s)"
    )
    parser.add_argument("--no-profile", action="store_true", help="leave out where the time goes")
    side_by_side.add_options(parser, rounds=15, warmup=2)
    args = parser.parse_args()
    side_by_side.check_device(parser, args)
    for package in ("transformers", "x_transformers"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"{package} is not installed; pip install -e '.[test]' brings it")
    torch.manual_seed(1)
    speed = floor.peaks(args.device, args.precision)
    for projected, stem, title in (
        (True, "attention", "Self-attention with RoPE, projections included"),
        (False, "attention_without_projections", "Self-attention with RoPE, projections excluded"),
    ):
        rows, notes = [], []
        for length in args.lengths:
            more, about = measure(length, args, projected, speed)
            rows, notes = rows + more, notes + about
        described = side_by_side.machine(args)
        side_by_side.write_report(args.out / stem, title, side_by_side.command_line(), rows, described, notes)


if __name__ == "__main__":
    main()
