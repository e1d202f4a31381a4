"""RAdam as ADMIN's recipes use it: ``--optimizer radam``.

Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond" (arXiv 1908.03265), algorithm 2, in the
form of its authors' code: Adam whose step is multiplied by r_t, and no step at all while the variance of the adaptive
learning rate is intractable.

Update t (from 1) of a parameter θ with gradient g, learning rate α and weight decay λ:

    m ← β1 m + (1 - β1) g            v ← β2 v + (1 - β2) g²
    ρ_∞ = 2/(1 - β2) - 1             ρ_t = ρ_∞ - 2 t β2^t / (1 - β2^t)         (``N_sma`` in the authors' code)
    ρ_t < 5:  nothing else (an idle update)
    ρ_t ≥ 5:  r_t = sqrt( (ρ_t - 4)(ρ_t - 2) ρ_∞ / ((ρ_∞ - 4)(ρ_∞ - 2) ρ_t) )
              θ ← (1 - α λ) θ
              θ ← θ - α r_t sqrt(1 - β2^t) / (1 - β1^t) · m / (sqrt(v) + ε)

Where this differs from what else is called RAdam:

* The paper steps by m alone while ρ_t ≤ 4 (four updates at β2 = 0.98 and 0.999), ``torch.optim.RAdam`` while ρ_t ≤ 5
  (five); this optimiser leaves the parameters alone while ρ_t < 5 (the same five).
* Weight decay is a part of the step, as in the authors' package ``radam``: an idle update decays nothing. ADMIN's own
  copy decays in idle updates too: nothing at a weight decay of 0 (WMT), and less than one part in 10^9 at that of
  IWSLT (1e-4, warm-up from a learning rate of 1e-7), which fp32 does not resolve.
"""

import ast
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from fairseq_rope.errors import UserError

# The authors' threshold on ρ_t, "more conservative" than the paper's 4, since ρ_t is an approximation.
TRACTABLE = 5
_HALF = (torch.float16, torch.bfloat16)


def sma_length(step: int, beta2: float) -> float:
    """ρ_t: length of the simple moving average that stands for the second moment after ``step`` (≥ 1) updates."""
    log_decay = step * math.log(beta2)  # by expm1, since 1 - β2^t loses all its digits as β2 comes close to 1
    return _longest_sma(beta2) + 2 * step * math.exp(log_decay) / math.expm1(log_decay)


def _longest_sma(beta2):
    return 2 / (1 - beta2) - 1  # ρ_∞


def idle_updates(beta2: float) -> int:
    """How many of the first updates take no step: 5 at the recipes' β2 of 0.98, and at 0.999.

    Args:
        beta2: decay of the second moment, above 2/3 (up to there ρ_t stays below 5, and no update takes a step).
    """
    step = 1
    while sma_length(step, beta2) < TRACTABLE:  # ρ_t grows with t, towards ρ_∞ > 5
        step += 1
    return step - 1


def step_factor(step: int, beta1: float, beta2: float) -> float | None:
    """r_t sqrt(1 - β2^t) / (1 - β1^t), what the learning rate is multiplied by; None for an idle update.

    Args:
        step: t, the number of updates including this one.
        beta1, beta2: decay of the first and second moment.
    """
    length, longest = sma_length(step, beta2), _longest_sma(beta2)
    if length < TRACTABLE:
        return None
    rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return math.sqrt(rectification * (1 - beta2**step)) / (1 - beta1**step)


def parse_betas(value) -> tuple[float, float]:
    """(β1, β2) from what ``--adam-betas`` or hydra gives: "(0.9, 0.98)", or a sequence of two numbers.

    Raises:
        UserError: these are not two numbers, or none with which the optimiser would ever take a step.
    """
    try:
        beta1, beta2 = map(float, ast.literal_eval(value) if isinstance(value, str) else value)
    except (SyntaxError, TypeError, ValueError):
        raise UserError(f'--adam-betas {value}: give two numbers, such as "(0.9, 0.98)"') from None
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UserError(f"--adam-betas {value}: both must be at least 0 and below 1")
    if not _longest_sma(beta2) > TRACTABLE:
        raise UserError(
            f"--adam-betas {value}: with a second value of 2/3 or less --optimizer radam would never take a step; "
            "it must be above 2/3 and below 1"
        )
    return beta1, beta2


