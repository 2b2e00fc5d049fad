"""Lowerings of Bessel functions of orders 0 and 1, of the modified ones, and of the Airy function Ai.

Near 0 each is a power series in x, possibly beside a logarithm; far out it is an exponential or a sine times the
smooth factor `_far`. Both smooth parts are Chebyshev series computed at first use, see approximation.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.approximation import Array, Fit, integrate_half_line
from torch_tpu.ops.registry import RESULT, Context, lowering

_EULER = 0.5772156649015329
_SPLIT = 8.0
"""Where J, Y and I change from the near form to the far one."""
_SPLIT_K = 2.0
_SPLIT_AIRY = 2.5

# -- smooth factors, in numpy ---------------------------------------------------------------------------------------


def _far(order: float, inverse: Array) -> Array:
    """K_order(z) / (sqrt(pi / (2 z)) exp(-z)) for inverse = 1 / z, and the same of Hankel functions for imaginary z:
    the integral of exp(-u) u^(order - 1/2) (1 + u / (2 z))^(order - 1/2) / gamma(order + 1/2), DLMF 10.32.8."""
    power = order - 0.5
    return integrate_half_line(
        lambda u: np.exp(-u) * u**power * (1 + u * inverse / 2) ** power / math.gamma(order + 0.5), inverse
    )


def _power_sum(quarter: Array, term: Callable[[int], float], num_terms: int = 40) -> Array:
    """The sum of term(k) quarter^k."""
    total = np.zeros_like(quarter)
    for k in reversed(range(num_terms)):
        total = total * quarter + term(k)
    return total


def _harmonic(k: int) -> float:
    return math.fsum(1 / j for j in range(1, k + 1))


def _regular(order: int, sign: int) -> Callable[[Array], Array]:
    """square -> J_order(x) / x^order for sign = -1, I_order(x) / x^order for sign = 1: DLMF 10.2.2 and 10.25.2."""
    return lambda square: _power_sum(
        square / 4, lambda k: math.pow(sign, k) / (math.factorial(k) * math.factorial(k + order)) / 2**order
    )


def _singular(order: int, sign: int) -> Callable[[Array], Array]:
    """square -> the sum over k that stands beside the logarithm in Y (sign = -1) and K (sign = 1), over x^order:
    psi(k + 1) + psi(order + k + 1) times the terms of `_regular`; DLMF 10.8.1 and 10.31.1."""

    def term(k: int) -> float:
        psi = _harmonic(k) + _harmonic(k + order) - 2 * _EULER
        return math.pow(sign, k) * psi / (math.factorial(k) * math.factorial(k + order) * math.pow(2, order))

    return lambda square: _power_sum(square / 4, term)


def _scaled_i(order: int, x: Array) -> Array:
    """exp(-x) I_order(x): DLMF 10.32.3 by the trapezoidal rule, which converges geometrically here."""
    num_points = 4000
    angles = (np.arange(num_points) + 0.5)[:, None] * np.pi / num_points
    return np.asarray(np.mean(np.exp(x * (np.cos(angles) - 1)) * np.cos(order * angles), axis=0))


@functools.cache
def _near_fit(order: int, sign: int, split: float, singular: bool = False) -> Fit:
    return Fit((_singular if singular else _regular)(order, sign), 0, split * split)


@functools.cache
def _oscillating_fit(order: float, split: float, imaginary: bool) -> Fit:
    """The real part P of `_far(order, i / x)`, or its imaginary part Q times x, in (1 / x)^2."""

    def function(square: Array) -> Array:
        inverse = np.sqrt(square)
        value = _far(order, 1j * inverse)
        return np.asarray(value.imag / inverse if imaginary else value.real)

    return Fit(function, 0, split**-2)


@functools.cache
def _decaying_fit(order: float, split: float) -> Fit:
    return Fit(lambda inverse: _far(order, inverse).real, 0, 1 / split)


@functools.cache
def _growing_fit(order: int, near: bool) -> Fit:
    """exp(-x) I(x) / x^order in x up to the split, exp(-x) I(x) sqrt(x) in 1 / x from there."""
    if near:
        return Fit(lambda x: _scaled_i(order, x) / x**order, 0, _SPLIT)
    return Fit(lambda inverse: _scaled_i(order, 1 / inverse) / np.sqrt(inverse), 0, 1 / _SPLIT)


# -- functions of Values --------------------------------------------------------------------------------------------


def _oscillation(order: float, x: Value, split: float, phase: float) -> tuple[Value, Value]:
    """The real and imaginary part of _far(order, i / x) exp(i (x - phase)), for x >= split."""
    inverse = 1 / x
    square = inverse * inverse
    real = _oscillating_fit(order, split, False)(square)
    imaginary = _oscillating_fit(order, split, True)(square) * inverse
    cosine, sine = hlo.cosine(x), hlo.sine(x)
    turned_cosine = cosine * math.cos(phase) + sine * math.sin(phase)
    turned_sine = sine * math.cos(phase) - cosine * math.sin(phase)
    return (
        real * turned_cosine - imaginary * turned_sine,
        real * turned_sine + imaginary * turned_cosine,
    )


def _far_bessel(order: int, x: Value) -> tuple[Value, Value]:
    """J and Y for x >= _SPLIT, DLMF 10.4.3 and 10.17.5; NaN at infinity, as in PyTorch."""
    parts = _oscillation(order, x, _SPLIT, order * math.pi / 2 + math.pi / 4)
    scale = hlo.sqrt(2 / math.pi / x)
    return parts[0] * scale, parts[1] * scale


def bessel_j(order: int, x: Value) -> Value:
    size = hlo.abs(x)
    near = hlo.less(size, _SPLIT)
    inside = hlo.select(near, x, 0)
    series = _near_fit(order, -1, _SPLIT)(inside * inside)
    far = _far_bessel(order, hlo.maximum(size, _SPLIT))[0]
    if order:
        series, far = series * inside, hlo.select(hlo.less(x, 0), -far, far)
    return hlo.select(hlo.is_nan(x), x, hlo.select(near, series, far))


def bessel_y(order: int, x: Value) -> Value:
    """pi Y_n = 2 log(x / 2) J_n - (2 / x if n = 1) - the sum in `_singular`; -inf at 0, NaN below."""
    near = hlo.less(x, _SPLIT)
    inside = hlo.select(near & hlo.greater(x, 0), x, 1)
    square = inside * inside
    regular = _near_fit(order, -1, _SPLIT)(square)
    singular = _near_fit(order, -1, _SPLIT, True)(square)
    series = 2 * hlo.log(inside * 0.5) * regular - singular
    if order:
        series = series * inside - 2 / inside
    far = _far_bessel(order, hlo.maximum(x, _SPLIT))[1]
    return _logarithmic_edges(x, hlo.select(near, series * (1 / math.pi), far), float("-inf"))


def _logarithmic_edges(x: Value, value: Value, at_zero: float) -> Value:
    """What Y and K are at 0 and left of it."""
    value = hlo.select(hlo.less(x, 0) | hlo.is_nan(x), float("nan"), value)
    return hlo.select(hlo.equal(x, 0), at_zero, value)


def scaled_bessel_i(order: int, x: Value) -> Value:
    """exp(-|x|) I(x)."""
    size = hlo.abs(x)
    near = hlo.less(size, _SPLIT)
    outside = hlo.maximum(size, _SPLIT)
    series = _growing_fit(order, True)(hlo.minimum(size, _SPLIT))
    far = _growing_fit(order, False)(1 / outside) / hlo.sqrt(outside)
    if order:
        series, far = series * x, hlo.select(hlo.less(x, 0), -far, far)
    return hlo.select(hlo.is_nan(x), x, hlo.select(near, series, far))


def bessel_i(order: int, x: Value) -> Value:
    return hlo.exponential(hlo.abs(x)) * scaled_bessel_i(order, x)


def bessel_k(order: int, x: Value, scaled: bool) -> Value:
    """2 (-1)^(n + 1) log(x / 2) I_n + (2 / x if n = 1) + (-1)^n times the sum in `_singular`, all over 2, near 0;
    sqrt(pi / (2 x)) exp(-x) times `_far` from 2 on. Times exp(x) if scaled."""
    near = hlo.less_equal(x, _SPLIT_K)
    inside = hlo.select(near & hlo.greater(x, 0), x, 1)
    square = inside * inside
    regular = _near_fit(order, 1, _SPLIT_K)(square)
    singular = _near_fit(order, 1, _SPLIT_K, True)(square) * 0.5
    series = singular - hlo.log(inside * 0.5) * regular
    if order:
        series = 1 / inside - series * inside
    if scaled:
        series = series * hlo.exponential(inside)
    outside = hlo.maximum(x, _SPLIT_K)
    far = _decaying_fit(order, _SPLIT_K)(1 / outside) * hlo.sqrt(0.5 * math.pi / outside)
    if not scaled:
        far = far * hlo.exponential(-outside)
    return _logarithmic_edges(x, hlo.select(near, series, far), float("inf"))


def _airy_series(x: Array) -> Array:
    """Ai by its power series, DLMF 9.4.1."""
    cube, first, second = x**3, np.ones_like(x), x + 0
    term_first, term_second = first, second
    for k in range(1, 40):
        term_first = term_first * cube / ((3 * k - 1) * (3 * k))
        term_second = term_second * cube / ((3 * k) * (3 * k + 1))
        first, second = first + term_first, second + term_second
    at_zero = 3 ** (-2 / 3) / math.gamma(2 / 3)
    slope = -(3 ** (-1 / 3)) / math.gamma(1 / 3)
    return np.asarray(at_zero * first + slope * second)


_AIRY = Fit(_airy_series, -_SPLIT_AIRY, _SPLIT_AIRY)


@lowering("special_airy_ai", promote=RESULT)
def airy_ai(ctx: Context, x: Value) -> Value:
    """Far out through Bessel functions of order 1/3 of 2/3 |x|^(3/2), DLMF 9.6.2 and 9.6.6; NaN at infinities."""
    size = hlo.abs(x)
    near = hlo.less(size, _SPLIT_AIRY)
    series = _AIRY(hlo.clamp(-_SPLIT_AIRY, x, _SPLIT_AIRY))
    outside = hlo.maximum(hlo.select(hlo.is_finite(x), size, _SPLIT_AIRY), _SPLIT_AIRY)
    root = hlo.sqrt(outside)
    argument = outside * root * (2 / 3)
    split = 2 / 3 * _SPLIT_AIRY**1.5
    scale = 1 / (hlo.sqrt(root) * math.sqrt(math.pi))
    right = _decaying_fit(1 / 3, split)(1 / argument) * hlo.exponential(-argument) * scale * 0.5
    left = _oscillation(1 / 3, argument, split, math.pi / 4)[0] * scale
    result = hlo.select(near, series, hlo.select(hlo.less(x, 0), left, right))
    return hlo.select(hlo.is_finite(x), result, float("nan"))


@lowering("special_spherical_bessel_j0", promote=RESULT)
def spherical_bessel_j0(ctx: Context, x: Value) -> Value:
    """sin(x) / x."""
    zero = hlo.equal(x, 0)
    value = hlo.sine(x) / hlo.select(zero, hlo.ones_like(x), x)
    return hlo.select(zero, hlo.ones_like(x), hlo.select(hlo.equal(hlo.abs(x), float("inf")), 0, value))


def _register() -> None:
    rows: dict[str, Callable[[Value], Value]] = {
        "i0": functools.partial(bessel_i, 0),
        "special_i0e": functools.partial(scaled_bessel_i, 0),
        "special_i1": functools.partial(bessel_i, 1),
        "special_i1e": functools.partial(scaled_bessel_i, 1),
        "special_modified_bessel_i0": functools.partial(bessel_i, 0),
        "special_modified_bessel_i1": functools.partial(bessel_i, 1),
        "special_modified_bessel_k0": functools.partial(bessel_k, 0, scaled=False),
        "special_modified_bessel_k1": functools.partial(bessel_k, 1, scaled=False),
        "special_scaled_modified_bessel_k0": functools.partial(bessel_k, 0, scaled=True),
        "special_scaled_modified_bessel_k1": functools.partial(bessel_k, 1, scaled=True),
        "special_bessel_j0": functools.partial(bessel_j, 0),
        "special_bessel_j1": functools.partial(bessel_j, 1),
        "special_bessel_y0": functools.partial(bessel_y, 0),
        "special_bessel_y1": functools.partial(bessel_y, 1),
    }
    for name, function in rows.items():
        lowering(name, promote=RESULT)(lambda ctx, x, function=function: function(x))


_register()
