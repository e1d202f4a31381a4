"""Several processes, on the CPU too: how a run finds its ranks, and what is refused.

One run of n ranks starts in one of three ways: ``torchrun --nproc_per_node n``; ``--distributed-world-size
n``, where the one command starts all ranks; or by hand, one process a rank (``--distributed-rank R
--distributed-init-method tcp://HOST:PORT --distributed-no-spawn``). On GPUs stock fairseq 0.12.3 finds its
ranks for training; on the CPU it starts unrelated runs, none at all, or divides by zero.
"""

import importlib.util
import os
import signal
import socket
import sys
from typing import NamedTuple

import torch
import torch.distributed as dist
from fairseq import options as fairseq_options
from fairseq.distributed import utils as distributed_utils
from torch import multiprocessing

from fairseq_rope.compat import cpu_collectives, resume
from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError


class Launch(NamedTuple):
    """What torchrun tells a process: the number of ranks, its own rank, and how many share its machine."""

    world_size: int
    rank: int
    local_world_size: int


def launched():
    """The :class:`Launch` of this process, or None where no launcher started several processes."""
    if not all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        return None
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size <= 1:
        return None
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return Launch(world_size, int(os.environ["RANK"]), local)


def refuse_missing_fairscale(options):
    """Raise UserError if ``options`` (cfg.distributed_training) asks for what only fairscale offers."""
    asked = None
    if options.ddp_backend in ("slowmo", "fully_sharded"):
        asked = f"--ddp-backend {options.ddp_backend}"
    elif options.zero_sharding == "os":
        asked = "--zero-sharding os"
    if asked and importlib.util.find_spec("fairscale") is None:
        raise UserError(
            f"{asked} needs the package fairscale, which is not installed here; valid without it are "
            "--ddp-backend pytorch_ddp (or c10d) and legacy_ddp (or no_c10d), with --zero-sharding none"
        )


def arrange(cfg):
    """Fill ``cfg.distributed_training`` from the launcher and for the device of this run.

    Returns:
        how many ranks this process has to start itself; 0 where it is a rank already, or alone, or where
        stock fairseq starts them (GPU).

    Raises:
        UserError: what was asked for cannot run; the message says what can.
    """
    options = cfg.distributed_training
    # --bf16 sets `tpu` on any machine, so only a torch_xla that can be imported makes it a TPU run
    if options.pipeline_model_parallel or (cfg.common.tpu and distributed_utils.xm is not None):
        return 0
    refuse_missing_fairscale(options)
    launch = launched() if options.distributed_init_method is None else None
    if launch:
        _end_with_launcher()
    if cfg.common.cpu or not torch.cuda.is_available():
        return _arrange_on_cpu(options, launch)
    if launch:
        _arrange_on_gpu(options, launch)
    return 0


def _arrange_on_gpu(options, launch):
    gpus = torch.cuda.device_count()
    if launch.local_world_size > gpus and options.distributed_backend == "nccl":
        raise UserError(
            f"{launch.local_world_size} processes were started on a machine with {gpus} visible GPU(s), but "
            f"the backend nccl needs a GPU for each: start at most {gpus} (--nproc_per_node), or add --cpu"
        )
    # fairseq-validate's own default of 1 would make every rank validate everything
    options.distributed_world_size = launch.world_size


def _arrange_on_cpu(options, launch):
    options.device_id = 0
    if options.distributed_backend == "nccl":
        options.distributed_backend = "gloo"
    if launch:
        options.distributed_world_size, options.distributed_rank = launch.world_size, launch.rank
        options.distributed_init_method = "env://"
        options.distributed_no_spawn = True
        return 0
    if options.distributed_world_size == torch.cuda.device_count() and not _names_world_size(sys.argv):
        options.distributed_world_size = 1  # fairseq's default is the number of GPUs, but --cpu uses none
    world_size, rank = options.distributed_world_size, options.distributed_rank
    if world_size < 1:
        raise UserError(f"--distributed-world-size {world_size}: it must be at least 1")
    if not 0 <= rank < world_size:
        raise UserError(f"--distributed-rank {rank}: it must be from 0 to {world_size - 1} (world size - 1)")
    if world_size == 1:
        # stock would start min(number of GPUs, 1) = 0 processes for a given init method, and train nothing
        options.distributed_no_spawn = True
        return 0
    if not options.distributed_no_spawn:
        if options.distributed_init_method is not None:
            raise UserError(
                "--distributed-init-method on the CPU is for one process a rank: add --distributed-no-spawn "
                "(and --distributed-rank R to each), or leave out --distributed-init-method, and the one "
                f"command starts all {world_size} ranks"
            )
        return world_size
    if options.distributed_init_method is None:
        if options.distributed_port <= 0:
            raise UserError(
                f"{world_size} processes with --distributed-no-spawn must meet: give "
                "--distributed-init-method tcp://HOST:PORT, or --distributed-port PORT on one machine"
            )
        options.distributed_init_method = f"tcp://127.0.0.1:{options.distributed_port}"
    return 0


def _names_world_size(argv):
    return any("distributed-world-size" in word or "distributed_world_size" in word for word in argv)


