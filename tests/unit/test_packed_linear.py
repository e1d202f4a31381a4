"""Generation's joined and blocked linear layers compute what the plain ones do, and are never stale."""

import copy
import pickle

import models
import pytest
import torch
from torch import nn

from fairseq_rope.packed_linear import Arena, GenerationLinears, PackedLinear


class Module(GenerationLinears, nn.Module):
    """Three linear layers on one input, one of them without a bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c = nn.Linear(24, 16), nn.Linear(24, 40, bias=False), nn.Linear(24, 7)


def plain(module, x):
    return torch.cat((module.a(x), module.b(x), module.c(x)), dim=-1)


@pytest.mark.parametrize("shape", [(1, 24), (3, 1, 24), (2, 5, 24), (1, 300, 24), (0, 2, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equals_the_layers(dtype, shape):
    module, x = Module().to(dtype), torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        expected = plain(module, x)
        for packed in (False, True):
            if packed:
                module.make_generation_fast_()
            tolerance = 8 * torch.finfo(dtype).eps
            assert torch.allclose(module.joined(x, "a", "b", "c"), expected, rtol=tolerance, atol=tolerance)
            relu = module.joined(x, "a", "b", relu=True)
            assert torch.allclose(relu, expected[..., :56].relu(), rtol=tolerance, atol=tolerance)
    assert len(module._packed) == 2


def test_strided_input():
    module, x = Module(), torch.randn(24, 6, 2).permute(2, 1, 0)
    module.make_generation_fast_()
    with torch.no_grad():
        assert torch.allclose(module.joined(x, "a", "b", "c"), plain(module, x), atol=1e-5)


def change_by_loading(module):
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})


@pytest.mark.parametrize("change", [change_by_loading, nn.Module.double, nn.Module.bfloat16])
def test_forgets_weights_that_change(change):
    module, x = Module(), torch.randn(3, 24)
    module.make_generation_fast_()
    with torch.no_grad():
        module.joined(x, "a", "b", "c")
        change(module)
        x = x.to(module.a.weight.dtype)
        assert torch.allclose(
            module.joined(x, "a", "b", "c"), plain(module, x), atol=1e-2 if x.dtype == torch.bfloat16 else 1e-5
        )


def test_plain_layers_where_they_do_more_than_multiply():
    module, x = Module(), torch.randn(3, 24)
    module.make_generation_fast_()
    module.b.register_forward_hook(lambda module, args, out: out + 1)
    with torch.no_grad():
        assert torch.equal(module.joined(x, "a", "b"), torch.cat((module.a(x), module.b(x)), -1))
    out = module.joined(x, "a", "c")  # with gradients
    out.sum().backward()
    assert module.a.weight.grad is not None


def test_nothing_is_packed_before_generation_or_copied_after():
    module, x = Module(), torch.randn(3, 24)
    with torch.no_grad():
        module.joined(x, "a", "b")
        assert module._packed is None
        module.make_generation_fast_()
        module.joined(x, "a", "b")
    assert len(module._packed) == 1
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other._packed == {}
    assert not any("packed" in name for name in module.state_dict())


def test_packed_linear_without_bias():
    linears = [nn.Linear(8, 3, bias=False), nn.Linear(8, 5, bias=False)]
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.allclose(
            PackedLinear(linears, Arena())(x), torch.cat([linear(x) for linear in linears], -1), atol=1e-6
        )


@pytest.mark.parametrize(
    "name", ["baseline", "roformer-pre-norm", "tupe-r-first-joint", "realformer", "admin", "deepnorm"]
)
def test_generation_computes_what_the_model_computes(name):
    """The whole model, full pass and steps, after fairseq's prepare_for_inference_."""
    model = models.variant(name)
    source, target = models.batch([4, 11, 7]), models.batch([6, 6, 6], bos=2, left=False)
    full = models.logits(model, source, target)
    model.make_generation_fast_()
    assert models.close(models.logits(model, source, target), full)[0]
    with torch.no_grad():
        encoder_out, state = model.encoder(source), {}
        for step in range(1, 7):
            row = model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)[0][:, 0]
            assert models.close(row, full[:, step - 1])[0]
    layer = model.decoder.layers[0]
    assert {names for names, _ in layer.self_attn._packed} == {("q_proj", "k_proj", "v_proj"), ("out_proj",)}
    assert len(layer._packed) == 2 and len(model.decoder._packed) == 1


def test_an_arena_fills_its_blocks_without_overlap(monkeypatch):
    monkeypatch.setattr("fairseq_rope.packed_linear.BLOCK", 1000)
    arena, like = Arena(), torch.zeros(1)
    taken = [arena.take(rows, 7, like) for rows in (3, 50, 60, 1, 500, 20)]
    for number, matrix in enumerate(taken):
        matrix.fill_(number)
    for number, matrix in enumerate(taken):
        assert (matrix == number).all() and matrix.is_contiguous()
        assert matrix.storage_offset() % 16 == 0
    blocks = [matrix.untyped_storage().data_ptr() for matrix in taken]
    assert blocks[0] == blocks[1] == blocks[2] == blocks[3] != blocks[4] != blocks[5]
    assert arena.take(2, 3, like.double()).dtype == torch.float64
