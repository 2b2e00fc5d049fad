"""Bessel functions of every kind against PyTorch's, near zero and far out."""

from __future__ import annotations

import pytest
from op_checks import F32, F64, check, inf, nan

EVERYWHERE = (
    "special_bessel_j0", "special_bessel_j1", "special_i0", "special_i0e", "special_i1", "special_i1e",
    "special_modified_bessel_i0", "special_modified_bessel_i1", "special_airy_ai", "special_spherical_bessel_j0",
)  # fmt: skip
POSITIVE = (
    "special_bessel_y0", "special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
)  # fmt: skip


@pytest.mark.parametrize("name", EVERYWHERE)
def test_everywhere(name):
    check(name, [-7.0, -2.0, -0.5, 0.0, 1e-3, 0.7, 3.0, 6.5], dtypes=(F32, F64), grad=False)


@pytest.mark.parametrize("name", POSITIVE)
def test_positive(name):
    check(name, [0.05, 0.5, 1.0, 2.5, 7.0, 20.0], dtypes=(F32, F64), grad=False)
    check(name, [0.0, -1.0, nan], grad=False)


def test_gradients():
    for name in ("special_i0", "special_i0e", "special_i1", "special_i1e"):
        check(name, [-2.0, 0.5, 3.0])


def test_far_out():
    check("special_i0e", [50.0, 1e4, inf], grad=False)
    check("special_bessel_j0", [100.0], dtypes=(F64,), grad=False)
