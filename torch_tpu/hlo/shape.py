"""Operations that move elements: reshape, transpose, slice, pad, concatenate, gather, scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tpu.hlo import layout, padding
from torch_tpu.hlo.arith import broadcast_in_dim, full, scalar
from torch_tpu.hlo.core import Number, Value, current, emit, region
from torch_tpu.hlo.types import tensor_type


def _ints(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def i64_array(numbers: Sequence[int]) -> str:
    """MLIR's `array<i64: 1, 2>`, which is `array<i64>` when empty."""
    return f"array<i64: {_ints(numbers)}>" if len(numbers) else "array<i64>"


def reshape(x: Value, shape: Sequence[int]) -> Value:
    shape = tuple(shape)
    if x.shape == shape:
        return x
    if current().sizes:
        return layout.reshape(x, shape)
    return emit(f"stablehlo.reshape {x.name} : ({x.type}) -> {tensor_type(shape, x.dtype)}", shape, x.dtype)


def flatten(x: Value) -> Value:
    return reshape(x, (x.numel,))


def expand_dims(x: Value, dims: Sequence[int]) -> Value:
    """Inserts dimensions of size 1 so that they stand at `dims` of the result (negative ones count from its end)."""
    rank = x.ndim + len(dims)
    inserted = {dim % rank for dim in dims}
    sizes = iter(x.shape)
    return reshape(x, [1 if dim in inserted else next(sizes) for dim in range(rank)])


def squeeze(x: Value, dims: Sequence[int]) -> Value:
    """Drops dimensions of size 1."""
    dropped = {dim % x.ndim for dim in dims}
    return reshape(x, [size for dim, size in enumerate(x.shape) if dim not in dropped])


def transpose(x: Value, permutation: Sequence[int]) -> Value:
    """Dimension i of the result is dimension permutation[i] of x."""
    permutation = tuple(permutation)
    if permutation == tuple(range(x.ndim)):
        return x
    shape = tuple(x.shape[dim] for dim in permutation)
    return emit(
        f"stablehlo.transpose {x.name}, dims = [{_ints(permutation)}] : ({x.type}) -> {tensor_type(shape, x.dtype)}",
        shape,
        x.dtype,
    )


def move_dim(x: Value, source: int, target: int) -> Value:
    """numpy.moveaxis for one dimension."""
    source, target = source % x.ndim, target % x.ndim
    order = [dim for dim in range(x.ndim) if dim != source]
    order.insert(target, source)
    return transpose(x, order)


