"""Averaging: the mathematics, tied tensors, and a checkpoint as a whole."""

from argparse import Namespace
from collections import OrderedDict

import hypothesis
import pytest
import torch
from averaging_cases import FLOATS, average, bits, checkpoint, mean_of, model, write
from hypothesis import strategies as st

from fairseq_rope.averaging import ModelMean, average_checkpoints, tied_groups
from fairseq_rope.checkpoint_files import describe
from fairseq_rope.errors import UserError

# ---- the mathematics ----


@pytest.mark.parametrize("sums", [torch.float64, torch.float32])
@pytest.mark.parametrize("stored", FLOATS)
@pytest.mark.parametrize("copies", [1, 2, 3, 5, 7, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_of_copies_is_the_checkpoint(stored, sums, copies, weighted):
    info = torch.finfo(stored)
    values = torch.cat(
        [
            torch.randn(2000, generator=torch.Generator().manual_seed(copies), dtype=torch.float64),
            torch.tensor([0.0, -0.0, info.max, info.min, info.tiny, -info.tiny, info.smallest_normal / 4]),
            torch.tensor([float("inf"), float("-inf"), 1 / 3, 0.1]),
        ]
    ).to(stored)
    weights = [0.1 + 0.37 * number for number in range(copies)] if weighted else None
    result = mean_of([{"w": values.clone()} for _ in range(copies)], weights, sums)["w"]
    assert result.dtype is stored
    assert bits(result) == bits(values)


@hypothesis.given(
    value=st.floats(width=32, allow_nan=False),
    weights=st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=12).filter(any),
    stored=st.sampled_from(FLOATS),
    sums=st.sampled_from([torch.float64, torch.float32]),
)
@hypothesis.settings(deadline=None, max_examples=300)
def test_copies_with_any_weights(value, weights, stored, sums):
    tensor = torch.tensor([value]).to(stored)
    result = mean_of([{"w": tensor.clone()} for _ in weights], weights, sums)["w"]
    assert bits(result) == bits(tensor)


@pytest.mark.parametrize("stored", FLOATS)
def test_mean_is_that_of_float64_rounded_once(stored):
    models = [{"w": torch.randn(5000, generator=torch.Generator().manual_seed(seed)).to(stored)} for seed in range(4)]
    expected = (sum(m["w"].double() for m in models) / 4).to(stored)
    result = mean_of(models)["w"]
    if stored is torch.float64:
        torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-15)
    else:
        assert torch.equal(result, expected)


def test_bfloat16_sums_do_not_lose_small_terms():
    # Summed in bfloat16, 256 + 1 is 256 again.
    models = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in [256, 1, 1, 1, 1]]
    assert mean_of(models)["w"].item() == 52


def test_weights_are_normalised():
    models = [{"w": torch.tensor([0.0, 8.0])}, {"w": torch.tensor([4.0, 0.0])}]
    assert mean_of(models, [3, 1])["w"].tolist() == [1.0, 6.0]
    assert mean_of(models, [0.75, 0.25])["w"].tolist() == [1.0, 6.0]
    assert mean_of(models, [300, 100], torch.float32)["w"].tolist() == [1.0, 6.0]


def test_equal_weights_are_no_weights():
    # 0.1 is not exact, and in bfloat16 a mean of four is often half-way between two numbers.
    models = [{"w": torch.randn(5000, generator=torch.Generator().manual_seed(seed)).bfloat16()} for seed in range(4)]
    assert torch.equal(mean_of(models, [0.1] * 4)["w"], mean_of(models)["w"])


def test_weight_zero_takes_no_part():
    models = [
        {"w": torch.tensor([float("inf")]), "n": torch.tensor([7])},
        {"w": torch.tensor([2.0]), "n": torch.tensor([5])},
    ]
    result = mean_of(models, [0, 2])
    assert result["w"].item() == 2.0 and result["n"].item() == 5


def test_integers_keep_their_type_and_round_down():
    big = 2**62
    models = [
        {"n": torch.tensor([1, -1, big], dtype=torch.int64), "u": torch.tensor([255], dtype=torch.uint8)},
        {"n": torch.tensor([2, -2, big + 2], dtype=torch.int64), "u": torch.tensor([254], dtype=torch.uint8)},
    ]
    result = mean_of(models)
    assert result["n"].dtype is torch.int64 and result["n"].tolist() == [1, -2, big + 1]
    assert result["u"].dtype is torch.uint8 and result["u"].tolist() == [254]
    assert mean_of(models, [1, 3])["n"].tolist()[:2] == [1, -2]  # 1.75 and -1.75


def test_booleans_must_agree():
    same = {"mask": torch.tensor([True, False])}
    assert mean_of([same, same])["mask"].tolist() == [True, False]
    with pytest.raises(UserError, match=r"model 1: cannot average mask: it is boolean and differs"):
        mean_of([same, {"mask": torch.tensor([True, True])}])


def test_key_order_empty_tensors_scalars_and_metadata_stay():
    first = OrderedDict(z=torch.tensor(3.0), a=torch.empty(0), m=torch.empty(0, 4), b=torch.tensor(5))
    first._metadata = {"": {"version": 2}}
    mean = ModelMean([1.0])
    mean.add(first, "first")
    result = mean.result()
    assert list(result) == ["z", "a", "m", "b"]
    assert result["z"].item() == 3.0 and result["b"].item() == 5 and result["m"].shape == (0, 4)
    assert result._metadata == {"": {"version": 2}}


