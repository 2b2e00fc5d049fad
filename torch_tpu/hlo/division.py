"""Division of 64-bit integers in a few operations, for a platform that has 32-bit ones only.

Its compiler writes such a division out bit by bit, which takes it half a minute to compile. Here a quotient is estimated in
float32, from below, and what is left is divided again: four estimates of 18 bits each reach all 64.
"""

from __future__ import annotations

import torch

from torch_tpu.hlo.arith import (
    abs,
    add,
    bitcast,
    convert,
    divide,
    equal,
    floor,
    greater_equal,
    less,
    multiply,
    negate,
    not_equal,
    select,
    subtract,
    zeros_like,
)
from torch_tpu.hlo.core import Value

_ESTIMATES = 4
_BELOW = 1 - 2.0**-18
"""Makes up for the rounding of both operands and of the quotient, each less than 2^-22."""


def of_integers(x: Value, y: Value) -> tuple[Value, Value]:
    """The quotient, rounded toward zero, and the remainder; of a division by zero, as XLA has it, -1 and x."""
    if x.dtype is torch.uint64:
        return _of_unsigned(x, y)
    quotient, rest = _of_unsigned(bitcast(abs(x), torch.uint64), bitcast(abs(y), torch.uint64))
    quotient, rest = bitcast(quotient, torch.int64), bitcast(rest, torch.int64)
    opposite = not_equal(less(x, 0), less(y, 0))
    quotient = select(equal(y, 0), -1, select(opposite, negate(quotient), quotient))
    return quotient, select(less(x, 0), negate(rest), rest)


def _of_unsigned(x: Value, y: Value) -> tuple[Value, Value]:
    nothing = equal(y, 0)
    divisor = select(nothing, 1, y)
    scale = convert(divisor, torch.float32)
    quotient, rest = zeros_like(x), x
    for _ in range(_ESTIMATES):
        estimate = convert(floor(multiply(divide(convert(rest, torch.float32), scale), _BELOW)), torch.uint64)
        quotient, rest = add(quotient, estimate), subtract(rest, multiply(estimate, divisor))
    for _ in range(2):
        more = greater_equal(rest, divisor)
        quotient = select(more, add(quotient, 1), quotient)
        rest = select(more, subtract(rest, divisor), rest)
    return select(nothing, (1 << 64) - 1, quotient), select(nothing, x, rest)
