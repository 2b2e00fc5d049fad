"""Constants, conversions and element-wise operations.

Binary functions broadcast as numpy does and take Python numbers for either side; two values must agree in dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tpu.hlo import types
from torch_tpu.hlo.core import Number, Value, block, current, emit
from torch_tpu.hlo.dims import Computed, Dim, varies
from torch_tpu.hlo.types import tensor_type


def full(shape: Sequence[int], number: Number, dtype: torch.dtype) -> Value:
    """A tensor of one repeated constant."""
    if isinstance(number, Dim):
        return broadcast_in_dim(layout.size_value(number, dtype), shape, ())
    if isinstance(number, Computed):
        return broadcast_in_dim(layout.computed_value(number, dtype), shape, ())
    if current().sizes and varies(shape):
        return layout.full(shape, number, dtype)
    key = (tuple(shape), types.scalar_text(number, dtype), dtype)
    constants = block().constants
    if key not in constants:
        kind = tensor_type(key[0], dtype)
        constants[key] = emit(f"stablehlo.constant dense<{key[1]}> : {kind}", shape, dtype)
    return constants[key]


def scalar(number: Number, dtype: torch.dtype) -> Value:
    return full((), number, dtype)


def literal(data: Any, dtype: torch.dtype) -> Value:
    """A constant tensor from nested lists or a CPU tensor. Keep it small: the numbers stand in the program."""
    tensor = data if isinstance(data, torch.Tensor) else torch.tensor(data, dtype=dtype)
    tensor = tensor.to(dtype).contiguous().cpu()
    if tensor.numel() == 0:
        return full(tuple(tensor.shape), 0, dtype)
    texts = [types.scalar_text(number, dtype) for number in tensor.reshape(-1).tolist()]

    def nest(shape: tuple[int, ...], start: int) -> str:
        if not shape:
            return texts[start]
        step = 1
        for size in shape[1:]:
            step *= size
        return "[" + ", ".join(nest(shape[1:], start + index * step) for index in range(shape[0])) + "]"

    text = nest(tuple(tensor.shape), 0)
    kind = tensor_type(tuple(tensor.shape), dtype)
    return emit(f"stablehlo.constant dense<{text}> : {kind}", tuple(tensor.shape), dtype)


def full_like(x: Value, number: Number, dtype: torch.dtype | None = None) -> Value:
    return full(x.shape, number, dtype or x.dtype)


def zeros_like(x: Value) -> Value:
    return full_like(x, 0)


def ones_like(x: Value) -> Value:
    return full_like(x, 1)


def iota(shape: Sequence[int], dim: int, dtype: torch.dtype = torch.int64) -> Value:
    """0, 1, 2, ... along one dimension, repeated over the others."""
    if current().sizes and isinstance(shape[dim], Dim):
        return layout.iota(shape, dim, dtype)
    return emit(f"stablehlo.iota dim = {dim} : {tensor_type(tuple(shape), dtype)}", shape, dtype)


def convert(x: Value, dtype: torch.dtype) -> Value:
    """PyTorch's cast: complex to real drops the imaginary part, anything to bool tests for non-zero."""
    dtype = types.held_dtype(dtype)
    if x.dtype is dtype:
        return x
    if dtype is torch.bool:
        if x.dtype is torch.float8_e8m0fnu:  # it has no zero
            return compare("GE", bitcast(x, torch.uint8), 0)
        return compare("NE", x, full_like(x, 0))
    if x.dtype.is_complex and not dtype.is_complex:
        return convert(real(x), dtype)
    if types.is_float8(dtype) and x.dtype not in types.ROUNDED_TO_FLOAT8:
        return convert(convert(x, torch.float32), dtype)
    if x.dtype is torch.bool and (dtype.is_floating_point or dtype.is_complex):
        # XLA makes a choice between y and 0 of the product of a converted bool and y, which NaN and infinity must not be.
        return subtract(1, _converted(bitwise_not(x), dtype))
    if dtype is torch.float8_e4m3fn and types.SATURATES:
        x = clamp(-types.LARGEST_E4M3, x, types.LARGEST_E4M3)
    if dtype is torch.float8_e8m0fnu:
        return _power_of_two(convert(x, torch.float32))
    if x.dtype.is_floating_point and types.is_unsigned(dtype):
        x = convert(x, torch.int64)  # negative numbers wrap, as in PyTorch; XLA alone would clamp them at zero
    elif x.dtype.is_floating_point and types.is_integer(dtype) and dtype.itemsize < 4:
        x = convert(x, torch.int32)
    return _converted(x, dtype)


