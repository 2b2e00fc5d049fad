"""Pooling: average, maximum, adaptive and fractional, their gradients, and unpooling.

The pooled dimensions are always the last ones, whatever stands before them is batch. A maximum carries the flat
position inside the plane (or volume) along as an int32, so that one reduction finds both; gradients of maxima compare
saved positions with each element's own instead of scattering, wherever few windows can hold an element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.registry import Context, lowering

NO_POSITION = 2**31 - 1
"""The position of what is not an element; larger than any position, so that any element of the same value wins."""
MOST_CANDIDATES = 36
"""Gradients of maxima look at so many windows an element at most; beyond that they scatter."""


class Windows(NamedTuple):
    """Sliding windows: one entry a pooled dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """From the first to the last element of a window, dilation included."""
        return tuple((size - 1) * step + 1 for size, step in zip(self.kernel, self.dilation, strict=True))


Numbers = int | Sequence[int]


def _windows(rank: int, kernel: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers = 1) -> Windows:
    def each(numbers: Numbers) -> tuple[int, ...]:
        numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers)
        return numbers * rank if len(numbers) == 1 else numbers

    return Windows(each(kernel), each(stride) or each(kernel), each(padding), each(dilation))


def _compute(x: Value) -> Value:
    return hlo.convert(x, hlo.compute_dtype(x.dtype))


def _empty(ctx: Context) -> bool:
    return 0 in ctx.out.shape


def _zeros(ctx: Context) -> list[Value]:
    return [hlo.full(spec.shape, 0, spec.dtype) for spec in ctx.outs]


def _slide(
    values: Value | Sequence[Value],
    init: hlo.Number | Sequence[hlo.Number],
    body: Callable[..., Value | Sequence[Value]],
    windows: Windows,
    outs: Sequence[int],
) -> Value | list[Value]:
    """Reduces each window to one element; the last windows may hang over the padding (ceil_mode).

    Where that depends on a size that varies, there is room for one that does.
    """
    shape = values.shape if isinstance(values, Value) else values[0].shape
    lead = len(shape) - windows.rank
    padding = [(0, 0)] * lead
    for axis in range(windows.rank):
        low, size = windows.padding[axis], shape[lead + axis]
        if _fits(windows, axis, size, outs[axis]):
            padding.append((low, low))
            continue
        end = (outs[axis] - 1) * windows.stride[axis] + windows.reach[axis]
        over = windows.stride[axis] - 1 if isinstance(size, hlo.Dim) else max(0, end - size - 2 * low)
        padding.append((low, low + over))
    ones = (1,) * lead
    found = hlo.reduce_window(
        values,
        init,
        body,
        window=ones + windows.kernel,
        stride=ones + windows.stride,
        padding=padding,
        window_dilation=ones + windows.dilation,
    )
    return _cut(found, outs) if isinstance(found, Value) else [_cut(x, outs) for x in found]


def _cut(x: Value, sizes: Sequence[int]) -> Value:
    """The first elements along the last dimensions."""
    for axis, size in enumerate(sizes, x.ndim - len(sizes)):
        if x.shape[axis] != size:
            x = hlo.slice_in_dim(x, axis, 0, size)
    return x


def _fits(windows: Windows, axis: int, size: int, out: int) -> bool:
    """No window hangs over the padding."""
    return out == (size + 2 * windows.padding[axis] - windows.reach[axis]) // windows.stride[axis] + 1


# Average pooling


def _counts(windows: Windows, size: int, out: int, axis: int, include_padding: bool) -> list[int] | Value:
    """How many elements each window along one axis is divided by; a Value (int64) where a size varies."""
    kernel, stride, padding = windows.kernel[axis], windows.stride[axis], windows.padding[axis]
    if (include_padding or not padding) and _fits(windows, axis, size, out):
        return [kernel]
    if isinstance(size, hlo.Dim):
        first = hlo.iota((out,), 0) * stride - padding
        last = hlo.minimum(first + kernel, size + padding)
        if include_padding:
            return last - first
        return hlo.maximum(hlo.minimum(last, size) - hlo.maximum(first, 0), 1)
    counts = []
    for index in range(out):
        start = index * stride - padding
        end = min(start + kernel, size + padding)
        counts.append(end - start if include_padding else max(1, min(end, size) - max(start, 0)))
    return counts


