"""Arithmetic of two or more tensors: sums, products, quotients and their roundings, powers, interpolation."""

from __future__ import annotations

import math

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.elementwise import copy_sign, exp2, sign_bit, square_root, table, truncate
from torch_tpu.ops.registry import RESULT, Context, lowering


@lowering("add.Tensor", "add.Scalar", promote=RESULT)
def add(ctx: Context, x: Value, y: Value, alpha: Value | None = None) -> Value:
    """x + alpha y; of bools, the disjunction."""
    y = y if alpha is None else y * alpha
    return x | y if x.dtype is torch.bool else x + y


@lowering("sub.Tensor", "sub.Scalar", promote=RESULT)
def subtract(ctx: Context, x: Value, y: Value, alpha: Value | None = None) -> Value:
    return x - (y if alpha is None else y * alpha)


@lowering("rsub.Tensor", "rsub.Scalar", promote=RESULT)
def reverse_subtract(ctx: Context, x: Value, y: Value, alpha: Value | None = None) -> Value:
    return y - (x if alpha is None else x * alpha)


def is_unequal_sign(remainder: Value, divisor: Value) -> Value:
    """Where a remainder of C's kind must move by one divisor to become Python's."""
    return hlo.not_equal(remainder, 0) & hlo.not_equal(hlo.less(remainder, 0), hlo.less(divisor, 0))


def remainder(x: Value, y: Value) -> Value:
    """Python's: the sign of the divisor."""
    rest = hlo.remainder(x, y)
    return rest if hlo.is_unsigned(x.dtype) else hlo.select(is_unequal_sign(rest, y), rest + y, rest)


def floor_divide(x: Value, y: Value) -> Value:
    """floor(x / y), computed from the exact remainder as Python does; a float divided by zero is infinite or NaN."""
    if hlo.is_unsigned(x.dtype):
        return x / y
    rest = hlo.remainder(x, y)
    moved = is_unequal_sign(rest, y)
    if not x.dtype.is_floating_point:
        quotient = x / y
        return hlo.select(moved, quotient - 1, quotient)
    plain = x / y
    quotient = hlo.quotient(x - rest, y)
    quotient = hlo.select(moved, quotient - 1, quotient)
    low = hlo.floor(quotient)
    low = hlo.select(hlo.greater(quotient - low, 0.5), low + 1, low)
    zero = hlo.select(sign_bit(plain), -0.0, hlo.zeros_like(plain))
    return hlo.select(hlo.equal(y, 0), plain, hlo.select(hlo.equal(quotient, 0), zero, low))


def float_maximum(x: Value, y: Value) -> Value:
    """The maximum where a number wins over NaN."""
    if not x.dtype.is_floating_point:
        return hlo.maximum(x, y)
    return hlo.select(hlo.is_nan(x), y, hlo.select(hlo.is_nan(y), x, hlo.maximum(x, y)))


def float_minimum(x: Value, y: Value) -> Value:
    """The minimum where a number wins over NaN."""
    if not x.dtype.is_floating_point:
        return hlo.minimum(x, y)
    return hlo.select(hlo.is_nan(x), y, hlo.select(hlo.is_nan(y), x, hlo.minimum(x, y)))


def heaviside(x: Value, at_zero: Value) -> Value:
    """The step function; 0 for NaN."""
    return hlo.select(hlo.equal(x, 0), at_zero, hlo.convert(hlo.greater(x, 0), x.dtype))