def slice(x: Value, start: Sequence[int], limit: Sequence[int], step: Sequence[int] | None = None) -> Value:
    step = tuple(step) if step is not None else (1,) * x.ndim
    if current().sizes and padding.is_bounded([*x.shape, *start, *limit]):
        return padding.slice(x, start, limit, step)
    shape = tuple(max(0, -(-(hi - lo) // by)) for lo, hi, by in zip(start, limit, step, strict=True))
    if shape == x.shape:
        return x
    ranges = ", ".join(f"{lo}:{hi}:{by}" for lo, hi, by in zip(start, limit, step, strict=True))
    return emit(f"stablehlo.slice {x.name} [{ranges}] : ({x.type}) -> {tensor_type(shape, x.dtype)}", shape, x.dtype)


def slice_in_dim(x: Value, dim: int, start: int, limit: int, step: int = 1) -> Value:
    dim %= x.ndim
    low, high, by = [0] * x.ndim, list(x.shape), [1] * x.ndim
    low[dim], high[dim], by[dim] = start, limit, step
    return slice(x, low, high, by)


def index_in_dim(x: Value, dim: int, index: int, keep_dim: bool = False) -> Value:
    """x[..., index, ...]; a negative index counts from the end."""
    dim %= x.ndim
    index = index + x.shape[dim] if index < 0 else index
    part = slice_in_dim(x, dim, index, index + 1)
    return part if keep_dim else squeeze(part, [dim])


def dynamic_slice(x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    if current().sizes:
        sizes = padding.window_sizes(x, sizes)
    names = ", ".join([x.name, *(start.name for start in starts)])
    signature = ", ".join([x.type, *(start.type for start in starts)])
    return emit(
        f"stablehlo.dynamic_slice {names}, sizes = [{_ints(sizes)}] : "
        f"({signature}) -> {tensor_type(tuple(sizes), x.dtype)}",
        sizes,
        x.dtype,
    )


def dynamic_update_slice(x: Value, update: Value, starts: Sequence[Value | int]) -> Value:
    """x with a block replaced. Out-of-range starts are clamped, as XLA does."""
    places = [start if isinstance(start, Value) else scalar(start, torch.int32) for start in starts]
    if current().sizes and padding.is_bounded([*x.shape, *update.shape]):
        return padding.dynamic_update_slice(x, update, places)
    return _dynamic_update_slice(x, update, places)


def _dynamic_update_slice(x: Value, update: Value, places: Sequence[Value]) -> Value:
    names = ", ".join(value.name for value in [x, update, *places])
    signature = ", ".join(value.type for value in [x, update, *places])
    return emit(f"stablehlo.dynamic_update_slice {names} : ({signature}) -> {x.type}", x.shape, x.dtype)


def pad(
    x: Value,
    low: Sequence[int],
    high: Sequence[int],
    value: Value | Number = 0,
    interior: Sequence[int] | None = None,
) -> Value:
    """Adds elements before, after and between; negative amounts cut."""
    interior = tuple(interior) if interior is not None else (0,) * x.ndim
    if not any(low) and not any(high) and not any(interior):
        return x
    if current().sizes and padding.is_bounded([*x.shape, *low, *high]):
        return padding.pad(x, low, high, value, interior)
    filling = value if isinstance(value, Value) else scalar(value, x.dtype)
    shape = tuple(
        size + lo + hi + max(0, size - 1) * inner
        for size, lo, hi, inner in zip(x.shape, low, high, interior, strict=True)
    )
    return emit(
        f"stablehlo.pad {x.name}, {filling.name}, low = [{_ints(low)}], high = [{_ints(high)}], "
        f"interior = [{_ints(interior)}] : ({x.type}, {filling.type}) -> {tensor_type(shape, x.dtype)}",
        shape,
        x.dtype,
    )


def concatenate(values: Sequence[Value], dim: int) -> Value:
    if len(values) == 1:
        return values[0]
    dim %= values[0].ndim
    if current().sizes and any(padding.is_bounded(value.shape) for value in values):
        return padding.concatenate(values, dim)
    shape = list(values[0].shape)
    shape[dim] = sum(value.shape[dim] for value in values)
    names = ", ".join(value.name for value in values)
    signature = ", ".join(value.type for value in values)
    return emit(
        f"stablehlo.concatenate {names}, dim = {dim} : ({signature}) -> {tensor_type(tuple(shape), values[0].dtype)}",
        shape,
        values[0].dtype,
    )


def stack(values: Sequence[Value], dim: int) -> Value:
    return concatenate([expand_dims(value, [dim]) for value in values], dim % (values[0].ndim + 1))


def reverse(x: Value, dims: Sequence[int]) -> Value:
    dims = [dim % x.ndim for dim in dims]
    if not dims:
        return x
    if current().sizes and padding.is_bounded([x.shape[dim] for dim in dims]):
        return padding.reverse(x, dims)
    result = emit(f"stablehlo.reverse {x.name}, dims = [{_ints(dims)}] : {x.type}", x.shape, x.dtype)
    if dims == [0]:
        current().turned[result.name] = x
    return result


def gather(
    x: Value,
    indices: Value,
    *,
    offset_dims: Sequence[int],
    collapsed_slice_dims: Sequence[int],
    start_index_map: Sequence[int],
    slice_sizes: Sequence[int],
    operand_batching_dims: Sequence[int] = (),
    start_indices_batching_dims: Sequence[int] = (),
    index_vector_dim: int | None = None,
    indices_are_sorted: bool = False,
) -> Value:
    """StableHLO's gather: https://openxla.org/stablehlo/spec#gather. Out-of-range indices are clamped."""
    index_vector_dim = indices.ndim - 1 if index_vector_dim is None else index_vector_dim
    if current().sizes:
        pairs = zip(operand_batching_dims, start_indices_batching_dims, strict=True)
        x, indices = padding.for_gather(x, indices, list(pairs), start_index_map)
        slice_sizes = padding.window_sizes(x, slice_sizes)
    batch = [size for dim, size in enumerate(indices.shape) if dim != index_vector_dim]
    dropped = {*collapsed_slice_dims, *operand_batching_dims}
    offsets = [size for dim, size in enumerate(slice_sizes) if dim not in dropped]
    rank = len(batch) + len(offsets)
    batch_sizes, offset_sizes = iter(batch), iter(offsets)
    shape = [next(offset_sizes) if dim in set(offset_dims) else next(batch_sizes) for dim in range(rank)]
    fields = [f"offset_dims = [{_ints(offset_dims)}]", f"collapsed_slice_dims = [{_ints(collapsed_slice_dims)}]"]
    if operand_batching_dims:
        fields += [
            f"operand_batching_dims = [{_ints(operand_batching_dims)}]",
            f"start_indices_batching_dims = [{_ints(start_indices_batching_dims)}]",
        ]
    fields += [f"start_index_map = [{_ints(start_index_map)}]", f"index_vector_dim = {index_vector_dim}"]
    return emit(
        f'"stablehlo.gather"({x.name}, {indices.name}) <{{dimension_numbers = #stablehlo.gather<'
        f"{', '.join(fields)}>, indices_are_sorted = {str(indices_are_sorted).lower()}, "
        f"slice_sizes = {i64_array(slice_sizes)}}}> : "
        f"({x.type}, {indices.type}) -> {tensor_type(tuple(shape), x.dtype)}",
        shape,
        x.dtype,
    )


def scatter(
    x: Value,
    indices: Value,
    updates: Value,
    combine: Callable[[Value, Value], Value],
    *,
    update_window_dims: Sequence[int],
    inserted_window_dims: Sequence[int],
    scatter_dims_to_operand_dims: Sequence[int],
    input_batching_dims: Sequence[int] = (),
    scatter_indices_batching_dims: Sequence[int] = (),
    index_vector_dim: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Value:
    """StableHLO's scatter: https://openxla.org/stablehlo/spec#scatter. Out-of-range updates are dropped.

    `combine(old, update)` is applied in unspecified order.
    """
    index_vector_dim = indices.ndim - 1 if index_vector_dim is None else index_vector_dim
    if current().sizes and any(padding.is_bounded(value.shape) for value in (x, indices, updates)):
        windows = [dim for dim in range(x.ndim) if dim not in {*inserted_window_dims, *input_batching_dims}]
        pairs = zip(input_batching_dims, scatter_indices_batching_dims, strict=True)
        x, indices, updates = padding.for_scatter(
            x, indices, updates, list(pairs), list(zip(windows, update_window_dims, strict=True)),
            scatter_dims_to_operand_dims, index_vector_dim,
        )  # fmt: skip
    element = Value("", (), x.dtype)
    body, _ = region([element, element], combine)
    fields = [
        f"update_window_dims = [{_ints(update_window_dims)}]",
        f"inserted_window_dims = [{_ints(inserted_window_dims)}]",
    ]
    if input_batching_dims:
        fields += [
            f"input_batching_dims = [{_ints(input_batching_dims)}]",
            f"scatter_indices_batching_dims = [{_ints(scatter_indices_batching_dims)}]",
        ]
    fields += [
        f"scatter_dims_to_operand_dims = [{_ints(scatter_dims_to_operand_dims)}]",
        f"index_vector_dim = {index_vector_dim}",
    ]
    return emit(
        f'"stablehlo.scatter"({x.name}, {indices.name}, {updates.name}) <{{'
        f"scatter_dimension_numbers = #stablehlo.scatter<{', '.join(fields)}>, "
        f"indices_are_sorted = {str(indices_are_sorted).lower()}, "
        f"unique_indices = {str(unique_indices).lower()}}}> ({body}) : "
        f"({x.type}, {indices.type}, {updates.type}) -> {x.type}",
        x.shape,
        x.dtype,
    )


def take(x: Value, indices: Value, dim: int = 0) -> Value:
    """x[..., indices, ...] along one dimension: shape x[:dim] + indices.shape + x[dim+1:]. Indices are clamped.

    Of a dimension without elements it takes zeros.
    """
    dim %= x.ndim
    if x.shape[dim] == 0:
        return full(x.shape[:dim] + indices.shape + x.shape[dim + 1 :], 0, x.dtype)
    sizes = [1 if axis == dim else size for axis, size in enumerate(x.shape)]
    offsets = [axis if axis < dim else axis + indices.ndim - 1 for axis in range(x.ndim) if axis != dim]
    return gather(
        x,
        indices,
        offset_dims=offsets,
        collapsed_slice_dims=[dim],
        start_index_map=[dim],
        slice_sizes=sizes,
        index_vector_dim=indices.ndim,
    )


def tile(x: Value, repeats: Sequence[int]) -> Value:
    """torch.Tensor.repeat: repeats has at least x.ndim entries."""
    x = reshape(x, (1,) * (len(repeats) - x.ndim) + x.shape)
    shape = [part for count, size in zip(repeats, x.shape, strict=True) for part in (count, size)]
    spread = broadcast_in_dim(x, shape, range(1, 2 * x.ndim, 2))
    return reshape(spread, [count * size for count, size in zip(repeats, x.shape, strict=True)])