def _check_not_negative(flag, value):
    if not (value >= 0 and math.isfinite(value)):
        raise UserError(f"{flag} {value}: it must be a finite number that is not negative")


class RAdam(torch.optim.Optimizer):
    """Rectified Adam without steps before rectification; the module's docstring has the equations.

    Parameters and gradients in half precision are computed with in fp32, and moments are kept in fp32. Each parameter
    counts its own updates: one that got no gradient (layerdrop) is skipped, and starts its idle updates later.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: learning rate α.
        betas: decay of the first and second moment, 0 ≤ β1 < 1 and 2/3 < β2 < 1.
        eps: ε, added to sqrt(v) before bias correction, as in the authors' code.
        weight_decay: λ, decoupled.

    Raises:
        UserError: a value out of range (names the flag that sets it), or, in :meth:`step`, a sparse gradient.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        _check_not_negative("--lr", lr)
        _check_not_negative("--adam-eps", eps)
        _check_not_negative("--weight-decay", weight_decay)
        super().__init__(params, {"lr": lr, "betas": parse_betas(betas), "eps": eps, "weight_decay": weight_decay})

    @property
    def supports_memory_efficient_fp16(self):
        return True

    @property
    def supports_flat_params(self):
        return True  # each element's update depends on that element alone

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient.

        Args:
            closure: computes the loss again and returns it, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter, group):
        if parameter.grad.is_sparse:
            raise UserError("--optimizer radam does not support sparse gradients: use dense embeddings")
        half = parameter.dtype in _HALF
        grad = parameter.grad.float() if half else parameter.grad
        value = parameter.float() if half else parameter

        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(value)
            state["exp_avg_sq"] = torch.zeros_like(value)
        else:  # a state that was loaded has the parameter's precision and maybe another device
            state["exp_avg"] = state["exp_avg"].to(value)
            state["exp_avg_sq"] = state["exp_avg_sq"].to(value)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        state["step"] += 1
        first.mul_(beta1).add_(grad, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)

        factor = step_factor(state["step"], beta1, beta2)
        if factor is None:
            return
        if group["weight_decay"] != 0:
            value.mul_(1 - group["lr"] * group["weight_decay"])
        value.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-group["lr"] * factor)
        if half:
            parameter.copy_(value)


@dataclass
class RAdamConfig(FairseqDataclass):
    """Flags of ``--optimizer radam``: those of ``adam`` that mean the same."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "decay of RAdam's first and second moment"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon of RAdam"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay, in updates that take a step"})
    lr: list[float] = field(default=II("optimization.lr"))


@register_optimizer("radam", dataclass=RAdamConfig)
class FairseqRAdam(FairseqOptimizer):
    """:class:`RAdam` for fairseq.

    Args:
        cfg: a :class:`RAdamConfig`.
        params: the parameters to train.

    Raises:
        UserError: a flag's value is out of range.
    """

    def __init__(self, cfg, params):
        super().__init__(cfg)
        for lr in self._learning_rates():  # all of them: the ones of later epochs are set without a check
            _check_not_negative("--lr", lr)
        self._optimizer = RAdam(params, **self.optimizer_config)

    def _learning_rates(self):
        lr = self.cfg.lr
        return list(lr) if isinstance(lr, Collection) else [lr]

    @property
    def optimizer_config(self):
        """What overrides the values in a checkpoint, so that training can go on with other ones."""
        return {
            "lr": self._learning_rates()[0],
            "betas": parse_betas(self.cfg.adam_betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    def average_params(self):
        """Average the moments over all processes; called by BMUF training only."""
        processes = float(dist.get_world_size())
        for state in self.optimizer.state_dict()["state"].values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] /= processes
                dist.all_reduce(state[name], op=dist.ReduceOp.SUM)
