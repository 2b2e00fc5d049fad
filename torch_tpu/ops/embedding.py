"""Embedding tables: rows looked up, summed in bags, and the gradients of both."""

from __future__ import annotations

import math

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.indexing import add_at, position_dtype, segment_of
from torch_tpu.ops.registry import Context, Spec, lowering, number
from torch_tpu.ops.scatter import computed, replace, scatter_rows

SUM, MEAN, MAX = 0, 1, 2


def look_up(weight: Value, indices: Value) -> Value:
    """weight[indices]; zeros where the table is empty."""
    if not weight.numel or not indices.numel:
        return hlo.full((*indices.shape, *weight.shape[1:]), 0, weight.dtype)
    return hlo.take(weight, hlo.convert(indices, position_dtype(weight.shape[0])))


def frequencies(indices: Value, size: int, dtype: torch.dtype) -> Value:
    """For every index of a vector, how often it occurs in it."""
    if not indices.numel or not size:
        return hlo.full(indices.shape, 1, dtype)
    counts = add_at(hlo.full((size,), 0, torch.int32), indices, hlo.full(indices.shape, 1, torch.int32))
    return hlo.convert(hlo.take(counts, indices), dtype)


def without_padding(indices: Value, size: int, padding_idx: int) -> Value:
    """Positions in a table; those of the padding row are out of range, so that writes there are dropped."""
    positions = hlo.convert(indices, position_dtype(size))
    if padding_idx < 0:
        return positions
    return hlo.select(hlo.equal(positions, padding_idx), size, positions)


