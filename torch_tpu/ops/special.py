"""Lowerings of the error functions, the normal distribution's, zeta, and small special functions.

The gamma family is in gamma.py, Bessel functions in bessel.py, orthogonal polynomials in polynomials.py.
"""

from __future__ import annotations

import math

import numpy as np

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.approximation import Array, Fit, integrate_half_line
from torch_tpu.ops.registry import RESULT, Context, lowering

_CENTER = 3.75
_SQRT_HALF = math.sqrt(0.5)
_LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)


def _scaled_erfcx(x: Array) -> Array:
    """(1 + 2 x) erfcx(x) for x >= 0: DLMF 7.7.1 with u = (1 + 2 x) v, so that it stays finite for large x."""
    width = 1 + 2 * x
    integral = integrate_half_line(lambda u: np.exp(-((u / width) ** 2) - 2 * x / width * u), x)
    return 2 / math.sqrt(math.pi) * integral


_ERFCX = Fit(lambda t: _scaled_erfcx(_CENTER * (1 + t) / (1 - t)), -1, 1)


def erfcx_positive(x: Value) -> Value:
    """exp(x^2) erfc(x), x >= 0, in (x - c) / (x + c): Shepherd and Laframboise, Math. Comp. 36 (1981)."""
    ratio = 1 - (2 * _CENTER) / (x + _CENTER)
    return _ERFCX(ratio) / (1 + 2 * x)


def exp_square(x: Value, sign: int = 1) -> Value:
    """exp(x^2), or exp(-x^2), without the error that rounding x^2 makes in the exponent: x = head + tail with an exact head^2.

    Not as a product of exponentials: XLA makes one of the sum, rounded, of such.
    """
    digits = 11 if x.dtype.itemsize == 4 else 25
    head = hlo.reduce_precision(x, 8 if x.dtype.itemsize == 4 else 11, digits)
    rest = hlo.select(hlo.is_finite(x), (x - head) * (x + head), 0)
    return hlo.exponential(sign * head * head) * (1 + hlo.expm1(sign * rest))


@lowering("special_erfcx", promote=RESULT)
def erfcx(ctx: Context, x: Value) -> Value:
    positive = erfcx_positive(hlo.abs(x))  # erfcx(-x) = 2 exp(x^2) - erfcx(x)
    return hlo.select(hlo.less(x, 0), 2 * exp_square(x) - positive, positive)


def _tail_offset(log_scale: Array) -> Array:
    """y - s where Q(y) = exp(-s^2 / 2), Q the normal tail probability and s = exp(log_scale): Newton's method on
    log Q(y) = log(erfcx(y / sqrt 2) / 2) - y^2 / 2."""
    scale = np.exp(log_scale)
    y = scale - (log_scale + _LOG_SQRT_TWO_PI) / scale
    for _ in range(12):
        argument = np.maximum(y, 0) * _SQRT_HALF
        mills = _scaled_erfcx(argument) / (1 + 2 * argument) / 2
        y = y + (np.log(mills) - y * y / 2 + scale * scale / 2) * mills * math.sqrt(2 * math.pi)
    return y - scale


_TAIL = Fit(_tail_offset, math.log(1.6), math.log(39))


def normal_tail_inverse(probability: Value) -> Value:
    """The y with P(Z > y) = probability, for a standard normal Z and 0 <= probability <= 1/4."""
    scale = hlo.sqrt(-2 * hlo.log(probability))
    inside = hlo.clamp(1.6, scale, 39)
    return hlo.select(hlo.equal(probability, 0), float("inf"), scale + _TAIL(hlo.log(inside)))


@lowering("erfinv", promote=RESULT)
def erfinv(ctx: Context, x: Value) -> Value:
    # Near 1 the tail function of (1 - |x|) / 2, which is exact, keeps more digits than any function of x.
    size = hlo.abs(x)
    tail = normal_tail_inverse(hlo.maximum((1 - size) * 0.5, 0)) * _SQRT_HALF
    tail = hlo.select(hlo.greater(size, 1), float("nan"), tail)
    far = hlo.greater(size, 0.8)
    inside = hlo.select(far, hlo.zeros_like(x), x)
    return hlo.select(far, hlo.select(hlo.less(x, 0), -tail, tail), hlo.erf_inv(inside))


def normal_quantile(p: Value) -> Value:
    """The inverse of the normal distribution function; NaN outside [0, 1]."""
    upper = hlo.greater(p, 0.5)
    rest = hlo.select(upper, 1 - p, p)
    tail = normal_tail_inverse(hlo.clamp(0, rest, 0.25))
    tail = hlo.select(hlo.less(rest, 0), float("nan"), hlo.select(upper, tail, -tail))
    middle = hlo.erf_inv(hlo.clamp(-0.5, 2 * p - 1, 0.5)) * math.sqrt(2)
    return hlo.select(hlo.greater(rest, 0.25), middle, tail)


@lowering("special_ndtri", promote=RESULT)
def ndtri(ctx: Context, p: Value) -> Value:
    return hlo.select(hlo.is_nan(p), p, normal_quantile(p))


@lowering("special_log_ndtr", promote=RESULT)
def log_ndtr(ctx: Context, x: Value) -> Value:
    """log P(Z <= x); left of -1 through erfcx, which does not underflow."""
    left = hlo.less(x, -1)
    low = hlo.select(left, x, -1) * -_SQRT_HALF
    tail = hlo.log(erfcx_positive(low) * 0.5) - low * low
    return hlo.select(left, tail, hlo.log1p(hlo.erfc(x * _SQRT_HALF) * -0.5))


@lowering("erf", promote=RESULT)
def erf(ctx: Context, x: Value) -> Value:
    return hlo.erf(x)


@lowering("erfc", promote=RESULT)
def erfc(ctx: Context, x: Value) -> Value:
    """XLA's takes the exponential of a rounded square, which costs digits where it is large."""
    far = hlo.greater(x, 0.5)
    size = hlo.select(far, x, 1)
    return hlo.select(far, erfcx_positive(size) * exp_square(size, -1), hlo.erfc(x))


@lowering("special_entr", promote=RESULT)
def entr(ctx: Context, x: Value) -> Value:
    """-x log x; 0 at 0, -inf below."""
    inside = -x * hlo.log(x)
    outside = hlo.select(hlo.equal(x, 0), hlo.zeros_like(x), float("-inf"))
    return hlo.select(hlo.is_nan(x), x, hlo.select(hlo.greater(x, 0), inside, outside))


@lowering("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar", promote=RESULT)
def xlog1py(ctx: Context, x: Value, y: Value) -> Value:
    """x log(1 + y), which is 0 for x = 0 whatever y is, except NaN."""
    x, y = hlo.broadcast(x, y)
    product = hlo.select(hlo.equal(x, 0), hlo.zeros_like(x), x * hlo.log1p(y))
    return hlo.select(hlo.is_nan(y), y, product)
