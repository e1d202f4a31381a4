"""The chunked label-smoothed loss: equal to stock's criterion and to its formula, in less memory."""

from types import SimpleNamespace

import models
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion as Stock
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_rope.criterions import LabelSmoothedCrossEntropyCriterion as Chunked
from fairseq_rope.criterions import chunked_loss
from fairseq_rope.criterions.reference import reference_loss
from fairseq_rope.errors import UserError

PAD = 1
ARCHS = ["baseline", "roformer", "tupe_a", "tupe_r", "realformer", "admin", "realformer_admin"]
TYING = {
    "tied": {},
    "decoder tied": {"share_decoder_input_output_embed": True},
    "untied": {"untied_embeddings": True},
    "other width": {"untied_embeddings": True, "decoder_output_dim": 24},
}
TOLERANCE = 40 * torch.finfo(torch.float32).eps
HALF = [torch.float16, torch.bfloat16]


class Recorder(TorchDispatchMode):
    """Shapes and storages of what operations give, and how many products have ``vocabulary`` among their sizes."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.shapes, self.storages, self.products = [], {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
            self.products += any(self.vocabulary in value.shape for value in args)
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if torch.is_tensor(value):
                self.shapes.append(tuple(value.shape))
                storage = value.untyped_storage()
                self.storages[storage.data_ptr()] = storage.nbytes()
        return result


def sample(lengths=(6, 9, 1), extra=0, symbols=40):
    """A batch as fairseq collates it: targets end in </s> and are padded on the right."""
    source = models.batch([7, 3, 12][: len(lengths)], symbols)
    previous = models.batch(list(lengths), symbols, bos=2, left=False, extra=extra)
    target = torch.full_like(previous, PAD)
    target[:, :-1] = previous[:, 1:]
    for row, length in enumerate(lengths):
        target[row, length - 1] = 2
    net_input = {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1), "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum())}


def criterions(loss_chunk=4, sentence_avg=False, epsilon=0.1, **flags):
    """Stock's criterion and the chunked one, of the same flags."""
    task = SimpleNamespace(target_dictionary=models.Task().target_dictionary)
    return Stock(task, sentence_avg, epsilon, **flags), Chunked(
        task, sentence_avg, epsilon, **flags, loss_chunk=loss_chunk
    )


def run(criterion, model, batch, reduce=True, scale=1.0):
    """Loss, sample size, logged values and {name: gradient} of one pass."""
    model.zero_grad()
    loss, size, logged = criterion(model, batch, reduce)
    scale = torch.linspace(1, 2, loss.numel()).view_as(loss) if not reduce else scale
    (loss * scale).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return loss.detach(), size, logged, gradients


def assert_close(ours, theirs, tolerance=TOLERANCE):
    """Tensors, or dicts of them, to ``tolerance`` of each one's largest value."""
    if not isinstance(theirs, dict):
        ours, theirs = {"": ours}, {"": theirs}
    assert ours.keys() == theirs.keys()
    largest = max(map(size, theirs.values()), default=0.0)
    for name, value in theirs.items():
        assert ours[name].shape == value.shape and ours[name].dtype == value.dtype, name
        # a gradient that is 0 in exact arithmetic (key biases) has the rounding of the others
        assert size(ours[name] - value) <= tolerance * max(size(value), 1e-2 * largest), name


def size(value):
    return float(value.abs().max()) if value.numel() else 0.0


def assert_same(ours, theirs, **tolerance):
    """Whether two results of :func:`run` agree, counts exactly."""
    assert_close(ours[0], theirs[0], **tolerance)
    assert ours[1] == theirs[1] and list(ours[2]) == list(theirs[2])
    for name, value in theirs[2].items():
        if torch.is_tensor(value):
            assert_close(ours[2][name], value, **tolerance)
        else:
            assert ours[2][name] == value and type(ours[2][name]) is type(value), name
    assert theirs[3]
    assert_close(ours[3], theirs[3], **tolerance)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_family_equals_stock(arch):
    """Loss, logged values and all gradients, with pads, in training and in validation."""
    model, batch = models.build(f"{arch}_tiny", dropout=0.0), sample(extra=2)
    theirs, ours = criterions(report_accuracy=True)
    for mode in (True, False):
        model.train(mode)
        assert_same(run(ours, model, batch), run(theirs, model, batch))


