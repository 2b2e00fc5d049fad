"""Linear algebra that needs no decomposition: cross products and the matrix exponential.

Decompositions are in `decompositions.py`, solvers in `solve.py`, products in `matmul.py` and norms in
`reduction.py`.
"""

from __future__ import annotations

import math

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.matrix_loops import identity, matmul
from torch_tpu.ops.registry import RESULT, Context, lowering


@lowering("linalg_cross", promote=RESULT)
def linalg_cross(ctx: Context, x: Value, y: Value, *, dim: int = -1) -> Value:
    x, y = hlo.broadcast(x, y)

    def turned(value: Value, by: int) -> Value:
        parts = [hlo.index_in_dim(value, dim, (index + by) % 3, keep_dim=True) for index in range(3)]
        return hlo.concatenate(parts, dim)

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)


_TERMS = 20
_LARGEST_NORM = {torch.float32: 3.0, torch.float64: 1.0}
"""Up to here 20 terms of the series are enough: norm^20 / 20! is below that precision's epsilon."""


@lowering("linalg_matrix_exp", promote=RESULT)
def linalg_matrix_exp(ctx: Context, a: Value) -> Value:
    """exp(a) = exp(a / 2^s)^(2^s): Taylor's series by Paterson and Stockmeyer's scheme, then s squarings.

    Each matrix of the batch has its own s, so that its 1-norm is below the limit.
    """
    if a.numel == 0:
        return a
    real = hlo.real_dtype(a.dtype)
    norm = hlo.reduce_max(hlo.reduce_sum(hlo.abs(a), [-2]), [-1])
    excess = hlo.multiply(hlo.log(norm / _LARGEST_NORM[real]), 1 / math.log(2))
    count = hlo.convert(hlo.clamp(0, hlo.ceil(excess), 1100), torch.int32)
    count = hlo.select(hlo.is_finite(norm), count, 0)
    factor = hlo.power(hlo.full(norm.shape, 0.5, real), hlo.convert(count, real))
    scaled = hlo.multiply(a, hlo.expand_dims(hlo.convert(factor, a.dtype), [-1, -2]))
    powers = [hlo.broadcast_to(identity(a.shape[-2:], a.dtype), a.shape), scaled]
    for _ in range(4):
        powers.append(matmul(powers[-1], scaled))
    total: Value | None = None
    for start in range(_TERMS - 5, -1, -5):
        block = hlo.zeros_like(a)
        for index in range(5):
            block = block + powers[index] * (1 / math.factorial(start + index))
        total = block if total is None else matmul(total, powers[5]) + block
    assert total is not None

    def square(index: Value, value: Value) -> list[Value]:
        again = hlo.expand_dims(hlo.less(index, count), [-1, -2])
        return [hlo.select(again, matmul(value, value), value)]

    most = hlo.reduce_max(count, range(count.ndim))
    return hlo.fori_loop(most, [total], square)[0]
