"""Attention: masks of both kinds, causal, scales, grouped heads, rows without keys, and the modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from op_checks import BF16, F32, F64, check, check_error, mask, random, transposed, values

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


def test_errors():
    check_error(attend, SHAPE, (2, 2, 5, 3), (2, 2, 5, 3))
    check_error(attend, SHAPE, SHAPE, SHAPE, attn_mask=random(5, 5), is_causal=True)
