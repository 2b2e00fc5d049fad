"""Pooling: average and maximum with indices, padding, ceil_mode, adaptive, fractional, unpooling, norms."""

from __future__ import annotations

import pytest
import torch
from op_checks import BF16, F32, F64, I64, channels_last, check, check_error, fixed, nan, random


@pytest.mark.parametrize("dims", (1, 2, 3))
def test_plain(dims):
    shape = (2, 3, *(7, 6, 5)[:dims])
    for kind in ("avg", "max"):
        name = f"{kind}_pool{dims}d"
        check(name, shape, 2)
        check(name, shape, 3, stride=2, padding=1)
    check(f"avg_pool{dims}d", shape, 2, stride=3, ceil_mode=True, padding=1, count_include_pad=False)
    check(f"max_pool{dims}d", shape, 2, dilation=2, ceil_mode=True, return_indices=True)
    check(f"avg_pool{dims}d", shape[1:], 2)


def test_awkward():
    check("max_pool2d", [[[nan, 1.0, 2.0, 0.0], [0.0, 1.0, 5.0, 5.0]]], 2, grad=False)
    check("max_pool2d", (1, 2, 4, 4), 2, dtypes=(BF16, F64))
    check("avg_pool2d", (1, 2, 4, 4), 2, dtypes=(BF16,), divisor_override=3)
    check("avg_pool2d", channels_last(2, 3, 4, 4), 2)
    check("max_pool2d", channels_last(2, 3, 4, 4), 2, return_indices=True)
    check("max_pool2d", (1, 1, 4, 4), 2, dtypes=(I64,))
    check("avg_pool2d", (0, 2, 4, 4), 2)
    check_error("max_pool2d", (1, 2, 4, 4), 2, padding=2, match="pad should be at most half")
    check_error("avg_pool2d", (1, 2, 1, 1), 3, match="too small|Output size")


@pytest.mark.parametrize("dims", (1, 2, 3))
def test_adaptive(dims):
    shape = (1, 2, *(7, 6, 5)[:dims])
    check(f"adaptive_avg_pool{dims}d", shape, output_size=3)
    check(f"adaptive_avg_pool{dims}d", shape, output_size=1, dtypes=(F32, BF16))
    check(f"adaptive_max_pool{dims}d", shape, output_size=3)


def test_unpooling_and_norms():
    def there_and_back(x):
        y, where = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        return torch.nn.functional.max_unpool2d(y, where, 2)

    check(there_and_back, (1, 2, 4, 6))
    check("lp_pool2d", random(1, 2, 4, 4, low=0.1, high=1), 2.0, 2)
    check("lp_pool1d", random(1, 2, 6, low=0.1, high=1), 3.0, 2)


def test_fractional():
    samples = fixed(random(1, 2, 2, low=0, high=1))
    check("fractional_max_pool2d", (1, 2, 6, 6), 2, output_size=(3, 3), _random_samples=samples)