def _divide(total: Value, counts: Sequence[Sequence[int] | Value], divisor: int | None = None) -> Value:
    """Divides by the product of one count an axis of the last dimensions, or by the divisor that overrides it."""
    if divisor is not None:
        return hlo.divide(total, divisor)
    whole, varying = 1, None
    for axis, numbers in enumerate(counts):
        if not isinstance(numbers, Value):
            if len(set(numbers)) == 1:
                whole *= numbers[0]
                continue
            numbers = hlo.literal(list(numbers), total.dtype)
        shape = [1] * len(counts)
        shape[axis] = numbers.shape[0]
        factor = hlo.reshape(hlo.convert(numbers, total.dtype), shape)
        varying = factor if varying is None else varying * factor
    if varying is None:
        return hlo.divide(total, whole) if whole != 1 else total
    return hlo.divide(total, hlo.multiply(varying, whole))


def _avg_pool(rank: int) -> Callable[..., Value | list[Value]]:
    def avg_pool(
        ctx: Context,
        x: Value,
        kernel_size: Numbers,
        stride: Numbers = (),
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value | list[Value]:
        if _empty(ctx):
            return _zeros(ctx)
        windows = _windows(rank, kernel_size, stride, padding)
        sizes, outs = x.shape[-rank:], ctx.out.shape[-rank:]
        total = _slide(_compute(x), 0, hlo.add, windows, outs)
        assert isinstance(total, Value)
        counts = [_counts(windows, sizes[axis], outs[axis], axis, count_include_pad) for axis in range(rank)]
        return _divide(total, counts, divisor_override)

    return avg_pool


def _avg_pool_backward(rank: int) -> Callable[..., Value | list[Value]]:
    """The quotients, spread over their windows: a sum over the windows that hold an element."""

    def avg_pool_backward(
        ctx: Context,
        grad: Value,
        x: Value,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value | list[Value]:
        if _empty(ctx) or grad.numel == 0:
            return _zeros(ctx)
        windows = _windows(rank, kernel_size, stride, padding)
        sizes, outs = x.shape[-rank:], grad.shape[-rank:]
        counts = [_counts(windows, sizes[axis], outs[axis], axis, count_include_pad) for axis in range(rank)]
        share = _divide(_compute(grad), counts, divisor_override)
        ones = (1,) * (x.ndim - rank)
        pads = [(0, 0)] * len(ones)
        for axis in range(rank):
            spread = (outs[axis] - 1) * windows.stride[axis] + 1
            low = windows.kernel[axis] - 1 - windows.padding[axis]
            high = sizes[axis] - spread + windows.padding[axis]
            most = low + windows.stride[axis] - 1  # where no window hangs over
            pads.append((low, most if isinstance(high, hlo.Dim) else high))
        found = hlo.reduce_window(
            share, 0, hlo.add, window=ones + windows.kernel, padding=pads, base_dilation=ones + windows.stride
        )
        assert isinstance(found, Value)
        return _cut(found, sizes)

    return avg_pool_backward


for _rank in (2, 3):
    lowering(f"avg_pool{_rank}d")(_avg_pool(_rank))
    lowering(f"avg_pool{_rank}d_backward")(_avg_pool_backward(_rank))


# Maximum pooling


def _positions(shape: Sequence[int], rank: int) -> Value:
    """Each element's flat index in the last dimensions, in the full shape."""
    sizes = tuple(shape[-rank:])
    flat = hlo.reshape(hlo.iota((math.prod(sizes),), 0, torch.int32), sizes)
    return hlo.broadcast_to(flat, shape)


def _later(value: Value, position: Value, other: Value, place: Value) -> list[Value]:
    """The larger of two elements: the first of equal ones, and of NaNs the last, as PyTorch's loops find them."""
    wins = hlo.greater(other, value) | (hlo.equal(other, value) & hlo.less(place, position))
    if value.dtype.is_floating_point:
        wins = wins | (hlo.is_nan(other) & (~hlo.is_nan(value) | hlo.greater(place, position)))
    return [hlo.select(wins, other, value), hlo.select(wins, place, position)]


def _max_pool(rank: int) -> Callable[..., list[Value]]:
    def max_pool(
        ctx: Context,
        x: Value,
        kernel_size: Numbers,
        stride: Numbers = (),
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
    ) -> list[Value]:
        if _empty(ctx):
            return _zeros(ctx)
        windows = _windows(rank, kernel_size, stride, padding, dilation)
        pairs = [x, _positions(x.shape, rank)]
        found = _slide(pairs, [hlo.lowest(x.dtype), NO_POSITION], _later, windows, ctx.out.shape[-rank:])
        assert isinstance(found, list)
        return found

    return max_pool


def _max_pool_backward(rank: int) -> Callable[..., Value | list[Value]]:
    def max_pool_backward(
        ctx: Context,
        grad: Value,
        x: Value,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        ceil_mode: bool,
        indices: Value,
    ) -> Value | list[Value]:
        if _empty(ctx) or grad.numel == 0:
            return _zeros(ctx)
        windows = _windows(rank, kernel_size, stride, padding, dilation)
        candidates = [(reach - 1) // step + 1 for reach, step in zip(windows.reach, windows.stride, strict=True)]
        grad = _compute(grad)
        if math.prod(candidates) > MOST_CANDIDATES:
            return scatter_planes(grad, indices, x.shape, rank, hlo.add)
        return _collect(grad, hlo.convert(indices, torch.int32), x.shape, windows, candidates)

    return max_pool_backward


def _repeat(x: Value, counts: Sequence[int]) -> Value:
    """Each element of the last dimensions repeated (torch.repeat_interleave)."""
    lead = x.ndim - len(counts)
    shape, dims = list(x.shape[:lead]), list(range(lead))
    for size, count in zip(x.shape[lead:], counts, strict=True):
        dims.append(len(shape))
        shape += [size, count]
    spread = hlo.broadcast_in_dim(x, shape, dims)
    return hlo.reshape(
        spread, [*x.shape[:lead], *(size * count for size, count in zip(x.shape[lead:], counts, strict=True))]
    )


def _collect(grad: Value, positions: Value, shape: Sequence[int], windows: Windows, candidates: Sequence[int]) -> Value:
    """Adds up, for each element of a shape, the gradients of the windows whose maximum stands there.

    The windows that can hold element p of an axis are floor((p + padding) / stride) - j for j = 0, 1, ... candidates
    - 1: window by window repeated `stride` times and shifted by j strides.
    """
    rank, lead = windows.rank, len(shape) - windows.rank
    grad, positions = _repeat(grad, windows.stride), _repeat(positions, windows.stride)
    own = _positions(shape, rank)
    total = None
    for number in range(math.prod(candidates)):
        low, high = [0] * lead, [0] * lead
        for axis in range(rank):
            number, shift = divmod(number, candidates[axis])
            low.append(shift * windows.stride[axis] - windows.padding[axis])
            high.append(shape[lead + axis] - low[-1] - grad.shape[lead + axis])
        here = hlo.equal(hlo.pad(positions, low, high, -1), own)
        part = hlo.select(here, hlo.pad(grad, low, high, 0), 0)
        total = part if total is None else total + part
    assert total is not None
    return total


lowering("max_pool2d_with_indices")(_max_pool(2))
lowering("max_pool3d_with_indices")(_max_pool(3))
lowering("max_pool2d_with_indices_backward")(_max_pool_backward(2))
lowering("max_pool3d_with_indices_backward")(_max_pool_backward(3))


# Adaptive pooling: window i of an axis is floor(i * size / outs) to ceil((i + 1) * size / outs). The windows that hold
# an element follow the same formula with the sizes exchanged, so gradients pool in the other direction.


def _spans(size: int, outs: int) -> list[tuple[int, int]]:
    return [(index * size // outs, -(-(index + 1) * size // outs)) for index in range(outs)]


def _span_counts(sizes: Sequence[int], outs: Sequence[int]) -> list[list[int]]:
    return [[end - start for start, end in _spans(size, out)] for size, out in zip(sizes, outs, strict=True)]


def _split(x: Value, dim: int, outs: int, filling: hlo.Number) -> Value:
    """Replaces a dimension by two: the adaptive windows, and their elements with fillings up to the longest."""
    size = x.shape[dim]
    if size % outs == 0:
        return hlo.reshape(x, [*x.shape[:dim], outs, size // outs, *x.shape[dim + 1 :]])
    if outs % size == 0:
        dims = [axis if axis <= dim else axis + 2 for axis in range(x.ndim)]
        spread = hlo.broadcast_in_dim(x, [*x.shape[: dim + 1], outs // size, 1, *x.shape[dim + 1 :]], dims)
        return hlo.reshape(spread, [*x.shape[:dim], outs, 1, *x.shape[dim + 1 :]])
    spans = _spans(size, outs)
    longest = max(end - start for start, end in spans)
    table = [[min(start + step, size - 1) for step in range(longest)] for start, _ in spans]
    parts = hlo.take(x, hlo.literal(table, torch.int32), dim)
    inside = hlo.literal([[start + step < end for step in range(longest)] for start, end in spans], torch.bool)
    inside = hlo.broadcast_in_dim(inside, parts.shape, [dim, dim + 1])
    return hlo.select(inside, parts, filling)


def _adaptive_sum(x: Value, outs: Sequence[int]) -> Value:
    for axis in reversed(range(len(outs))):
        dim = x.ndim - len(outs) + axis
        x = hlo.reduce_sum(_split(x, dim, outs[axis], 0), [dim + 1])
    return x


def _adaptive_avg_pool(ctx: Context, x: Value, output_size: Sequence[int]) -> Value | list[Value]:
    if _empty(ctx):
        return _zeros(ctx)
    rank = len(output_size)
    return _divide(_adaptive_sum(_compute(x), output_size), _span_counts(x.shape[-rank:], output_size))


def _adaptive_avg_pool_backward(rank: int) -> Callable[..., Value | list[Value]]:
    def adaptive_avg_pool_backward(ctx: Context, grad: Value, x: Value) -> Value | list[Value]:
        if _empty(ctx) or grad.numel == 0:
            return _zeros(ctx)
        sizes, outs = x.shape[-rank:], grad.shape[-rank:]
        return _adaptive_sum(_divide(_compute(grad), _span_counts(sizes, outs)), sizes)

    return adaptive_avg_pool_backward


def _adaptive_max_pool(ctx: Context, x: Value, output_size: Sequence[int]) -> list[Value]:
    if _empty(ctx):
        return _zeros(ctx)
    rank = len(output_size)
    pair = [x, _positions(x.shape, rank)]
    starts = [hlo.lowest(x.dtype), NO_POSITION]
    for axis in reversed(range(rank)):
        dim = x.ndim - rank + axis
        parts = [_split(value, dim, output_size[axis], start) for value, start in zip(pair, starts, strict=True)]
        reduced = hlo.reduce(parts, starts, _later, [dim + 1])
        assert isinstance(reduced, list)
        pair = reduced
    return pair


def _adaptive_max_pool_backward(rank: int) -> Callable[..., Value | list[Value]]:
    def adaptive_max_pool_backward(ctx: Context, grad: Value, x: Value, indices: Value) -> Value | list[Value]:
        if _empty(ctx) or grad.numel == 0:
            return _zeros(ctx)
        lead = x.ndim - rank
        grad, positions = _compute(grad), hlo.convert(indices, torch.int32)
        for axis in reversed(range(rank)):
            grad = _split(grad, lead + axis, x.shape[lead + axis], 0)
            positions = _split(positions, lead + axis, x.shape[lead + axis], -1)
        kept = [*range(lead), *(lead + 2 * axis for axis in range(rank))]
        own = hlo.broadcast_in_dim(_positions(x.shape, rank), grad.shape, kept)
        found = hlo.select(hlo.equal(positions, own), grad, 0)
        return hlo.reduce_sum(found, [dim + 1 for dim in kept[lead:]])

    return adaptive_max_pool_backward


lowering("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")(_adaptive_avg_pool)
lowering("adaptive_max_pool2d", "adaptive_max_pool3d")(_adaptive_max_pool)
for _rank in (2, 3):
    lowering(f"_adaptive_avg_pool{_rank}d_backward")(_adaptive_avg_pool_backward(_rank))
    lowering(f"adaptive_max_pool{_rank}d_backward")(_adaptive_max_pool_backward(_rank))


# Fractional pooling and unpooling: positions that the program computes or is given


def scatter_planes(
    x: Value,
    indices: Value,
    shape: Sequence[int],
    rank: int,
    combine: Callable[[Value, Value], Value],
) -> Value:
    """Zeros of a shape with x's elements combined in at flat positions in their plane."""
    planes = math.prod(shape[:-rank])
    updates = hlo.reshape(x, (planes, x.numel // planes))
    places = hlo.reshape(hlo.convert(indices, torch.int32), (*updates.shape, 1))
    target = hlo.full((planes, math.prod(shape[-rank:])), 0, x.dtype)
    filled = hlo.scatter(
        target,
        places,
        updates,
        combine,
        update_window_dims=[],
        inserted_window_dims=[1],
        scatter_dims_to_operand_dims=[1],
        input_batching_dims=[0],
        scatter_indices_batching_dims=[0],
    )
    return hlo.reshape(filled, shape)


def _rounded(x: Value, dtype: torch.dtype) -> Value:
    """A float32 as if it had been computed in a narrower dtype."""
    if dtype is torch.bfloat16:
        return hlo.reduce_precision(x, 8, 7)
    return hlo.reduce_precision(x, 5, 10) if dtype is torch.float16 else x


def _fractional_starts(samples: Value, size: int, outs: int, kernel: int) -> Value:
    """Where the windows of one axis start: trunc((i + u) a) - trunc(u a) with a = (size - kernel) / (outs - 1), and
    the last at the end (Graham, "Fractional Max-Pooling", https://arxiv.org/abs/1412.6071). In the samples' dtype, as
    PyTorch rounds. Adds a dimension of `outs`.
    """
    shape = (*samples.shape, outs)
    last = hlo.full(shape, size - kernel, torch.int32)
    if outs == 1:
        return last
    dtype, wide = samples.dtype, _compute(samples)
    alpha = _rounded(hlo.divide(hlo.scalar(size - kernel, wide.dtype), outs - 1), dtype)
    sample = hlo.broadcast_in_dim(wide, shape, range(samples.ndim))
    step = _rounded(hlo.iota(shape, samples.ndim, wide.dtype), dtype)
    ahead = _rounded(hlo.multiply(_rounded(step + sample, dtype), alpha), dtype)
    behind = _rounded(hlo.multiply(sample, alpha), dtype)
    starts = hlo.convert(ahead, torch.int32) - hlo.convert(behind, torch.int32)
    is_last = hlo.equal(hlo.iota(shape, samples.ndim, torch.int32), outs - 1)
    return hlo.select(is_last, last, starts)


def _fractional_max_pool(rank: int) -> Callable[..., list[Value]]:
    def fractional_max_pool(
        ctx: Context, x: Value, kernel_size: Numbers, output_size: Numbers, random_samples: Value
    ) -> list[Value]:
        if _empty(ctx):
            return _zeros(ctx)
        kernel, outs = _windows(rank, kernel_size, output_size, 0)[:2]
        sizes, planes = x.shape[-rank:], math.prod(x.shape[:-rank])
        samples = hlo.slice_in_dim(hlo.reshape(random_samples, (random_samples.numel // rank, rank)), 0, 0, planes)
        shape = (planes, *outs, *kernel)
        position = hlo.full(shape, 0, torch.int32)
        for axis in range(rank):
            column = rank - 1 - axis if rank == 2 else axis  # PyTorch samples (W, H) but (T, H, W)
            sample = hlo.index_in_dim(samples, 1, column)
            starts = _fractional_starts(sample, sizes[axis], outs[axis], kernel[axis])
            place = hlo.broadcast_in_dim(starts, shape, [0, 1 + axis])
            place = place + hlo.iota(shape, 1 + rank + axis, torch.int32)
            position = position + hlo.multiply(place, math.prod(sizes[axis + 1 :]))
        flat = hlo.reshape(x, (planes, math.prod(sizes)))
        values = hlo.gather(
            flat,
            hlo.reshape(position, (*shape, 1)),
            offset_dims=[],
            collapsed_slice_dims=[1],
            start_index_map=[1],
            slice_sizes=[1, 1],
            operand_batching_dims=[0],
            start_indices_batching_dims=[0],
        )
        starts_with = [hlo.lowest(x.dtype), NO_POSITION]
        found = hlo.reduce([values, position], starts_with, _later, range(1 + rank, 1 + 2 * rank))
        assert isinstance(found, list)
        return [hlo.reshape(value, ctx.out.shape) for value in found]

    return fractional_max_pool


def _fractional_max_pool_backward(rank: int) -> Callable[..., Value]:
    def fractional_max_pool_backward(
        ctx: Context, grad: Value, x: Value, kernel_size: Numbers, output_size: Numbers, indices: Value
    ) -> Value:
        if grad.numel == 0:
            return hlo.zeros_like(x)
        return scatter_planes(_compute(grad), indices, x.shape, rank, hlo.add)

    return fractional_max_pool_backward


def _max_unpool(rank: int) -> Callable[..., Value | list[Value]]:
    def max_unpool(
        ctx: Context,
        x: Value,
        indices: Value,
        output_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
    ) -> Value | list[Value]:
        if _empty(ctx) or x.numel == 0:
            return _zeros(ctx)
        inside = hlo.greater_equal(indices, 0) & hlo.less(indices, math.prod(ctx.out.shape[-rank:]))
        require_all(ctx.platform, inside, f"aten::max_unpool{rank}d: an index is outside of the output")
        return scatter_planes(x, indices, ctx.out.shape, rank, lambda old, new: new)

    return max_unpool


for _rank in (2, 3):
    lowering(f"fractional_max_pool{_rank}d")(_fractional_max_pool(_rank))
    lowering(f"fractional_max_pool{_rank}d_backward")(_fractional_max_pool_backward(_rank))
    lowering(f"max_unpool{_rank}d")(_max_unpool(_rank))