@lowering("embedding")
def embedding(
    ctx: Context,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return look_up(weight, indices)


@lowering("embedding_dense_backward")
def embedding_dense_backward(
    ctx: Context,
    grad: Value,
    indices: Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    width = grad.shape[indices.ndim :]
    (rows,) = computed(hlo.reshape(grad, (indices.numel, *width)))
    flat = hlo.flatten(hlo.convert(indices, position_dtype(num_weights)))
    if scale_grad_by_freq:
        rows = rows / hlo.expand_dims(frequencies(flat, num_weights, rows.dtype), range(1, rows.ndim))
    zeros = hlo.full((num_weights, *width), 0, rows.dtype)
    return scatter_rows(zeros, 0, without_padding(flat, num_weights, padding_idx), rows, hlo.add)


def vector_norms(x: Value, order: Value | float) -> Value:
    """The norms of rows, as a column."""
    size = hlo.abs(x)
    if isinstance(order, Value):
        order = hlo.convert(order, size.dtype)
        return hlo.power(hlo.reduce_sum(hlo.power(size, order), [1], keep_dim=True), 1 / order)
    if order == math.inf:
        return hlo.reduce_max(size, [1], keep_dim=True)
    if order == 0:
        return hlo.reduce_sum(hlo.convert(hlo.not_equal(x, 0), size.dtype), [1], keep_dim=True)
    if order == 1:
        return hlo.reduce_sum(size, [1], keep_dim=True)
    if order == 2:
        return hlo.sqrt(hlo.reduce_sum(hlo.square(size), [1], keep_dim=True))
    return hlo.power(hlo.reduce_sum(hlo.power(size, order), [1], keep_dim=True), 1 / order)


@lowering("embedding_renorm", data=("max_norm",), varying={"norm_type": (2.0, math.inf)})
def embedding_renorm(
    ctx: Context, weight: Value, indices: Value, max_norm: Value | float, norm_type: Value | float
) -> Value:
    """Rows whose norm exceeds max_norm are scaled by max_norm / (norm + 1e-7), as in PyTorch."""
    flat = hlo.flatten(indices)
    (rows,) = computed(look_up(weight, flat))
    norms = vector_norms(rows, norm_type)
    limit = number(max_norm, norms.dtype)
    scale = hlo.select(hlo.greater(norms, limit), limit / (norms + 1e-7), 1)
    return scatter_rows(weight, 0, flat, hlo.convert(rows * scale, weight.dtype), replace)


# ---- bags


def bag_of(offsets: Value, count: int) -> Value:
    """int32[count]: the bag of each index. Bags start at the offsets, which do not fall."""
    return segment_of(hlo.convert(offsets, position_dtype(count)), count) - 1


def bag_sizes(bags: Value, real: Value, num_bags: int) -> Value:
    """How many indices that are not padding each bag has."""
    return scatter_rows(hlo.full((num_bags,), 0, torch.int32), 0, bags, hlo.convert(real, torch.int32), hlo.add)


def fitted(x: Value, spec: Spec) -> Value:
    """Bookkeeping in the shape that PyTorch gives it: padded with zeros, or nothing."""
    if x.shape == spec.shape:
        return x
    if x.ndim == len(spec.shape) == 1 and spec.shape[0] > x.shape[0]:
        return hlo.pad(x, [0], [spec.shape[0] - x.shape[0]])
    return hlo.full(spec.shape, 0, x.dtype)


def bag_maxima(rows: Value, bags: Value, indices: Value, num_bags: int) -> tuple[Value, Value]:
    """The largest element of each bag in every column, and the index of the row it comes from.

    Rows of no bag are -inf already. Of equal elements the first counts.
    """
    width = rows.shape[1]
    lowest = hlo.full((num_bags, width), hlo.lowest(rows.dtype), rows.dtype)
    maxima = scatter_rows(lowest, 0, bags, rows, hlo.maximum)
    count = rows.shape[0]
    if not rows.numel or not num_bags:
        return maxima, hlo.full((num_bags, width), 0, torch.int32)
    places = hlo.iota(rows.shape, 0, torch.int32)
    wins = hlo.equal(rows, hlo.take(maxima, bags))
    candidates = hlo.select(wins, places, count)
    first = scatter_rows(hlo.full((num_bags, width), count, torch.int32), 0, bags, candidates, hlo.minimum)
    found = hlo.take(hlo.convert(indices, torch.int32), hlo.minimum(first, count - 1))
    return maxima, hlo.select(hlo.less(first, count), found, 0)


@lowering("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    ctx: Context,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Value]:
    num_bags, width = ctx.outs[0].shape
    bags = bag_of(offsets, indices.shape[0])
    real = hlo.full_like(indices, True, torch.bool)
    if padding_idx >= 0:
        real = hlo.not_equal(indices, padding_idx)
    sizes = bag_sizes(bags, real, num_bags)
    (rows,) = computed(look_up(weight, indices))
    maxima_of = hlo.full((0,), 0, torch.int32)
    kept = hlo.broadcast_in_dim(real, rows.shape, [0])
    filled = hlo.broadcast_in_dim(hlo.greater(sizes, 0), (num_bags, width), [0])
    if mode == MAX:
        rows = hlo.select(kept, rows, hlo.lowest(rows.dtype))
        result, maxima_of = bag_maxima(rows, bags, indices, num_bags)
        result = hlo.select(filled, result, 0)
        maxima_of = hlo.select(filled, maxima_of, 0)
    else:
        if per_sample_weights is not None:
            factors = hlo.convert(per_sample_weights, rows.dtype)
            rows = rows * hlo.broadcast_in_dim(factors, rows.shape, [0])
        zeros = hlo.full((num_bags, width), 0, rows.dtype)
        result = scatter_rows(zeros, 0, bags, hlo.select(kept, rows, 0), hlo.add)
        if mode == MEAN:
            divisors = hlo.convert(hlo.maximum(sizes, 1), rows.dtype)
            result = result / hlo.broadcast_in_dim(divisors, result.shape, [0])
    return [
        result,
        *(fitted(x, spec) for x, spec in zip((bags, sizes, maxima_of), ctx.outs[1:], strict=True)),
    ]


def bag_gradient(
    grad: Value,
    indices: Value,
    bags: Value,
    sizes: Value,
    maxima_of: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int,
) -> Value:
    """The table's gradient: each row of a bag gets the bag's gradient, weighted as in the forward."""
    (grad,) = computed(grad)
    num_bags, width = grad.shape
    zeros = hlo.full((num_weights, width), 0, grad.dtype)
    if not indices.numel or not grad.numel:
        return zeros
    if mode == MAX:
        filled = hlo.broadcast_in_dim(hlo.greater(hlo.slice_in_dim(sizes, 0, 0, num_bags), 0), grad.shape, [0])
        rows = hlo.convert(maxima_of, torch.int32)
        places = hlo.stack([hlo.select(filled, rows, num_weights), hlo.iota(grad.shape, 1, torch.int32)], -1)
        return hlo.scatter(
            zeros,
            places,
            grad,
            hlo.add,
            update_window_dims=[],
            inserted_window_dims=[0, 1],
            scatter_dims_to_operand_dims=[0, 1],
        )
    positions = hlo.convert(indices, position_dtype(num_weights))
    factors = hlo.full(indices.shape, 1, grad.dtype)
    if per_sample_weights is not None:
        factors = hlo.convert(per_sample_weights, grad.dtype)
    if scale_grad_by_freq:
        factors = factors / frequencies(positions, num_weights, grad.dtype)
    if mode == MEAN:
        factors = factors / hlo.convert(hlo.maximum(hlo.take(sizes, bags), 1), grad.dtype)
    rows = hlo.take(grad, bags) * hlo.expand_dims(factors, [1])
    inside = hlo.less(bags, num_bags)
    positions = hlo.select(inside, without_padding(positions, num_weights, padding_idx), num_weights)
    return scatter_rows(zeros, 0, positions, rows, hlo.add)


@lowering("_embedding_bag_backward")
def embedding_bag_backward(
    ctx: Context,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    bags = bag_of(offsets, indices.shape[0])
    return bag_gradient(
        grad, indices, bags, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@lowering("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    ctx: Context,
    grad: Value,
    indices: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    bags = hlo.convert(offset2bag, torch.int32)
    return bag_gradient(
        grad, indices, bags, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@lowering("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    ctx: Context,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    """Each weight's gradient is the product of its row with the gradient of its bag."""
    grad, weight = computed(grad, weight)
    if not indices.numel or not grad.numel:
        return hlo.full(indices.shape, 0, grad.dtype)
    bags = bag_of(offsets, indices.shape[0])
    products = hlo.reduce_sum(hlo.take(grad, bags) * look_up(weight, indices), [1])
    if padding_idx >= 0:
        products = hlo.select(hlo.equal(indices, padding_idx), 0, products)
    return products
