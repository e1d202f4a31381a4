"""``--bf16`` on CPUs and GPUs: not a request for a TPU, and honoured by every program."""

import ast
import importlib.util
import logging
from contextlib import contextmanager

import torch

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.start import before_run
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError

logger = logging.getLogger(__name__)

# programs that hand common_eval.model_overrides on as arg_overrides; fairseq-validate hands on its own flags
_READ_OVERRIDES = ("generate", "interactive", "eval_lm")


def _has_tpu():
    return importlib.util.find_spec("torch_xla") is not None


def _no_tpu(cfg, program):
    if cfg.common.bf16 and cfg.common.tpu:
        cfg.common.tpu = False
        cfg.distributed_training.tpu = False  # a copy of the value above since the configuration was resolved


def _undo_tpu():
    if _has_tpu():
        return "torch_xla is installed, so --bf16 keeps fairseq's meaning: run on TPUs"
    before_run(_no_tpu)
    return None


def _needs_gpu(cfg, program):
    common = cfg.common
    on_cpu = common.cpu or not torch.cuda.is_available()
    if program == "train" and common.fp16 and not common.memory_efficient_fp16 and on_cpu:
        raise UserError("--fp16 needs a GPU; on the CPU use --bf16 or --memory-efficient-fp16, or leave it out")


def _refuse_fp16_on_cpu():
    before_run(_needs_gpu)


@contextmanager
def _cuda_means_here():
    """Let ``tensor.cuda()`` return the tensor itself."""
    stock = torch.Tensor.cuda
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    try:
        yield
    finally:
        torch.Tensor.cuda = stock


def _overflow_on_cpu():
    from fairseq.trainer import Trainer

    @wrap(Trainer, "train_step")
    def train_step(stock):
        def take(self, *args, **kwargs):
            if self.cuda or not self.cfg.common.fp16:
                return stock(self, *args, **kwargs)
            with _cuda_means_here():
                return stock(self, *args, **kwargs)

        return take


def _ask_for_bfloat16(cfg, program):
    if cfg.common.bf16 and program in _READ_OVERRIDES:
        overrides = ast.literal_eval(cfg.common_eval.model_overrides)
        cfg.common_eval.model_overrides = repr({**overrides, "bf16": True})


def _load_in_bfloat16():
    from fairseq import checkpoint_utils

    @wrap(checkpoint_utils, "load_model_ensemble_and_task")
    def load_model_ensemble_and_task(stock):
        def load(filenames, arg_overrides=None, *args, **kwargs):
            models, cfg, task = stock(filenames, arg_overrides, *args, **kwargs)
            if arg_overrides and arg_overrides.get("bf16"):
                logger.info("--bf16: the model computes in bfloat16")
                models = [model.to(dtype=torch.bfloat16) for model in models]
            return models, cfg, task

        return load

    before_run(_ask_for_bfloat16)


MENDS = [
    Mend(
        name="fp16 on the CPU",
        reason="stock ends in a traceback that says torch was not compiled with CUDA",
        apply=_refuse_fp16_on_cpu,
    ),
    Mend(
        name="overflow on the CPU",
        reason="with --memory-efficient-fp16 the first gradient that overflows ends stock in a traceback about CUDA",
        apply=_overflow_on_cpu,
    ),
    Mend(
        name="bf16 without TPU",
        reason="stock's --bf16 turns on TPU mode at the end of option parsing, then fails on CPU and on GPU",
        apply=_undo_tpu,
    ),
    Mend(
        name="bf16 inference",
        reason="stock's generate, interactive and validate accept --bf16 and ignore it",
        apply=_load_in_bfloat16,
    ),
]
