"""Element-wise lowerings. Rows are (ATen overload, StableHLO builder)."""

from __future__ import annotations

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import COMMON, RESULT, Context, lowering


@lowering("add.Tensor", "add.Scalar", promote=RESULT)
def add(ctx: Context, x: Value, y: Value, alpha: Value | int = 1) -> Value:
    if isinstance(alpha, Value):
        y = hlo.multiply(y, alpha)
    return x + y if x.dtype.is_floating_point or hlo.is_integer(x.dtype) or x.dtype.is_complex else x | y


@lowering("eq.Tensor", "eq.Scalar", promote=COMMON)
def eq(ctx: Context, x: Value, y: Value) -> Value:
    return hlo.equal(x, y)