def test_transposed_and_sliced_tensors():
    base = torch.arange(12.0).view(3, 4)
    result = mean_of([{"t": base.t(), "s": base[:, 1:3]}] * 2)
    assert torch.equal(result["t"], base.t()) and torch.equal(result["s"], base[:, 1:3])


# ---- tied tensors ----


def test_tied_tensors_share_memory_in_the_file(tmp_path):
    paths = write(tmp_path, *[checkpoint(model(seed, words=5000, width=40)) for seed in range(3)])
    out = tmp_path / "mean.pt"
    average("--inputs", *paths, "--output", out)
    loaded = torch.load(out, weights_only=True)["model"]
    encoder, decoder = loaded["encoder.embed_tokens.weight"], loaded["decoder.embed_tokens.weight"]
    assert encoder.data_ptr() == decoder.data_ptr()
    assert out.stat().st_size < 1.2 * encoder.numel() * 4


def test_untied_in_one_checkpoint():
    tied = model(0)
    equal = {key: tensor.clone() for key, tensor in model(1).items()}  # how fairseq saves from a GPU
    result = mean_of([tied, equal])
    assert len(tied_groups(result)) == 2
    torch.testing.assert_close(
        result["encoder.embed_tokens.weight"],
        (tied["encoder.embed_tokens.weight"] + equal["encoder.embed_tokens.weight"]) / 2,
    )

    different = dict(equal)
    different["decoder.embed_tokens.weight"] = equal["decoder.embed_tokens.weight"] + 1
    result = mean_of([tied, different])
    assert len(tied_groups(result)) == 3
    difference = result["decoder.embed_tokens.weight"] - result["encoder.embed_tokens.weight"]
    torch.testing.assert_close(difference, torch.full_like(difference, 0.5))


# ---- a checkpoint as a whole ----


def test_optimiser_state_goes_the_rest_is_the_first_ones(tmp_path):
    paths = write(tmp_path, checkpoint(model(0), 2, 20, 3.0), checkpoint(model(1), 1, 10, 4.0))
    state, infos = average_checkpoints(paths)
    assert "last_optimizer_state" not in state
    assert state["optimizer_history"][-1]["num_updates"] == 20
    assert state["extra_state"]["averaged"] == [
        {"file": "checkpoint1.pt", "epoch": 2, "update": 20, "weight": 1.0},
        {"file": "checkpoint2.pt", "epoch": 1, "update": 10, "weight": 1.0},
    ]
    assert [(info.epoch, info.update, info.value) for info in infos] == [(2, 20, 3.0), (1, 10, 4.0)]


def test_moving_average_restarts_from_the_mean(tmp_path):
    ema = {"ema": model(5), "ema_fp32_params": model(6)}
    state, _ = average_checkpoints(write(tmp_path, *[checkpoint(model(seed), **ema) for seed in (0, 1)]))
    assert "ema_fp32_params" not in state["extra_state"]
    for key, tensor in state["extra_state"]["ema"].items():
        assert tensor.data_ptr() == state["model"][key].data_ptr()


def test_only_one_checkpoint_is_in_memory():
    class Parameters(OrderedDict):
        alive = 0

        def __init__(self, *args):
            super().__init__(*args)
            Parameters.alive += 1

        def __del__(self):
            Parameters.alive -= 1

    seen = []

    def load(path):
        seen.append(Parameters.alive)
        return checkpoint(Parameters(model(int(path))))

    average_checkpoints([str(number) for number in range(5)], load=load)
    assert seen == [0] * 5  # none of the earlier ones is left when the next is loaded


def test_sums_are_the_only_other_memory():
    living, peaks = set(), []

    class Parameter(torch.Tensor):
        def __new__(cls, tensor):
            self = tensor.as_subclass(cls)
            living.add(id(self))
            return self

        def __del__(self):
            living.discard(id(self))

    def load(path):
        parameters = OrderedDict((f"p{n}", Parameter(torch.ones(4, 4) * n)) for n in range(10))
        peaks.append(len(living))
        return checkpoint(parameters)

    average_checkpoints("1234", load=load)
    assert max(peaks) == 10


def test_describe_reads_both_kinds_of_options():
    info = describe("x/checkpoint3.pt", checkpoint(model(), 3, 30, 21.5, metric="bleu"))
    assert (info.name, info.epoch, info.update, info.metric, info.value) == (
        "checkpoint3.pt",
        3,
        30,
        "bleu",
        21.5,
    )
    old = {
        "args": Namespace(arch="transformer", best_checkpoint_metric="nll_loss"),
        "extra_state": {"val_loss": None},
    }
    info = describe("old.pt", old)
    assert (info.epoch, info.update, info.metric, info.value) == (None, None, "nll_loss", None)
    within = checkpoint(model(), 3)
    within["extra_state"]["train_iterator"] = {"version": 2, "epoch": 3, "iterations_in_epoch": 5}
    assert describe("checkpoint_3_5.pt", within).epoch == 3
