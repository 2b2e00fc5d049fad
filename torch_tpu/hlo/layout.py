"""Where the real elements of bounded dimensions are: masks, and layouts brought into agreement. See `dims`.

What this file writes itself, it writes in ints: vectors as long as a bound, which `retag` then gives their Dims.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torch_tpu.errors import BoundedError
from torch_tpu.hlo import arith
from torch_tpu.hlo.core import Number, Value, block, current, emit
from torch_tpu.hlo.dims import (
    Computed,
    DifferentSizes,
    Dim,
    Factor,
    Factors,
    as_expr,
    bound,
    dim,
    exact_quotient,
    interval,
    joined,
    merge,
)
from torch_tpu.hlo.types import tensor_type

if TYPE_CHECKING:
    import sympy


def retag(x: Value, shape: Sequence[int]) -> Value:
    """The same value with another account of its shape."""
    return Value(x.name, shape, x.dtype, x.weak)


def position_dtype(size: int) -> torch.dtype:
    return torch.int64 if bound(size) >= 2**31 else torch.int32


# ---- values of sizes


def size_value(size: int, dtype: torch.dtype = torch.int64) -> Value:
    """The size as a scalar of the program."""
    return arith.convert(_evaluate(as_expr(size)), dtype)


def computed_value(number: Computed, dtype: torch.dtype) -> Value:
    """A number that is computed from sizes, in float64 as PyTorch does, as a scalar of the program."""
    known = block().constants
    key = ("number", number.expr)
    if key not in known:
        known[key] = _emit_float(number.expr)
    return arith.convert(known[key], dtype)


_FLOATS = {
    "Add": "add",
    "Mul": "multiply",
    "Max": "maximum",
    "Min": "minimum",
    "FloatTrueDiv": "divide",
    "FloatPow": "power",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exponential",
    "OpaqueUnaryFn_log": "log",
}
"""PyTorch's functions of floats, by the operation that computes them."""


def _emit_float(expr: sympy.Expr) -> Value:
    if expr.is_number:
        return arith.scalar(float(expr), torch.float64)
    name = type(expr).__name__
    if name == "ToFloat":
        return size_value(dim(expr.args[0]), torch.float64)
    if name == "IntTrueDiv":
        return arith.divide(*(size_value(dim(part), torch.float64) for part in expr.args))
    if name not in _FLOATS:
        raise BoundedError(f"the number {expr} cannot be computed in a program")
    operation, parts = getattr(arith, _FLOATS[name]), [_emit_float(part) for part in expr.args]
    return functools.reduce(operation, parts) if len(parts) > 1 else operation(*parts)


def _evaluate(expr: sympy.Expr) -> Value:
    known = block().constants
    key = ("size", expr)
    if key not in known:
        known[key] = _emit_size(expr)
    return known[key]


def _emit_size(expr: sympy.Expr) -> Value:
    if expr.is_Integer:
        return arith.scalar(int(expr), torch.int64)
    if expr.is_Symbol:
        return arith.convert(current().sizes[expr].value, torch.int64)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        base = _evaluate(expr.base)
        return functools.reduce(arith.multiply, [base] * int(expr.exp))
    fold = {"Add": arith.add, "Mul": arith.multiply, "Max": arith.maximum, "Min": arith.minimum}.get(
        type(expr).__name__
    )
    parts = [_evaluate(part) for part in expr.args]
    if fold is not None:
        total = parts[0]
        for part in parts[1:]:
            total = fold(total, part)
        return total
    name = type(expr).__name__
    if name in ("FloorDiv", "CleanDiv"):
        down = arith.divide(parts[0], parts[1])
        inexact = arith.not_equal(arith.multiply(down, parts[1]), parts[0])
        opposite = arith.not_equal(arith.less(parts[0], 0), arith.less(parts[1], 0))
        return arith.subtract(down, arith.convert(arith.bitwise_and(inexact, opposite), torch.int64))
    if name in ("Mod", "PythonMod"):
        rest = arith.remainder(parts[0], parts[1])
        negative = arith.less(rest, 0)
        return arith.select(negative, arith.add(rest, parts[1]), rest)
    raise BoundedError(f"the size {expr} cannot be computed in a program")


def full(shape: Sequence[int], number: Number, dtype: torch.dtype) -> Value:
    """As `hlo.full`, where the layouts do not matter."""
    return retag(arith.full([bound(size) for size in shape], number, dtype), shape)


# ---- indices and masks along one dimension


def coordinates(factors: Factors, dtype: torch.dtype) -> list[Value]:
    """For each factor the index of every element of the dimension, in vectors of its bound."""
    total = 1
    for factor in factors:
        total *= factor.bound
    rest = arith.iota((total,), 0, dtype)
    found = []
    for factor in reversed(factors[1:]):
        found.append(arith.remainder(rest, factor.bound))
        rest = arith.divide(rest, factor.bound)
    return [rest, *reversed(found)]


