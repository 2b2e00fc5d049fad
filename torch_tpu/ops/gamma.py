"""Lowerings of the gamma function's relatives: lgamma, digamma, polygamma, zeta, mvlgamma, igamma, igammac."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.approximation import Array, Fit, polynomial
from torch_tpu.ops.registry import RESULT, Context, lowering


def _between_its_zeros(x: Array) -> Array:
    """lgamma(x) / ((x - 1) (x - 2)), which is smooth; the values at 1 and 2 are DLMF 5.4.12 and 5.5.1."""
    known = {1.0: np.euler_gamma, 2.0: 1 - np.euler_gamma}
    return np.array([known.get(a) or math.lgamma(a) / ((a - 1) * (a - 2)) for a in x.tolist()])


_BETWEEN_ZEROS = Fit(_between_its_zeros, 0.5, 8)


def log_gamma(x: Value) -> Value:
    """log |gamma(x)|. XLA's has no correct digit left near its zeros at 1 and 2; in float64 there are enough."""
    if x.dtype is torch.float64:
        return hlo.lgamma(x)
    near = hlo.greater_equal(x, 0.5) & hlo.less_equal(x, 8)
    inside = hlo.select(near, x, hlo.ones_like(x))
    return hlo.select(near, (inside - 1) * (inside - 2) * _BETWEEN_ZEROS(inside), hlo.lgamma(x))


@lowering("lgamma", promote=RESULT)
def lgamma(ctx: Context, x: Value) -> Value:
    return log_gamma(x)


def psi(x: Value) -> Value:
    """Digamma; PyTorch has the poles -inf at 0 and inf at -0, NaN at the other whole numbers below and at -inf."""
    zero = hlo.equal(x, 0)
    safe = hlo.select(zero, hlo.ones_like(x), x)
    return hlo.select(zero, -1 / x, hlo.digamma(safe))


@lowering("digamma", promote=RESULT)
def digamma(ctx: Context, x: Value) -> Value:
    return psi(x)


def hurwitz_zeta(x: Value, q: Value) -> Value:
    """The sum over k >= 0 of (q + k)^-x, with PyTorch's values at poles and infinities.

    For a negative q the terms up to the base 9 are added in a loop, since those on both sides of 0 may cancel: with
    what each addition loses (Kahan, Comm. ACM 8 (1965)). What is left is small.
    """
    pole = hlo.less_equal(q, 0) & hlo.equal(q, hlo.floor(q))
    end = hlo.select(hlo.less(q, 0), 9, hlo.full_like(q, -math.inf))

    def step(base: Value, total: Value, lost: Value) -> list[Value]:
        open_ = hlo.less(base, end)
        term = hlo.power(base, -x) - lost
        larger = total + term
        missing = (larger - total) - term
        return [
            hlo.select(open_, base + 1, base),
            hlo.select(open_, larger, total),
            hlo.select(open_, missing, lost),
        ]

    def going(base: Value, total: Value, lost: Value) -> Value:
        return hlo.reduce_or(hlo.less(base, end), range(base.ndim))

    zero = hlo.zeros_like(q)
    base, total, _ = hlo.while_loop([hlo.select(pole, 9, q), zero, zero], going, step)
    result = hlo.select(pole, float("inf"), total + hlo.zeta(x, base))
    limit = hlo.select(hlo.less(q, 1), float("inf"), hlo.select(hlo.equal(q, 1), q, float("nan")))
    result = hlo.select(hlo.equal(x, float("inf")), limit, result)
    result = hlo.select(hlo.less(x, 1), float("nan"), result)
    return hlo.select(hlo.equal(x, 1), float("inf"), result)


@lowering("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar", promote=RESULT)
def zeta(ctx: Context, x: Value, q: Value) -> Value:
    return hurwitz_zeta(*hlo.broadcast(x, q))


def trigamma(x: Value) -> Value:
    """The second derivative of lgamma; zeta(2, x), and DLMF 5.15.6 left of 1/2.

    At whole numbers it is as large as rounding pi makes it in PyTorch, not infinite.
    """
    left = hlo.less(x, 0.5)
    right = hlo.zeta(hlo.full_like(x, 2), hlo.select(left, 1 - x, x))
    offset = x - hlo.round_nearest_even(x)
    sine = hlo.sine(hlo.select(hlo.equal(offset, 0), x, offset) * math.pi)
    return hlo.select(left, (math.pi * math.pi) / (sine * sine) - right, right)


