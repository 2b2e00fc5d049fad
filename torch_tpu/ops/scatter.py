"""Writing by index: index_put, index_add, index_reduce, put, the scatter family and segment reductions.

Sums of bfloat16 and float16 are formed in float32 and rounded once. Where several elements are written to one
place without a reduction, which one stays is the backend's choice, as in PyTorch (the last one on the CPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Number, Value
from torch_tpu.ops.indexing import advanced, at_least_1d, position_dtype, prefix_sum, within, wrap
from torch_tpu.ops.registry import Context, lowering

Combine = Callable[[Value, Value], Value]


def replace(old: Value, new: Value) -> Value:
    return new


COMBINE: dict[str, Combine] = {
    "sum": hlo.add,
    "add": hlo.add,
    "mean": hlo.add,
    "prod": hlo.multiply,
    "multiply": hlo.multiply,
    "amax": hlo.maximum,
    "max": hlo.maximum,
    "amin": hlo.minimum,
    "min": hlo.minimum,
}


def neutral(reduce: str, dtype: torch.dtype) -> Number:
    """What a reduction starts from."""
    if reduce in ("amax", "max"):
        return hlo.lowest(dtype)
    if reduce in ("amin", "min"):
        return hlo.highest(dtype)
    return 1 if COMBINE[reduce] is hlo.multiply else 0


def computed(*values: Value) -> list[Value]:
    """Converted to the dtype that sums are formed in."""
    dtype = hlo.compute_dtype(values[0].dtype)
    return [hlo.convert(value, dtype) for value in values]


def scatter_rows(x: Value, dim: int, positions: Value, updates: Value, combine: Combine) -> Value:
    """x[..., positions[i], ...] = combine(itself, updates[..., i, ...]) along one dimension."""
    if not x.numel or not updates.numel:
        return x
    dim %= x.ndim
    return hlo.scatter(
        x,
        hlo.convert(positions, position_dtype(x.shape[dim])),
        updates,
        combine,
        update_window_dims=[axis for axis in range(x.ndim) if axis != dim],
        inserted_window_dims=[dim],
        scatter_dims_to_operand_dims=[dim],
        index_vector_dim=1,
    )


def scatter_elements(x: Value, dim: int, positions: Value, updates: Value, combine: Combine) -> Value:
    """torch.scatter: element [i][j] of updates goes to x[positions[i][j]][j] for dim 0.

    `positions` may be smaller than x in the other dimensions, and updates larger than positions in all.
    """
    if not x.numel or not positions.numel:
        return x
    shape = x.shape
    x, positions, updates = at_least_1d(x), at_least_1d(positions), at_least_1d(updates)
    updates = hlo.slice(updates, [0] * x.ndim, positions.shape)
    dim %= x.ndim
    others = [axis for axis in range(x.ndim) if axis != dim]
    sizes = [size if axis == dim else positions.shape[axis] for axis, size in enumerate(x.shape)]
    part = hlo.scatter(
        hlo.slice(x, [0] * x.ndim, sizes),
        hlo.convert(positions, position_dtype(x.shape[dim])),
        updates,
        combine,
        update_window_dims=[],
        inserted_window_dims=[dim],
        scatter_dims_to_operand_dims=[dim],
        input_batching_dims=others,
        scatter_indices_batching_dims=others,
        index_vector_dim=positions.ndim,
    )
    if part.shape != x.shape:
        part = hlo.dynamic_update_slice(x, part, [0] * x.ndim)
    return hlo.reshape(part, shape)


def floor_mean(total: Value, count: Value) -> Value:
    """total / count for positive counts, rounded down for integers."""
    quotient = hlo.divide(total, count)
    if not hlo.is_integer(total.dtype) or hlo.is_unsigned(total.dtype):
        return quotient
    below = hlo.less(hlo.remainder(total, count), 0)
    return quotient - hlo.convert(below, total.dtype)


def reduce_into(x: Value, updates: Value, reduce: str, include_self: bool, write: Callable[..., Value]) -> Value:
    """A scattered reduction; `write(target, updates, combine)` is one of the two scatters above."""
    x, updates = computed(x, updates)
    start = x
    if not include_self:
        start = write(x, hlo.full_like(updates, neutral(reduce, x.dtype)), replace)
    result = write(start, updates, COMBINE[reduce])
    if reduce != "mean":
        return result
    count = write(hlo.full_like(x, 1 if include_self else 0), hlo.ones_like(updates), hlo.add)
    return floor_mean(result, hlo.select(hlo.equal(count, 0), 1, count))


# ---- index_put


def masked_put(x: Value, dim: int, mask: Value, values: Value, accumulate: bool) -> Value:
    """x[..., mask, ...] = values with a boolean mask over dimensions dim, dim + 1, ...

    The values broadcast to [*x.shape[:dim], number of set elements, *rest]; the n-th goes to the n-th.
    """
    rest = x.ndim - dim - mask.ndim
    chosen = hlo.broadcast_in_dim(mask, x.shape, range(dim, dim + mask.ndim))
    rows = rest + 1
    values = hlo.reshape(values, (1,) * (dim + rows - values.ndim) + values.shape)
    if values.shape[dim] == 0 or not x.numel:
        return x
    if values.shape[dim] == 1:
        spread = hlo.reshape(values, (*values.shape[:dim], *(1,) * mask.ndim, *values.shape[dim + 1 :]))
    else:
        ranks = prefix_sum(hlo.convert(hlo.flatten(mask), position_dtype(mask.numel))) - 1
        spread = hlo.take(values, hlo.reshape(ranks, mask.shape), dim)
    spread = hlo.broadcast_to(spread, x.shape)
    return hlo.select(chosen, x + spread if accumulate else spread, x)


@lowering("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    ctx: Context,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    if values.dtype != x.dtype:
        raise TypeError(f"values of {values.dtype} are not put into {x.dtype}")
    if accumulate:
        x, values = computed(x, values)
    given = [(dim, item) for dim, item in enumerate(indices) if item is not None]
    if not given:
        values = hlo.broadcast_to(values, x.shape)
        return x + values if accumulate else values
    if len(given) == 1 and given[0][1].dtype is torch.bool:
        return masked_put(x, *given[0], values, accumulate)
    plan = advanced(x.shape, indices)
    if len(values.shape) > len(plan.shape) or hlo.broadcast_shapes(values.shape, plan.shape) != plan.shape:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(plan.shape)}"
        )
    if math.prod(plan.shape) == 0 or x.numel == 0:
        return x
    return hlo.scatter(
        x,
        plan.positions,
        hlo.broadcast_to(values, plan.shape),
        hlo.add if accumulate else replace,
        update_window_dims=plan.window_dims,
        inserted_window_dims=plan.dims,
        scatter_dims_to_operand_dims=plan.dims,
    )


@lowering("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(
    ctx: Context, x: Value, mask: Value, indices: Sequence[Value | None], values: Value
) -> Value:
    if x.numel == 0:
        return x
    kept = hlo.select(hlo.convert(mask, torch.bool), values, 0)
    return index_put(ctx, x, within(indices, x.shape), kept, accumulate=True)


@lowering("put")
def put(ctx: Context, x: Value, positions: Value, source: Value, accumulate: bool = False) -> Value:
    if accumulate:
        x, source = computed(x, source)
    flat = scatter_rows(
        hlo.flatten(x),
        0,
        hlo.flatten(wrap(positions, x.numel)),
        hlo.flatten(source),
        hlo.add if accumulate else replace,
    )
    return hlo.reshape(flat, x.shape)


# ---- along one dimension, whole rows


def rows_of(x: Value, positions: Value, source: Value) -> tuple[Value, Value, Value]:
    """x, a vector of positions, and source, with the dimension that 0-d tensors stand for."""
    x = at_least_1d(x)
    if source.ndim < x.ndim:
        source = hlo.reshape(source, (1,) * (x.ndim - source.ndim) + source.shape)
    return x, at_least_1d(positions), source


@lowering("index_add")
def index_add(ctx: Context, x: Value, dim: int, positions: Value, source: Value, alpha: Value | int = 1) -> Value:
    target, positions, source = rows_of(x, positions, source)
    target, source = computed(target, source)
    if isinstance(alpha, Value):
        source = source * hlo.convert(alpha, source.dtype)
    return hlo.reshape(scatter_rows(target, dim, positions, source, hlo.add), x.shape)


@lowering("index_copy")
def index_copy(ctx: Context, x: Value, dim: int, positions: Value, source: Value) -> Value:
    target, positions, source = rows_of(x, positions, source)
    if positions.numel == 1 and target.numel:
        # One block, as in the cache of a decoder: XLA writes it where it is, and makes a loop of a scatter.
        place = hlo.reshape(hlo.convert(positions, position_dtype(target.shape[dim])), ())
        zero = hlo.scalar(0, place.dtype)
        starts = [place if axis == dim % target.ndim else zero for axis in range(target.ndim)]
        return hlo.reshape(hlo.dynamic_update_slice(target, source, starts), x.shape)
    return hlo.reshape(scatter_rows(target, dim, positions, source, replace), x.shape)


@lowering("index_reduce")
def index_reduce(
    ctx: Context,
    x: Value,
    dim: int,
    positions: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    target, positions, source = rows_of(x, positions, source)

    def write(into: Value, updates: Value, combine: Combine) -> Value:
        return scatter_rows(into, dim, positions, updates, combine)

    return hlo.reshape(reduce_into(target, source, reduce, include_self, write), x.shape)


# ---- along one dimension, element by element


@lowering("scatter.src", "scatter.reduce")
def scatter(ctx: Context, x: Value, dim: int, positions: Value, source: Value, reduce: str | None = None) -> Value:
    if reduce is None:
        return scatter_elements(x, dim, positions, source, replace)
    x, source = computed(x, source)
    return scatter_elements(x, dim, positions, source, COMBINE[reduce])


@lowering("scatter.value", "scatter.value_reduce", fitted=("value",))
def scatter_value(ctx: Context, x: Value, dim: int, positions: Value, value: Value, reduce: str | None = None) -> Value:
    source = hlo.broadcast_to(hlo.convert(value, x.dtype), positions.shape)
    return scatter(ctx, x, dim, positions, source, reduce)


@lowering("scatter_add")
def scatter_add(ctx: Context, x: Value, dim: int, positions: Value, source: Value) -> Value:
    return scatter(ctx, x, dim, positions, source, "add")


@lowering("scatter_reduce.two")
def scatter_reduce(
    ctx: Context,
    x: Value,
    dim: int,
    positions: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if not x.numel or not positions.numel:
        return x
    source = at_least_1d(source)
    source = hlo.slice(source, [0] * source.ndim, at_least_1d(positions).shape)

    def write(into: Value, updates: Value, combine: Combine) -> Value:
        return scatter_elements(into, dim, positions, updates, combine)

    return reduce_into(x, source, reduce, include_self, write)
