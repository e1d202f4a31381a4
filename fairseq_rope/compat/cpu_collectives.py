"""What the ranks of one run exchange, mended for tensors that live on the CPU (backend gloo).

Stock fairseq 0.12.3 writes this traffic for GPUs only. Where the backend is nccl, nothing here changes anything
but fairseq-validate, whose log and uneven shares are at fault on GPUs too.
"""

import importlib
import os

import torch
import torch.distributed as dist
from fairseq import checkpoint_utils, utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap


def _ddp_on_cpu():
    # `fairseq.models` exports a function of this module's own name, so the module is asked for by its path
    module = importlib.import_module("fairseq.models.distributed_fairseq_model")

    @wrap(module, "DistributedDataParallel")
    def distributed_data_parallel(stock):
        def build(module, device_ids=None, output_device=None, **options):
            if all(tensor.device.type == "cpu" for tensor in module.parameters()):
                device_ids = output_device = None
            return stock(module=module, device_ids=device_ids, output_device=output_device, **options)

        return build


def _gather_on_cpu():
    @wrap(distributed_utils, "all_gather_list")
    def all_gather_list(stock):
        def gather(data, group=None, max_size=16384):
            if distributed_utils.use_xla() or not dist.is_initialized():
                return stock(data, group=group, max_size=max_size)
            group = distributed_utils.get_global_group() if group is None else group
            if dist.get_backend(group) == "nccl":
                return stock(data, group=group, max_size=max_size)
            gathered = [None] * dist.get_world_size(group)
            dist.all_gather_object(gathered, utils.move_to_cpu(data), group=group)
            return gathered

        return gather


def _gradient_check_on_cpu():
    @wrap(Trainer, "__init__")
    def init(stock):
        def build(self, *args, **kwargs):
            stock(self, *args, **kwargs)
            if self._grad_norm_buf is None and self.data_parallel_world_size > 1 and not self.tpu:
                self._grad_norm_buf = torch.zeros(self.data_parallel_world_size, dtype=torch.double)

        return build


def _one_log():
    @wrap(distributed_utils, "distributed_init")
    def distributed_init(stock):
        def init(cfg):
            rank = stock(cfg)
            if rank != 0:
                # fairseq-validate calls fairseq's reset_logging() after this, which reads it
                os.environ["LOGLEVEL"] = "WARNING"
            return rank

        return init


def _uneven_shares():
    @wrap(checkpoint_utils, "load_model_ensemble_and_task")
    def load_model_ensemble_and_task(stock):
        def load(*args, **kwargs):
            models, cfg, task = stock(*args, **kwargs)
            if distributed_utils.get_global_world_size() > 1:
                step = task.valid_step

                def valid_step(sample, *step_args, **step_kwargs):
                    # a rank whose share is one batch short gets {}, which adds nothing to the joint sums
                    return step(sample, *step_args, **step_kwargs) if sample else (0.0, 0, {})

                task.valid_step = valid_step
            return models, cfg, task

        return load


MENDS: list[Mend] = [
    Mend(
        name="DDP on the CPU",
        reason="--ddp-backend pytorch_ddp, the default, hands device_ids to a CPU model, which torch refuses",
        apply=_ddp_on_cpu,
    ),
    Mend(
        name="gather on the CPU",
        reason="fairseq-validate, and training with a criterion whose logs cannot be summed, gather through "
        "CUDA tensors and pinned memory even where the backend is gloo",
        apply=_gather_on_cpu,
    ),
    Mend(
        name="gradient check on the CPU",
        reason="stock compares the ranks' gradient norms on GPUs only, so ranks that drift apart on the CPU "
        "go unnoticed",
        apply=_gradient_check_on_cpu,
    ),
    Mend(
        name="one log",
        reason="fairseq-validate resets the log level after the ranks were told apart, so that each of them "
        "reports the joint loss",
        apply=_one_log,
    ),
    Mend(
        name="uneven shares",
        reason="fairseq-validate on several processes dies with KeyError: 'net_input' unless the number of "
        "batches divides by the number of processes",
        apply=_uneven_shares,
    ),
]
