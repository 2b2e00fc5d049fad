"""Random operators: the values of a seed do not depend on the call, and their moments and ranges are right."""

from __future__ import annotations

import pytest
import torch

import torch_tpu

N = 4000


def draw(function, seed=5):
    torch.tpu.manual_seed(seed)
    x = function()
    assert x.device.type == "tpu"
    return x.cpu()


MAKERS = {
    "rand": (lambda: torch.rand(N, device="tpu"), 0.5, 1 / 12),
    "randn": (lambda: torch.randn(N, device="tpu"), 0, 1),
    "uniform_": (lambda: torch.empty(N, device="tpu").uniform_(-1, 3), 1, 16 / 12),
    "normal_": (lambda: torch.empty(N, device="tpu").normal_(2, 0.5), 2, 0.25),
    "exponential_": (lambda: torch.empty(N, device="tpu").exponential_(2.0), 0.5, 0.25),
    "geometric_": (lambda: torch.empty(N, device="tpu").geometric_(0.5), 2, 2),
    "log_normal_": (lambda: torch.empty(N, device="tpu").log_normal_(0, 0.25).log(), 0, 0.0625),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.3, device="tpu")), 0.3, 0.21),
    "randint": (lambda: torch.randint(0, 10, (N,), device="tpu"), 4.5, 8.25),
    "dropout": (lambda: torch.nn.functional.dropout(torch.ones(N, device="tpu"), 0.25), 1, 1 / 3),
    "normal of tensors": (lambda: torch.normal(torch.ones(N, device="tpu"), 2.0), 1, 4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_moments_and_seed(name):
    function, mean, variance = MAKERS[name]
    x = draw(function)
    assert torch.equal(x, draw(function)) and not torch.equal(x, draw(function, 6))
    x = x.double()
    assert x.mean().item() == pytest.approx(mean, abs=6 * (variance / N) ** 0.5)
    assert x.var().item() == pytest.approx(variance, rel=0.25)


def test_ranges():
    x = draw(lambda: torch.randint(-3, 3, (N,), device="tpu"))
    assert sorted(set(x.tolist())) == [-3, -2, -1, 0, 1, 2]
    x = draw(lambda: torch.rand(N, device="tpu", dtype=torch.bfloat16))
    assert x.min() >= 0 and x.max() < 1
    assert draw(lambda: torch.empty(N, device="tpu", dtype=torch.int8).random_()).min() >= 0
    assert sorted(draw(lambda: torch.randperm(50, device="tpu")).tolist()) == list(range(50))
    assert torch.randperm(0, device="tpu").tolist() == [] and torch.rand(0, 3, device="tpu").shape == (0, 3)


def test_dropout_gradient():
    x = torch.ones(100, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(torch.nn.functional.dropout(x, 0.5, training=False), x)
    assert torch.nn.functional.dropout(x, 1.0).sum().item() == 0


def test_strides_do_not_change_the_values():
    plain = draw(lambda: torch.empty(4, 6, device="tpu").normal_())
    base = torch.zeros(9, 13, device="tpu")
    draw(lambda: base[1::2, 1::2].normal_())
    assert torch.equal(base[1::2, 1::2].cpu(), plain) and base[::2].abs().sum().item() == 0


def test_errors():
    with pytest.raises(RuntimeError, match=r"\[from, to\) range"):
        torch.empty(3, device="tpu").uniform_(2, 1)
    with pytest.raises(RuntimeError, match=r"from.*to|random_ expects"):
        torch.randint(3, 3, (2,), device="tpu")
    with pytest.raises(RuntimeError, match="std"):
        torch.empty(3, device="tpu").normal_(0, -1)


def test_uniform_with_one_bound_at_its_default():
    torch_tpu.reset_stats()
    x = torch.empty(1000, device="tpu").uniform_(0, 5).cpu()
    y = torch.empty(1000, device="tpu").uniform_(-3).cpu()
    assert x.min() >= 0 and 4 < x.max() < 5
    assert -3 <= y.min() < -2 and 0 < y.max() < 1
    assert not torch_tpu.stats()["fallbacks"]
