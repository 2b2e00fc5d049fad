"""Making complex tensors and taking them apart."""

from __future__ import annotations

import math

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.elementwise import table
from torch_tpu.ops.registry import NONE, Context, lowering


@lowering("complex")
def make_complex(ctx: Context, real: Value, imaginary: Value) -> Value:
    if real.dtype is torch.float16:  # complex32, which XLA lacks
        real, imaginary = hlo.convert(real, torch.float32), hlo.convert(imaginary, torch.float32)
    made = hlo.make_complex(real, imaginary)
    if (
        ctx.outs and hlo.types.held_dtype(ctx.out.dtype) is not made.dtype
    ):  # of out=, which PyTorch does not cast to here
        raise RuntimeError(f"expected a result of {made.dtype} but got {ctx.out.dtype}")
    return made


@lowering("polar")
def polar(ctx: Context, size: Value, angle: Value) -> Value:
    return make_complex(ctx, size * hlo.cosine(angle), size * hlo.sine(angle))


def angle(x: Value) -> Value:
    """The argument: of real numbers 0 or pi, of NaN NaN."""
    if x.dtype.is_complex:
        return hlo.atan2(hlo.imag(x), hlo.real(x))
    x = x if x.dtype.is_floating_point else hlo.convert(x, torch.float32)
    return hlo.select(hlo.is_nan(x), x, hlo.select(hlo.less(x, 0), math.pi, hlo.zeros_like(x)))


def view_as_real(x: Value) -> Value:
    return hlo.stack([hlo.real(x), hlo.imag(x)], -1)


def view_as_complex(x: Value) -> Value:
    return hlo.make_complex(hlo.index_in_dim(x, -1, 0), hlo.index_in_dim(x, -1, 1))


table(
    {
        "_conj_copy": hlo.conj,
        "_conj_physical": hlo.conj,
        "_neg_view_copy": hlo.negate,
        "angle": angle,
        "view_as_complex_copy": view_as_complex,
        "view_as_real_copy": view_as_real,
    },
    NONE,
)
