"""The label-smoothed loss from its formula, on whole logits in float64: what tests hold the chunked one to."""

import torch
from torch import Tensor


def reference_loss(features: Tensor, weight: Tensor, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy with the smoothed distribution of Szegedy et al. (2016, section 7) as fairseq defines it.

    Szegedy et al. give the target 1 - ε and spread ε evenly over all V symbols; fairseq spreads it over the V - 1
    others: q(target) = 1 - ε and q(k) = ε/(V - 1) for every other k. The loss of a token is -Σ_k q(k) log p(k).

    Args:
        features: (tokens, output_embed_dim).
        weight: of the output projection (vocabulary, output_embed_dim), vocabulary ≥ 2.
        targets: (tokens,), without pads.
        epsilon: ε.

    Returns:
        The losses and the negative log-likelihoods, each (tokens,) in float64, with gradients.
    """
    log_p = (features.double() @ weight.double().t()).log_softmax(dim=1)  # (tokens, vocabulary)
    q = torch.full_like(log_p, epsilon / (weight.size(0) - 1))
    q.scatter_(1, targets[:, None], 1 - epsilon)
    return -(q * log_p).sum(dim=1), -log_p.gather(1, targets[:, None]).squeeze(1)