@pytest.mark.parametrize("tying", TYING)
@pytest.mark.parametrize("reduce", [True, False])
def test_tying_prefix_and_sentence_average_equal_stock(tying, reduce):
    model = models.build("roformer_tiny", models.Task(40, 25 if tying == "decoder tied" else None), **TYING[tying])
    for prefix in (0, 1, 3):
        theirs, ours = criterions(5, sentence_avg=True, ignore_prefix_size=prefix, report_accuracy=True)
        batch = sample(extra=1, symbols=25)
        assert_same(run(ours, model, batch, reduce), run(theirs, model, batch, reduce))


@pytest.mark.parametrize("chunk", [1, 2, 15, 16, 17, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_any_chunk_equals_stock(chunk, epsilon):
    model, batch = models.build("baseline_tiny"), sample()  # 16 targets
    theirs, ours = criterions(chunk, epsilon=epsilon)
    assert_same(run(ours, model, batch, scale=3.0), run(theirs, model, batch, scale=3.0))


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("prefix", [0, 4, 50])
def test_nothing_left_is_nothing(prefix, reduce):
    """All targets pads, or in the prefix: a loss of 0 and gradients of 0, which processes can exchange."""
    model, batch = models.build("baseline_tiny"), sample((1, 4, 2))
    if prefix == 0:
        batch["target"].fill_(PAD)
    theirs, ours = criterions(ignore_prefix_size=prefix, report_accuracy=True)
    found = run(ours, model, batch, reduce)
    assert_same(found, run(theirs, model, batch, reduce))
    assert float(found[0].sum()) == 0 and not any(value.any() for value in found[3].values())
    assert "decoder.embed_tokens.weight" in found[3] or "encoder.embed_tokens.weight" in found[3]


def test_without_gradients_the_same_values():
    """Validation computes no gradients: one product a chunk in place of three."""
    model, batch = models.build("baseline_tiny"), sample()
    theirs, ours = criterions(4, report_accuracy=True)
    products = []
    for grad in (False, True):
        with torch.set_grad_enabled(grad), Recorder(44) as recorder:
            loss, size, logged = ours(model, batch)
        expected = theirs(model, batch)
        assert loss.requires_grad is grad and size == expected[1]
        assert_close(loss.detach(), expected[0].detach())
        assert logged["n_correct"] == expected[2]["n_correct"]
        products.append(recorder.products)
    assert products == [4, 12]


# ---- the function alone


def inputs(tokens, vocabulary, dim=6, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(tokens, dim, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, dim, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    return features.requires_grad_(), weight.requires_grad_(), targets


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(0, 12),
    vocabulary=st.integers(2, 20),
    chunk=st.integers(1, 14),
    epsilon=st.floats(0, 1),
    reduce=st.booleans(),
    large=st.booleans(),
    seed=st.integers(0, 9),
)
def test_formula_in_float64(tokens, vocabulary, chunk, epsilon, reduce, large, seed):
    features, weight, targets = inputs(tokens, vocabulary, seed=seed)
    if large:  # logits of some thousands: probabilities of exactly 0 and 1
        features = (features.detach() * 1000).requires_grad_()
    found = chunked_loss(features, weight, targets, epsilon, chunk, reduce, count_correct=True)
    loss, nll = reference_loss(features, weight, targets, epsilon)
    assert int(found.n_correct) == int((features @ weight.t()).argmax(1).eq(targets).sum())
    scale = torch.full((), 0.7).double() if reduce else torch.linspace(-1, 2, tokens).double()
    expected = torch.autograd.grad(((loss.sum() if reduce else loss) * scale).sum(), (features, weight))
    gradients = torch.autograd.grad((found.loss * scale).sum(), (features, weight))
    for ours, theirs in zip(
        (found.loss, found.nll_loss, *gradients),
        (loss.sum() if reduce else loss, nll.sum() if reduce else nll, *expected),
        strict=True,
    ):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-9 if large else 1e-12)


@pytest.mark.parametrize("reduce", [True, False])
def test_gradcheck(reduce):
    features, weight, targets = inputs(5, 7, dim=3)
    assert torch.autograd.gradcheck(lambda *xs: chunked_loss(*xs, targets, 0.1, 2, reduce).loss, (features, weight))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("reduce", [True, False])
def test_half_precision_rounds_as_stock_does(dtype, reduce):
    """Against float64 on the same rounded inputs, the errors are a few roundings, and at most twice stock's."""
    features, weight, targets = inputs(50, 60, dim=16, dtype=dtype)
    scale = 64.0
    exact = [value.detach().double().requires_grad_() for value in (features, weight)]
    loss = reference_loss(*exact, targets, 0.1)[0]
    expected = [loss.sum().detach(), *torch.autograd.grad(loss.sum() * scale, exact)]

    task = SimpleNamespace(target_dictionary=models.dictionary(1))
    stock = Stock(task, False, 0.1)
    lprobs = nn.functional.log_softmax(features @ weight.t(), dim=-1, dtype=torch.float32)
    model = SimpleNamespace(get_normalized_probs=lambda *args, **kwargs: lprobs, get_targets=lambda *args: targets)
    stock.padding_idx = -1
    theirs = stock.compute_loss(model, None, None)[0]
    ours = chunked_loss(features, weight, targets, 0.1, 8, reduce).loss
    assert ours.dtype == theirs.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    sides = []
    for value in (ours.sum(), theirs):
        sides.append([value.detach(), *torch.autograd.grad(value * scale, (features, weight))])
    for found, other, want in zip(*sides, expected, strict=True):
        assert found.dtype == other.dtype
        error, others = (float((value - want).abs().max() / want.abs().max()) for value in (found, other))
        assert error <= 2 * eps and error <= 2 * others + eps / 4, (error, others, eps)


def test_float16_gradients_are_scaled_before_they_are_rounded():
    """Confident predictions: p = 1.5e-8 of what is not the target is 0 in float16, but not after a scale of 2^14."""
    features, weight = (18 * torch.eye(4)).half().requires_grad_(), torch.eye(4).half().requires_grad_()
    targets, scale = torch.arange(4), 2.0**14
    exact = [value.detach().double().requires_grad_() for value in (features, weight)]
    expected = torch.autograd.grad(reference_loss(*exact, targets, 0.0)[0].sum() * scale, exact)
    others = ~torch.eye(4, dtype=torch.bool)
    assert not (expected[0] / scale)[others].half().any()
    found = torch.autograd.grad(chunked_loss(features, weight, targets, 0.0, 3).loss * scale, (features, weight))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[others].double(), theirs[others], rtol=2 * torch.finfo(torch.half).eps, atol=0)


@pytest.mark.parametrize("dtype", HALF)
def test_autocast_equals_stock(dtype):
    model, batch = models.build("roformer_tiny"), sample()
    theirs, ours = criterions(4)
    results = []
    for criterion in (ours, theirs):
        model.zero_grad()
        with torch.autocast("cpu", dtype):
            loss, _, logged = criterion(model, batch)
        (loss * 8).backward()  # outside, as a loss scaler's
        results.append((loss.detach(), logged["nll_loss"], model.decoder.output_projection.weight.grad.clone()))
    for found, want in zip(*results, strict=True):
        assert found.dtype == want.dtype == torch.float32
        assert_close(found, want, tolerance=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALF)
def test_autocast_makes_the_product_in_its_own_precision(dtype):
    """Bit for bit what inputs give that were cast by hand; the gradients come back in float32."""
    features, weight, targets = inputs(9, 11, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        loss = chunked_loss(features, weight, targets, 0.1, 4).loss
    cast = [value.detach().to(dtype).requires_grad_() for value in (features, weight)]
    expected = chunked_loss(*cast, targets, 0.1, 4).loss
    assert torch.equal(loss, expected) and loss != chunked_loss(features, weight, targets, 0.1, 4).loss
    found = torch.autograd.grad(loss, (features, weight))
    for ours, theirs in zip(found, torch.autograd.grad(expected, cast), strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_frozen_inputs_get_no_gradient(dtype):
    both = inputs(9, 11, dtype=dtype)
    expected = torch.autograd.grad(chunked_loss(*both, 0.1, 4).loss, both[:2])
    for frozen in (0, 1):
        given = inputs(9, 11, dtype=dtype)
        given[frozen].requires_grad_(False)
        chunked_loss(*given, 0.1, 4).loss.backward()
        assert given[frozen].grad is None and torch.equal(given[1 - frozen].grad, expected[1 - frozen])
    assert not chunked_loss(*(value.detach() for value in both), 0.1, 4).loss.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_backward_may_come_again(dtype):
    """Gradients kept by the graph stay as they are, whatever is done to those that were handed out."""
    features, weight, targets = inputs(9, 11, dtype=dtype)
    loss = chunked_loss(features, weight, targets, 0.1, 4).loss
    loss.backward(retain_graph=True)
    once = [features.grad.clone(), weight.grad.clone()]
    for value in (features, weight):
        value.grad.mul_(0)
    loss.backward(torch.tensor(2.0), retain_graph=True)
    loss.backward()
    for value, first in zip((features, weight), once, strict=True):
        torch.testing.assert_close(value.grad, 3 * first, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)
    [first] = torch.autograd.grad(chunked_loss(features, weight, targets, 0.1, 4).loss, weight, create_graph=True)
    with pytest.raises(RuntimeError):  # of a second order there are none
        first.sum().backward()


def test_a_filler_s_loss_is_zeroed_in_place():
    """fairseq multiplies the loss of a batch that must not count by 0, in place."""
    features, weight, targets = inputs(9, 11)
    loss = chunked_loss(features, weight, targets, 0.1, 4).loss
    loss *= 0
    loss.backward()
    assert not features.grad.any() and not weight.grad.any()


# ---- memory


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_nothing_larger_than_a_chunk_of_logits(dtype, reduce):
    """One tensor of (chunk, vocabulary) in the model's precision and one in float32; nothing (tokens, vocabulary)."""
    tokens, vocabulary, chunk, dim = 40, 101, 7, 4
    features, weight, targets = inputs(tokens, vocabulary, dim, dtype)
    saved = []

    def save(value):
        saved.append(value.numel())
        return value

    with Recorder(vocabulary) as recorder, torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        chunked_loss(features, weight, targets, 0.1, chunk, reduce, count_correct=True).loss.sum().backward()
    elements = [torch.Size(shape).numel() for shape in recorder.shapes]
    assert max(elements) == chunk * vocabulary
    assert max(recorder.storages.values()) == chunk * vocabulary * 4
    assert saved and max(saved) <= vocabulary * dim  # the weight, or its gradient
    assert recorder.products == 6 * (4 if dtype == torch.float16 or not reduce else 3)


def test_a_whole_pass_holds_a_chunk_of_logits():
    """Through the model too, in both directions: no tensor over the vocabulary has more rows than a chunk."""
    task = models.Task(symbols=296)
    model, batch = models.build("roformer_tiny", task), sample(symbols=296)
    ours = criterions(5)[1]
    with Recorder(300) as recorder:
        ours(model, batch)[0].backward()
    rows = [torch.Size(shape[:-1]).numel() for shape in recorder.shapes if shape and shape[-1] == 300]
    assert 5 in rows and max(rows) <= 64  # 64: the weight, (output_embed_dim, vocabulary)
    assert {row for row in rows if row > 5} <= {64}


def test_default_chunk():
    """A few MB at 8,000 symbols and less than 32 MB at 37,000, where glibc begins to map each block anew."""
    chunk = Chunked(SimpleNamespace(target_dictionary=models.dictionary(1)), False, 0.1).loss_chunk
    assert 8_000 * 4 * chunk > 4e6 and 37_000 * 4 * chunk < 28e6


# ---- refusals


@pytest.mark.parametrize("chunk", [0, -3])
def test_chunk_below_one_is_refused(chunk):
    with pytest.raises(UserError, match=f"--loss-chunk {chunk}: it must be at least 1"):
        criterions(chunk)


def refusal(model):
    with pytest.raises(UserError) as caught:
        criterions()[1](model, sample())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_models_without_such_an_output_layer_are_refused():
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_embed_dim": 16, "decoder_embed_dim": 16}
    args = SimpleNamespace(arch="transformer", _name="transformer", **sizes)
    ARCH_CONFIG_REGISTRY["transformer"](args)
    stock = ARCH_MODEL_REGISTRY["transformer"].build_model(args, models.Task())
    message = refusal(stock)
    assert "TransformerModel" in message and "use --criterion label_smoothed_cross_entropy" in message

    wrapped = nn.Module()
    wrapped.module = stock
    assert refusal(wrapped) == message

    adaptive = models.build("roformer_tiny", untied_embeddings=True, adaptive_softmax_cutoff=[10, 20])
    assert "use --criterion adaptive_loss, or drop --adaptive-softmax-cutoff" in refusal(adaptive)

    noisy = models.build("roformer_tiny")
    noisy.decoder.output_projection = nn.Linear(64, 44)  # as little a plain matrix as fairseq's IntLinear
    assert "needs an output layer that is a plain matrix" in refusal(noisy)
