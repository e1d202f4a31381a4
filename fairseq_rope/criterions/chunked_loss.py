"""Label-smoothed cross-entropy of an output layer, a chunk of tokens at a time.

With logits z = W x, p = softmax(z), V symbols, target t and ε' = ε/(V - 1), fairseq's loss of a token
(Szegedy et al. 2016, section 7, with ε spread over the V - 1 symbols that are not the target) is

    (1 - ε - ε') (-log p_t) + ε' Σ_k (-log p_k),        and its gradient in z is        p - ε' - (1 - ε - ε') [k = t]

(p has the factor 1 - ε - ε' + V ε' = 1). Stock makes the logits of all tokens, their log-probabilities in float32 and
the gradients of both, each (tokens, vocabulary). The loss is a sum over tokens, so here one chunk of them goes all the
way, to its share of the gradients of x and W, before the next begins, in one buffer.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class ChunkedLoss(NamedTuple):
    """The sums over all tokens, or one value a token, in float32 (float64 for float64 inputs)."""

    loss: Tensor  # differentiable
    nll_loss: Tensor  # not differentiable
    n_correct: Tensor | None  # tokens whose target has the largest logit, () of int64; None if not asked for


def chunked_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    epsilon: float,
    chunk: int,
    reduce: bool = True,
    count_correct: bool = False,
) -> ChunkedLoss:
    """Label-smoothed cross-entropy of the logits ``features @ weight.T``, of which one chunk exists at a time.

    Under autocast the product is made in autocast's precision, as that of a linear layer.

    Args:
        features: (tokens, output_embed_dim); tokens may be 0.
        weight: (vocabulary, output_embed_dim), of the dtype of ``features``; vocabulary ≥ 2.
        targets: (tokens,), indices of symbols; none of them is left out, so give no pads.
        epsilon: label smoothing ε.
        chunk: tokens a chunk, ≥ 1.
        reduce: sum over the tokens; otherwise ``loss`` and ``nll_loss`` are (tokens,).
        count_correct: count the targets that have the largest logit.
    """
    device = features.device.type
    if torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
        features, weight = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (features, weight))
    options = (targets, epsilon, chunk, reduce, count_correct)
    if torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad):
        return ChunkedLoss(*_Function.apply(features, weight, *options))
    with torch.no_grad():
        return _forward(features, weight, *options)[0]


class _Function(torch.autograd.Function):
    """Gradients with the loss, while a chunk's probabilities are at hand, where their scale need not be known.

    Most gradients in logits are about p - ε', 1e-6 or less (at ε = 0.1 and 37,000 symbols), where float16 has steps of
    6e-8. That is why a loss scaler multiplies the loss, and its scale must be in before the rounding to float16: there
    the forward pass keeps two numbers of each token's softmax alone, and the backward pass makes each chunk's logits
    again. The same where each token's loss has a gradient of its own. The other types have float32's range, so that
    the gradients of the sum can be multiplied afterwards.
    """

    @staticmethod
    def forward(ctx, features, weight, targets, epsilon, chunk, reduce, count_correct):
        ctx.at_once = reduce and weight.dtype != torch.float16
        gradients = _Gradients(features, weight, *ctx.needs_input_grad[:2]) if ctx.at_once else None
        result, norms = _forward(features, weight, targets, epsilon, chunk, reduce, count_correct, gradients)
        if ctx.at_once:
            ctx.save_for_backward(*gradients.finished())
        else:
            ctx.save_for_backward(features, weight, targets, *norms)
            ctx.epsilon, ctx.chunk = epsilon, chunk
        ctx.mark_non_differentiable(*(value for value in result[1:] if value is not None))
        return tuple(result)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, *_):
        if ctx.at_once:
            gradients = ctx.saved_tensors
            # Asking a GPU for a value waits for it; multiplying there costs less.
            if grad_loss.device.type != "cpu" or grad_loss.item() != 1:  # out of place: backward may come again
                gradients = [gradient if gradient is None else gradient * grad_loss for gradient in gradients]
        else:
            features, weight, targets, *norms = ctx.saved_tensors
            gradients = _Gradients(features, weight, *ctx.needs_input_grad[:2])
            scales = grad_loss.expand(len(targets))
            _backward(features, weight, targets, norms, scales, ctx.epsilon, ctx.chunk, gradients)
            gradients = gradients.finished()
        return *gradients, None, None, None, None, None


def _forward(
    features, weight, targets, epsilon, chunk, reduce, count_correct, gradients=None
) -> tuple[ChunkedLoss, tuple[Tensor, Tensor]]:
    """The losses, and what p is made with again: each token's largest logit m and Σ exp(z - m), both (tokens, 1).

    Adds to ``gradients`` if given.
    """
    tokens, vocabulary = len(targets), weight.size(0)
    buffers = _Buffers(features, weight, chunk)
    nll, smooth = (buffers.wide.new_empty(tokens) for _ in range(2))
    largest, sum_exp = (buffers.wide.new_empty(tokens, 1) for _ in range(2))
    correct = targets.new_zeros(()) if count_correct else None
    for rows in _chunks(tokens, chunk):
        target = targets[rows, None]  # (rows, 1)
        z = buffers.logits(features[rows], weight)  # (rows, vocabulary)
        if count_correct:
            correct += z.argmax(dim=1).eq(targets[rows]).sum()
        largest[rows] = z.amax(dim=1, keepdim=True)
        z.sub_(largest[rows])
        sum_z, target_z = z.sum(dim=1), z.gather(1, target).squeeze(1)
        sum_exp[rows] = z.exp_().sum(dim=1, keepdim=True)
        log_sum = sum_exp[rows].log().squeeze(1)
        nll[rows] = log_sum - target_z
        smooth[rows] = vocabulary * log_sum - sum_z
        if gradients is not None:
            in_logits = _gradient_in_logits(z.div_(sum_exp[rows]), target, epsilon)
            gradients.add(rows, buffers.narrow_copy(in_logits), features, weight)
    if reduce:
        nll, smooth = nll.sum(), smooth.sum()
    others = epsilon / (vocabulary - 1)
    loss = (1 - epsilon - others) * nll + others * smooth
    return ChunkedLoss(loss, nll, correct), (largest, sum_exp)


def _backward(features, weight, targets, norms, scales, epsilon, chunk, gradients):
    """Add to ``gradients``, from logits made again; ``scales`` (tokens,) are the gradients of the tokens' losses."""
    buffers = _Buffers(features, weight, chunk)
    for rows in _chunks(len(targets), chunk):
        largest, sum_exp = (values[rows] for values in norms)
        p = buffers.logits(features[rows], weight).sub_(largest).exp_().div_(sum_exp)
        in_logits = _gradient_in_logits(p, targets[rows, None], epsilon).mul_(scales[rows, None])
        gradients.add(rows, buffers.narrow_copy(in_logits), features, weight)


