"""``fairseq-rope-fold``: a checkpoint with scaled shortcuts as the same function in a plain post-norm model."""

import os
from argparse import Namespace
from pathlib import Path

import torch
from torch import Tensor

from fairseq_rope.averaging import load_mapped
from fairseq_rope.cli.average import save
from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable, same_file
from fairseq_rope.folding import HALF, FoldedBlock, check_foldable, fold
from fairseq_rope.rebuilding import as_configured, build, model_options

PROG = "fairseq-rope-fold"

# Largest difference of the folded model's outputs, relative to the largest output.
TOLERANCE = 1e-4

# The options of a model that has no scaled shortcuts.
PLAIN = {
    "residual_init": "default",
    "residual_encoder_layers": None,
    "residual_decoder_layers": None,
    "admin_profile_in": None,
    "admin_profile_out": None,
}


def parser():
    """Return the argument parser."""
    p = Parser(
        prog=PROG,
        description="Rewrite a checkpoint trained with --residual-init admin, admin-torch or deepnorm as the same "
        "function without scaled shortcuts: a plain post-norm checkpoint with --residual-init default. Both models are "
        "run in fp32 on random sentences first; if their outputs differ by more than "
        f"{TOLERANCE:g} of the largest one, nothing is written. The result has no optimiser state; it loads in "
        "fairseq-generate and in fairseq-train by --finetune-from-model. Average first, then fold.",
    )
    p.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint to fold, which stays as it is")
    p.add_argument("out", metavar="OUT", help="the checkpoint to write")
    return p


def fold_checkpoint(state: dict, name: str) -> tuple[dict, list[FoldedBlock], float]:
    """Fold a loaded checkpoint.

    Args:
        state: a checkpoint's dictionary; not changed.
        name: the file's name, recorded in ``extra_state["folded"]``.

    Returns:
        the folded checkpoint, without optimiser state and with any moving average set to the folded parameters; what
        was done with each block; and the largest difference of the outputs, relative to the largest output.

    Raises:
        UserError: the checkpoint cannot be folded, or the folded model's outputs are not the same.
    """
    options = model_options(state, foreign="there is nothing to fold: {0}, so it has no scaled shortcuts")
    with as_configured():
        cfg = RopeTransformerConfig.from_model_config(options)
    earlier = (state.get("extra_state") or {}).get("folded")
    if earlier and cfg.residual_init == "default":
        raise UserError(f"there is nothing to fold: this is a folded checkpoint already, made from {earlier['file']}")
    check_foldable(cfg)
    model, blocks = fold(state["model"], cfg)
    difference = compare(
        outputs(build(options, state["model"])), outputs(build(Namespace(**{**vars(options), **PLAIN}), model))
    )
    if not difference < TOLERANCE:  # a NaN too
        raise UserError(
            f"the folded model is not the same function: its outputs differ by {difference:.1e} of the largest one, "
            f"and the limit is {TOLERANCE:g}{_likely_cause(blocks)}"
        )

    # Optimiser and shards describe the parameters of before.
    folded = {key: value for key, value in state.items() if key not in ("last_optimizer_state", "fsdp_metadata")}
    folded["model"] = model
    folded["cfg"] = {**state["cfg"], "model": _plain_options(state["cfg"]["model"])}
    extra = folded["extra_state"] = dict(state.get("extra_state") or {})
    if "ema" in extra:
        # As when averaging: fairseq needs the key to restore with --store-ema. The memory is shared.
        extra["ema"] = model
        extra.pop("ema_fp32_params", None)
    extra["folded"] = {"file": name, "residual_init": cfg.residual_init}
    return folded, blocks, difference


def _likely_cause(blocks):
    if any(block.route == "output" for block in blocks):
        return (
            " (a first block with a constant ω folds only up to LayerNorm's ε, which is not small where embeddings are)"
        )
    return ""


def _plain_options(recorded):
    """The recorded options of the model (Namespace or dict), as those of a model without scaled shortcuts."""
    if isinstance(recorded, Namespace):
        return Namespace(**{**vars(recorded), **PLAIN})
    return {**recorded, **PLAIN}


