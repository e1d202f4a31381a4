"""``--criterion label_smoothed_cross_entropy_chunked`` in fairseq's programs: the runs of stock's criterion."""

import multiprocessing
import os
import re
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import helpers
import models
import pytest
import runs
import torch

import fairseq_rope

CHUNKED = ["--criterion", "label_smoothed_cross_entropy_chunked", "--loss-chunk", 7]
SGD = ["--optimizer", "sgd", "--lr", 0.5]  # Adam would blow the rounding noise of zero gradients up to its step size
# name -> architecture, flags of both runs, relative tolerance of losses and of the gradients' norm
RUNS = {
    "all flags": (
        "roformer_tiny",
        [
            *SGD, "--lr", 0.05, "--report-accuracy", "--ignore-prefix-size", 1, "--sentence-avg",
            "--update-freq", 2, "--dropout", 0.2, "--checkpoint-activations", "--store-ema",
            "--ema-fp32", "--untied-embeddings",
        ],
        1e-4,
    ),
    "bf16": ("realformer_admin_tiny", [*SGD, "--bf16"], 5e-3),
    "fp16": ("tupe_r_tiny", ["--memory-efficient-fp16", "--fp16-init-scale", 128, "--lr", 1e-4], 2e-3),  # not with SGD
}  # fmt: skip


def figures(result):
    """All that the log says of training and validation but for times and speeds: [{name: value}]."""
    lines = [line for line in result.log.splitlines() if "| train | epoch" in line or "| valid | epoch" in line]
    pairs = [re.findall(r"(?<=\| )(\w+) ([-\d.e+naif]+)(?= \||$)", line) for line in lines]
    skipped = ("epoch", "wps", "ups", "wall", "train_wall", "gb_free")
    return [{name: float(value) for name, value in fields if name not in skipped} for fields in pairs]


@pytest.mark.parametrize("name", RUNS)
def test_trains_as_with_stock_s_criterion(digits, tmp_path, name):
    """Losses, accuracy and parameters after three updates; validation by training and by fairseq-validate."""
    arch, flags, tolerance = RUNS[name]
    stock = runs.train(digits, tmp_path / "stock", arch, *flags, updates=3)
    result = runs.train(digits, tmp_path / "chunked", arch, *flags, *CHUNKED, updates=3)
    ours, theirs = figures(result), figures(stock)
    assert len(ours) == len(theirs) >= 2 and theirs[-1]["gnorm"] > 0 and theirs[-1]["num_updates"] == 3
    for found, want in zip(ours, theirs, strict=True):
        assert list(found) == list(want) and {"loss", "nll_loss"} < set(want)
        assert ("accuracy" in want) is (name == "all flags")
        assert found == pytest.approx(want, rel=tolerance, abs=0.0011)
    if name != "all flags":  # in half precision a parameter's own change is smaller than its gradients' rounding
        return
    runs.assert_close(runs.parameters(tmp_path / "chunked"), runs.parameters(tmp_path / "stock"))
    validate = [digits, "--user-dir", helpers.USER_DIR, "--cpu", "--max-tokens", 400, "--no-progress-bar"]
    for folder in ("stock", "chunked"):
        path = tmp_path / folder / "checkpoint_last.pt"
        told = helpers.run("fairseq-validate", *validate, "--path", path).text
        assert f"| loss {theirs[-2]['loss']:g} |" in told and f"| accuracy {theirs[-2]['accuracy']:g} |" in told


def test_resumes_what_stock_s_criterion_began(digits, tmp_path):
    """And the other way round: the two criterions are one to a checkpoint, optimiser's state included."""
    flags = ["--disable-validation", "--lr", 0.001]
    runs.train(digits, tmp_path / "whole", "roformer_tiny", *flags, updates=3)
    runs.train(digits, tmp_path / "mixed", "roformer_tiny", *flags, updates=1)
    runs.train(digits, tmp_path / "mixed", "roformer_tiny", *flags, *CHUNKED, updates=2)
    last = runs.train(digits, tmp_path / "mixed", "roformer_tiny", *flags, updates=3)
    assert "@ 2 updates)" in last.log
    whole, mixed = (runs.checkpoint(tmp_path / name) for name in ("whole", "mixed"))
    moments = [state["last_optimizer_state"]["state"] for state in (whole, mixed)]
    assert moments[0].keys() == moments[1].keys() and {state["step"] for state in moments[1].values()} == {3}
    for index, state in moments[0].items():
        torch.testing.assert_close(moments[1][index]["exp_avg"], state["exp_avg"], rtol=1e-3, atol=1e-5)
    name = "decoder.layers.1.fc1.weight"
    torch.testing.assert_close(mixed["model"][name], whole["model"][name], rtol=1e-4, atol=1e-5)


