"""Beam search: diverse groups in fairseq-generate."""

from fairseq.search import DiverseBeamSearch

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap


def _rows_not_ids():
    @wrap(DiverseBeamSearch, "step")
    def step(stock):
        def take(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None):
            if original_batch_idxs is not None:
                if step == 0:
                    self.first_sentence_ids = original_batch_idxs
                # row of each remaining sentence in the batch as it was at the first step
                same = original_batch_idxs[:, None] == self.first_sentence_ids[None, :]
                original_batch_idxs = same.int().argmax(dim=1)
            return stock(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)

        return take


MENDS = [
    Mend(
        name="diverse beams in fairseq-generate",
        reason="stock takes the sentences' ids in the test set for rows of the batch: an IndexError, or the penalties "
        "of another sentence",
        apply=_rows_not_ids,
    )
]
