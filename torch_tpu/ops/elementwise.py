"""Element-wise lowerings of one tensor, selection (where, clamp) and casts.

Tables hold rows of (ATen overload, builder of values); a lowering that needs its attributes is a function. Binary
arithmetic is in `arithmetic.py`; comparisons, logic and bits are in `compare.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import NONE, RESULT, Context, Promote, lowering, number

Builder = Callable[..., Value]


def table(rows: Mapping[str, Builder], promote: Promote, fitted: Sequence[str] = ()) -> None:
    """Registers builders that take the call's values and nothing else."""

    def without_context(builder: Builder) -> Builder:
        return lambda ctx, *values: builder(*values)

    for op, builder in rows.items():
        lowering(op, promote=promote, fitted=fitted)(without_context(builder))


def _unless_integer(builder: Builder) -> Builder:
    """Rounding does nothing to integers and bool."""
    return lambda x: builder(x) if x.dtype.is_floating_point or x.dtype.is_complex else x


@_unless_integer
def truncate(x: Value) -> Value:
    """Rounds toward zero; -0.5 gives -0.0."""
    return hlo.select(hlo.less(x, 0), hlo.ceil(x), hlo.floor(x))


def fraction(x: Value) -> Value:
    return x - truncate(x)


def sign(x: Value) -> Value:
    """-1, 0 or 1, where NaN gives 0 as in PyTorch."""
    if x.dtype is torch.bool:
        return x
    return hlo.convert(hlo.greater(x, 0), x.dtype) - hlo.convert(hlo.less(x, 0), x.dtype)


def complex_sign(x: Value) -> Value:
    """x / |x|, and 0 for 0."""
    if not x.dtype.is_complex:
        return sign(x)
    size = hlo.abs(x)
    zero = hlo.equal(size, 0)
    divisor = hlo.select(zero, 1, size)
    unit = hlo.make_complex(hlo.real(x) / divisor, hlo.imag(x) / divisor)
    return hlo.select(zero, hlo.zeros_like(x), unit)


def sign_bit(x: Value) -> Value:
    """True for negative numbers, -0.0 and NaN with the sign bit."""
    if not x.dtype.is_floating_point:
        return hlo.full_like(x, False, torch.bool) if hlo.is_unsigned(x.dtype) else hlo.less(x, hlo.zeros_like(x))
    bits = hlo.bitcast(x, hlo.bits_dtype(x.dtype))
    return hlo.greater_equal(bits, 1 << (8 * x.dtype.itemsize - 1))


def copy_sign(x: Value, y: Value) -> Value:
    size = hlo.abs(x)
    return hlo.select(sign_bit(y), -size, size)


def is_nan(x: Value) -> Value:
    return hlo.is_nan(x) if _has_infinity(x) else hlo.full_like(x, False, torch.bool)


def is_inf(x: Value) -> Value:
    """For complex numbers, whether either part is infinite."""
    if x.dtype.is_complex:
        return hlo.is_inf(hlo.real(x)) | hlo.is_inf(hlo.imag(x))
    return hlo.is_inf(x) if _has_infinity(x) else hlo.full_like(x, False, torch.bool)


def _is_infinity(number: float) -> Builder:
    return lambda x: hlo.equal(x, number) if _has_infinity(x) else hlo.full_like(x, False, torch.bool)


def _has_infinity(x: Value) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def scaled(x: Value, factor: float) -> Value:
    """x times a real constant; part by part, as a complex product would make NaN of infinite parts."""
    if x.dtype.is_complex:
        return hlo.make_complex(hlo.real(x) * factor, hlo.imag(x) * factor)
    return x * factor


def _half_exponential(size: Value) -> Value:
    """exp(size) / 2 for size >= 0, infinite only where that is."""
    far = hlo.greater(size, 64)
    root = hlo.exponential(hlo.select(far, size * 0.5, size))
    return root * 0.5 * hlo.select(far, root, 1)


def _cosh(x: Value) -> Value:
    """XLA's, exp(x - log 2), loses as many digits as x - log 2 has before the point."""
    half = _half_exponential(hlo.abs(x))
    return half + 0.25 / half


def _sinh(x: Value) -> Value:
    size = hlo.abs(x)
    half, excess = _half_exponential(size), hlo.expm1(hlo.minimum(size, 1))
    near = 0.5 * (excess + excess / (excess + 1))
    return copy_sign(hlo.select(hlo.less(size, 1), near, half - 0.25 / half), x)


def sine(x: Value) -> Value:
    """Complex functions are written out, as XLA's own lose the digits of a small imaginary part."""
    if not x.dtype.is_complex:
        return hlo.sine(x)
    re, im = hlo.real(x), hlo.imag(x)
    return hlo.make_complex(hlo.sine(re) * _cosh(im), hlo.cosine(re) * _sinh(im))