def outputs(model) -> list[Tensor]:
    """What ``model`` puts out for a few random batches: one token, ragged ones with pads, one long sentence.

    Returns:
        one (tokens that are no pads, vocabulary) a batch, in float32: logits; with adaptive softmax, which has none,
        log-probabilities.
    """
    generator = torch.Generator().manual_seed(1)
    longest = min(48, model.encoder.max_positions(), model.decoder.max_positions())
    results = []
    for lengths in ([1], [1, 3, longest // 3, longest // 2], [longest]):
        lengths = [max(1, min(length, longest)) for length in lengths]
        source = _sentences(lengths, model.encoder.dictionary, generator, left_pad=True)
        target = _sentences(lengths[::-1], model.decoder.dictionary, generator, left_pad=False)
        with torch.inference_mode():
            out = model(source, source.ne(model.encoder.padding_idx).sum(dim=1), target)
            adaptive = model.decoder.adaptive_softmax is not None
            scores = model.get_normalized_probs(out, log_probs=True) if adaptive else out[0]
        # What stands at a pad is nobody's output, and LayerNorm's ε weighs more there: the embedding of a pad is 0.
        results.append(scores[target.ne(model.decoder.padding_idx)])
    return results


def _sentences(lengths, dictionary, generator, left_pad):
    """Random words, (sentences, longest): with </s> at the end and pads before (source), or </s> first (target)."""
    rows = torch.full((len(lengths), max(lengths)), dictionary.pad())
    first = min(dictionary.nspecial, len(dictionary) - 1)
    for row, length in zip(rows, lengths, strict=True):
        words = torch.randint(first, len(dictionary), (length,), generator=generator)
        words[-1 if left_pad else 0] = dictionary.eos()
        row[len(row) - length if left_pad else 0 :][:length] = words
    return rows


def compare(expected: list[Tensor], given: list[Tensor]) -> float:
    """Largest difference of two lists of outputs, relative to the largest of ``expected``."""
    largest = max(float(x.abs().max()) for x in expected)
    return max(float((x - y).abs().max()) for x, y in zip(expected, given, strict=True)) / largest


def table(blocks: list[FoldedBlock]) -> str:
    """What was folded as aligned lines: stack, blocks, ω, how; neighbours that went the same way are one line."""
    routes = {
        "input": "into the LayerNorm before and the block's first maps",
        "output": "into the block's last map (exact up to LayerNorm's ε)",
        "none": "nothing to do",
    }
    groups = []
    for block in blocks:
        if groups and (groups[-1][-1].stack, groups[-1][-1].route) == (block.stack, block.route):
            groups[-1].append(block)
        else:
            groups.append([block])
    rows = [["stack", "blocks", "ω", "folded"]]
    count = {}
    for group in groups:
        stack = group[0].stack
        first = count.get(stack, 0) + 1
        last = count[stack] = first + len(group) - 1
        low, high = (f"{bound:.4g}" for bound in (min(b.smallest for b in group), max(b.largest for b in group)))
        numbers = str(first) if first == last else f"{first}-{last}"
        rows.append([stack, numbers, low if low == high else f"{low} to {high}", routes[group[0].route]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def remarks(state: dict) -> list[str]:
    """Sentences about what the folded checkpoint does not keep of ``state``."""
    found = []
    if any(tensor.dtype in HALF for tensor in state["model"].values()):
        found.append("the parameters were in half precision and are stored in float32 now")
    if "last_optimizer_state" in state:
        found.append("the optimiser's state was left out: it does not fit the folded parameters")
    if "ema" in (state.get("extra_state") or {}):
        found.append("the moving average (EMA) was replaced by the folded parameters")
    return found


def main(argv=None):
    """Entry point of ``fairseq-rope-fold``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        check_writable(args.out)
        if same_file(args.checkpoint, args.out):
            raise UserError(f"{args.out} is the checkpoint to fold: choose another name")
        state = load_mapped(args.checkpoint)
        try:
            folded, blocks, difference = fold_checkpoint(state, Path(args.checkpoint).name)
        except UserError as error:
            raise UserError(f"{args.checkpoint}: {error}") from error
        print(table(blocks))
        print(f"outputs differ by {difference:.1e} of the largest one (limit {TOLERANCE:g})")
        for remark in remarks(state):
            print(remark)
        save(folded, args.out)
        size = os.path.getsize(args.out) / 1e6
        was = folded["extra_state"]["folded"]["residual_init"]
        print(f"wrote {args.out}: a plain post-norm checkpoint (--residual-init default, was {was}), {size:.1f} MB")


if __name__ == "__main__":
    main()