def hypotenuse(x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2) without overflow: the larger side times sqrt(1 + ratio^2)."""
    x, y = hlo.abs(x), hlo.abs(y)
    longer, shorter = hlo.maximum(x, y), hlo.minimum(x, y)
    ratio = shorter / hlo.select(hlo.equal(longer, 0), 1, longer)
    infinite = hlo.equal(x, math.inf) | hlo.equal(y, math.inf)
    return hlo.select(infinite, math.inf, longer * hlo.sqrt(ratio * ratio + 1))


def x_log_y(x: Value, y: Value) -> Value:
    """x log(y), where a zero x gives 0 unless y is NaN."""
    zero = hlo.equal(x, 0) & hlo.equal(y, y)
    return hlo.select(zero, 0, x * hlo.log(y))


def log_add_exp(x: Value, y: Value) -> Value:
    """log(e^x + e^y) = max + log1p(e^-|x - y|); equal infinities would give NaN through the difference."""
    if x.dtype.is_complex:
        return _complex_log_add_exp(x, y)
    top = hlo.maximum(x, y)
    gap = hlo.select(hlo.equal(x, y), 0, x - y)
    return top + hlo.log1p(hlo.exponential(-hlo.abs(gap)))


def _complex_log_add_exp(x: Value, y: Value) -> Value:
    """As for real numbers, ordered by the real parts; two parts of -inf give -inf."""
    first = hlo.greater_equal(hlo.real(x), hlo.real(y)) | hlo.is_nan(hlo.real(x))
    top, low = hlo.select(first, x, y), hlo.select(first, y, x)
    both = hlo.equal(x, y) & hlo.is_inf(hlo.real(x))
    return hlo.select(both & hlo.less(hlo.real(x), 0), x, top + hlo.log1p(hlo.exponential(low - top)))


def log_add_exp2(x: Value, y: Value) -> Value:
    """log2(2^x + 2^y), see log_add_exp."""
    top = hlo.maximum(x, y)
    gap = hlo.select(hlo.equal(x, y), 0, x - y)
    return top + hlo.log1p(exp2(-hlo.abs(gap))) / math.log(2)


def _widened(x: Value, y: Value) -> tuple[Value, Value]:
    """Magnitudes in at least 32 bits, as the magnitude of -128 is no int8."""
    dtype = x.dtype if x.dtype.itemsize >= 4 else torch.int32
    x, y = hlo.broadcast(hlo.convert(x, dtype), hlo.convert(y, dtype))
    return hlo.abs(x), hlo.abs(y)


def greatest_common_divisor(x: Value, y: Value) -> Value:
    """Euclid's algorithm on all elements at once, until every remainder is zero."""
    x, y = _widened(x, y)

    def unfinished(a: Value, b: Value) -> Value:
        return hlo.reduce_or(hlo.not_equal(b, 0), range(b.ndim))

    def step(a: Value, b: Value) -> list[Value]:
        done = hlo.equal(b, 0)
        rest = hlo.remainder(a, hlo.select(done, 1, b))
        return [hlo.select(done, a, b), hlo.select(done, 0, rest)]

    return hlo.abs(hlo.while_loop([x, y], unfinished, step)[0])


def least_common_multiple(x: Value, y: Value) -> Value:
    divisor = greatest_common_divisor(x, y)
    x, y = _widened(x, y)
    return hlo.abs(hlo.select(hlo.equal(divisor, 0), 0, x / hlo.select(hlo.equal(divisor, 0), 1, divisor) * y))


table(
    {
        "atan2": hlo.atan2,
        "copysign.Scalar": copy_sign,
        "copysign.Tensor": copy_sign,
        "div.Scalar": hlo.quotient,
        "div.Tensor": hlo.quotient,
        "floor_divide": floor_divide,
        "floor_divide.Scalar": floor_divide,
        "fmax": float_maximum,
        "fmin": float_minimum,
        "fmod.Scalar": hlo.remainder,
        "fmod.Tensor": hlo.remainder,
        "gcd": greatest_common_divisor,
        "heaviside": heaviside,
        "hypot": hypotenuse,
        "lcm": least_common_multiple,
        "logaddexp": log_add_exp,
        "logaddexp2": log_add_exp2,
        "maximum": hlo.maximum,
        "minimum": hlo.minimum,
        "mul.Scalar": hlo.multiply,
        "mul.Tensor": hlo.multiply,
        "remainder.Scalar": remainder,
        "remainder.Scalar_Tensor": remainder,
        "remainder.Tensor": remainder,
        "xlogy.Scalar_Other": x_log_y,
        "xlogy.Scalar_Self": x_log_y,
        "xlogy.Tensor": x_log_y,
    },
    RESULT,
)