def _chunks(tokens: int, chunk: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk, tokens)) for start in range(0, tokens, chunk))


def _gradient_in_logits(p: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """Turn probabilities (rows, vocabulary) into the loss' gradient in the logits, in place; ``target`` (rows, 1)."""
    others = epsilon / (p.size(1) - 1)
    p.sub_(others)
    return p.scatter_add_(1, target, p.new_full((1, 1), others + epsilon - 1).expand_as(target))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What is summed and exponentiated in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class _Buffers:
    """Room for a chunk's logits in the model's precision and in float32, which is one tensor if both are the same."""

    def __init__(self, features: Tensor, weight: Tensor, chunk: int):
        shape = min(chunk, len(features)), weight.size(0)
        self.narrow = weight.new_empty(shape)
        dtype = _wide(weight.dtype)
        self.wide = self.narrow if dtype == weight.dtype else weight.new_empty(shape, dtype=dtype)

    def logits(self, features: Tensor, weight: Tensor) -> Tensor:
        """(rows, output_embed_dim) -> (rows, vocabulary), rounded as the output layer's and then widened."""
        narrow, wide = self.narrow[: len(features)], self.wide[: len(features)]
        torch.mm(features, weight.t(), out=narrow)
        return wide if self.wide is self.narrow else wide.copy_(narrow)

    def narrow_copy(self, wide: Tensor) -> Tensor:
        """A chunk's values (rows, vocabulary), rounded to the model's precision."""
        return wide if self.wide is self.narrow else self.narrow[: len(wide)].copy_(wide)


class _Gradients:
    """Gradients of features and weight (None where not wanted), filled chunk by chunk.

    The weight's is a sum over chunks; for half precision it is kept in float32.
    """

    def __init__(self, features: Tensor, weight: Tensor, of_features: bool, of_weight: bool):
        self.of_features = torch.empty_like(features) if of_features else None
        self.dtype, wide = weight.dtype, _wide(weight.dtype)
        # Not zeros if there are tokens: the first chunk writes all of it.
        new = torch.empty if len(features) else torch.zeros
        self.of_weight = new(weight.shape, dtype=wide, device=weight.device) if of_weight else None
        self.product = torch.empty_like(weight) if of_weight and wide != weight.dtype else None

    def add(self, rows: slice, in_logits: Tensor, features: Tensor, weight: Tensor):
        """Add what the tokens ``rows`` give, whose gradient in the logits is ``in_logits`` (rows, vocabulary)."""
        if self.of_features is not None:
            torch.mm(in_logits, weight, out=self.of_features[rows])
        if self.of_weight is None:
            return
        first = rows.start == 0
        if self.product is None:  # beta=0: what is there is not read
            self.of_weight.addmm_(in_logits.t(), features[rows], beta=0 if first else 1)
            return
        torch.mm(in_logits.t(), features[rows], out=self.product)
        if first:
            self.of_weight.copy_(self.product)
        else:
            self.of_weight.add_(self.product)

    def finished(self) -> tuple[Tensor | None, Tensor | None]:
        """Both, in the precision of the features and the weight."""
        return self.of_features, None if self.of_weight is None else self.of_weight.to(self.dtype)
