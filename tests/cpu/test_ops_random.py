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


DRAWN = {
    "randint": (lambda to: torch.randint(to, (N,), device="tpu"), 0),
    "randint from": (lambda to: torch.randint(-5, to, (N,), device="tpu"), -5),
    "randint_like": (lambda to: torch.randint_like(torch.ones(N, dtype=torch.int64, device="tpu"), to), 0),
    "random_": (lambda to: torch.empty(N, dtype=torch.int64, device="tpu").random_(to), 0),
    "random_ from": (lambda to: torch.empty(N, dtype=torch.int64, device="tpu").random_(-5, to), -5),
    "uniform_": (lambda to: torch.empty(N, device="tpu").uniform_(-5, to).floor().long(), -5),
}


@pytest.mark.parametrize("mode", [torch.tpu.EagerMode.DEFER_NEVER, torch.tpu.EagerMode.DEFER_AND_FUSE])
@pytest.mark.parametrize("name", DRAWN)
def test_the_range_is_data(name, mode):
    """Every number of it comes up and no other, whatever range the program was made for; in graphs it is constant."""
    function, first = DRAWN[name]
    compiled = torch.compile(function, dynamic=False)
    with torch.tpu.set_eager_mode(mode):
        for to in (1, 7, 12, 16, 23):
            found = draw(lambda to=to: function(to))
            assert found.unique().tolist() == list(range(first, to))
            assert torch.equal(draw(lambda to=to: compiled(to)), found)


def test_wide_ranges():
    for to in (2**31 + 3, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 7, 2**62):
        found = draw(lambda to=to: torch.randint(-4, to - 4, (N,), device="tpu")).double()
        assert -4 <= found.min() < 0.01 * to and 0.99 * to < found.max() < to - 4
        assert abs(found.mean() / to - 0.5) < 0.03


REFUSED = {
    "uniform_": (
        lambda d: torch.empty(3, device=d).uniform_(0.5, 2.5),
        lambda d: torch.empty(3, device=d).uniform_(2, 1),
    ),
    "exponential_": (
        lambda d: torch.empty(3, device=d).exponential_(2),
        lambda d: torch.empty(3, device=d).exponential_(-1),
    ),
    "cauchy_": (lambda d: torch.empty(3, device=d).cauchy_(0, 2), lambda d: torch.empty(3, device=d).cauchy_(0, 0)),
    "randint": (lambda d: torch.randint(3, 9, (3,), device=d), lambda d: torch.randint(5, 3, (3,), device=d)),
    "randint of nothing": (lambda d: torch.randint(7, (3,), device=d), lambda d: torch.randint(0, (3,), device=d)),
    "random_": (
        lambda d: torch.empty(3, dtype=torch.uint8, device=d).random_(0, 100),
        lambda d: torch.empty(3, dtype=torch.uint8, device=d).random_(0, 300),
    ),
    "randint of bytes": (
        lambda d: torch.randint(0, 100, (3,), dtype=torch.uint8, device=d),
        lambda d: torch.randint(0, 300, (3,), dtype=torch.uint8, device=d),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_range_is_refused_after_a_right_one(name):
    right, wrong = REFUSED[name]
    right("tpu")
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError):
            wrong(device)
