"""Orthogonal polynomials: degrees as tensors and numbers."""

from __future__ import annotations

import pytest
from op_checks import F32, F64, check, random

NAMES = [
    f"special_{name}"
    for name in (
        "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
        "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_degrees(name):
    check(name, random(6, low=0.1, high=0.9), [0, 1, 2, 3, 5, -1], dtypes=(F32,), grad=False)
    check(name, 0.3, [0, 1, 4], dtypes=(F64,), grad=False)
    check(name, random(3, low=0.1, high=0.9), 3, grad=False)
