"""Scans along a dimension: sums, products, extremes with their indices, log-sum-exp."""

from __future__ import annotations

import pytest
from op_checks import (
    BF16,
    BOOL,
    F32,
    F64,
    I32,
    I64,
    check,
    check_error,
    check_in_place,
    check_layouts,
    check_out,
    inf,
    nan,
)


@pytest.mark.parametrize("name", ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"))
def test_scans(name):
    check(name, (3, 4), 1, dtypes=(F32, BF16, F64))
    check(name, (3, 4), -2)
    check(name, (), 0)
    check(name, (0, 3), 1)
    check(name, [1.0, nan, 2.0], 0, grad=False)
    check(name, [inf, -inf, 1.0], 0, grad=False)
    check_layouts(name, (3, 4), 0)
    check_out(name, (3, 4), 1)
    check_error(name, (3, 4), 2, error=IndexError, match="Dimension out of range")


def test_dtypes():
    for name in ("cumsum", "cumprod"):
        check(name, [1, 2, 3], 0, dtypes=(I64, I32, BOOL))
        check(name, [1, 2, 3], 0, dtypes=(I64, BF16), dtype=F32)
        check_in_place(name, (3, 4), 1)
    for name in ("cummax", "cummin"):
        check(name, [[1, 3, 3, 2], [5, 1, 1, 7]], 1, dtypes=(I64, F32))


def test_zeros_in_products():
    check("cumprod", [2.0, 0.0, 3.0, 0.0], 0)


def test_cumulative_integrals_and_differences():
    check("diff", (3, 4), dim=0)
    check("diff", [1, 4, 9], dtypes=(I64,), n=2)
    check("trapezoid", (3, 4), dim=1)
    check("cumulative_trapezoid", (3, 4), dim=1)
