"""Operators over lists of tensors: each element goes through the lowering of the operator it is named after, with that
operator's own promotion. XLA fuses what comes out, so that a list costs one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import registry
from torch_tpu.ops.registry import Context, lowering


def _each(single: str, by_name: str | None = None) -> Callable[..., list[Value | None]]:
    """Applies an operator to every element; an argument that is not a list is the same for all.

    Args:
        by_name: the operator takes the last argument (a number or list of numbers) by this name.
    """

    def foreach(ctx: Context, xs: Any, *rest: Any, **shared: Any) -> list[Value | None]:
        rule = registry.LOWERINGS[f"aten::{single}"]
        columns: list[Any] = [xs, *rest]
        named: dict[str, Any] = dict(shared)
        if by_name is not None and len(columns) == 4:
            named[by_name] = columns.pop()
        results: list[Value | None] = []
        for index, spec in enumerate(ctx.outs):
            arguments = [_pick(column, index) for column in columns]
            keywords = {name: _pick(column, index) for name, column in named.items()}
            inner = Context(rule.op, (spec,), ctx.platform)
            results += registry.apply(rule, inner, arguments, keywords)
        return results

    return foreach


def _pick(column: Any, index: int) -> Any:
    return column[index] if isinstance(column, (list, tuple)) else column


UNARY = (
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "max",
)

BINARY: dict[str, tuple[str, str]] = {
    "add": ("add.Tensor", "add.Scalar"),
    "sub": ("sub.Tensor", "sub.Scalar"),
    "mul": ("mul.Tensor", "mul.Scalar"),
    "div": ("div.Tensor", "div.Scalar"),
    "clamp_max": ("clamp_max.Tensor", "clamp_max"),
    "clamp_min": ("clamp_min.Tensor", "clamp_min"),
    "maximum": ("clamp_min.Tensor", "clamp_min"),
    "minimum": ("clamp_max.Tensor", "clamp_max"),
}
"""For each name, what a list and what a number as second argument stand for."""

for _name in UNARY:
    lowering(f"_foreach_{_name}")(_each(_name))
for _name, (_list, _scalar) in BINARY.items():
    lowering(f"_foreach_{_name}.List")(_each(_list))
    lowering(f"_foreach_{_name}.Scalar", f"_foreach_{_name}.ScalarList")(_each(_scalar))
for _name in ("add", "mul", "div"):
    lowering(f"_foreach_{_name}.Tensor")(_each(f"{_name}.Tensor"))
for _name in ("addcmul", "addcdiv"):
    lowering(f"_foreach_{_name}.Scalar", f"_foreach_{_name}.ScalarList")(_each(_name, by_name="value"))
lowering("_foreach_pow.List")(_each("pow.Tensor_Tensor"))
lowering("_foreach_pow.Scalar", static_integral=("exponent",))(_each("pow.Tensor_Scalar"))
lowering("_foreach_pow.ScalarList")(_each("pow.Tensor_Scalar"))
lowering("_foreach_pow.ScalarAndTensor")(_each("pow.Scalar"))
lowering("_foreach_lerp.List")(_each("lerp.Tensor"))
lowering("_foreach_lerp.Scalar", "_foreach_lerp.ScalarList")(_each("lerp.Scalar"))


@lowering("_foreach_norm.Scalar", static=("ord",))
def foreach_norm(ctx: Context, xs: Sequence[Value], ord: float = 2, dtype: torch.dtype | None = None) -> Any:
    keywords = {} if dtype is None else {"dtype": dtype}
    return _each("linalg_vector_norm")(ctx, xs, ord, **keywords)


@lowering("_foreach_powsum.Scalar", static=("ord",))
def foreach_powsum(ctx: Context, xs: Sequence[Value], ord: float = 2, dtype: torch.dtype | None = None) -> list[Value]:
    """sum(|x| ** ord): what a norm is before its root, so that parts of a tensor can be added up."""
    rule = registry.LOWERINGS["aten::pow.Tensor_Scalar"]
    results = []
    for x, spec in zip(xs, ctx.outs, strict=True):
        size = hlo.abs(hlo.convert(x, hlo.compute_dtype(dtype or x.dtype)))
        exponent: Any = ord if float(ord).is_integer() or ord == 0.5 else hlo.scalar(ord, size.dtype)
        inner = Context(rule.op, (registry.Spec(size.shape, size.dtype),), ctx.platform)
        (power,) = registry.apply(rule, inner, [size, exponent], {})
        assert power is not None
        results.append(hlo.convert(hlo.reduce_sum(power, range(power.ndim)), spec.dtype))
    return results


@lowering("_foreach_zero")
def foreach_zero(ctx: Context, xs: Sequence[Value]) -> list[Value]:
    return [hlo.zeros_like(x) for x in xs]


@lowering("_foreach_clone")
def foreach_clone(ctx: Context, xs: Sequence[Value]) -> list[Value]:
    return list(xs)


@lowering("_foreach_copy")
def foreach_copy(ctx: Context, xs: Sequence[Value], sources: Sequence[Value]) -> list[Value]:
    return [hlo.broadcast_to(hlo.convert(source, x.dtype), x.shape) for x, source in zip(xs, sources, strict=True)]