def _end_with_launcher():
    # torchrun gives its ranks sessions of their own, so when it is killed they would train on, unseen, and
    # write into the folder of the next run; on Linux the kernel can end them with it
    if "TORCHELASTIC_RUN_ID" in os.environ:
        multiprocessing._prctl_pr_set_pdeathsig(signal.SIGTERM)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run_rank(rank, cfg, main, kwargs, refusals):
    """One started rank, in a new interpreter: goes on as if it had been started by hand."""
    options = cfg.distributed_training
    options.distributed_rank = rank
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // options.distributed_world_size))
    try:
        # looked up here and not handed over: unpickling this function has applied the mends in this process
        distributed_utils.call_main(cfg, main, **kwargs)
    except UserError as refusal:
        refusals.put(str(refusal))
        raise SystemExit(1) from None


def start_ranks(ranks, cfg, main, kwargs):
    """Start ``ranks`` processes of ``main(cfg, **kwargs)`` on this machine's CPU and wait for all of them.

    Raises:
        UserError: with a rank's own refusal, or saying which rank ended early; the others are ended then.
    """
    options = cfg.distributed_training
    port = options.distributed_port if options.distributed_port > 0 else _free_port()
    options.distributed_init_method = f"tcp://127.0.0.1:{port}"
    options.distributed_no_spawn = True
    refusals = multiprocessing.get_context("spawn").SimpleQueue()
    try:
        multiprocessing.spawn(_run_rank, args=(cfg, main, kwargs, refusals), nprocs=ranks)
    except multiprocessing.ProcessExitedException as end:
        if not refusals.empty():
            raise UserError(refusals.get()) from None
        message = f"rank {end.error_index} of {ranks} ended early ({end.msg}), so the others were ended too"
        raise UserError(message) from None


def _call_main_on_cpu():
    @wrap(distributed_utils, "call_main")
    def call_main(stock):
        def run(cfg, main, **kwargs):
            ranks = arrange(cfg)
            return start_ranks(ranks, cfg, main, kwargs) if ranks else stock(cfg, main, **kwargs)

        return run


def _join_late():
    # only a module that is there already: importing fairseq_cli.train sets up logging as a side effect
    train = sys.modules.get("fairseq_cli.train")
    if train is None:
        return "not needed: this program does not train"

    @wrap(train, "add_defaults")
    def add_defaults(stock):
        def join(cfg):
            stock(cfg)
            if launched() and not dist.is_initialized():
                arrange(cfg)
                distributed_utils.infer_init_method(cfg.distributed_training)
                if torch.cuda.is_available() and not cfg.common.cpu:
                    torch.cuda.set_device(cfg.distributed_training.device_id)
                distributed_utils.distributed_init(cfg)

        return join

    return None


def refuse_several_translators(args):
    """Raise UserError if ``args`` are a one-process program's and several ranks would each run all of it.

    fairseq-generate, -interactive and -eval-lm never combine what their ranks compute. A share of its own for
    each rank (``--num-shards N --shard-id R``) is fine.

    Args:
        args: what fairseq's option parser returned, of whatever program.
    """
    launch = launched()
    ranks = launch.world_size if launch else 1
    interactive, language_model = hasattr(args, "buffer_size"), hasattr(args, "context_window")
    if interactive or language_model:
        ranks = max(ranks, args.distributed_world_size or 1)
        program = "fairseq-interactive" if interactive else "fairseq-eval-lm"
        if ranks > 1:
            raise UserError(
                f"{program} runs in one process, not in {ranks}: start it without torchrun and without "
                "--distributed-world-size"
            )
    elif hasattr(args, "nbest") and ranks > 1:
        if (args.num_shards, args.shard_id) == (launch.world_size, launch.rank):
            return
        raise UserError(
            f"fairseq-generate runs in one process, and each of the {ranks} that torchrun started would "
            f"translate everything: start {ranks} commands without torchrun, the first with --num-shards "
            f"{ranks} --shard-id 0, the last with --shard-id {ranks - 1}, and join their outputs"
        )


def _one_translator():
    @wrap(fairseq_options, "parse_args_and_arch")
    def parse_args_and_arch(stock):
        def parse(*args, **kwargs):
            parsed = stock(*args, **kwargs)
            refuse_several_translators(parsed[0] if isinstance(parsed, tuple) else parsed)
            return parsed

        return parse


MENDS: list[Mend] = [
    Mend(
        name="several processes",
        reason="torchrun with --cpu runs unrelated trainings into one folder, --distributed-world-size on "
        "the CPU divides by zero or starts nothing, and each rank of fairseq-validate validates everything",
        apply=_call_main_on_cpu,
    ),
    Mend(
        name="several processes with hydra",
        reason="fairseq-hydra-train imports a user directory only after it has looked for its ranks, so "
        "under torchrun on the CPU they join when training starts",
        apply=_join_late,
    ),
    Mend(
        name="one translator",
        reason="fairseq-generate and fairseq-interactive under torchrun translate everything once a rank",
        apply=_one_translator,
    ),
    *cpu_collectives.MENDS,
    *resume.MENDS,
]
