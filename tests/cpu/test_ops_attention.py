"""Attention: masks of both kinds, causal, scales, grouped heads, rows without keys, and the modules."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from op_checks import BF16, F32, F64, check, check_error, mask, random, transposed, values
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

attend = F.scaled_dot_product_attention
SHAPE = (2, 2, 5, 4)


def test_plain():
    check(attend, SHAPE, SHAPE, SHAPE, dtypes=(F32, BF16, F64))
    check(attend, SHAPE, (2, 2, 7, 4), (2, 2, 7, 6))
    check(attend, (3, 5, 4), (3, 5, 4), (3, 5, 4))
    check(attend, (2, 2, 4, 5), (2, 2, 4, 5), (2, 2, 4, 5), scale=0.3)


def test_masks():
    check(attend, SHAPE, SHAPE, SHAPE, is_causal=True)
    check(attend, (2, 2, 3, 4), SHAPE, SHAPE, is_causal=True)
    check(attend, SHAPE, SHAPE, SHAPE, attn_mask=random(5, 5))
    check(attend, SHAPE, SHAPE, SHAPE, attn_mask=mask(2, 1, 5, 5), grad=False)
    check(attend, SHAPE, SHAPE, SHAPE, attn_mask=values([[True, False, True, True, False]] * 5))
    check(
        attend, (1, 1, 2, 4), (1, 1, 2, 4), (1, 1, 2, 4), attn_mask=values([[True, False], [False, False]]), grad=False
    )


def test_grouped_heads_and_layouts():
    check(lambda q, k, v: attend(q, k, v, enable_gqa=True), (1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    check(lambda q, k, v: attend(q.transpose(1, 2), k, v), (2, 5, 2, 4), SHAPE, SHAPE)
    check(attend, transposed(*SHAPE), SHAPE, SHAPE)
    check(attend, (1, 2, 0, 4), (1, 2, 3, 4), (1, 2, 3, 4))


@pytest.mark.parametrize("mode", ["plain", "traced"])
def test_attention_is_one_program(mode, counters):
    q, k = torch.ones(2, 4, 6, 8, device="tpu"), torch.ones(2, 2, 6, 8, device="tpu")
    calls = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(function)
            return function(*args, **(kwargs or {}))

    with nullcontext() if mode == "plain" else FakeTensorMode(allow_non_fake_inputs=True), Seen():
        attend(q, k, k, is_causal=True, enable_gqa=True)
        with sdpa_kernel(SDPBackend.MATH):
            attend(q, k, k, is_causal=True, enable_gqa=True)
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    assert calls.count(fused) == 1 and torch.ops.aten._safe_softmax.default in calls
    counters.reset()
    attend(q, k, k, is_causal=True, enable_gqa=True)
    if mode == "plain":
        assert counters.executions == 1


def test_what_one_program_cannot_take_is_composed():
    check(lambda q, k, v: attend(q, k, v), (2, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    check(lambda q, k, v: attend(q, k, v), (2, 4, 3, 4), (2, 1, 3, 4), (2, 1, 3, 4))


def test_dropout_keeps_the_mean():
    q = torch.zeros(1, 1, 64, 8, device="tpu")
    value = torch.ones(1, 1, 256, 8, device="tpu")
    result = attend(q, torch.zeros(1, 1, 256, 8, device="tpu"), value, dropout_p=0.5)
    assert 0.9 < result.mean().item() < 1.1 and result.std().item() > 0


def test_module():
    torch.manual_seed(0)
    host = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    device = torch.nn.MultiheadAttention(8, 2, batch_first=True).to("tpu")
    device.load_state_dict(host.state_dict())

    def run(x):
        return (device if x.is_tpu else host)(x, x, x)

    check(run, (2, 3, 8))


def test_an_output_on_which_nothing_depends(counters):
    """Autograd hands down an undefined gradient."""
    for device in ("cpu", "tpu"):
        x = torch.ones(1, 2, 4, 8, device=device, requires_grad=True)
        out = F.scaled_dot_product_attention(x, x, x)
        unused = torch._C._functions.UndefinedGrad()(out)
        (found,) = torch.autograd.grad([unused, x.sum()], x, [torch.ones_like(out), None])
        assert found.eq(1).all()
    assert not counters.fallbacks


def test_errors():
    check_error(attend, SHAPE, (2, 2, 5, 3), (2, 2, 5, 3))
    check_error(attend, SHAPE, SHAPE, SHAPE, attn_mask=random(5, 5), is_causal=True)