@lowering("polygamma", promote=RESULT)
def polygamma(ctx: Context, n: int, x: Value) -> Value:
    """(-1)^(n+1) n! zeta(n + 1, x), DLMF 25.11.12."""
    if n == 0:
        return psi(x)
    if n == 1:
        return trigamma(x)
    order = hlo.full_like(x, n + 1)
    factorial = math.factorial(n) if n <= 170 else math.inf
    return hurwitz_zeta(order, x) * (factorial if n % 2 else -factorial)


@lowering("mvlgamma", promote=RESULT)
def mvlgamma(ctx: Context, x: Value, p: int) -> Value:
    """log of the multivariate gamma function, DLMF 35.3.4."""
    offsets = hlo.broadcast_in_dim(hlo.iota((p,), 0, x.dtype) * 0.5, (p, *x.shape), [0])
    terms = log_gamma(hlo.broadcast_in_dim(x, (p, *x.shape), range(1, x.ndim + 1)) - offsets)
    return hlo.reduce_sum(terms, [0]) + p * (p - 1) / 4 * math.log(math.pi)


# -- incomplete gamma functions -------------------------------------------------------------------------------------

_LARGE = 12.0
"""From this shape parameter on the incomplete gamma functions are integrated, below it expanded."""


def log1p_deficit(m: Value) -> Value:
    """m - log(1 + m) without cancellation: with r = m / (2 + m), log(1 + m) = 2 artanh(r) (DLMF 4.6.7)."""
    ratio = m / (m + 2)
    square = ratio * ratio
    num_terms = 9 if m.dtype.itemsize == 4 else 18
    series = polynomial(square, [2 / (2 * k + 3) for k in reversed(range(num_terms))])
    near = ratio * (m - square * series)
    return hlo.select(hlo.less(hlo.abs(m), 0.5), near, m - hlo.log1p(m))


def stirling(a: Value) -> Value:
    """lgamma(a) - (a - 1/2) log a + a - log(2 pi) / 2 for a >= 6, DLMF 5.11.1."""
    inverse = 1 / a
    coefficients = [-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12]
    return inverse * polynomial(inverse * inverse, coefficients)


def _power_over_gamma(a: Value, x: Value) -> Value:
    """x^a exp(-x) / gamma(a + 1); from a = 6 on relative to its maximum, where logarithms would cancel."""
    large = hlo.maximum(a, 6)
    logarithm = -large * log1p_deficit((x - large) / large) - stirling(large)
    relative = hlo.exponential(logarithm) / hlo.sqrt(large * (2 * math.pi))
    direct = hlo.exponential(a * hlo.log(x) - x - hlo.lgamma(a + 1))
    return hlo.select(hlo.less(a, 6), direct, relative)


def until_settled(
    init: list[Value], step: Callable[..., list[Value]], active: Callable[..., Value], limit: int
) -> list[Value]:
    """Repeats step(n, *state) for n = 1, 2, ... limit while any element is active(*state)."""
    start = hlo.scalar(1.0, init[0].dtype)

    def going(number: Value, *state: Value) -> Value:
        some = hlo.reduce_or(active(*state), range(state[0].ndim))
        return some & hlo.less_equal(number, limit)

    return hlo.while_loop([start, *init], going, lambda n, *state: [n + 1, *step(n, *state)])[1:]


def _lower_series(a: Value, x: Value, wanted: Value) -> Value:
    """P(a, x) gamma(a + 1) exp(x) / x^a = sum of x^k / ((a + 1) ... (a + k)), DLMF 8.11.4."""
    eps = 2.0**-24 if a.dtype.itemsize == 4 else 2.0**-53
    x = hlo.select(wanted, x, 0)

    def step(n: Value, total: Value, term: Value) -> list[Value]:
        term = term * x / (a + n)
        return [total + term, term]

    one = hlo.ones_like(x)
    return until_settled([one, one], step, lambda total, term: hlo.greater(term, total * eps), 300)[0]


def _upper_fraction(a: Value, x: Value, wanted: Value) -> Value:
    """Q(a, x) gamma(a) exp(x) / x^a by the continued fraction DLMF 8.9.2, by Lentz's algorithm (DLMF 3.10(iii))."""
    eps = 2.0**-23 if a.dtype.itemsize == 4 else 2.0**-52
    x, a = hlo.select(wanted, x, 20), hlo.select(wanted, a, 1)

    def step(n: Value, result: Value, ratio: Value, inverse: Value, change: Value) -> list[Value]:
        numerator = n * (a - n)
        denominator = x - a + (2 * n + 1)
        inverse = 1 / (denominator + numerator * inverse)
        ratio = denominator + numerator / ratio
        change = ratio * inverse
        return [result * change, ratio, inverse, change]

    first = x - a + 1
    init = [1 / first, hlo.full_like(x, 1e30), 1 / first, hlo.zeros_like(x)]
    return until_settled(init, step, lambda *state: hlo.greater(hlo.abs(state[3] - 1), eps), 500)[0]


