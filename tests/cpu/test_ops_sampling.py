"""Sampling from distributions: means, ranges, errors, and that a seed fixes the values."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import torch_tpu

N = 2000


def draw(function):
    torch_tpu.reset_stats()
    torch.tpu.manual_seed(3)
    x = function()
    torch.tpu.manual_seed(3)
    assert torch.equal(x, function()) and not torch_tpu.stats()["fallbacks"]
    return x.cpu().double()


@pytest.mark.parametrize("rate", (0.5, 4.0, 50.0))
def test_poisson(rate):
    x = draw(lambda: torch.poisson(torch.full((N,), rate, device="tpu")))
    assert x.mean().item() == pytest.approx(rate, abs=6 * (rate / N) ** 0.5)


def test_gamma():
    x = draw(lambda: torch._standard_gamma(torch.full((N,), 2.5, device="tpu")))
    assert x.mean().item() == pytest.approx(2.5, abs=6 * (2.5 / N) ** 0.5) and (x > 0).all()


def test_dirichlet():
    y = draw(lambda: torch._sample_dirichlet(torch.tensor([[1.0, 2.0, 3.0]], device="tpu").repeat(N, 1)))
    assert_close(y.sum(1), torch.ones(N, dtype=torch.float64))
    assert y.mean(0).tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.03)


def test_binomial():
    count = torch.full((N,), 10.0, device="tpu")
    x = draw(lambda: torch.binomial(count, torch.full((N,), 0.3, device="tpu")))
    assert x.mean().item() == pytest.approx(3, abs=0.25) and x.max() <= 10 and torch.equal(x, x.round())


def test_multinomial():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0], device="tpu")
    x = draw(lambda: torch.multinomial(weights, N, replacement=True))
    assert set(x.tolist()) == {1, 2} and (x == 2).double().mean().item() == pytest.approx(0.75, abs=0.06)
    assert sorted(draw(lambda: torch.multinomial(weights, 2)).tolist()) == [1, 2]
    assert torch.multinomial(weights.expand(3, 4), 2).shape == (3, 2)
    with pytest.raises(RuntimeError, match=r"without replacement|non-negative|prob"):
        torch.multinomial(weights, 5)


def test_distributions():
    concentration = torch.tensor([2.0], device="tpu", requires_grad=True)
    torch.distributions.Gamma(concentration, 1.0).rsample((5,)).sum().backward()
    assert concentration.grad.item() > 0
