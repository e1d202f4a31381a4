"""Batching: every sentence comes into a batch, and a set without sentences is refused in words."""

import numpy as np

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError


def _keep_last_batch():
    from fairseq.data import data_utils

    @wrap(data_utils, "batch_by_size")
    def batch_by_size(stock):
        def batch(indices, *args, **kwargs):
            if not isinstance(indices, np.ndarray):
                indices = np.fromiter(indices, dtype=np.int64, count=-1)
            if len(indices) == 0:
                return []  # stock looks at the last of no batches
            try:
                batches = list(stock(indices, *args, **kwargs))
            except AssertionError as error:  # "sentence at index … of size … exceeds max_tokens limit of …!"
                raise UserError(f"--max-tokens is too small: {error}") from error
            # Batches are consecutive runs of `indices`, so what stock has cut off is what stands at the end.
            # With fixed shapes (its last argument) nothing is cut off.
            kept = sum(len(run) for run in batches)
            if kept < len(indices) and not _fixed_shapes(args, kwargs):
                batches.append(indices[kept:])
            return batches

        return batch


def _fixed_shapes(args, kwargs):
    # batch_by_size(indices, num_tokens_fn, num_tokens_vec, max_tokens, max_sentences, multiple, fixed_shapes)
    return kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)


def _refuse_empty_sets():
    from fairseq.tasks.fairseq_task import FairseqTask

    @wrap(FairseqTask, "get_batch_iterator")
    def get_batch_iterator(stock):
        def iterator(self, dataset, *args, **kwargs):
            split = next((name for name, known in self.datasets.items() if known is dataset), None)
            if split is not None and len(dataset) == 0:
                raise UserError(f"the set '{split}' of {self.cfg.data} has no sentences: at least one is needed")
            batches = stock(self, dataset, *args, **kwargs)
            # fairseq-interactive batches lines that belong to no split; it may leave one without an answer
            if split is not None and len(batches) == 0:
                raise UserError(
                    f"none of the {len(dataset)} sentences of the set '{split}' of {self.cfg.data} is short "
                    "enough for --max-source-positions and --max-target-positions or the model's own limits"
                )
            return batches

        return iterator


def _explain_long_sentences():
    from fairseq.tasks.fairseq_task import FairseqTask

    @wrap(FairseqTask, "filter_indices_by_size")
    def filter_indices_by_size(stock):
        def keep(self, indices, dataset, max_positions=None, ignore_invalid_inputs=False):
            try:
                return stock(self, indices, dataset, max_positions, ignore_invalid_inputs)
            except Exception as error:
                if type(error) is not Exception:  # stock raises the bare class for a sentence, and only for that
                    raise
                _, ignored = dataset.filter_indices_by_size(indices, max_positions)
                raise UserError(_too_long(int(ignored[0]), dataset.size(ignored[0]), max_positions)) from error

        return keep


def _too_long(sentence, size, limits):
    both = isinstance(size, tuple | list)
    given = f"{int(size[0])} source and {int(size[1])} target tokens" if both else f"{int(size)} tokens"
    allowed = f"{limits[0]} and {limits[1]}" if isinstance(limits, tuple | list) else str(limits)
    return (
        f"sentence {sentence} (from 0) has {given}, but at most {allowed} are allowed by --max-source-positions, "
        "--max-target-positions and the model; raise the flags if the model has no limit of its own, or leave such "
        "sentences out with --skip-invalid-size-inputs-valid-test"
    )


MENDS = [
    Mend(
        name="last batch",
        reason="stock drops a set's last batch unless its size is a multiple of "
        "--required-batch-size-multiple (default 8): sentences are silently left untranslated, and a set of "
        "fewer than 8 fails",
        apply=_keep_last_batch,
    ),
    Mend(
        name="empty sets",
        reason="a set without sentences ends stock fairseq with an IndexError or a division by zero",
        apply=_refuse_empty_sets,
    ),
    Mend(
        name="long sentences",
        reason="a sentence above the length limit ends stock fairseq with a traceback",
        apply=_explain_long_sentences,
    ),
]