def logical_index(factors: Factors, dtype: torch.dtype) -> Value:
    """For every element of the dimension its index among the real ones; of padding, anything."""
    parts = coordinates(factors, dtype)
    total = parts[0]
    for factor, part in zip(factors[1:], parts[1:], strict=True):
        total = arith.add(arith.multiply(total, size_value(_int(factor.size), dtype)), part)
    return total


def physical_index(logical: Value, factors: Factors) -> Value:
    """The inverse: where the real element with an index is."""
    places, scale = None, 1
    for factor in reversed(factors[1:]):
        size = size_value(_int(factor.size), logical.dtype)
        part = arith.multiply(arith.remainder(logical, size), scale)
        places = part if places is None else arith.add(places, part)
        logical, scale = arith.divide(logical, size), scale * factor.bound
    first = arith.multiply(logical, scale) if scale != 1 else logical
    return first if places is None else arith.add(places, first)


def _int(size: sympy.Expr) -> int:
    return dim(size)


def real(size: int) -> Value:
    """bool[size]: which elements along a dimension are real."""
    assert isinstance(size, Dim), size
    factors = size.laid_out()
    known, key = block().constants, ("real", factors)
    if key not in known:
        dtype = position_dtype(size)
        found: Value | None = None
        for factor, index in zip(factors, coordinates(factors, dtype), strict=True):
            if factor.varies:
                inside = arith.less(index, size_value(_int(factor.size), dtype))
                found = inside if found is None else arith.bitwise_and(found, inside)
        assert found is not None, "a Dim varies"
        known[key] = found
    return retag(known[key], (size,))


def masked(x: Value, dims: Sequence[int], filling: Value | Number) -> Value:
    """x with padding along some of its dimensions replaced."""
    inside: Value | None = None
    for axis in dims:
        if isinstance(x.shape[axis], Dim):
            one = arith.broadcast_in_dim(real(x.shape[axis]), x.shape, [axis])
            inside = one if inside is None else arith.bitwise_and(inside, one)
    return x if inside is None else arith.select(inside, x, filling)


def iota(shape: Sequence[int], along: int, dtype: torch.dtype) -> Value:
    """As `hlo.iota` where that dimension is bounded: 0, 1, 2, ... for its real elements."""
    size = shape[along]
    assert isinstance(size, Dim)
    factors = size.laid_out()
    if len(factors) > 1:
        index = logical_index(factors, dtype)
    else:
        index = arith.iota((size.bound,), 0, dtype)
    decided = [dim(size.expr, factors) if axis == along else other for axis, other in enumerate(shape)]
    return arith.broadcast_in_dim(retag(index, (decided[along],)), decided, [along])


# ---- layouts brought into agreement


def with_layout(x: Value, axis: int, factors: Factors) -> Value:
    """x with another layout of one bounded dimension."""
    size = x.shape[axis]
    assert isinstance(size, Dim), size
    wanted = dim(size.expr, factors)
    shape = [wanted if other == axis else length for other, length in enumerate(x.shape)]
    if size.factors == factors or (size.factors is None and size.bound == bound(wanted)):
        return retag(x, shape)
    from torch_tpu.hlo import shape as move

    raw = retag(x, [bound(length) for length in x.shape])
    if size.factors is None:  # all alike along it
        one = move.slice_in_dim(raw, axis, 0, 1)
        return retag(arith.broadcast_to(one, [bound(length) for length in shape]), shape)
    if len(size.factors) == len(factors) == 1:
        return retag(resized(raw, axis, bound(wanted)), shape)
    dtype = position_dtype(max(size.bound, bound(wanted)))
    places = physical_index(logical_index(factors, dtype), size.factors)
    return retag(move.take(raw, places, axis), shape)


def resized(x: Value, axis: int, length: int) -> Value:
    """x cut, or padded with zeros, behind its elements along a dimension."""
    from torch_tpu.hlo import shape as move

    if length <= x.shape[axis]:
        return move.slice_in_dim(x, axis, 0, length)
    high = [length - size if other == axis else 0 for other, size in enumerate(x.shape)]
    return move.pad(x, [0] * x.ndim, high)


def compact(x: Value, dims: Sequence[int]) -> Value:
    """x with the real elements of some dimensions first."""
    for axis in dims:
        size = x.shape[axis]
        if isinstance(size, Dim) and not (size.factors is not None and size.is_plain):
            x = with_layout(x, axis, (Factor(size.expr, interval(size)[1]),))
    return x


