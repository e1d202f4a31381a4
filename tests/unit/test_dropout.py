"""Dropout and addition in one: the same numbers and gradients as the two one after the other."""

import pytest
import torch
from fairseq.modules import FairseqDropout

from fairseq_rope.dropout import dropout_add


def plain(x, shortcut, dropout):
    """Addition of torch's dropout of (length, batch, embed_dim), which is what stock fairseq drops from."""
    return shortcut + dropout(x.transpose(0, 1).contiguous()).transpose(0, 1)


def both(dtype, p, shape=(7, 3, 33)):
    """Result and gradients of dropout_add and of the plain way, from the same seed."""
    results = []
    for function in (dropout_add, plain):
        generator = torch.Generator().manual_seed(1)
        x, shortcut = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(2))
        dropout = FairseqDropout(p, module_name="test").train()
        torch.manual_seed(5)
        out = function(x, shortcut, dropout)
        (out * torch.arange(out.numel(), dtype=dtype).view_as(out)).sum().backward()
        results.append((out.detach(), x.grad, shortcut.grad, torch.rand(2)))
    return results


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_equals_addition_of_dropout(dtype, p):
    ours, expected = both(dtype, p)
    for mine, theirs in zip(ours, expected, strict=True):
        # x and its factor are multiplied and added in one rounding instead of two
        assert torch.allclose(mine, theirs, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(ours[3], expected[3])  # as many random numbers were drawn


def test_drops_what_torch_drops_and_keeps_a_byte_an_element():
    x, shortcut = torch.ones(50, 4, 16, requires_grad=True), torch.zeros(50, 4, 16)
    dropout = FairseqDropout(0.3, module_name="test").train()
    saved = []
    torch.manual_seed(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = dropout_add(x, shortcut, dropout)
    torch.manual_seed(2)
    assert torch.equal(out, plain(x, shortcut, dropout))
    assert [(t.dtype, t.shape) for t in saved] == [(torch.bool, x.shape)]
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_without_a_shortcut():
    """Activation dropout: nothing is added."""
    x = torch.randn(5, 3, 8, requires_grad=True)
    dropout = FairseqDropout(0.4, module_name="test").train()
    torch.manual_seed(6)
    out = dropout_add(x, None, dropout)
    torch.manual_seed(6)
    assert torch.allclose(out, plain(x, torch.zeros(5, 3, 8), dropout), rtol=1e-6)
    out.sum().backward()
    assert torch.allclose(x.grad, out.detach() / x.detach(), rtol=1e-5)
    assert torch.equal(dropout_add(x, None, dropout.eval()), x)


def test_the_wider_precision_is_kept():
    dropout = FairseqDropout(0.4, module_name="test").train()
    x, shortcut = torch.randn(5, 3, 8).bfloat16(), torch.randn(5, 3, 8)
    torch.manual_seed(7)
    out = dropout_add(x, shortcut, dropout)
    torch.manual_seed(7)
    assert out.dtype == torch.float32
    assert torch.allclose(out, plain(x, shortcut, dropout), rtol=0, atol=4 * torch.finfo(torch.bfloat16).eps)


def test_nothing_is_dropped_in_evaluation_unless_asked():
    x, shortcut = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    dropout = FairseqDropout(0.5, module_name="test").eval()
    assert torch.equal(dropout_add(x, shortcut, dropout), shortcut + x)
    dropout.apply_during_inference = True
    assert not torch.equal(dropout_add(x, shortcut, dropout), shortcut + x)


def test_strided_input_and_second_derivative():
    dropout = FairseqDropout(0.4, module_name="test").train()
    x = torch.randn(6, 2, 8).transpose(0, 1)
    torch.manual_seed(3)
    ours = dropout_add(x, torch.zeros(2, 6, 8), dropout)
    torch.manual_seed(3)
    assert torch.equal(ours, plain(x, torch.zeros(2, 6, 8), dropout))
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

    def function(x):
        torch.manual_seed(4)
        return dropout_add(x.sin(), x, dropout)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))
