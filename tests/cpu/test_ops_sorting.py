"""Sorting and searching: stability, nan last, ties, unique values with counts, medians, sorted searches."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    ALL,
    BF16,
    F32,
    I32,
    I64,
    U8,
    check,
    check_error,
    check_layouts,
    check_out,
    inf,
    nan,
    values,
)

TIES = [[3, 1, 3, 2], [0, 0, 5, 1]]


def test_sort():
    check("sort", (3, 5), dtypes=(F32, BF16))
    check("sort", TIES, dim=1, stable=True, dtypes=ALL)
    check("sort", TIES, dim=0, descending=True, stable=True, dtypes=(I64, F32, U8))
    check("sort", [nan, 1.0, inf, -inf, nan], stable=True, grad=False)
    check("sort", [nan, 1.0, inf, -inf], stable=True, descending=True, grad=False)
    check("sort", ())
    check("sort", (0, 3))
    check("sort", [0.0, -0.0, 0.0], stable=True, grad=False)
    check("argsort", (3, 5), dim=0)
    check("msort", (3, 5))
    check_layouts("sort", (3, 4), dim=0)
    check_out("sort", (3, 4), dim=1)


def test_selection():
    check("topk", (3, 5), 2, dtypes=(F32, BF16))
    check("topk", (3, 5), 2, dim=0, largest=False)
    check("topk", [1, 9, 3, 7], 4, dtypes=(I64,))
    check(lambda x: x.topk(3)[0], [1.0, nan, 5.0, 2.0], grad=False)
    check("topk", (3,), 0)
    check("kthvalue", (3, 5), 2, 1)
    check("kthvalue", [5, 1, 3], 3, dtypes=(I64,))
    check_error("topk", (3,), 4, match="k not in range|out of range")
    check_error("kthvalue", (3,), 4, match="out of range")


@pytest.mark.parametrize("name", ["median", "nanmedian", "mode"])
def test_nothing_has_no_median_and_no_mode(name):
    for device in ("cpu", "tpu"):
        with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
            getattr(torch.ones(0, 3, device=device), name)(0)
        assert getattr(torch.ones(0, 3, device=device), name)(1)[0].shape == (0,)


def test_medians_and_modes():
    for name in ("median", "nanmedian"):
        check(name, (3, 5), 1)
        check(name, (6,), dtypes=(F32, BF16))
        check(name, [3, 1, 2, 4], dtypes=(I64,))
        check(name, [nan, 1.0, 3.0], grad=False)
    check(lambda x: torch.mode(x, 1)[0], TIES, dtypes=(I64, F32), grad=False)
    check("quantile", (5,), 0.3)
    check("quantile", (3, 5), [0.25, 0.5], dim=1, grad=False)


@pytest.mark.parametrize("dtype", (F32, I64, BF16))
def test_unique(dtype):
    data = [3, 1, 3, 2, 1]
    check("unique", data, dtypes=(dtype,), grad=False)
    check("unique", data, dtypes=(dtype,), grad=False, return_inverse=True, return_counts=True)
    check("unique_consecutive", [1, 1, 2, 2, 1], dtypes=(dtype,), grad=False, return_counts=True)


def test_unique_rows():
    check("unique", [[1, 2], [1, 2], [0, 5]], dtypes=(I64,), dim=0, return_inverse=True)
    check("unique", [], dtypes=(F32,), grad=False)
    check("unique", [nan, nan, 1.0], grad=False)


def test_searches():
    edges = [1.0, 3.0, 5.0, 5.0]
    check("searchsorted", edges, [[0.0, 5.0], [5.5, 3.0]], grad=False)
    check("searchsorted", edges, [5.0, 3.0], right=True, grad=False)
    check("searchsorted", edges, 4.0, grad=False)
    check("bucketize", [0.0, 4.0, 9.0], values(edges, F32), out_int32=True, grad=False)
    check("bucketize", [1, 4], values([1, 2], I32), right=True, dtypes=(I64,))
    check("isin", [1, 2, 3], [2, 5], dtypes=(I64, F32), grad=False)
    check("isin", [1, 2, 3], 2, dtypes=(I64,), invert=True)
    check("isin", [1, 2, 3], [], dtypes=(I64,))
