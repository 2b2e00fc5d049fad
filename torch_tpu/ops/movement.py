"""Elements moved, repeated or padded without arithmetic, and the gradients of that.

View operations are derived by the core; their functional forms (`*_copy`, `*_scatter`, ...) are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.indexing import at_least_1d, position_dtype
from torch_tpu.ops.registry import ANY, Context, lowering


def wrapped(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % max(rank, 1)


# ---- joining and repeating


@lowering("cat")
def cat(ctx: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [hlo.convert(tensor, ctx.out.dtype) for tensor in tensors if tensor.shape != (0,)]
    if not parts:  # vectors of no elements may be joined with anything
        return hlo.full(ctx.out.shape, 0, ctx.out.dtype)
    return hlo.concatenate(parts, dim)


@lowering("stack")
def stack(ctx: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    return hlo.stack([hlo.convert(tensor, ctx.out.dtype) for tensor in tensors], dim)


@lowering("block_diag")
def block_diag(ctx: Context, tensors: Sequence[Value]) -> Value:
    rows, width, column = [], ctx.out.shape[1], 0
    for tensor in tensors:
        tensor = hlo.convert(tensor, ctx.out.dtype)
        block = hlo.reshape(tensor, (1,) * (2 - tensor.ndim) + tensor.shape)
        right = width - column - block.shape[1]
        rows.append(hlo.pad(block, [0, column], [0, right]))
        column += block.shape[1]
    return hlo.concatenate(rows, 0) if rows else hlo.full(ctx.out.shape, 0, ctx.out.dtype)


@lowering("_chunk_cat")
def chunk_cat(ctx: Context, tensors: Sequence[Value], dim: int, num_chunks: int) -> Value:
    """Each tensor is padded to num_chunks equal chunks along dim, which are flattened and joined."""
    parts = []
    for tensor in tensors:
        at = wrapped(dim, tensor.ndim)
        high = [0] * tensor.ndim
        high[at] = -tensor.shape[at] % num_chunks
        padded = hlo.pad(tensor, [0] * tensor.ndim, high)
        lead = padded.shape[:at]
        size = math.prod(padded.shape[at:]) // num_chunks
        parts.append(hlo.convert(hlo.reshape(padded, (*lead, num_chunks, size)), ctx.out.dtype))
    return hlo.concatenate(parts, -1)


@lowering("repeat")
def repeat(ctx: Context, x: Value, repeats: Sequence[int]) -> Value:
    return hlo.tile(x, repeats)


# ---- turning around


@lowering("flip")
def flip(ctx: Context, x: Value, dims: Sequence[int]) -> Value:
    return hlo.reverse(x, dims) if x.ndim else x


@lowering("roll")
def roll(ctx: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not x.numel or not x.ndim:
        return x
    if not dims:
        return hlo.reshape(roll(ctx, hlo.flatten(x), shifts, (0,)), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        cut = -shift % size
        if cut:
            x = hlo.concatenate([hlo.slice_in_dim(x, dim, cut, size), hlo.slice_in_dim(x, dim, 0, cut)], dim)
    return x


@lowering("rot90")
def rot90(ctx: Context, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    first, second = (dim % x.ndim for dim in dims)
    turns = k % 4
    if turns % 2 == 0:
        return hlo.reverse(x, [first, second]) if turns else x
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return hlo.transpose(hlo.reverse(x, [second if turns == 1 else first]), order)


def pixel_groups(x: Value, channels: int, factor: int, inside: bool) -> tuple[int, ...]:
    lead, (height, width) = x.shape[:-3], x.shape[-2:]
    if inside:
        return (*lead, channels, height // factor, factor, width // factor, factor)
    return (*lead, channels, factor, factor, height, width)


@lowering("pixel_shuffle")
def pixel_shuffle(ctx: Context, x: Value, upscale_factor: int) -> Value:
    grouped = hlo.reshape(x, pixel_groups(x, ctx.out.shape[-3], upscale_factor, False))
    lead = x.ndim - 3
    order = [*range(lead), *(lead + axis for axis in (0, 3, 1, 4, 2))]
    return hlo.reshape(hlo.transpose(grouped, order), ctx.out.shape)


@lowering("pixel_unshuffle")
def pixel_unshuffle(ctx: Context, x: Value, downscale_factor: int) -> Value:
    grouped = hlo.reshape(x, pixel_groups(x, x.shape[-3], downscale_factor, True))
    lead = x.ndim - 3
    order = [*range(lead), *(lead + axis for axis in (0, 2, 4, 1, 3))]
    return hlo.reshape(hlo.transpose(grouped, order), ctx.out.shape)


@lowering("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(ctx: Context, x: Value, groups: int) -> Value:
    grouped = hlo.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return hlo.reshape(hlo.transpose(grouped, [0, 2, 1, *range(3, grouped.ndim)]), x.shape)


# ---- padding


@lowering("constant_pad_nd", fitted=("value",))
def constant_pad_nd(ctx: Context, x: Value, pad: Sequence[int], value: Value | int = 0) -> Value:
    low, high = [0] * x.ndim, [0] * x.ndim
    for place in range(len(pad) // 2):
        low[-1 - place], high[-1 - place] = pad[2 * place], pad[2 * place + 1]
    filling = hlo.convert(value, x.dtype) if isinstance(value, Value) else value
    return hlo.pad(x, low, high, filling)


def edges(padding: Sequence[int], rank: int) -> list[tuple[int, int, int]]:
    """(dimension, before, after) for PyTorch's padding lists, which start at the last dimension."""
    return [(rank - 1 - place, padding[2 * place], padding[2 * place + 1]) for place in range(len(padding) // 2)]


def cut(x: Value, dim: int, low: int, high: int) -> Value:
    """Drops elements at both ends."""
    return hlo.slice_in_dim(x, dim, low, x.shape[dim] - high)


def pad_in_dim(x: Value, dim: int, low: int, high: int, interior: int = 0) -> Value:
    lows, highs, between = [0] * x.ndim, [0] * x.ndim, [0] * x.ndim
    lows[dim], highs[dim], between[dim] = low, high, interior
    return hlo.pad(x, lows, highs, 0, between)


@lowering("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(ctx: Context, x: Value, padding: Sequence[int]) -> Value:
    for dim, low, high in edges(padding, x.ndim):
        size, parts = x.shape[dim], [x]
        if low > 0:
            parts.insert(0, hlo.reverse(hlo.slice_in_dim(x, dim, 1, low + 1), [dim]))
        if high > 0:
            parts.append(hlo.reverse(hlo.slice_in_dim(x, dim, size - 1 - high, size - 1), [dim]))
        x = cut(hlo.concatenate(parts, dim), dim, max(-low, 0), max(-high, 0))
    return x


@lowering("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(ctx: Context, grad: Value, x: Value, padding: Sequence[int]) -> Value:
    grad = hlo.convert(grad, hlo.compute_dtype(grad.dtype))
    for dim, low, high in edges(padding, x.ndim):
        size = x.shape[dim]
        grad = pad_in_dim(grad, dim, max(-low, 0), max(-high, 0))
        low, high = max(low, 0), max(high, 0)
        total = cut(grad, dim, low, high)
        if low:
            left = hlo.reverse(cut(grad, dim, 0, size + high), [dim])
            total = total + pad_in_dim(left, dim, 1, size - 1 - low)
        if high:
            right = hlo.reverse(cut(grad, dim, low + size, 0), [dim])
            total = total + pad_in_dim(right, dim, size - 1 - high, 1)
        grad = total
    return grad


def edge(x: Value, dim: int, at: int, count: int) -> Value | None:
    """The slice at one place, repeated along the dimension; None for no times."""
    if count <= 0:
        return None
    shape = [count if axis == dim else size for axis, size in enumerate(x.shape)]
    return hlo.broadcast_to(hlo.slice_in_dim(x, dim, at, at + 1), shape)


@lowering("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(ctx: Context, x: Value, padding: Sequence[int]) -> Value:
    for dim, low, high in edges(padding, x.ndim):
        parts = (edge(x, dim, 0, low), x, edge(x, dim, x.shape[dim] - 1, high))
        x = hlo.concatenate([part for part in parts if part is not None], dim)
        x = cut(x, dim, max(-low, 0), max(-high, 0))
    return x


@lowering("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(ctx: Context, grad: Value, x: Value, padding: Sequence[int]) -> Value:
    grad = hlo.convert(grad, hlo.compute_dtype(grad.dtype))
    for dim, low, high in edges(padding, x.ndim):
        size = x.shape[dim]
        grad = pad_in_dim(grad, dim, max(-low, 0), max(-high, 0))
        low, high = max(low, 0), max(high, 0)
        total = cut(grad, dim, low, high)
        if low:
            left = hlo.reduce_sum(cut(grad, dim, 0, size + high), [dim], keep_dim=True)
            total = total + pad_in_dim(left, dim, 0, size - 1)
        if high:
            right = hlo.reduce_sum(cut(grad, dim, low + size, 0), [dim], keep_dim=True)
            total = total + pad_in_dim(right, dim, size - 1, 0)
        grad = total
    return grad


# ---- sliding windows

MAX_CHUNKS = 32
"""Windows that overlap more often than this are not taken apart into chunks, which are one operation each."""


def windows(x: Value, dim: int, size: int, step: int, dilation: int = 1) -> Value:
    """Replaces a dimension by two: [window, place in the window].

    Cut into chunks of `step`, a window is a few neighbouring chunks.
    """
    reach = (size - 1) * dilation + 1 if size else 0
    num_windows = (x.shape[dim] - reach) // step + 1
    chunks = -(-reach // step)
    if chunks > MAX_CHUNKS or reach == 0:
        index = position_dtype(x.shape[dim])
        starts = hlo.iota((num_windows, size), 0, index) * step
        return hlo.take(x, starts + hlo.iota((num_windows, size), 1, index) * dilation, dim)
    length = num_windows + chunks - 1
    x = pad_in_dim(x, dim, 0, length * step - x.shape[dim])
    x = hlo.reshape(x, (*x.shape[:dim], length, step, *x.shape[dim + 1 :]))
    parts = [hlo.slice_in_dim(x, dim, chunk, chunk + num_windows) for chunk in range(chunks)]
    return hlo.slice_in_dim(hlo.concatenate(parts, dim + 1), dim + 1, 0, reach, dilation)


def overlap_add(x: Value, dim: int, length: int, step: int, dilation: int = 1) -> Value:
    """The transpose of `windows`: dimensions [window, place] become one; overlaps add up."""
    x = pad_in_dim(x, dim + 1, 0, 0, dilation - 1)
    num_windows, reach = x.shape[dim : dim + 2]
    chunks = -(-reach // step)
    if chunks > MAX_CHUNKS:
        return skewed_sum(x, dim, length, step)
    x = pad_in_dim(x, dim + 1, 0, chunks * step - reach)
    total: Value | None = None
    for chunk in range(chunks):
        part = hlo.slice_in_dim(x, dim + 1, chunk * step, (chunk + 1) * step)
        part = pad_in_dim(part, dim, chunk, chunks - 1 - chunk)
        total = part if total is None else total + part
    assert total is not None, "a window has at least one place"
    joined = hlo.reshape(total, (*x.shape[:dim], (num_windows + chunks - 1) * step, *x.shape[dim + 2 :]))
    return pad_in_dim(joined, dim, 0, length - joined.shape[dim])


def skewed_sum(x: Value, dim: int, length: int, step: int) -> Value:
    """`overlap_add` in a fixed number of operations, with memory for rows times length.

    Row k has to move right by k * shift before the rows are summed. The rows are padded to the width of the
    sum and one shift more; read with rows shorter by that shift, the same memory holds them moved.
    """
    num_windows, reach = x.shape[dim : dim + 2]
    shift = step
    if reach < num_windows:  # the places are the rows
        x = pad_in_dim(x, dim, 0, 0, step - 1)
        x, shift = hlo.move_dim(x, dim, dim + 1), 1
    rows, width = x.shape[dim : dim + 2]
    reached = width + (rows - 1) * shift
    x = pad_in_dim(x, dim + 1, 0, reached + shift - width)
    lead, tail = x.shape[:dim], x.shape[dim + 2 :]
    flat = hlo.reshape(x, (*lead, rows * (reached + shift), *tail))
    flat = hlo.slice_in_dim(flat, dim, 0, rows * reached)
    total = hlo.reduce_sum(hlo.reshape(flat, (*lead, rows, reached, *tail)), [dim])
    return pad_in_dim(total, dim, 0, length - reached)


@lowering("im2col")
def im2col(
    ctx: Context,
    x: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """[..., C, H, W] -> [..., C * kernel height * kernel width, number of windows]."""
    lead = x.ndim - 2
    amounts = [0] * lead + list(padding)
    x = hlo.pad(x, amounts, amounts)
    x = windows(x, lead + 1, kernel_size[1], stride[1], dilation[1])
    x = windows(x, lead, kernel_size[0], stride[0], dilation[0])
    order = [*range(lead), lead + 1, lead + 3, lead, lead + 2]
    return hlo.reshape(hlo.transpose(x, order), ctx.out.shape)


@lowering("col2im")
def col2im(
    ctx: Context,
    x: Value,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """The transpose of im2col."""
    padded = [size + 2 * amount for size, amount in zip(output_size, padding, strict=True)]
    counts = [(padded[axis] - dilation[axis] * (kernel_size[axis] - 1) - 1) // stride[axis] + 1 for axis in (0, 1)]
    x = hlo.convert(x, hlo.compute_dtype(x.dtype))
    x = hlo.reshape(x, (*ctx.out.shape[:-2], *kernel_size, *counts))
    lead = x.ndim - 4
    x = hlo.transpose(x, [*range(lead), lead + 2, lead, lead + 3, lead + 1])
    x = overlap_add(x, lead + 2, padded[1], stride[1], dilation[1])
    x = overlap_add(x, lead, padded[0], stride[0], dilation[0])
    for axis, amount in enumerate(padding):
        x = cut(x, lead + axis, amount, amount)
    return x


@lowering("unfold_copy")
def unfold_copy(ctx: Context, x: Value, dimension: int, size: int, step: int) -> Value:
    dim = wrapped(dimension, x.ndim)
    if math.prod(ctx.out.shape) == 0:
        return hlo.full(ctx.out.shape, 0, x.dtype)
    spread = windows(at_least_1d(x), dim, size, step)
    return hlo.reshape(hlo.move_dim(spread, dim + 1, -1), ctx.out.shape)


@lowering("unfold_backward")
def unfold_backward(ctx: Context, grad: Value, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Value:
    if not grad.numel:
        return hlo.full(input_sizes, 0, grad.dtype)
    dim = wrapped(dim, len(input_sizes))
    if not input_sizes:
        return hlo.reshape(grad, ())
    wanted = [count if d == dim else n for d, (n, count) in enumerate(zip(input_sizes, grad.shape, strict=False))]
    grad = hlo.broadcast_to(grad, [*wanted, grad.shape[-1]])  # PyTorch's istft gives one row for many
    grad = hlo.move_dim(hlo.convert(grad, hlo.compute_dtype(grad.dtype)), -1, dim + 1)
    return overlap_add(grad, dim, input_sizes[dim], step)


# ---- triangles and diagonals


def column_minus_row(shape: Sequence[int], row_dim: int = -2, column_dim: int = -1) -> Value:
    """For every element, how far it lies to the right of the diagonal."""
    rank = len(shape)
    index = torch.int32
    return hlo.iota(shape, column_dim % rank, index) - hlo.iota(shape, row_dim % rank, index)


@lowering("tril", varying={"diagonal": ANY})
def tril(ctx: Context, x: Value, diagonal: int | Value = 0) -> Value:
    kept = hlo.less_equal(column_minus_row(x.shape[-2:]), _of_index(diagonal))
    return hlo.select(kept, x, 0)


@lowering("triu", varying={"diagonal": ANY})
def triu(ctx: Context, x: Value, diagonal: int | Value = 0) -> Value:
    kept = hlo.greater_equal(column_minus_row(x.shape[-2:]), _of_index(diagonal))
    return hlo.select(kept, x, 0)


def _of_index(number: int | Value) -> int | Value:
    """A number to compare an int32 index with; no index is as far from 0 as 2^30."""
    far = 1 << 30
    if isinstance(number, Value):
        return hlo.convert(hlo.clamp(-far, number, far), torch.int32)
    return max(-far, min(number, far))


def across(x: Value, shape: Sequence[int], offset: int, dim1: int, dim2: int) -> Value:
    """A tensor whose last dimension is a diagonal, repeated so that it stands in place in a given shape.

    Off the diagonal the values mean nothing.
    """
    along = dim1 if offset >= 0 else dim2
    x = pad_in_dim(x, x.ndim - 1, 0, shape[along] - x.shape[-1])
    dims = [dim for dim in range(len(shape)) if dim not in (dim1, dim2)]
    order = sorted([*dims, along])
    x = hlo.move_dim(x, -1, order.index(along))
    return hlo.broadcast_in_dim(x, shape, order)


def on_diagonal(shape: Sequence[int], offset: int, dim1: int, dim2: int) -> Value:
    return hlo.equal(column_minus_row(shape, dim1, dim2), offset)


@lowering("diag_embed")
def diag_embed(ctx: Context, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    return diagonal_backward(ctx, x, ctx.out.shape, offset, dim1, dim2)


@lowering("diagonal_backward")
def diagonal_backward(
    ctx: Context, grad: Value, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Value:
    rank = len(input_sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    if not math.prod(input_sizes):
        return hlo.full(input_sizes, 0, grad.dtype)
    spread = across(grad, input_sizes, offset, dim1, dim2)
    return hlo.select(on_diagonal(input_sizes, offset, dim1, dim2), spread, 0)


@lowering("diagonal_scatter")
def diagonal_scatter(ctx: Context, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    if not source.numel:
        return x
    spread = across(hlo.convert(source, x.dtype), x.shape, offset, dim1, dim2)
    return hlo.select(on_diagonal(x.shape, offset, dim1, dim2), spread, x)


@lowering("diagonal_copy")
def diagonal_copy(ctx: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    count = ctx.out.shape[-1]
    if not math.prod(ctx.out.shape):
        return hlo.full(ctx.out.shape, 0, x.dtype)
    index = position_dtype(*x.shape)
    places = hlo.iota((count, 1), 0, index)
    positions = hlo.concatenate([places + max(-offset, 0), places + max(offset, 0)], 1)
    kept = [dim for dim in range(x.ndim) if dim not in (dim1, dim2)]
    return hlo.gather(
        x,
        positions,
        offset_dims=range(len(kept)),
        collapsed_slice_dims=sorted([dim1, dim2]),
        start_index_map=[dim1, dim2],
        slice_sizes=[size if dim in kept else 1 for dim, size in enumerate(x.shape)],
    )


# ---- slices written and read


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and end of a slice, from the front and within the dimension."""
    low, high = start or 0, size if end is None else end
    low = min(max(low + size if low < 0 else low, 0), size)
    high = min(max(high + size if high < 0 else high, low), size)
    return low, high


def placed(x: Value, dim: int, size: int, start: int, step: int) -> Value:
    """Zeros with x at start, start + step, ... of a dimension."""
    reach = (x.shape[dim] - 1) * step + 1
    return pad_in_dim(x, dim, start, size - start - reach, step - 1)


@lowering("select_backward")
def select_backward(ctx: Context, grad: Value, input_sizes: Sequence[int], dim: int, index: int) -> Value:
    dim %= len(input_sizes)
    size = input_sizes[dim]
    return placed(hlo.expand_dims(grad, [dim]), dim, size, index % size, 1)


@lowering("slice_backward")
def slice_backward(
    ctx: Context, grad: Value, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    dim %= len(input_sizes)
    if not grad.numel:
        return hlo.full(input_sizes, 0, grad.dtype)
    return placed(grad, dim, input_sizes[dim], bounds(input_sizes[dim], start, end)[0], step)


@lowering("select_scatter")
def select_scatter(ctx: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    starts = [0] * x.ndim
    starts[dim] = index % x.shape[dim]
    row = hlo.expand_dims(hlo.convert(source, x.dtype), [dim])
    return hlo.dynamic_update_slice(x, row, starts)


@lowering("slice_scatter")
def slice_scatter(
    ctx: Context,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    dim %= x.ndim
    size = x.shape[dim]
    low, high = bounds(size, start, end)
    count = -(-(high - low) // step)
    if not count or not x.numel:
        return x
    shape = [count if axis == dim else width for axis, width in enumerate(x.shape)]
    source = hlo.broadcast_to(hlo.convert(source, x.dtype), shape)
    if step == 1:
        return hlo.dynamic_update_slice(x, source, [low if axis == dim else 0 for axis in range(x.ndim)])
    written = placed(hlo.full((count,), True, torch.bool), 0, size, low, step)
    chosen = hlo.broadcast_in_dim(written, x.shape, [dim])
    return hlo.select(chosen, placed(source, dim, size, low, step), x)


@lowering("narrow_copy")
def narrow_copy(ctx: Context, x: Value, dim: int, start: int, length: int) -> Value:
    start = start + x.shape[dim] if start < 0 else start
    return hlo.slice_in_dim(x, dim, start, start + length)


@lowering("select_copy.int")
def select_copy(ctx: Context, x: Value, dim: int, index: int) -> Value:
    return hlo.index_in_dim(x, dim, index)


@lowering("slice_copy.Tensor")
def slice_copy(
    ctx: Context, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    low, high = bounds(x.shape[dim], start, end)
    return hlo.slice_in_dim(x, dim, low, high, step)


@lowering("split_with_sizes_copy", "unsafe_split_with_sizes")
def split_with_sizes_copy(ctx: Context, x: Value, split_sizes: Sequence[int], dim: int = 0) -> list[Value]:
    parts, start = [], 0
    for size in split_sizes:
        parts.append(hlo.slice_in_dim(x, dim, start, start + size))
        start += size
    return parts


@lowering("split_copy.Tensor", "unsafe_split.Tensor")
def split_copy(ctx: Context, x: Value, split_size: int, dim: int = 0) -> list[Value]:
    size = x.shape[dim]
    starts = range(0, size, split_size) if size and split_size else [0]
    return [hlo.slice_in_dim(x, dim, start, min(start + split_size, size)) for start in starts]


@lowering("unbind_copy.int")
def unbind_copy(ctx: Context, x: Value, dim: int = 0) -> list[Value]:
    return [hlo.index_in_dim(x, dim, index) for index in range(x.shape[dim])]


# ---- the same elements in the same order


@lowering(
    "alias_copy",
    "clone",
    "detach_copy",
    "lift_fresh_copy",
    "view_copy",
    "_unsafe_view",
    "_reshape_copy",
    "_reshape_alias_copy",
    "squeeze_copy",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "unsqueeze_copy",
)
def same_elements(ctx: Context, x: Value, *sizes: Any) -> Value:
    return hlo.reshape(x, ctx.out.shape)


@lowering("expand_copy")
def expand_copy(ctx: Context, x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    return hlo.broadcast_to(x, ctx.out.shape)


@lowering("permute_copy")
def permute_copy(ctx: Context, x: Value, dims: Sequence[int]) -> Value:
    return hlo.transpose(x, [dim % x.ndim for dim in dims])


@lowering("transpose_copy.int")
def transpose_copy(ctx: Context, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.ndim))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return hlo.transpose(x, order)


@lowering("t_copy")
def t_copy(ctx: Context, x: Value) -> Value:
    return hlo.transpose(x, range(x.ndim)[::-1])


@lowering("view_copy.dtype")
def view_dtype_copy(ctx: Context, x: Value, dtype: torch.dtype) -> Value:
    """The bits of x as another dtype. What XLA cannot reinterpret, complex and bool, goes by its parts."""
    if dtype is x.dtype or not x.numel:
        return hlo.full(ctx.out.shape, 0, dtype) if not x.numel else x
    if x.dtype.is_complex:
        x = hlo.stack([hlo.real(x), hlo.imag(x)], -1)
        x = hlo.reshape(x, (*x.shape[:-2], math.prod(x.shape[-2:])) if x.ndim > 1 else x.shape)
    elif x.dtype is torch.bool:
        x = hlo.convert(x, torch.uint8)
    if dtype is torch.bool:
        return hlo.convert(regrouped(x, torch.uint8), torch.bool)
    if not dtype.is_complex:
        return regrouped(x, dtype)
    parts = regrouped(x, hlo.real_dtype(dtype))
    pairs = hlo.reshape(parts, (*ctx.out.shape, 2))
    return hlo.make_complex(hlo.index_in_dim(pairs, -1, 0), hlo.index_in_dim(pairs, -1, 1))


def regrouped(x: Value, dtype: torch.dtype) -> Value:
    """A bit cast where the last dimension grows or shrinks with the change of width."""
    ratio = dtype.itemsize // x.dtype.itemsize
    if ratio > 1:
        return hlo.bitcast(hlo.reshape(x, (*x.shape[:-1], x.shape[-1] // ratio, ratio)), dtype)
    narrow = hlo.bitcast(x, dtype)
    return narrow if narrow.ndim == x.ndim else hlo.reshape(narrow, (*x.shape[:-1], math.prod(narrow.shape[-2:])))


# ---- strides


def strided(x: Value, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Value:
    """The elements of a contiguous x at these strides."""
    if not math.prod(size) or not x.numel:
        return hlo.full(size, 0, x.dtype)
    reach = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True) if length)
    index = position_dtype(reach + 1)
    positions = hlo.full(size, offset, index)
    for dim, step in enumerate(stride):
        positions = positions + hlo.iota(size, dim, index) * step
    return hlo.take(hlo.flatten(x), positions)