def cosine(x: Value) -> Value:
    if not x.dtype.is_complex:
        return hlo.cosine(x)
    re, im = hlo.real(x), hlo.imag(x)
    return hlo.make_complex(hlo.cosine(re) * _cosh(im), -(hlo.sine(re) * _sinh(im)))


def hyperbolic_sine(x: Value) -> Value:
    if not x.dtype.is_complex:
        return _sinh(x)
    re, im = hlo.real(x), hlo.imag(x)
    return hlo.make_complex(_sinh(re) * hlo.cosine(im), _cosh(re) * hlo.sine(im))


def hyperbolic_cosine(x: Value) -> Value:
    if not x.dtype.is_complex:
        return _cosh(x)
    re, im = hlo.real(x), hlo.imag(x)
    return hlo.make_complex(_cosh(re) * hlo.cosine(im), _sinh(re) * hlo.sine(im))


def _signed(builder: Builder, part: int, flip: bool = False) -> Builder:
    """A complex function with a branch cut: its real (0) or imaginary (1) part has, up to a flip, the sign of the
    argument's same part, also of a zero on the cut."""

    def corrected(x: Value) -> Value:
        result = builder(x)
        if not x.dtype.is_complex:
            return result
        given, parts = (hlo.real(x), hlo.imag(x))[part], [hlo.real(result), hlo.imag(result)]
        parts[part] = copy_sign(parts[part], -given if flip else given)
        return hlo.make_complex(*parts)

    return corrected


square_root = _signed(hlo.sqrt, 1)


def inverse_square_root(x: Value) -> Value:
    return hlo.reciprocal(square_root(x)) if x.dtype.is_complex else hlo.rsqrt(x)


def _logarithm(base: float) -> Builder:
    """log(x) / log(base), corrected so that powers of the base give whole numbers."""

    def builder(x: Value) -> Value:
        if x.dtype.is_complex:
            return scaled(hlo.log(x), 1 / math.log(base))
        estimate = hlo.log(x) / math.log(base)
        whole = hlo.round_nearest_even(estimate)
        return hlo.select(hlo.equal(hlo.power(base, whole), x), whole, estimate)

    return builder


def exp2(x: Value) -> Value:
    return hlo.exponential(scaled(x, math.log(2))) if x.dtype.is_complex else hlo.power(2.0, x)


def sigmoid(x: Value) -> Value:
    return hlo.reciprocal(hlo.exponential(-x) + 1) if x.dtype.is_complex else hlo.logistic(x)


def sinc(x: Value) -> Value:
    """sin(pi x) / (pi x), and 1 at 0."""
    angle = scaled(x, math.pi)
    zero = hlo.equal(x, 0)
    return hlo.select(zero, 1, sine(angle) / hlo.select(zero, 1, angle))


table(
    {
        "acos": _signed(hlo.acos, 1, flip=True),
        "acosh": _signed(hlo.acosh, 1),
        "asin": _signed(hlo.asin, 1),
        "asinh": _signed(hlo.asinh, 0),
        "atan": _signed(hlo.atan, 0),
        "atanh": _signed(hlo.atanh, 1),
        "ceil": _unless_integer(hlo.ceil),
        "cos": cosine,
        "cosh": hyperbolic_cosine,
        "deg2rad": lambda x: x * (math.pi / 180),
        "exp": hlo.exponential,
        "exp2": exp2,
        "expm1": hlo.expm1,
        "floor": _unless_integer(hlo.floor),
        "frac": fraction,
        "log": hlo.log,
        "log10": _logarithm(10.0),
        "log1p": hlo.log1p,
        "log2": _logarithm(2.0),
        "neg": hlo.negate,
        "rad2deg": lambda x: x * (180 / math.pi),
        "reciprocal": hlo.reciprocal,
        "round": _unless_integer(hlo.round_nearest_even),
        "rsqrt": inverse_square_root,
        "sgn": complex_sign,
        "sigmoid": sigmoid,
        "sign": sign,
        "sin": sine,
        "sinc": sinc,
        "sinh": hyperbolic_sine,
        "sqrt": square_root,
        "tan": hlo.tangent,
        "tanh": hlo.tanh,
        "trunc": truncate,
    },
    RESULT,
)

table(
    {
        "abs": hlo.abs,
        "isinf": is_inf,
        "isnan": is_nan,
        "isneginf": _is_infinity(-math.inf),
        "isposinf": _is_infinity(math.inf),
        "signbit": sign_bit,
    },
    NONE,
)


@lowering("_to_copy")
def to_copy(ctx: Context, x: Value, dtype: torch.dtype | None = None, non_blocking: bool = False) -> Value:
    return x  # cast to ctx.out's dtype by the registry


