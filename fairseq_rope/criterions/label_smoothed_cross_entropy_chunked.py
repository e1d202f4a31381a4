"""``--criterion label_smoothed_cross_entropy_chunked``: stock's loss without the whole of the logits."""

import inspect
from dataclasses import dataclass, field
from functools import partial

import torch
from fairseq.criterions import label_smoothed_cross_entropy as stock
from fairseq.criterions import register_criterion
from torch import Tensor, nn

from fairseq_rope.criterions.chunked_loss import ChunkedLoss, chunked_loss
from fairseq_rope.errors import UserError

NAME = "label_smoothed_cross_entropy_chunked"
# Measured by benchmarks/criterion.py: fewer tokens make the products slower (the weight's gradient is read and written
# once a chunk), more make nothing faster. At 37,000 symbols these are 24 MB of float32.
TOKENS_PER_CHUNK = 160


@dataclass
class LabelSmoothedCrossEntropyChunkedConfig(stock.LabelSmoothedCrossEntropyCriterionConfig):
    """Flags of ``label_smoothed_cross_entropy``, and the size of a chunk."""

    loss_chunk: int = field(
        default=TOKENS_PER_CHUNK,
        metadata={"help": "target tokens whose logits exist at a time; more take more memory and, on a GPU, less time"},
    )


# The name is stock's on purpose: fairseq goes on from a checkpoint only with a criterion whose class has the name of
# the one that trained it. The two compute the same and neither has a state, so a run may change from one to the other.
@register_criterion(NAME, dataclass=LabelSmoothedCrossEntropyChunkedConfig)
class LabelSmoothedCrossEntropyCriterion(stock.LabelSmoothedCrossEntropyCriterion):
    """fairseq's ``label_smoothed_cross_entropy``, equal to rounding in every value and gradient.

    The output layer and the loss are one function (:func:`~fairseq_rope.criterions.chunked_loss.chunked_loss`) of the
    decoder's features, called by the model in place of its output layer; pads are left out before the product. The
    logged ``nll_loss`` has no gradient. In float64 the loss is computed in float64, where stock rounds it to float32.

    Args:
        task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy: as in stock.
        loss_chunk: tokens whose logits exist at a time.

    Raises:
        UserError: ``loss_chunk`` is below 1; in the forward pass: the model has no such output layer.
    """

    def __init__(
        self,
        task,
        sentence_avg,
        label_smoothing,
        ignore_prefix_size=0,
        report_accuracy=False,
        loss_chunk=TOKENS_PER_CHUNK,
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if loss_chunk < 1:
            raise UserError(f"--loss-chunk {loss_chunk}: it must be at least 1 (tokens)")
        self.loss_chunk = loss_chunk

    def forward(self, model, sample, reduce=True):
        """Loss, sample size and logging outputs, as stock's."""
        _check_takes_head(model)
        head = partial(self._head, target=model.get_targets(sample, None), reduce=reduce)
        return super().forward(model, {**sample, "net_input": {**sample["net_input"], "head": head}}, reduce)

    def _head(self, features: Tensor, decoder: nn.Module, target: Tensor, reduce: bool) -> ChunkedLoss:
        """What the model computes in place of logits; features (batch, tgt_len, output_embed_dim)."""
        _check_projection(decoder)
        features = features[:, self.ignore_prefix_size :]
        target = target[:, self.ignore_prefix_size :].flatten()  # (batch * tgt_len,)
        features = features.reshape(len(target), features.size(-1))
        real = target.ne(self.padding_idx).nonzero().squeeze(1)  # (tokens,)
        every = len(real) == len(target)
        result = chunked_loss(
            features if every else features.index_select(0, real),
            decoder.output_projection.weight,
            target if every else target.index_select(0, real),
            self.eps,
            self.loss_chunk,
            reduce,
            self.report_accuracy,
        )
        if reduce:
            return result
        loss, nll_loss = (  # as stock's: (batch * tgt_len, 1), 0 for pads
            values.new_zeros(len(target)).index_copy(0, real, values)[:, None] for values in result[:2]
        )
        return result._replace(loss=loss, nll_loss=nll_loss)

    def compute_loss(self, model, net_output, sample, reduce=True):
        """What :meth:`_head` computed, for stock's forward pass."""
        return net_output[0].loss, net_output[0].nll_loss

    def compute_accuracy(self, model, net_output, sample):
        """The number of targets that have the largest logit, and of all targets."""
        target = model.get_targets(sample, net_output)[:, self.ignore_prefix_size :]
        return net_output[0].n_correct, torch.sum(target.ne(self.padding_idx))


def _check_takes_head(model):
    """Refuse a model whose forward pass takes no ``head``; wrappers of several processes hand it on."""
    while "module" in model._modules:
        model = model._modules["module"]
    if "head" not in inspect.signature(model.forward).parameters:
        raise UserError(
            f"--criterion {NAME} computes the output layer itself, which {type(model).__name__} does not leave to it; "
            "use --criterion label_smoothed_cross_entropy, or one of this package's translation models (--arch "
            "baseline_wmt, roformer_wmt, …)"
        )


def _check_projection(decoder):
    """Refuse an output layer that is not a plain matrix."""
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise UserError(
            f"--criterion {NAME} has no adaptive softmax; use --criterion adaptive_loss, or drop "
            "--adaptive-softmax-cutoff"
        )
    projection = decoder.output_projection
    if type(projection) is not nn.Linear or projection.bias is not None:
        raise UserError(
            f"--criterion {NAME} needs an output layer that is a plain matrix, not {type(projection).__name__} (as of "
            "--quant-noise-scalar); use --criterion label_smoothed_cross_entropy"
        )
