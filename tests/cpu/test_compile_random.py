"""Random numbers in compiled functions: new ones every call, the same forward and backward, by the generator's seed."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
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


def masked_steps(x, rows):
    def step(carry, row):
        mask = F.dropout(torch.ones_like(carry), 0.5, True)
        return carry + mask * row, mask.clone()

    return scan(step, x, rows)


def numbers_taken(run, *args):
    """How far a call moves the generator, whose state is its seed and its offset."""
    before = torch.tpu.get_rng_state().view(torch.int64)[1]
    run(*args)
    return int(torch.tpu.get_rng_state().view(torch.int64)[1] - before)


def test_each_step_of_a_scan_has_masks_of_its_own(counters):
    run = torch.compile(masked_steps, fullgraph=True, dynamic=False)
    x, rows = torch.zeros(64, device="tpu"), torch.ones(5, 1, device="tpu")
    torch.manual_seed(3)
    total, masks = run(x, rows)
    following = torch.rand(64, device="tpu").cpu()
    _, others = run(x, rows)
    masks, others = masks.cpu(), others.cpu()
    assert len({tuple(mask.tolist()) for mask in [*masks, *others]}) == 10
    torch.testing.assert_close(total.cpu(), masks.sum(0))
    assert not counters.fallbacks and counters.calls_in_between == 0
    torch.manual_seed(3)
    torch.testing.assert_close(run(x, rows)[1].cpu(), masks)
    assert torch.equal(torch.rand(64, device="tpu").cpu(), following)
    assert numbers_taken(run, x, rows) == 5 * numbers_taken(run, x, rows[:1]) > 0


def test_gradients_through_a_scan_use_the_masks_of_its_steps():
    run = torch.compile(masked_steps, fullgraph=True, dynamic=False)
    x = torch.zeros(64, device="tpu", requires_grad=True)
    rows = torch.ones(5, 64, device="tpu", requires_grad=True)
    total, masks = run(x, rows)
    total.sum().backward()
    torch.testing.assert_close(rows.grad.cpu(), masks.detach().cpu())


def test_random_numbers_in_a_loop_without_a_known_end_run_in_between(counters):
    def noisy(x):
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + torch.rand_like(a)), (x.new_zeros(()), x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(noisy, dynamic=False)(torch.zeros(1000, device="tpu"))[1].cpu()
    assert 1.4 < found.mean() < 1.6 and found.var() < 3 / 12 * 1.3, "a sum of three independent ones"
    assert counters.calls_in_between == 1


SAMPLERS = {
    "poisson": lambda p: (torch.rand_like(p), torch.poisson(p), torch.rand_like(p)),
    "gamma": lambda p: (torch._standard_gamma(p), torch._standard_gamma(p + 1)),
    "binomial": lambda p: (torch.binomial(p * 5, p * 0.3), torch.binomial(p * 5, p * 0.3), F.dropout(p)),
    "dirichlet": lambda p: (torch._sample_dirichlet(p), torch._sample_dirichlet(p)),
    "in a branch": lambda p: (
        torch.poisson(p),
        torch.cond(p.sum() > 0, lambda p: torch.rand_like(p) + torch.poisson(p), lambda p: p * 2, (p,)),
        torch.rand_like(p),
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_with_loops_among_others(name):
    """They take their numbers inside of a loop; what comes before and after must not be theirs."""
    p = torch.ones(5, device="tpu")
    torch.manual_seed(3)
    found = torch.compile(SAMPLERS[name], backend="tpu", fullgraph=True)(p)
    torch.manual_seed(3)
    for one, other in zip(SAMPLERS[name](p), found, strict=True):
        assert torch.equal(one, other)