@lowering("div.Tensor_mode", "div.Scalar_mode", promote=RESULT)
def divide_rounded(ctx: Context, x: Value, y: Value, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(x, y)
    quotient = hlo.quotient(x, y)
    if rounding_mode == "trunc":  # of the quotient in the result's own precision, as PyTorch
        return truncate(hlo.round_to(quotient, ctx.out.dtype))
    return quotient


@lowering("nextafter")
def next_after(ctx: Context, x: Value, y: Value) -> Value:
    """The neighbour of x toward y, as the next integer of the same width."""
    x, y = hlo.broadcast(hlo.convert(x, ctx.out.dtype), hlo.convert(y, ctx.out.dtype))
    bits = hlo.bitcast(x, hlo.bits_dtype(x.dtype))
    sign_mask = 1 << (8 * x.dtype.itemsize - 1)
    magnitude = bits & (sign_mask - 1)
    outward = hlo.equal(hlo.less(x, y), hlo.equal(bits & sign_mask, 0))
    moved = hlo.select(outward, bits + 1, bits - 1)
    from_zero = hlo.select(sign_bit(y), sign_mask | 1, hlo.full_like(bits, 1))
    result = hlo.bitcast(hlo.select(hlo.equal(magnitude, 0), from_zero, moved), x.dtype)
    result = hlo.select(hlo.equal(x, y), y, result)
    return hlo.select(hlo.is_nan(x) | hlo.is_nan(y), math.nan, result)


def integer_power(x: Value, exponent: int) -> Value:
    """x^exponent by squaring, for a constant."""
    result: Value | None = None
    square = x
    rest = abs(exponent)
    while rest:
        if rest & 1:
            result = square if result is None else result * square
        rest >>= 1
        square = square * square if rest else square
    result = hlo.ones_like(x) if result is None else result
    return hlo.reciprocal(result) if exponent < 0 else result


def power(x: Value, exponent: Value) -> Value:
    if x.dtype.is_complex:
        return _complex_power(x, exponent)
    return hlo.power(x, exponent) if x.dtype.is_floating_point else _integer_powers(x, exponent)


def _integer_powers(x: Value, exponent: Value) -> Value:
    """By squaring, until no exponent has a bit left. A negative exponent gives the whole part of the result.

    XLA's own integer power looks at the lowest six bits of the exponent only.
    """
    x, exponent = hlo.broadcast(x, exponent)

    def unfinished(result: Value, square: Value, rest: Value) -> Value:
        return hlo.reduce_or(hlo.greater(rest, 0), range(rest.ndim))

    def step(result: Value, square: Value, rest: Value) -> list[Value]:
        taken = hlo.select(hlo.equal(rest & 1, 0), result, result * square)
        return [taken, square * square, hlo.shift_right_logical(rest, 1)]

    result = hlo.while_loop([hlo.ones_like(x), x, hlo.maximum(exponent, 0)], unfinished, step)[0]
    if hlo.is_unsigned(x.dtype):
        return result
    alternating = hlo.select(hlo.equal(exponent & 1, 0), 1, hlo.full_like(x, -1))
    whole = hlo.select(hlo.equal(x, 1), 1, hlo.select(hlo.equal(x, -1), alternating, 0))
    return hlo.select(hlo.less(exponent, 0), whole, result)


def _complex_power(x: Value, exponent: Value) -> Value:
    """exp(exponent log(x)); 0^0 is 1, 0 to a power with a positive real part is 0."""
    x, exponent = hlo.broadcast(x, exponent)
    zero = hlo.equal(x, 0)
    plain = hlo.power(x, exponent)
    at_zero = hlo.select(hlo.equal(exponent, 0), hlo.ones_like(x), hlo.zeros_like(x))
    known = zero & (hlo.equal(exponent, 0) | hlo.greater(hlo.real(exponent), 0))
    return hlo.select(known, at_zero, plain)


table({"pow.Tensor_Tensor": power, "pow.Scalar": power}, RESULT)


@lowering("pow.Tensor_Scalar", promote=RESULT, static_integral=("exponent",))
def power_of_scalar(ctx: Context, x: Value, exponent: Value | float | int) -> Value:
    """Small whole exponents become products."""
    if isinstance(exponent, Value):
        return power(x, exponent)
    if exponent < 0 and hlo.is_integer(x.dtype):
        raise TypeError("integers to negative integer powers are not integers")
    if exponent == 0.5:
        return square_root(x)
    if abs(exponent) <= 4 or (not x.dtype.is_floating_point and exponent > 0):
        return integer_power(x, int(exponent))
    return power(x, hlo.scalar(exponent, x.dtype))


@lowering("lerp.Scalar", "lerp.Tensor", promote=RESULT)
def interpolate(ctx: Context, start: Value, end: Value, weight: Value) -> Value:
    """From the nearer end, so that weights 0 and 1 give the ends exactly."""
    gap = end - start
    near_start = hlo.less(hlo.abs(weight), 0.5)
    return hlo.select(near_start, start + weight * gap, end - gap * (1 - weight))


@lowering("addcmul", promote=RESULT)
def add_product(ctx: Context, x: Value, y: Value, z: Value, *, value: Value | None = None) -> Value:
    return x + (y if value is None else value * y) * z


@lowering("addcdiv", promote=RESULT)
def add_quotient(ctx: Context, x: Value, y: Value, z: Value, *, value: Value | None = None) -> Value:
    return x + (y if value is None else value * y) / z


@lowering("ldexp.Tensor", promote=RESULT)
def load_exponent(ctx: Context, x: Value, exponent: Value) -> Value:
    return x * hlo.power(2.0, exponent)
