"""Random numbers in compiled functions: new ones every call, the same forward and backward, by the generator's seed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

FUNCTIONS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "two dropouts": lambda x: F.dropout(x, 0.5) * F.dropout(x, 0.3),
    "comparison": lambda x: x * (torch.rand_like(x) > 0.5),
    "drawn again": lambda x: checkpoint(lambda y: F.dropout(F.dropout(y, 0.5).sin(), 0.5), x, use_reentrant=False),
}


def call(function, x):
    x.grad = None
    result = function(x)
    result.sum().backward()
    return result.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks(name, counters):
    x = torch.ones(32, 32, device="tpu", requires_grad=True)
    compiled = torch.compile(FUNCTIONS[name], backend="tpu")
    torch.manual_seed(3)
    (first, grad), (second, _) = call(compiled, x), call(compiled, x)
    assert torch.equal(first != 0, grad != 0), "forward and backward have the same mask"
    assert not torch.equal(first, second), "every call has a new one"
    torch.manual_seed(3)
    counters.reset()
    again, again_grad = call(compiled, x)
    assert torch.equal(first, again) and torch.equal(grad, again_grad), "a seed gives the same numbers"
    assert counters.compiles == counters.memory_hits == 0
    assert not counters.fallbacks and not counters.calls_in_between
    torch.manual_seed(3)
    assert torch.equal(FUNCTIONS[name](x).cpu(), first), "and the same ones as in eager mode"


def test_dropout_in_attention():
    q = torch.randn(1, 2, 16, 8, device="tpu", requires_grad=True)
    attend = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), backend="tpu")
    torch.manual_seed(0)
    first, second = attend(q), attend(q)
    torch.manual_seed(0)
    assert torch.equal(attend(q).cpu(), first.cpu()) and not torch.equal(first.cpu(), second.cpu())
    first.sum().backward()
    assert q.grad is not None
