"""Reductions: all, one, several and negative dimensions, keepdim, empty tensors, nan, dtypes, ties."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    ALL,
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    F64,
    I32,
    I64,
    U8,
    check,
    check_error,
    check_layouts,
    check_out,
    inf,
    nan,
    random,
    values,
)

DIMS = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp")


@pytest.mark.parametrize("name", DIMS)
def test_dimensions(name):
    for dim in ((0,), (-1, 0), (0, 1, 2)):
        check(name, (2, 3, 4), dim=dim, dtypes=(F32, BF16))
    check(name, (2, 3, 4), dim=1, keepdim=True)
    check(name, (), dim=0) if name not in ("var", "std") else None
    check_layouts(name, (2, 3, 4), dim=1)
    check_error(name, (2, 3), dim=2, error=IndexError, match="Dimension out of range")
    check_error(name, (2, 3), dim=(0, 0), match="appears multiple times")
    check_out(name, (2, 3), dim=1)


@pytest.mark.parametrize("name", ("sum", "prod", "any", "all", "count_nonzero", "nansum"))
def test_dtypes(name):
    check(name, (3, 4), dtypes=(F32, BF16, I64, I32, U8, BOOL))


def test_sums():
    check("sum", (3, 4), dtypes=(BF16, I32, BOOL), dtype=F32)
    check("sum", (0, 3))
    check("sum", (0, 3), dim=1)
    check("sum", (3, 0), dim=1)
    check("sum", (3, 4), dtypes=(F16, F64, C64))
    check("sum", [inf, -inf, 1.0], grad=False)
    check("sum", [2**62, 2**62, 1], dtypes=(I64,))
    check("sum", random(3000, low=0, high=1), dtypes=(F32, BF16))
    check("nansum", [nan, 1.0, 2.0])
    check("nanmean", [nan, 1.0, 2.0])


def test_products():
    check("prod", (3, 4), 1)
    check("prod", [0.0, 2.0, 3.0])
    check("prod", [0.0, 0.0, 3.0])
    check("prod", (0,))
    check("prod", (2, 3), -1, keepdim=True, dtypes=(F32, C64))


def test_extremes():
    for name in ("max", "min"):
        check(name, (3, 4), dtypes=ALL)
        check(name, (3, 4), 1, dtypes=(F32, BF16, I64))
        check(name, (3, 4), -2, keepdim=True)
        check(name, [1.0, nan, 3.0], grad=False)
        check(name, [[2, 5, 5], [7, 7, 1]], 1, dtypes=(I64, F32))
        check_error(name, (0,), match="numel|non-zero|specify")
    for name in ("argmax", "argmin"):
        check(name, (3, 4), dtypes=(F32, BF16, I64))
        check(name, [[2, 5, 5], [nan, 7, nan]], 1)
        check(name, (3, 4), 0, True)
        check_error(name, (0,))
    check("amax", [1.0, 3.0, 3.0])
    check("aminmax", (3, 4), dim=1)
    check("aminmax", [1, 5, -3], dtypes=(I64, F32))
    check("amax", [1.0, nan], grad=False)
    check("amax", (3, 0, 2), dim=2)
    check("max", (3, 4), (3, 1))


def test_logic():
    for name in ("any", "all"):
        check(name, [[0, 1], [0, 0]], 1, dtypes=ALL)
        check(name, (0, 3), 0)
        check(name, [nan, 0.0])
        check(lambda x, name=name: getattr(torch, name)(x, (0, 2)), (2, 3, 4))
    check("count_nonzero", (2, 3, 4), dim=(0, 2))


def test_spread():
    for name in ("var", "std"):
        check(name, (5,), dtypes=(F32, BF16, F64))
        check(name, (2, 3), dim=1, correction=0)
        check(name, (2, 3), unbiased=False)
        check(name, [1.0])
        check(name, (3,), dtypes=(C64,), grad=False)
        check(name, [1e6, 1e6 + 1, 1e6 + 2])
    check("var_mean", (2, 3), dim=-1, keepdim=True)
    check("std_mean", (2, 3))


def test_norms():
    for order in (2, 1, 0, inf, -inf, 3, 0.5):
        check("norm", (3, 4), order, 1)
        check("vector_norm", (3, 4), order)
    check("norm", (3, 4))
    check("norm", [0.0, 0.0])
    check("vector_norm", (3, 4), dtypes=(C64, BF16))
    check("matrix_norm", (3, 4))
    check("matrix_norm", (3, 4), 1)
    check("dist", (3,), (3,), 2)
    check("renorm", (3, 4), 2, 0, 0.5)
    check("normalize", (3, 4))
    check("vector_norm", (0,))
    check("logsumexp", [-inf, -inf], dim=0, grad=False)
    check("logsumexp", [inf, 1.0], dim=0, grad=False)
    check("trace", (3, 4))


def test_out():
    check_out("aminmax", (3, 4))
    check_out("prod", (3, 4), 1, dtypes=(F32, I64))
    check_out("any", (3, 4), 1)
    check_out("argmax", (3, 4), 1)
    check(lambda x: torch.sum(x, 0, out=torch.zeros(4, dtype=F64, device=x.device)), (3, 4), grad=False)


def test_spread_of_integers_is_refused():
    check_error("var", values([1, 2], I64), match="floating point")