def _power_of_two(x: Value) -> Value:
    """float32 as float8_e8m0fnu, the exponent alone: PyTorch takes the nearest of the size, where XLA has NaN for numbers
    that are not positive."""
    bits = bitcast(x, torch.int32)
    exponent = bitwise_and(shift_right_logical(bits, 23), 0xFF)
    fraction = bitwise_and(bits, 0x7FFFFF)
    half = bitwise_and(compare("EQ", fraction, 0x400000), compare("GT", exponent, 0))
    upwards = bitwise_and(bitwise_or(compare("GT", fraction, 0x400000), half), compare("LT", exponent, 0xFF))
    return bitcast(_converted(add(exponent, convert(upwards, torch.int32)), torch.uint8), torch.float8_e8m0fnu)


def _converted(x: Value, dtype: torch.dtype) -> Value:
    return emit(f"stablehlo.convert {x.name} : ({x.type}) -> {tensor_type(x.shape, dtype)}", x.shape, dtype)


def bitcast(x: Value, dtype: torch.dtype) -> Value:
    """The same bits as another dtype. A narrower one adds a last dimension, a wider one consumes it."""
    if x.dtype is dtype:
        return x
    old, new = x.dtype.itemsize, dtype.itemsize
    shape = x.shape if old == new else (*x.shape, old // new) if old > new else x.shape[:-1]
    return emit(f"stablehlo.bitcast_convert {x.name} : ({x.type}) -> {tensor_type(shape, dtype)}", shape, dtype)


def broadcast_in_dim(x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Maps dimension i of x to dims[i] of the result; sizes of 1 are repeated."""
    shape = tuple(shape)
    if current().sizes:
        x, shape = layout.for_broadcast(x, shape, dims)
    if x.shape == shape and tuple(dims) == tuple(range(len(shape))):
        return x
    return emit(
        f"stablehlo.broadcast_in_dim {x.name}, dims = [{', '.join(map(str, dims))}] : "
        f"({x.type}) -> {tensor_type(shape, x.dtype)}",
        shape,
        x.dtype,
    )


def broadcast_to(x: Value, shape: Sequence[int]) -> Value:
    """numpy's broadcasting to a shape."""
    shape = tuple(shape)
    return broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape)))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape of several, as numpy broadcasts.

    Raises:
        RuntimeError: they have none.
    """
    result: list[int] = []
    for place in range(-max(map(len, shapes)), 0):
        sizes = {shape[place] for shape in shapes if -place <= len(shape)} - {1}
        if len(sizes) > 1:
            raise RuntimeError(f"shapes {', '.join(str(tuple(shape)) for shape in shapes)} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def broadcast(*given: Value) -> list[Value]:
    """All values brought to their common shape."""
    values = layout.align(given) if current().sizes else given
    first = values[0].shape
    if all(value.shape == first for value in values):
        return list(values)
    shape = broadcast_shapes(*(value.shape for value in values))
    return [broadcast_to(value, shape) for value in values]


def _operands(x: Value | Number, y: Value | Number) -> tuple[Value, Value]:
    if not isinstance(x, Value):
        assert isinstance(y, Value), "one side of a binary operation must be a Value"
        x = scalar(x, y.dtype)
    elif not isinstance(y, Value):
        y = scalar(y, x.dtype)
    assert x.dtype is y.dtype, f"dtypes differ: {x} and {y}; convert first"
    if x.shape != y.shape or current().sizes:
        x, y = broadcast(x, y)
    return x, y


def _binary(name: str) -> Callable[[Value | Number, Value | Number], Value]:
    def function(x: Value | Number, y: Value | Number) -> Value:
        x, y = _operands(x, y)
        return emit(f"stablehlo.{name} {x.name}, {y.name} : {x.type}", x.shape, x.dtype)

    function.__name__ = name
    return function


def _ordered(function: Callable[..., Value], name: str) -> Callable[..., Value]:
    """An operation on numbers that have an order. XLA ends the process over some of them on complex ones."""

    def checked(*values: Value | Number) -> Value:
        for value in values:
            if value.dtype.is_complex if isinstance(value, Value) else isinstance(value, complex):
                raise TypeError(f"{name} is not defined for complex numbers")
        return function(*values)

    checked.__name__ = name
    return checked


def _division(name: str) -> Callable[[Value | Number, Value | Number], Value]:
    plain = _binary(name)

    def function(x: Value | Number, y: Value | Number) -> Value:
        can_be_zero = isinstance(y, Value) or y == 0
        x, y = _operands(x, y)
        if current().narrow and x.dtype in (torch.int64, torch.uint64):
            from torch_tpu.hlo import division

            return division.of_integers(x, y)[name == "remainder"]
        if x.dtype.is_floating_point or x.dtype.is_complex or not can_be_zero:
            return plain(x, y)
        # XLA's answers to a division by zero, written out: where it knows both numbers, and of empty tensors it thinks
        # it does, it divides while it compiles, and the process ends.
        zero, ones = equal(y, 0), -1 if x.dtype.is_signed else torch.iinfo(x.dtype).max
        return select(zero, x if name == "remainder" else ones, plain(x, select(zero, 1, y)))

    function.__name__ = name
    return function


def _unary(name: str) -> Callable[[Value], Value]:
    def function(x: Value) -> Value:
        return emit(f"stablehlo.{name} {x.name} : {x.type}", x.shape, x.dtype)

    function.__name__ = name
    return function


def _chlo_unary(name: str, to_bool: bool = False) -> Callable[[Value], Value]:
    def function(x: Value) -> Value:
        dtype = torch.bool if to_bool else x.dtype
        return emit(f"chlo.{name} {x.name} : {x.type} -> {tensor_type(x.shape, dtype)}", x.shape, dtype)

    function.__name__ = name
    return function


def _chlo_binary(name: str) -> Callable[[Value | Number, Value | Number], Value]:
    def function(x: Value | Number, y: Value | Number) -> Value:
        x, y = _operands(x, y)
        return emit(f"chlo.{name} {x.name}, {y.name} : {x.type}, {y.type} -> {x.type}", x.shape, x.dtype)

    function.__name__ = name
    return function


add, subtract, multiply = map(_binary, ("add", "subtract", "multiply"))
divide, remainder = _division("divide"), _division("remainder")  # of integers C's: the sign of the dividend
power = _binary("power")
maximum, minimum, atan2 = (_ordered(_binary(name), name) for name in ("maximum", "minimum", "atan2"))  # NaN wins
bitwise_and, bitwise_or, bitwise_xor = _binary("and"), _binary("or"), _binary("xor")
shift_left, shift_right_logical = _binary("shift_left"), _binary("shift_right_logical")
shift_right_arithmetic = _binary("shift_right_arithmetic")
next_after, zeta, polygamma = _chlo_binary("next_after"), _chlo_binary("zeta"), _chlo_binary("polygamma")

negate, sign, bitwise_not = _unary("negate"), _unary("sign"), _unary("not")
exponential, expm1 = _unary("exponential"), _unary("exponential_minus_one")
log, log1p, logistic = _unary("log"), _unary("log_plus_one"), _unary("logistic")
sqrt, rsqrt, cbrt = _unary("sqrt"), _unary("rsqrt"), _unary("cbrt")
sine, cosine, tangent, tanh = _unary("sine"), _unary("cosine"), _unary("tan"), _unary("tanh")
floor, ceil = (_ordered(_unary(name), name) for name in ("floor", "ceil"))
round_nearest_even = _ordered(_unary("round_nearest_even"), "round")
round_nearest_away = _ordered(_unary("round_nearest_afz"), "round")
popcnt, count_leading_zeros = _unary("popcnt"), _unary("count_leading_zeros")
sinh, cosh = _chlo_unary("sinh"), _chlo_unary("cosh")
asin, acos, atan = _chlo_unary("asin"), _chlo_unary("acos"), _chlo_unary("atan")
asinh, acosh, atanh = _chlo_unary("asinh"), _chlo_unary("acosh"), _chlo_unary("atanh")
erf, erfc, erf_inv = _chlo_unary("erf"), _chlo_unary("erfc"), _chlo_unary("erf_inv")
lgamma, digamma, bessel_i1e = _chlo_unary("lgamma"), _chlo_unary("digamma"), _chlo_unary("bessel_i1e")


def abs(x: Value) -> Value:
    """The magnitude; real for complex values, unchanged for unsigned ones."""
    if types.is_unsigned(x.dtype) or x.dtype is torch.bool:
        return x
    dtype = types.real_dtype(x.dtype)
    return emit(f"stablehlo.abs {x.name} : ({x.type}) -> {tensor_type(x.shape, dtype)}", x.shape, dtype)


def is_finite(x: Value) -> Value:
    """For floating point only."""
    return emit(f"stablehlo.is_finite {x.name} : ({x.type}) -> {tensor_type(x.shape, torch.bool)}", x.shape, torch.bool)


def is_nan(x: Value) -> Value:
    return compare("NE", x, x)


def is_inf(x: Value) -> Value:
    return compare("EQ", abs(x), float("inf"))


def real(x: Value) -> Value:
    if not x.dtype.is_complex:
        return x
    dtype = types.real_dtype(x.dtype)
    return emit(f"stablehlo.real {x.name} : ({x.type}) -> {tensor_type(x.shape, dtype)}", x.shape, dtype)


def imag(x: Value) -> Value:
    if not x.dtype.is_complex:
        return zeros_like(x)
    dtype = types.real_dtype(x.dtype)
    return emit(f"stablehlo.imag {x.name} : ({x.type}) -> {tensor_type(x.shape, dtype)}", x.shape, dtype)


def make_complex(re: Value | Number, im: Value | Number) -> Value:
    re, im = _operands(re, im)
    dtype = types.complex_dtype(re.dtype)
    return emit(
        f"stablehlo.complex {re.name}, {im.name} : ({re.type}, {im.type}) -> {tensor_type(re.shape, dtype)}",
        re.shape,
        dtype,
    )


def conj(x: Value) -> Value:
    return make_complex(real(x), negate(imag(x))) if x.dtype.is_complex else x


def compare(direction: str, x: Value | Number, y: Value | Number) -> Value:
    """Element-wise comparison; direction is EQ, NE, LT, LE, GT or GE.

    Raises:
        TypeError: values are complex, and the comparison is not one of equality.
    """
    x, y = _operands(x, y)
    if x.dtype.is_complex and direction not in ("EQ", "NE"):
        raise TypeError("complex numbers have no order")
    if x.dtype.is_complex or x.dtype.is_floating_point:
        kind = "FLOAT"
    else:
        kind = "UNSIGNED" if types.is_unsigned(x.dtype) or x.dtype is torch.bool else "SIGNED"
    result = tensor_type(x.shape, torch.bool)
    return emit(
        f"stablehlo.compare {direction}, {x.name}, {y.name}, {kind} : ({x.type}, {y.type}) -> {result}",
        x.shape,
        torch.bool,
    )


def _comparison(direction: str) -> Callable[[Value | Number, Value | Number], Value]:
    def function(x: Value | Number, y: Value | Number) -> Value:
        return compare(direction, x, y)

    function.__name__ = direction.lower()
    return function


equal, not_equal = _comparison("EQ"), _comparison("NE")
less, less_equal = _comparison("LT"), _comparison("LE")
greater, greater_equal = _comparison("GT"), _comparison("GE")


def select(condition: Value, x: Value | Number, y: Value | Number) -> Value:
    """x where the condition holds, else y; all three broadcast."""
    x, y = _operands(x, y)
    condition, x, y = broadcast(condition, x, y)
    return emit(f"stablehlo.select {condition.name}, {x.name}, {y.name} : {condition.type}, {x.type}", x.shape, x.dtype)


def clamp(low: Value | Number, x: Value, high: Value | Number) -> Value:
    """min(max(x, low), high) where a NaN in x stays NaN (XLA's own clamp may lose it)."""
    return minimum(maximum(x, low), high)


def reduce_precision(x: Value, exponent_bits: int, mantissa_bits: int) -> Value:
    return emit(
        f"stablehlo.reduce_precision {x.name}, format = e{exponent_bits}m{mantissa_bits} : {x.type}",
        x.shape,
        x.dtype,
    )


def round_to(x: Value, dtype: torch.dtype) -> Value:
    """x with no more precision than dtype has. Unlike a pair of conversions, the compiler cannot leave it out."""
    if dtype is torch.float16:
        return reduce_precision(x, 5, 10)
    return reduce_precision(x, 8, 7) if dtype is torch.bfloat16 else x


def square(x: Value) -> Value:
    return multiply(x, x)


def reciprocal(x: Value) -> Value:
    return divide(1, x)


def quotient(x: Value | Number, y: Value | Number) -> Value:
    """x / y, rounded once: n / n is 1 for every n.

    XLA divides by a constant or a broadcast value by multiplying with its reciprocal, which rounds twice; it does not
    recognize the divisor in a select. Where x is NaN, so is the result.
    """
    left, right = _operands(x, y)
    if left.dtype.is_floating_point and not (isinstance(y, Value) and y.shape == left.shape):
        right = select(compare("NE", left, left), left, right)
    return divide(left, right)


def _flipped(function: Callable[[Any, Any], Value]) -> Callable[[Value, Any], Value]:
    return lambda y, x: function(x, y)


for _name, _function in {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": divide,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
}.items():
    setattr(Value, f"__{_name}__", _function)
    setattr(Value, f"__r{_name}__", _flipped(_function))
Value.__neg__ = negate
Value.__invert__ = bitwise_not

from torch_tpu.hlo import layout  # noqa: E402  it is written with the operations above
