"""Losses that fairseq lacks; importing this package registers them as ``--criterion``."""

from fairseq_rope.criterions.chunked_loss import ChunkedLoss, chunked_loss
from fairseq_rope.criterions.label_smoothed_cross_entropy_chunked import LabelSmoothedCrossEntropyCriterion

__all__ = ["ChunkedLoss", "LabelSmoothedCrossEntropyCriterion", "chunked_loss"]
