"""Comparisons: promotion, nan, closeness, equality of whole tensors."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    ALL,
    BF16,
    BOOL,
    C64,
    F32,
    F64,
    I64,
    U8,
    check,
    check_error,
    check_in_place,
    check_out,
    expanded,
    inf,
    nan,
    strided,
    values,
)

NAMES = ("eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("name", NAMES)
def test_comparisons(name):
    check(name, [0, 1, 2], [2, 1, 0], dtypes=ALL)
    check(name, [nan, inf, -inf, 0.0, 1.0], [nan, inf, inf, -0.0, nan])
    check(name, (3, 4), 0.0, dtypes=(F32, BF16))
    check(name, [0, 1, 2], 1.5, dtypes=(I64, U8))
    check(name, values([1, 2], I64), values([1.5, 2.0], BF16))
    check(name, (2, 0), (1,))


def test_exact_integers():
    check("eq", [2**62 + 1, 2**53 + 1], [2**62, 2**53 + 1], dtypes=(I64,))
    check("lt", values([2**24 + 1], torch.int32), values([2.0**24], F32))
    check("eq", [255, 1], -1, dtypes=(U8,))
    check("eq", [0.1], 0.1, dtypes=(F32, F64, BF16))


def test_complex():
    check("eq", [1 + 1j, 2j], [1 + 1j, 2 + 0j], dtypes=(C64,))
    check("ne", [1 + 1j, 2j], 1 + 1j, dtypes=(C64,))
    check_error("lt", values([1j], C64), values([1j], C64))


def test_layouts():
    check("lt", strided(3, 4), expanded(3, 4))


def test_closeness():
    check("isclose", [1.0, nan, inf, 1.0], [1.0 + 1e-6, nan, inf, 2.0])
    check("isclose", [1.0, nan], [1.0, nan], equal_nan=True)
    check("allclose", [1.0, 2.0], [1.0, 2.0 + 1e-7])
    check(lambda x, y: torch.equal(x, y), (3,), (3,))
    check(lambda x: torch.equal(x, x.clone()), (3,), dtypes=ALL)
    check(lambda x: torch.equal(x.trunc(), x.long()), (3,))
    check("isreal", [1 + 0j, 1j], dtypes=(C64,))
    check("isfinite", [1.0, nan, inf], dtypes=(F32, BF16))


def test_written():
    check_in_place("eq", [1, 2], [1, 3], dtypes=(F32, I64))
    check_out("lt", (3, 4), (4,))
    check(lambda x: torch.lt(x, 0, out=torch.zeros(3, device=x.device)), (3,), grad=False)
    check_error("eq", (3,), (4,), match="must match")
    check(lambda x: x.eq_(x), (3,), dtypes=(BOOL,))
