"""How a run finds its ranks: what compat.processes fills in, leaves alone and refuses; none is started."""

import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.trainer import Trainer

from fairseq_rope import compat
from fairseq_rope.compat import cpu_collectives, processes
from fairseq_rope.errors import UserError

compat.apply()

LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["fairseq-train"])


def torchrun(monkeypatch, world_size=2, rank=1):
    values = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": world_size, "RANK": rank}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def config(*arguments, cpu=True):
    parser = options.get_validation_parser("translation")
    arguments = ["data", "--path", "model.pt", *(["--cpu"] if cpu else []), *arguments]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def arranged(*arguments, cpu=True):
    """(ranks to start, cfg.distributed_training) for a command line."""
    cfg = config(*arguments, cpu=cpu)
    return processes.arrange(cfg), cfg.distributed_training


@pytest.mark.parametrize("given", [(), ("--distributed-world-size", "1"), ("--distributed-world-size", "4")])
def test_torchrun_on_the_cpu_decides(monkeypatch, given):
    torchrun(monkeypatch)
    ranks, found = arranged(*given)
    assert ranks == 0
    assert (found.distributed_world_size, found.distributed_rank) == (2, 1)
    assert (found.distributed_init_method, found.distributed_backend) == ("env://", "gloo")
    assert found.distributed_no_spawn and found.device_id == 0


def test_one_process(monkeypatch):
    torchrun(monkeypatch, world_size=1, rank=0)
    ranks, found = arranged()
    assert (ranks, found.distributed_world_size, found.distributed_init_method) == (0, 1, None)


def test_world_size_starts_ranks_here():
    ranks, found = arranged("--distributed-world-size", "3")
    assert (ranks, found.distributed_world_size, found.distributed_backend) == (3, 3, "gloo")


def test_backend_that_is_asked_for_is_kept(monkeypatch):
    torchrun(monkeypatch)
    assert arranged("--distributed-backend", "mpi")[1].distributed_backend == "mpi"


def test_cpu_on_a_machine_with_gpus_is_one_process(monkeypatch):
    """fairseq's default world size is the number of GPUs, also with --cpu; one that is asked for stands."""
    cfg = config("--distributed-world-size", "8")
    gpus(monkeypatch, 8)
    monkeypatch.setattr(sys, "argv", ["fairseq-train", "data", "--cpu"])
    assert processes.arrange(cfg) == 0
    assert cfg.distributed_training.distributed_world_size == 1
    for word in ("--distributed-world-size=8", "distributed_training.distributed_world_size=8"):
        monkeypatch.setattr(sys, "argv", ["fairseq-train", word])
        assert arranged("--distributed-world-size", "8")[0] == 8


def test_by_hand_is_left_alone(monkeypatch):
    torchrun(monkeypatch, world_size=4, rank=3)  # a cluster may set these for its own ends
    given = ("--distributed-init-method", "tcp://127.0.0.1:9", "--distributed-no-spawn")
    ranks, found = arranged(*given, "--distributed-world-size", "2", "--distributed-rank", "0")
    assert ranks == 0
    assert (found.distributed_world_size, found.distributed_rank) == (2, 0)
    assert found.distributed_init_method == "tcp://127.0.0.1:9"


def test_by_hand_meets_at_a_port():
    ranks, found = arranged("--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-port", "77")
    assert (ranks, found.distributed_init_method) == (0, "tcp://127.0.0.1:77")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--distributed-world-size", "2", "--distributed-no-spawn"), "--distributed-port PORT"),
        (
            ("--distributed-world-size", "2", "--distributed-init-method", "tcp://h:1"),
            "--distributed-no-spawn",
        ),
        (("--distributed-world-size", "0"), "at least 1"),
        (("--distributed-world-size", "2", "--distributed-rank", "2"), "from 0 to 1"),
        (("--ddp-backend", "slowmo"), "slowmo needs the package fairscale"),
        (("--ddp-backend", "fully_sharded"), "legacy_ddp"),
        (("--zero-sharding", "os"), "--zero-sharding none"),
    ],
)
def test_refused_in_words(monkeypatch, given, named):
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *given])
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=named):
        arranged(*given)


def test_fairscale_where_it_is(monkeypatch):
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: object())
    assert arranged("--ddp-backend", "slowmo")[0] == 0


def test_torchrun_on_gpus(monkeypatch):
    """The launcher's world size counts (fairseq-validate defaults to 1); stock does the rest."""
    cfg = config(cpu=False)
    gpus(monkeypatch, 2)
    torchrun(monkeypatch)
    assert processes.arrange(cfg) == 0
    found = cfg.distributed_training
    assert (found.distributed_world_size, found.distributed_init_method) == (2, None)
    assert (found.distributed_backend, found.distributed_no_spawn) == ("nccl", False)


def test_more_ranks_than_gpus(monkeypatch):
    cfg, shared = config(cpu=False), config("--distributed-backend", "gloo", cpu=False)
    gpus(monkeypatch, 1)
    torchrun(monkeypatch)
    with pytest.raises(UserError, match=r"2 processes .* 1 visible GPU"):
        processes.arrange(cfg)
    assert processes.arrange(shared) == 0


