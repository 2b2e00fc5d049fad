"""Histograms: values on edges and outside, weights, densities, several dimensions; bincount."""

from __future__ import annotations

from op_checks import F32, I64, check, check_error, random, values

DATA = [0.0, 0.1, 0.5, 0.5, 0.99, 1.0, 1.5, -0.2]


def test_histc():
    check("histc", DATA, 5, 0, 1, grad=False)
    check("histc", DATA, 4, grad=False)
    check("histc", [2.0, 2.0], 3, grad=False)


def test_histogram():
    check("histogram", DATA, 4, range=(0.0, 1.0), grad=False)
    check("histogram", DATA, 4, grad=False)
    check("histogram", DATA, [0.0, 0.25, 1.0], grad=False)
    check("histogram", DATA, 3, range=(0.0, 1.0), density=True, weight=random(8, low=0, high=1, dtype=F32), grad=False)
    check("histogramdd", (6, 2), bins=[2, 3], grad=False)


def test_bincount():
    check("bincount", [0, 3, 3, 1], dtypes=(I64,))
    check("bincount", [0, 3, 3, 1], minlength=6, dtypes=(I64,))
    check("bincount", [0, 3, 3], values([0.5, 1.0, 2.0], F32), dtypes=(I64,), grad=False)
    check("bincount", [], dtypes=(I64,))
    check_error("bincount", values([-1], I64), match="non-negative")