REFUSED = {
    "no chunk": (["--loss-chunk", 0], "--loss-chunk 0: it must be at least 1"),
    "adaptive softmax": (
        ["--adaptive-softmax-cutoff", "10,15", "--untied-embeddings"],
        "has no adaptive softmax; use --criterion adaptive_loss",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(digits, tmp_path, name):
    flags, message = REFUSED[name]
    result = runs.train(digits, tmp_path / "run", "roformer_tiny", *CHUNKED, *flags, check=False)
    assert message in runs.reason(result)
    assert not list((tmp_path / "run").glob("checkpoint*.pt"))


def test_stock_s_model_is_refused(digits, tmp_path):
    result = runs.train(digits, tmp_path, "transformer", *CHUNKED, check=False)
    assert "TransformerModel does not leave to it; use --criterion label_smoothed_cross_entropy" in runs.reason(result)


def compose(*overrides):
    """What `fairseq-hydra-train --config-dir fairseq_rope/config OVERRIDES` works with."""
    import fairseq
    from fairseq.dataclass.initialize import add_defaults, hydra_init
    from hydra import compose, initialize_config_dir

    hydra_init("config")
    path = f"hydra.searchpath=[file://{Path(fairseq_rope.__file__).parent / 'config'}]"
    with initialize_config_dir(os.path.join(os.path.dirname(fairseq.__file__), "config")):
        task = ["task=translation", "optimizer=adam", "lr_scheduler=fixed", "model=roformer_tiny"]
        cfg = compose("config", overrides=[path, *task, *overrides])
    add_defaults(cfg)
    return cfg


def test_hydra_s_options_are_the_flags(monkeypatch):
    """By the file, and by the bare name, which gets the defaults when the criterion is built."""
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, build_criterion
    from hydra.core.config_store import ConfigStore

    name = CHUNKED[1]
    defaults = {**asdict(CRITERION_DATACLASS_REGISTRY[name]()), "_name": name, "sentence_avg": False}
    compose()  # so that fairseq's own options are registered, and then not this criterion's
    monkeypatch.delitem(ConfigStore.instance().repo["criterion"], f"{name}.yaml")
    assert compose(f"criterion={name}").criterion == defaults
    values = ["loss_chunk=9", "label_smoothing=0.2"]
    file = [f"criterion={name}", *(f"criterion.{value}" for value in values)]
    bare = ["~criterion", f"+criterion._name={name}", *(f"+criterion.{value}" for value in values)]
    fake = SimpleNamespace(target_dictionary=models.dictionary(1))
    for options in (file, bare):
        built = build_criterion(compose(*options, "optimization.sentence_avg=true").criterion, fake)
        assert (built.loss_chunk, built.eps, built.report_accuracy) == (9, 0.2, False)
        assert built.sentence_avg is True


BACKENDS = ("pytorch_ddp", "legacy_ddp", "no_c10d")


def batches():
    """Four batches; the last has no target that counts."""
    for seed, lengths in enumerate([(6, 3), (4, 4), (2, 7), (3, 1)]):
        source = models.batch(list(lengths), seed=seed)
        previous = models.batch(list(lengths), bos=2, left=False, seed=seed)
        target = torch.where(previous.eq(1) | (seed == 3), torch.tensor(1), previous.roll(1, dims=0).clamp(min=2))
        net_input = {"src_tokens": source, "src_lengths": source.ne(1).sum(1), "prev_output_tokens": previous}
        yield {"net_input": net_input, "target": target, "ntokens": int(target.ne(1).sum())}


def chunked():
    from fairseq_rope.criterions import LabelSmoothedCrossEntropyCriterion

    return LabelSmoothedCrossEntropyCriterion(
        SimpleNamespace(target_dictionary=models.dictionary(40)), False, 0.1, loss_chunk=3
    )


def rank_of_two(rank, folder):
    """What each process does: two accumulated batches a backend, and saves the gradients."""
    from fairseq.models import DistributedFairseqModel

    meeting = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", meeting, timedelta(seconds=60), world_size=2, rank=rank)
    group = torch.distributed.group.WORLD
    for backend in BACKENDS:
        settings = SimpleNamespace(
            tpu=False, ddp_backend=backend, device_id=None, broadcast_buffers=False, bucket_cap_mb=25,
            find_unused_parameters=False, gradient_as_bucket_view=False, ddp_comm_hook="none", heartbeat_timeout=-1,
        )  # fmt: skip
        model = DistributedFairseqModel(settings, models.build("roformer_tiny"), group, torch.device("cpu"))
        first, second = list(batches())[2 * rank :][:2]
        with model.no_sync():
            chunked()(model, first)[0].backward()
        chunked()(model, second)[0].backward()
        if hasattr(model, "all_reduce_grads"):
            model.all_reduce_grads()
        gradients = {name: value.grad for name, value in model.module.module.named_parameters()}
        torch.save(gradients, folder / f"{backend}.{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes(tmp_path):
    """Every --ddp-backend with --update-freq 2: the mean of the gradients, though one rank has nothing to predict."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_of_two, args=(rank, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(90)
        process.kill()
    assert [process.exitcode for process in ranks] == [0, 0]
    model = models.build("roformer_tiny")
    for batch in batches():
        chunked()(model, batch)[0].backward()
    for backend in BACKENDS:
        for rank in range(2):
            found = torch.load(tmp_path / f"{backend}.{rank}.pt", weights_only=True)
            for name, value in model.named_parameters():
                torch.testing.assert_close(2 * found[name], value.grad, rtol=1e-5, atol=1e-5, msg=f"{backend}: {name}")