def test_gpus_without_a_launcher_are_left_to_stock(monkeypatch):
    cfg = config("--distributed-world-size", "2", cpu=False)
    gpus(monkeypatch, 2)
    before = dict(cfg.distributed_training)
    assert processes.arrange(cfg) == 0
    assert dict(cfg.distributed_training) == before


def test_call_main_reaches_main_for_one_process(monkeypatch):
    """Stock starts 0 processes, and so trains nothing, for an init method with a world of one."""
    called = []
    monkeypatch.setattr(distributed_utils, "distributed_main", lambda i, main, cfg, kwargs: called.append(i))
    cfg = config("--distributed-init-method", "tcp://127.0.0.1:9")
    distributed_utils.call_main(cfg, lambda cfg: None)
    assert called == [0]


def _parse(interactive, *arguments):
    parser = options.get_generation_parser(interactive=interactive)
    return options.parse_args_and_arch(parser, ["data", "--path", "model.pt", *arguments])


def test_generate_under_torchrun(monkeypatch):
    assert _parse(False).num_shards == 1
    torchrun(monkeypatch, world_size=3, rank=1)
    with pytest.raises(UserError, match=r"--num-shards 3 --shard-id 0, the last with --shard-id 2"):
        _parse(False)
    with pytest.raises(UserError, match="fairseq-generate"):
        _parse(False, "--num-shards", "3", "--shard-id", "0")  # the same share on every rank
    assert _parse(False, "--num-shards", "3", "--shard-id", "1").shard_id == 1


def test_interactive_is_one_process(monkeypatch):
    with pytest.raises(UserError, match="fairseq-interactive runs in one process, not in 2"):
        _parse(True, "--distributed-world-size", "2")
    torchrun(monkeypatch)
    with pytest.raises(UserError, match="without torchrun"):
        _parse(True)


def test_training_is_not_taken_for_generation(monkeypatch):
    torchrun(monkeypatch)
    assert config().distributed_training.distributed_world_size == 1  # parsed, not refused


def test_language_model_evaluation_is_one_process(monkeypatch):
    torchrun(monkeypatch)
    with pytest.raises(UserError, match="fairseq-eval-lm"):
        processes.refuse_several_translators(Namespace(context_window=0, distributed_world_size=1))


def test_applying_again_changes_nothing():
    before = distributed_utils.call_main, options.parse_args_and_arch, Trainer.load_checkpoint
    for mend in processes.MENDS:
        mend.apply()
    assert (distributed_utils.call_main, options.parse_args_and_arch, Trainer.load_checkpoint) == before
    assert len({mend.name for mend in processes.MENDS}) == len(processes.MENDS)


@pytest.fixture
def alone(tmp_path):
    """A gloo process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", world_size=1, rank=0)
    yield
    dist.destroy_process_group()
    vars(distributed_utils.get_global_group).pop("_global_group", None)


def test_gathers_without_cuda(alone):
    data = [{"loss": torch.tensor(1.5), "words": ["a"] * 20000}]  # stock's buffer ends at 16384 bytes
    [found] = distributed_utils.all_gather_list(data)
    assert found[0]["words"] == data[0]["words"] and found[0]["loss"].item() == 1.5


def test_ddp_on_the_cpu(alone):
    """torch's DDP refuses device_ids for a CPU module."""
    found = sys.modules["fairseq.models.distributed_fairseq_model"].DistributedFairseqModel(
        config().distributed_training, torch.nn.Linear(2, 3), dist.group.WORLD, torch.device("cpu")
    )
    assert found(torch.ones(1, 2)).shape == (1, 3)


def test_an_empty_share_adds_nothing(monkeypatch):
    """fairseq-validate hands the rank whose share is one batch short an empty sample."""

    class Task:
        def valid_step(self, sample, model, criterion):
            return sample["net_input"], 1, {"loss": 1}

    stub = SimpleNamespace(load_model_ensemble_and_task=lambda path: ([], None, Task()))
    monkeypatch.setattr(cpu_collectives, "checkpoint_utils", stub)
    cpu_collectives._uneven_shares()
    for world_size, empty in ((1, None), (2, (0.0, 0, {}))):
        monkeypatch.setattr(distributed_utils, "get_global_world_size", lambda n=world_size: n)
        _, _, task = stub.load_model_ensemble_and_task("path")
        assert task.valid_step({"net_input": 7}, None, None) == (7, 1, {"loss": 1})
        if empty:
            assert task.valid_step({}, None, None) == empty


def test_a_resumed_run_sees_the_same_batches(digits):
    """Stock draws a run's batches from the epoch in which it starts."""
    found = []
    for epoch in (1, 4):
        cfg = TranslationConfig(data=str(digits), source_lang="en", target_lang="de", dataset_impl="mmap")
        task = TranslationTask.setup_task(cfg)
        task.load_dataset("train")
        iterator = task.get_batch_iterator(task.dataset("train"), max_tokens=100, seed=1, epoch=epoch)
        assert iterator.epoch == epoch
        assert task.get_batch_iterator(task.dataset("train"), max_tokens=100, epoch=epoch) is iterator
        found.append([list(batch) for batch in iterator.frozen_batches])
    assert found[0] == found[1]
    assert sorted(number for batch in found[1] for number in batch) == list(range(200))
