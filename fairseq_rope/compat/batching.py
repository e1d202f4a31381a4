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
            batches = list(stock(indices, *args, **kwargs))
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
        def keep(*args, **kwargs):
            try:
                return stock(*args, **kwargs)
            except Exception as error:
                if type(error) is not Exception:  # stock raises the bare class for a sentence, and only for that
                    raise
                raise UserError(
                    f"a sentence is too long: {error}, or raise --max-source-positions and --max-target-positions "
                    "if the model has no limit of its own"
                ) from error

        return keep


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
