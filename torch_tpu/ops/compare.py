"""Comparisons, logic, bits and shifts."""

from __future__ import annotations

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.elementwise import Builder, table
from torch_tpu.ops.registry import COMMON, NONE, RESULT

table(
    {
        f"{name}.{overload}": builder
        for overload in ("Tensor", "Scalar")
        for name, builder in (
            ("eq", hlo.equal),
            ("ne", hlo.not_equal),
            ("lt", hlo.less),
            ("le", hlo.less_equal),
            ("gt", hlo.greater),
            ("ge", hlo.greater_equal),
        )
    },
    COMMON,
)


def _of_truth(builder: Builder) -> Builder:
    """Applies a bitwise function to whether the values are non-zero."""
    return lambda *values: builder(*(hlo.convert(value, torch.bool) for value in values))


table(
    {
        "logical_and": _of_truth(hlo.bitwise_and),
        "logical_not": _of_truth(hlo.bitwise_not),
        "logical_or": _of_truth(hlo.bitwise_or),
        "logical_xor": _of_truth(hlo.bitwise_xor),
    },
    NONE,
)

table(
    {
        f"bitwise_{name}.{overload}": builder
        for overload in ("Tensor", "Scalar", "Scalar_Tensor")
        for name, builder in (("and", hlo.bitwise_and), ("or", hlo.bitwise_or), ("xor", hlo.bitwise_xor))
    },
    RESULT,
)


def shift_left(x: Value, count: Value) -> Value:
    """x 2^count for floats. For integers the count is unsigned to XLA: beyond the width or negative gives 0."""
    if x.dtype.is_floating_point:
        return x * hlo.power(2.0, count)
    return hlo.shift_left(x, count)


def shift_right(x: Value, count: Value) -> Value:
    """x 2^-count for floats. Integers keep their sign; a count beyond the width or negative leaves only the sign."""
    if x.dtype.is_floating_point:
        return x / hlo.power(2.0, count)
    return hlo.shift_right_logical(x, count) if hlo.is_unsigned(x.dtype) else hlo.shift_right_arithmetic(x, count)


table(
    {
        "bitwise_not": hlo.bitwise_not,
        **{f"bitwise_left_shift.{name}": shift_left for name in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")},
        **{f"bitwise_right_shift.{name}": shift_right for name in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")},
        **{f"__lshift__.{name}": shift_left for name in ("Tensor", "Scalar")},
        **{f"__rshift__.{name}": shift_right for name in ("Tensor", "Scalar")},
    },
    RESULT,
)
