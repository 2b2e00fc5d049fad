"""The gamma family: lgamma, digamma, polygamma, zeta, incomplete gamma functions, also at their poles."""

from __future__ import annotations

import torch
from op_checks import BF16, F32, F64, I64, check, check_in_place, check_out, inf, nan, random

LINE = [-2.5, -1.5, -0.5, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 30.0]


def test_lgamma():
    check("lgamma", LINE, dtypes=(F32, F64))
    check("lgamma", [0.5, 3.0], dtypes=(BF16,))
    check("lgamma", [0.0, -1.0, inf, nan], grad=False)
    check("lgamma", [1, 5], dtypes=(I64,))
    near_its_zeros = torch.tensor([1.0, 2.0, 1 + 2**-20, 2 - 2**-20, 0.999, 2.001])
    expected = torch.lgamma(near_its_zeros.double()).float()
    torch.testing.assert_close(torch.lgamma(near_its_zeros.to("tpu")).cpu(), expected, rtol=1e-6, atol=0)


def test_digamma_and_polygamma():
    check("digamma", LINE, dtypes=(F32, F64))
    check("digamma", [0.0, -0.0, -1.0, inf, nan], grad=False)
    check("polygamma", 1, random(5, low=0.5, high=4))
    check("polygamma", 3, random(5, low=0.5, high=4), grad=False)


def test_zeta():
    check("special_zeta", [2.0, 1.5, 3.0, 1.0], [1.0, 2.5, 0.5, 2.0], grad=False)
    check("special_zeta", 2.0, random(3, low=0.5, high=3), grad=False)


def test_incomplete():
    for name in ("igamma", "igammac"):
        check(name, [0.5, 1.0, 2.0, 5.0, 20.0], [0.1, 1.0, 3.0, 20.0, 5.0], dtypes=(F32, F64), grad=False)
        check(name, [0.0, 1.0, 1.0, -1.0], [1.0, 0.0, inf, 1.0], grad=False)


def test_multivariate():
    check("mvlgamma", random(4, low=2, high=5), 2)


def test_written():
    check_in_place("lgamma", random(3, low=0.5, high=4))
    check_out("digamma", random(3, low=0.5, high=4))
