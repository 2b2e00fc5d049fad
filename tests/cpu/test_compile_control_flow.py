"""Higher-order operators in compiled functions: branches, loops, scans, attention with user-defined scores."""

from __future__ import annotations

import pytest
import torch
from compile_checks import check, one_program
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def x():
    return torch.randn(4, 6)


def branches(x):
    return torch.cond(x.sum() > 0, lambda a: (a.sin(), a.t()[0] * 2), lambda a: (a.cos() * 2, a.t()[1] * 3), (x,))


def test_cond(x):
    one_program(branches, x)
    one_program(branches, -x.abs())
    check(lambda x: branches(x)[0], x.clone().requires_grad_(), gradients=True)


def test_while_loop(x):
    def power(x, y):
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5 + y.t().sum()), (start, x))

    one_program(power, x, torch.randn(2, 3))


def running(x):
    return scan(lambda carry, row: (carry + row, (carry * row).sin()), torch.zeros_like(x[0]), x)


def test_scan(x):
    one_program(running, x)
    one_program(lambda x: scan(lambda c, a: (c + a, c * a), x[:, 0] * 0, x, dim=1, reverse=True), x)
    check(lambda x: running(x)[1], x.clone().requires_grad_(), gradients=True)


def test_what_a_scan_only_moves_is_not_collected():
    x, w = torch.randn(3, 4, 5), torch.randn(3, 5, 2)

    def step(carry, pair):
        a, b = pair
        moved = a.permute(1, 0).clone(), b.t().transpose(0, 1).clone(), a.transpose(-1, -2).t().clone()
        return carry + (a @ b).sum(), (*moved, a.t() @ a)

    def function(x, w):
        return scan(step, torch.zeros((), device=x.device), (x, w))

    one_program(function, x, w)
    texts = []
    compiled = torch.compile(function, backend="tpu", options={"debug_callback": lambda p: texts.append(p.stablehlo)})
    compiled(x.to("tpu"), w.to("tpu"))
    (text,) = texts
    loop = next(line for line in text.splitlines() if "}) : (tensor<i32>" in line)
    state = loop.partition("->")[2]
    assert state.count("tensor<3x5x5xf32>") == 1, "the product is collected"
    assert state.count("tensor<3x") == 1, "and nothing else"


def test_a_scan_from_the_end_turns_nothing_around(x):
    def function(x):
        return scan(lambda c, a: (c * 0.5 + a, c + a.sin()), torch.zeros_like(x[0]), x.flip(0))

    one_program(function, x)
    one_program(lambda x: scan(lambda c, a: (c * 0.5 + a, c + a), torch.zeros_like(x[0]), x, reverse=True), x)
    with_gradient = torch.compile(lambda x: scan(lambda c, a: ((c + a).sin(), c * a), x[0], x)[1], backend="tpu")
    check(with_gradient, x.clone().requires_grad_(), gradients=True)
    texts = []
    compiled = torch.compile(function, backend="tpu", options={"debug_callback": lambda p: texts.append(p)})
    compiled(x.to("tpu"))
    assert " reverse(" not in texts[0].optimized_hlo


def test_map(x):
    one_program(lambda x: map_rows(lambda row, y: row.sin() + y, x, x.sum(0)), x)


def test_associative_scan():
    x = torch.randn(9, 3)
    one_program(lambda x: associative_scan(lambda a, b: a * b + a, x, 0, combine_mode="generic"), x)
    pointwise = torch.compile(lambda x: associative_scan(torch.mul, x, 0), backend="tpu")  # PyTorch's CPU refuses it
    torch.testing.assert_close(pointwise(x.to("tpu")).cpu(), x.cumprod(0))


def plain_attention(q, k, bias, causal):
    k = k.repeat_interleave(2, 1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])[None]
    if bias:
        scores = scores + (rows - columns) * 0.01
    if causal:
        scores = scores.masked_fill(rows < columns, float("-inf"))
    return scores.softmax(-1) @ k


@pytest.mark.parametrize("bias, causal", [(True, False), (True, True)])
def test_flex_attention(bias, causal, counters):
    host = [torch.randn(1, heads, 128, 8, requires_grad=True) for heads in (4, 2)]
    device = [x.detach().to("tpu").requires_grad_() for x in host]

    def attend(q, k):
        mask = create_block_mask(lambda b, h, m, n: m >= n, None, None, 128, 128, device="tpu") if causal else None
        score = (lambda s, b, h, m, n: s + (m - n) * 0.01) if bias else None
        return flex_attention(q, k, k, score_mod=score, block_mask=mask, enable_gqa=True)

    wanted = plain_attention(*host, bias, causal)
    given = torch.compile(attend, backend="tpu", fullgraph=True)(*device)
    assert counters.executions == 1
    torch.testing.assert_close(given.cpu(), wanted)
    wanted.sum().backward()
    given.sum().backward()
    for x, y in zip(host, device, strict=True):
        torch.testing.assert_close(y.grad.cpu(), x.grad)
    assert not counters.fallbacks and not counters.calls_in_between


def test_gradients_of_what_scores_of_flex_attention_look_up(counters):
    q = torch.randn(2, 2, 8, 4)
    tables = [torch.randn(2, 8, 8), torch.randn(15), torch.rand(2)]
    host = [x.clone().requires_grad_() for x in tables]
    device = [x.to("tpu").requires_grad_() for x in tables]

    def attend(q, bias, distance, scale):
        def score(s, b, h, m, n):
            return s * scale[h] + bias[h, m, n] + distance[m - n + 7]

        return flex_attention(q, q, q, score_mod=score)

    bias, distance, scale = host
    rows = torch.arange(8)
    scores = q @ q.mT * 0.5 * scale[:, None, None] + bias + distance[rows[:, None] - rows + 7]
    wanted = scores.softmax(-1) @ q
    given = torch.compile(attend, backend="tpu", fullgraph=True)(q.to("tpu"), *device)
    torch.testing.assert_close(given.cpu(), wanted)
    wanted.square().sum().backward()
    given.square().sum().backward()
    for x, y in zip(host, device, strict=True):
        torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert not counters.fallbacks and not counters.calls_in_between