@lowering("copy")
def copy(ctx: Context, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """The source in the shape and dtype of x."""
    return hlo.broadcast_to(hlo.convert(source, x.dtype), x.shape)


@lowering("round.decimals", promote=RESULT)
def round_decimals(ctx: Context, x: Value, *, decimals: int = 0) -> Value:
    """rint(x 10^d) / 10^d; with negative d the power is divided by first, as 10^-d is not exact."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return x
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return hlo.round_nearest_even(x / scale) * scale
    return hlo.round_nearest_even(x * scale) / scale if decimals else hlo.round_nearest_even(x)


@lowering("nan_to_num", promote=RESULT, data=("nan", "posinf", "neginf"))
def nan_to_num(
    ctx: Context,
    x: Value,
    nan: Value | float | None = None,
    posinf: Value | float | None = None,
    neginf: Value | float | None = None,
) -> Value:
    if x.dtype.is_complex:
        parts = [_replace(part, part.dtype, nan, posinf, neginf) for part in (hlo.real(x), hlo.imag(x))]
        return hlo.make_complex(*parts)
    return _replace(x, ctx.out.dtype, nan, posinf, neginf) if x.dtype.is_floating_point else x


def _replace(x: Value, dtype: torch.dtype, *given: Value | float | None) -> Value:
    """`given` are the numbers in place of NaN, inf and -inf, or None."""
    limits = torch.finfo(dtype)
    nan, above, below = (
        number(default if instead is None else instead, x.dtype)
        for instead, default in zip(given, (0.0, limits.max, limits.min), strict=True)
    )
    x = hlo.select(hlo.equal(x, math.inf), above, x)
    x = hlo.select(hlo.equal(x, -math.inf), below, x)
    return hlo.select(hlo.is_nan(x), nan, x)


@lowering("frexp.Tensor")
def frexp(ctx: Context, x: Value) -> list[Value]:
    """x = mantissa 2^exponent with the mantissa in [0.5, 1), from the bits of x.

    Integer arithmetic throughout, as XLA's float arithmetic may flush subnormal numbers to zero.
    """
    dtype = hlo.compute_dtype(x.dtype)
    x = hlo.convert(x, dtype)
    width, fraction_bits = (32, 23) if dtype is torch.float32 else (64, 52)
    bias = 126 if width == 32 else 1022
    bits_dtype = hlo.bits_dtype(dtype)
    bits = hlo.bitcast(x, bits_dtype)
    sign_mask, fraction_mask = 1 << (width - 1), (1 << fraction_bits) - 1
    magnitude = bits & (sign_mask - 1)
    field = hlo.shift_right_logical(magnitude, fraction_bits)
    # A subnormal number is shifted left until its leading one stands where the implicit one would.
    shift = hlo.count_leading_zeros(magnitude) - (width - 1 - fraction_bits)
    subnormal = hlo.equal(field, 0)
    digits = hlo.select(subnormal, hlo.shift_left(magnitude, shift), bits) & fraction_mask
    one = hlo.full_like(bits, 1)
    raised = hlo.convert(hlo.select(subnormal, one, field), torch.int32)
    exponent = raised - bias - hlo.select(subnormal, hlo.convert(shift, torch.int32), 0)
    mantissa = hlo.bitcast((bits & sign_mask) | digits | (bias << fraction_bits), dtype)
    as_it_is = hlo.equal(magnitude, 0) | hlo.equal(field, (1 << (width - 1 - fraction_bits)) - 1)
    return [hlo.select(as_it_is, x, mantissa), hlo.select(as_it_is, 0, exponent)]


@lowering("where.self")
def where(ctx: Context, condition: Value, x: Value, y: Value) -> Value:
    dtype = ctx.out.dtype
    return hlo.select(hlo.convert(condition, torch.bool), hlo.convert(x, dtype), hlo.convert(y, dtype))


@lowering("clamp", "clamp.Tensor", promote=RESULT, fitted=("min", "max"))
def clamp(ctx: Context, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    """The upper bound wins over the lower one; NaN in any of the three stays."""
    if min is not None:
        x = hlo.maximum(x, min)
    return hlo.minimum(x, max) if max is not None else x


table(
    {
        "clamp_max": hlo.minimum,
        "clamp_max.Tensor": hlo.minimum,
        "clamp_min": hlo.maximum,
        "clamp_min.Tensor": hlo.maximum,
    },
    RESULT,
    fitted=("min", "max"),
)


@lowering("logit", promote=RESULT, data=("eps",))
def logit(ctx: Context, x: Value, eps: Value | float | None = None) -> Value:
    if eps is not None:
        x = hlo.clamp(eps, x, 1 - eps)
    return hlo.log(x / (1 - x))


@lowering("logit_backward", promote=RESULT, data=("eps",))
def logit_backward(ctx: Context, grad: Value, x: Value, eps: Value | float | None = None) -> Value:
    """grad / (x (1 - x)) inside [eps, 1 - eps]; outside 0, or NaN where there is no eps."""
    low = 0.0 if eps is None else eps
    outside = hlo.less(x, low) | hlo.greater(x, 1 - low)
    return hlo.select(outside, math.nan if eps is None else 0.0, grad / (x * (1 - x)))
