"""Chebyshev series of smooth functions, computed at their first use instead of copied from tables.

A special function is written as elementary factors times smooth ones. A smooth factor has an integral or a power
series that numpy evaluates to double precision at a few dozen points; `Fit` interpolates those values, cuts the
series where the dtype no longer sees its terms, and writes Clenshaw's recurrence (DLMF 3.11.15) into the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value

Array = np.ndarray[Any, np.dtype[Any]]


class Fit:
    """The Chebyshev series of a function on [low, high]; `function` maps an array of points to an array of values."""

    def __init__(self, function: Callable[[Array], Array], low: float, high: float, degree: int = 48):
        self.function, self.low, self.high, self.degree = function, low, high, degree

    @functools.cached_property
    def series(self) -> list[float]:
        """All coefficients, by Gauss-Chebyshev quadrature (DLMF 3.5.21) at degree + 1 points."""
        count = self.degree + 1
        angles = (np.arange(count) + 0.5) * np.pi / count
        points = self.low + (self.high - self.low) * (np.cos(angles) + 1) / 2
        values = self.function(points)
        orders = np.arange(count)[:, None]
        coefficients = 2 / count * (np.cos(orders * angles) @ values)
        coefficients[0] /= 2
        return [float(number) for number in coefficients]

    def coefficients(self, dtype: torch.dtype) -> list[float]:
        """Those that matter in a dtype, and that are not lost in the rounding errors of the quadrature."""
        smallest = max(torch.finfo(dtype).eps / 16, 2e-14) * max(map(abs, self.series))
        last = max(index for index, number in enumerate(self.series) if abs(number) > smallest)
        return self.series[: last + 1]

    def __call__(self, x: Value) -> Value:
        """The function of x, which must lie in the interval (else the result is meaningless, not an error)."""
        scale = 4 / (self.high - self.low)
        twice = x * scale - (2 + self.low * scale)
        later, latest = hlo.zeros_like(x), hlo.zeros_like(x)
        first, *rest = self.coefficients(x.dtype)
        for number in reversed(rest):
            later, latest = twice * later - latest + number, later
        return twice * 0.5 * later - latest + first


def polynomial(x: Value, coefficients: list[float]) -> Value:
    """Horner's rule; the coefficient of the highest power comes first."""
    result = hlo.full_like(x, coefficients[0])
    for number in coefficients[1:]:
        result = result * x + number
    return result


def integrate_half_line(integrand: Callable[[Array], Array], points: Array) -> Array:
    """The integral over u from 0 to infinity of integrand(u), which falls at least as exp(-u) and may have an
    algebraic singularity at 0; one result for each of `points`, which the integrand broadcasts against.

    Double exponential quadrature u = exp(s - exp(-s)): Takahasi and Mori, Publ. RIMS 9 (1974), section 4.
    """
    step = 1 / 64
    s = np.arange(-5, 5 + step, step)[:, None] + 0 * points[None, :]
    u = np.exp(s - np.exp(-s))
    return np.asarray(step * np.sum(integrand(u) * u * (1 + np.exp(-s)), axis=0))