@functools.cache
def _legendre(num_points: int) -> tuple[list[float], list[float]]:
    points, weights = np.polynomial.legendre.leggauss(num_points)
    return points.tolist(), weights.tolist()


def _tail_integral(a: Value, x: Value) -> Value:
    """The smaller of P and Q for a >= 12: with t = a (1 + m) in DLMF 8.2.1 it is a tail of the integral of
    exp(-a (m - log(1 + m))) / (1 + m) sqrt(a / (2 pi)) exp(-stirling(a)), taken by Gauss-Legendre quadrature."""
    points, weights = _legendre(20 if a.dtype.itemsize == 4 else 40)
    start = (x - a) / a
    reach = 9 / hlo.sqrt(a) + 32 / a
    end = hlo.select(hlo.less(x, a), hlo.maximum(start - reach, -1), start + reach)
    half = (end - start) * 0.5
    rank = (len(points), *a.shape)
    nodes = hlo.broadcast_in_dim(hlo.literal(points, a.dtype), rank, [0])
    scale = hlo.broadcast_in_dim(hlo.literal(weights, a.dtype), rank, [0])
    m = start + half + nodes * half
    values = hlo.exponential(-a * log1p_deficit(m)) / (1 + m) * scale
    values = hlo.select(hlo.greater(m, -1), values, 0)
    total = hlo.reduce_sum(values, [0]) * hlo.abs(half)
    return total * hlo.sqrt(a * (0.5 / math.pi)) * hlo.exponential(-stirling(a))


def incomplete_gamma(a: Value, x: Value) -> tuple[Value, Value]:
    """The regularized incomplete gamma functions P(a, x) and Q(a, x)."""
    a, x = hlo.broadcast(a, x)
    inside = hlo.greater(a, 0) & hlo.greater(x, 0) & hlo.is_finite(a) & hlo.is_finite(x)
    shape, argument = hlo.select(inside, a, 1), hlo.select(inside, x, 1)
    large = hlo.greater_equal(shape, _LARGE)
    lower = hlo.less(argument, hlo.select(large, shape, shape + 1))
    (prefix,) = hlo.optimization_barrier([_power_over_gamma(shape, argument)])  # fused anew into each use otherwise
    series = prefix * _lower_series(shape, argument, lower & ~large)
    fraction = prefix * shape * _upper_fraction(shape, argument, ~lower & ~large)
    integral = _tail_integral(hlo.maximum(shape, _LARGE), argument)
    part = hlo.select(large, integral, hlo.select(lower, series, fraction))
    p, q = hlo.select(lower, part, 1 - part), hlo.select(lower, 1 - part, part)
    return tuple(_edges(a, x, inside, value, at_zero) for value, at_zero in ((p, 0.0), (q, 1.0)))  # type: ignore


def _edges(a: Value, x: Value, inside: Value, value: Value, at_zero: float) -> Value:
    """PyTorch's values where a or x is 0, infinite, negative or NaN; later lines go before earlier ones."""
    infinite_x = hlo.equal(x, float("inf"))
    edge = hlo.select(infinite_x, 1 - at_zero, hlo.full_like(a, float("nan")))
    edge = hlo.select(hlo.equal(a, float("inf")), hlo.select(infinite_x, edge * float("nan"), at_zero), edge)
    edge = hlo.select(hlo.equal(x, 0), at_zero, edge)
    edge = hlo.select(hlo.equal(a, 0), hlo.select(hlo.greater(x, 0), 1 - at_zero, x * float("nan")), edge)
    edge = hlo.select(hlo.less(a, 0) | hlo.less(x, 0), float("nan"), edge)
    return hlo.select(inside, value, edge)


@lowering("igamma", promote=RESULT)
def igamma(ctx: Context, a: Value, x: Value) -> Value:
    return incomplete_gamma(a, x)[0]


@lowering("igammac", promote=RESULT)
def igammac(ctx: Context, a: Value, x: Value) -> Value:
    return incomplete_gamma(a, x)[1]