def align(values: Sequence[Value]) -> list[Value]:
    """Values that are to be broadcast, with one layout for each dimension."""
    rank = max(value.ndim for value in values)
    for place in range(-rank, 0):
        sizes = [v.shape[place] for v in values if -place <= v.ndim]
        chosen = [size.factors for size in sizes if isinstance(size, Dim) and size.factors is not None]
        varying = {size.expr for size in sizes if isinstance(size, Dim)}
        if len(varying) > 1 or (varying and any(size != 1 for size in sizes if not isinstance(size, Dim))):
            raise DifferentSizes(sizes)
        if not chosen:
            chosen = [size.laid_out() for size in sizes if isinstance(size, Dim)]
            if len({factors[0].bound for factors in chosen}) < 2:
                continue
        values = [
            with_layout(v, v.ndim + place, chosen[0]) if -place <= v.ndim and isinstance(v.shape[place], Dim) else v
            for v in values
        ]
    return list(values)


def paired(x: Value, y: Value, pairs: Sequence[tuple[int, int]]) -> tuple[Value, Value]:
    """Two values whose dimensions are pairwise the same, with the same layouts there."""
    for one, other in pairs:
        size, same = x.shape[one], y.shape[other]
        if isinstance(size, Dim) or isinstance(same, Dim):
            if size != same:
                raise DifferentSizes([size, same])
            assert isinstance(size, Dim) and isinstance(same, Dim)
            factors = (size if size.factors is not None else same).laid_out()
            x, y = with_layout(x, one, factors), with_layout(y, other, factors)
    return x, y


def for_broadcast(x: Value, shape: Sequence[int], dims: Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    """x and the shape it is broadcast to, which takes over its layouts where the sizes are the same."""
    shape = list(shape)
    for axis, target in enumerate(dims):
        size, wanted = x.shape[axis], shape[target]
        if isinstance(size, Dim) or isinstance(wanted, Dim):
            if not isinstance(size, Dim) and size == 1:
                continue
            if size != wanted:
                raise DifferentSizes([size, wanted])
            if isinstance(wanted, Dim) and wanted.factors is not None:
                x = with_layout(x, axis, wanted.factors)
            shape[target] = x.shape[axis]
    return x, tuple(shape)


# ---- reshape


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """As `hlo.reshape`: factors of the old dimensions make up the new ones, or elements move."""
    if 0 in shape:
        return _bitcast(x, shape)
    factors = joined([factor for size in x.shape if size != 1 for factor in _factors(size)])
    found = _regroup(factors, [as_expr(size) for size in shape])
    if found is not None:
        return _bitcast(x, [merge(group) for group in found])
    flat = merge(factors)
    targets = [Factor(as_expr(size), bound(size)) for size in shape if size != 1]
    x = _bitcast(x, [flat])
    if not isinstance(flat, Dim):
        raise BoundedError(f"{x.shape} cannot become {shape}")
    dtype = position_dtype(merge(targets))
    from torch_tpu.hlo import shape as move

    places = physical_index(logical_index(tuple(targets), dtype), flat.laid_out())
    moved = move.take(retag(x, (flat.bound,)), places)
    return _bitcast(moved, [dim(size.expr, (Factor(size.expr, size.bound),)) if isinstance(size, Dim) else size
                            for size in shape])  # fmt: skip


def _factors(size: int) -> Factors:
    return size.laid_out() if isinstance(size, Dim) else (Factor(as_expr(size), size),)


def _bitcast(x: Value, shape: Sequence[int]) -> Value:
    kind = tensor_type(tuple(shape), x.dtype)
    if x.type == kind:
        return retag(x, shape)
    return emit(f"stablehlo.reshape {x.name} : ({x.type}) -> {kind}", shape, x.dtype)


def _regroup(factors: Sequence[Factor], sizes: Sequence[sympy.Expr]) -> list[list[Factor]] | None:
    """The factors of each new dimension, or None where they do not make it up in order."""
    queue = list(reversed(factors))
    groups = []
    for size in sizes:
        group: list[Factor] = []
        missing = size
        while missing != 1:
            if not queue:
                return None
            factor = queue.pop()
            rest = exact_quotient(missing, factor.size)
            if rest is not None:
                group.append(factor)
                missing = rest
                continue
            inner = exact_quotient(factor.size, missing)
            # a real index of the outer part is below its size, and the inner part has no padding
            if inner is None or not inner.is_Integer or factor.bound % int(inner):
                return None
            group.append(Factor(missing, factor.bound // int(inner)))
            queue.append(Factor(inner, int(inner)))
            missing = as_expr(1)
        groups.append(group)
    return groups if not queue else None


def linear_index(shape: Sequence[int], dtype: torch.dtype) -> Value:
    """For every element its place in row-major order among the real ones."""
    total = arith.full(shape, 0, dtype)
    step = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] != 1:
            total = arith.add(total, arith.multiply(arith.iota(shape, axis, dtype), arith.scalar(step, dtype)))
        step = step * shape[axis]
    return total
