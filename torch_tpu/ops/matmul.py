"""Matrix products: mm, bmm, addmm and their relatives, scaled, grouped and quantized ones, bilinear forms.

All go through `contract`, which chooses the form of the dot for a dtype. Times in comments: XLA:CPU
of jaxlib 0.10.2 on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import RESULT, Context, lowering

Dims = tuple[Sequence[int], Sequence[int]]
_TILE = 128
"""Rows that a grouped product takes at a time."""


def contract(x: Value, y: Value, dims: Dims, batch: Dims = ((), ()), *, platform: str = "cpu") -> Value:
    """The dot of two values of one dtype, in the dtype it is accumulated in (the caller casts it to
    what it returns).

    bfloat16 and float16 give float32 straight from the dot: on a CPU 2.5 ms for 1024^3 in bfloat16,
    where a bfloat16 result or converted operands take 12 ms; on a TPU it is what the matrix unit
    does. Integers up to 8 bits give int32 (40 times faster than int8 results); what exceeds their
    width wraps when the result is cast.
    """
    dtype = x.dtype
    if y.dtype is not dtype:
        raise RuntimeError(f"expected operands of the same dtype, got {dtype} and {y.dtype}")
    if dtype is torch.bool or dtype in (torch.int8, torch.uint8):
        narrow = [hlo.convert(v, torch.int8) if dtype is torch.bool else hlo.bitcast(v, torch.int8) for v in (x, y)]
        return hlo.dot_general(*narrow, contract=dims, batch=batch, dtype=torch.int32)
    if dtype in (torch.int16, torch.uint16):
        x, y = hlo.convert(x, torch.int32), hlo.convert(y, torch.int32)
    elif dtype.is_complex and platform == "cpu" and not hlo.imitating() and _num_products(x, y, dims, batch) > 1 << 20:
        return _complex_dot(x, y, dims, batch)
    elif platform == "tpu" and is_wide_integer(dtype):
        return _sum_of_products(x, y, dims, batch)
    elif is_wide_integer(dtype) and platform == "cpu" and _num_products(x, y, dims, batch) > 1 << 16:
        y, dims, batch = _contracted_last(y, dims, batch)
    return hlo.dot_general(x, y, contract=dims, batch=batch, dtype=hlo.compute_dtype(x.dtype))


def is_wide_integer(dtype: torch.dtype) -> bool:
    """A 64-bit integer, of which TPUs have no dots and convolutions: their compiler refuses them."""
    return dtype in (torch.int64, torch.uint64)


def _sum_of_products(x: Value, y: Value, dims: Dims, batch: Dims) -> Value:
    """The dot as a product of every pair of elements and a sum, which XLA fuses: nothing of that size is in memory."""
    sides = []
    for side, value in enumerate((x, y)):
        free = [dim for dim in range(value.ndim) if dim not in {*batch[side], *dims[side]}]
        sides.append((hlo.transpose(value, [*batch[side], *free, *dims[side]]), len(free)))
    (left, rows), (right, columns) = sides
    lead, last = len(batch[0]), len(dims[0])
    shape = (*left.shape[: lead + rows], *right.shape[lead : lead + columns], *left.shape[lead + rows :])
    shared, ends = range(lead), range(lead + rows + columns, lead + rows + columns + last)
    left = hlo.broadcast_in_dim(left, shape, [*shared, *range(lead, lead + rows), *ends])
    right = hlo.broadcast_in_dim(right, shape, [*shared, *range(lead + rows, lead + rows + columns), *ends])
    return hlo.reduce_sum(left * right, list(ends))


def _num_products(x: Value, y: Value, dims: Dims, batch: Dims) -> int:
    shared = {*dims[1], *batch[1]}
    free = 1
    for dim, size in enumerate(y.shape):
        free *= 1 if dim in shared else size
    return x.numel * free


def _complex_dot(x: Value, y: Value, dims: Dims, batch: Dims) -> Value:
    """Four real dots, which XLA:CPU hands to Eigen; its own complex dot is five times slower (8 ms
    for 256^3).
    """

    def dot(a: Value, b: Value) -> Value:
        return hlo.dot_general(a, b, contract=dims, batch=batch)

    a, b, c, d = hlo.real(x), hlo.imag(x), hlo.real(y), hlo.imag(y)
    return hlo.make_complex(dot(a, c) - dot(b, d), dot(a, d) + dot(b, c))


def _contracted_last(y: Value, dims: Dims, batch: Dims) -> tuple[Value, Dims, Dims]:
    """y laid out so that XLA:CPU's plain loop reads it in order: ten times faster for large 64-bit
    integer dots.
    """
    free = [dim for dim in range(y.ndim) if dim not in {*dims[1], *batch[1]}]
    order = [*batch[1], *free, *dims[1]]
    (moved,) = hlo.optimization_barrier([hlo.transpose(y, order)])
    last = range(y.ndim - len(dims[1]), y.ndim)
    return moved, (dims[0], tuple(last)), (batch[0], tuple(range(len(batch[1]))))


def times(x: Value, factor: Value | int | None) -> Value:
    """factor * x in x's dtype, for a weak scalar; a Python number is the default, 1."""
    return hlo.multiply(x, hlo.convert(factor, x.dtype)) if isinstance(factor, Value) else x


def scaled_addend(x: Value, beta: Value | int, dtype: torch.dtype) -> Value:
    """beta * x, and 0 where beta is 0 even for NaN, as all of addmm's relatives have it."""
    x = hlo.convert(x, dtype)
    if not isinstance(beta, Value):
        return x
    factor = hlo.convert(beta, dtype)
    return hlo.select(hlo.equal(factor, 0), 0, hlo.multiply(x, factor))


def _bool_as_int(x: Value) -> Value:
    return hlo.convert(x, torch.int32) if x.dtype is torch.bool else x


def _add_product(x: Value, product: Value, beta: Value | int, alpha: Value | int) -> Value:
    return hlo.add(scaled_addend(x, beta, product.dtype), times(product, alpha))


@lowering("mm", "mm.dtype")
def mm(ctx: Context, x: Value, y: Value, out_dtype: torch.dtype | None = None) -> Value:
    return contract(x, y, ([1], [0]), platform=ctx.platform)


@lowering("bmm", "bmm.dtype")
def bmm(ctx: Context, x: Value, y: Value, out_dtype: torch.dtype | None = None) -> Value:
    return contract(x, y, ([2], [1]), ([0], [0]), platform=ctx.platform)


@lowering("mv")
def mv(ctx: Context, x: Value, y: Value) -> Value:
    return contract(x, y, ([1], [0]), platform=ctx.platform)


@lowering("dot")
def dot(ctx: Context, x: Value, y: Value) -> Value:
    return contract(x, y, ([0], [0]), platform=ctx.platform)


@lowering("vdot")
def vdot(ctx: Context, x: Value, y: Value) -> Value:
    return contract(hlo.conj(x), y, ([0], [0]), platform=ctx.platform)


@lowering("addmm")
def addmm(ctx: Context, x: Value, a: Value, b: Value, beta: Value | int = 1, alpha: Value | int = 1) -> Value:
    return _add_product(x, contract(a, b, ([1], [0]), platform=ctx.platform), beta, alpha)


@lowering("addmm.dtype")
def addmm_dtype(
    ctx: Context,
    x: Value,
    a: Value,
    b: Value,
    out_dtype: torch.dtype,
    beta: Value | int = 1,
    alpha: Value | int = 1,
) -> Value:
    return addmm(ctx, x, a, b, beta, alpha)


@lowering("_addmm_activation")
def addmm_activation(
    ctx: Context,
    x: Value,
    a: Value,
    b: Value,
    beta: Value | int = 1,
    alpha: Value | int = 1,
    use_gelu: bool = False,
) -> Value:
    return activate(addmm(ctx, x, a, b, beta, alpha), use_gelu)


def activate(x: Value, use_gelu: bool) -> Value:
    """x (1 + erf(x / sqrt(2))) / 2, or the positive part."""
    return x * 0.5 * (hlo.erf(x * 0.5**0.5) + 1) if use_gelu else hlo.maximum(x, 0)


@lowering("baddbmm")
def baddbmm(ctx: Context, x: Value, a: Value, b: Value, beta: Value | int = 1, alpha: Value | int = 1) -> Value:
    return _add_product(x, contract(a, b, ([2], [1]), ([0], [0]), platform=ctx.platform), beta, alpha)


@lowering("baddbmm.dtype", inferred=True)  # meta takes the dtype for beta
def baddbmm_dtype(
    ctx: Context,
    x: Value,
    a: Value,
    b: Value,
    out_dtype: torch.dtype,
    beta: Value | int = 1,
    alpha: Value | int = 1,
) -> Value:
    return hlo.convert(baddbmm(ctx, x, a, b, beta, alpha), out_dtype)


@lowering("addbmm")
def addbmm(ctx: Context, x: Value, a: Value, b: Value, beta: Value | int = 1, alpha: Value | int = 1) -> Value:
    return _add_product(x, contract(a, b, ([0, 2], [0, 1]), platform=ctx.platform), beta, alpha)


@lowering("addmv")
def addmv(ctx: Context, x: Value, a: Value, b: Value, beta: Value | int = 1, alpha: Value | int = 1) -> Value:
    return _add_product(x, contract(a, b, ([1], [0]), platform=ctx.platform), beta, alpha)


@lowering("addr", promote=RESULT)
def addr(ctx: Context, x: Value, a: Value, b: Value, beta: Value | int = 1, alpha: Value | int = 1) -> Value:
    if x.dtype is torch.bool:
        x, a, b = map(_bool_as_int, (x, a, b))
    return _add_product(x, hlo.multiply(hlo.expand_dims(a, [1]), hlo.expand_dims(b, [0])), beta, alpha)


@lowering("_foreach_mm")
def foreach_mm(ctx: Context, xs: Sequence[Value], ys: Sequence[Value]) -> list[Value]:
    return [mm(ctx, x, y) for x, y in zip(xs, ys, strict=True)]


@lowering("_compute_linear_combination")
def compute_linear_combination(ctx: Context, x: Value, coefficients: Value) -> Value:
    return hlo.convert(contract(coefficients, x, ([1], [0]), platform=ctx.platform), x.dtype)


def linear_product(x: Value, weight: Value, platform: str) -> Value:
    """x @ weight.T for x with any leading dimensions, which XLA:CPU multiplies faster when they are one."""
    rows = hlo.reshape(x, (_rows(x), x.shape[-1]))
    product = contract(rows, weight, ([1], [weight.ndim - 1]), platform=platform)
    return hlo.reshape(product, (*x.shape[:-1], *weight.shape[:-1]))


def _rows(x: Value) -> int:
    count = 1
    for size in x.shape[:-1]:
        count *= size
    return count


@lowering("linear_backward")
def linear_backward(
    ctx: Context, x: Value, grad: Value, weight: Value, output_mask: Sequence[bool]
) -> list[Value | None]:
    """grad @ weight, grad.T @ x and the sum of grad, over all leading dimensions; those that are
    asked for.
    """
    rows = hlo.reshape(grad, (_rows(grad), grad.shape[-1]))
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        results[0] = hlo.reshape(contract(rows, weight, ([1], [0]), platform=ctx.platform), x.shape)
    if output_mask[1]:
        flat = hlo.reshape(x, (_rows(x), x.shape[-1]))
        results[1] = contract(rows, flat, ([0], [0]), platform=ctx.platform)
    if output_mask[2]:
        results[2] = hlo.reduce_sum(hlo.convert(rows, hlo.compute_dtype(rows.dtype)), [0])
    return results


@lowering("_int_mm")
def int_mm(ctx: Context, x: Value, y: Value) -> Value:
    return hlo.dot_general(x, y, contract=([1], [0]), dtype=torch.int32)


@lowering("_weight_int8pack_mm")
def weight_int8pack_mm(ctx: Context, x: Value, weight: Value, scales: Value) -> Value:
    product = contract(x, hlo.convert(weight, x.dtype), ([1], [1]), platform=ctx.platform)
    return hlo.multiply(product, hlo.convert(scales, product.dtype))


# Bilinear forms


@lowering("_trilinear")
def trilinear(
    ctx: Context,
    x: Value,
    y: Value,
    z: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """The sum over `sumdim` of x y z, each with dimensions inserted at its `expand`.

    Two dots: first the pair with the smaller product, summed over what the third lacks, then with the third.
    """
    rank = x.ndim + len(expand1)
    operands = []
    for value, expand in ((x, expand1), (y, expand2), (z, expand3)):
        wide = hlo.expand_dims(value, expand).shape if expand else value.shape
        labels = [dim for dim in range(rank) if wide[dim] != 1]
        operands.append((hlo.reshape(value, [wide[dim] for dim in labels]), labels))
    sizes = {dim: size for value, labels in operands for dim, size in zip(labels, value.shape, strict=True)}
    kept = [dim for dim in range(rank) if dim not in sumdim]

    def middle(third: int) -> int:
        count = 1
        for dim in {*operands[third - 1][1], *operands[third - 2][1]} & {*kept, *operands[third][1]}:
            count *= sizes[dim]
        return count

    last = min((0, 1, 2), key=middle)
    first, second = [operand for index, operand in enumerate(operands) if index != last]
    pair = _sum_product(first, second, {*kept, *operands[last][1]}, ctx.platform)
    product, labels = _sum_product(pair, operands[last], set(kept), ctx.platform)
    product = hlo.transpose(product, sorted(range(len(labels)), key=lambda place: labels[place]))
    return hlo.reshape(product, [sizes.get(dim, 1) for dim in kept])


Labelled = tuple[Value, list[int]]


def _sum_product(x: Labelled, y: Labelled, keep: set[int], platform: str) -> Labelled:
    """The product of two labelled values, summed over labels not in `keep`."""
    shared = set(x[1]) & set(y[1])
    (left, names), (right, others) = _sum_away(x, keep | shared), _sum_away(y, keep | shared)
    if left.dtype is not right.dtype:  # one of them is an intermediate, in float32 or int32
        dtype = torch.promote_types(left.dtype, right.dtype)
        left, right = hlo.convert(left, dtype), hlo.convert(right, dtype)
    batch = [name for name in names if name in shared and name in keep]
    summed = [name for name in names if name in shared and name not in keep]
    product = contract(
        left,
        right,
        ([names.index(name) for name in summed], [others.index(name) for name in summed]),
        ([names.index(name) for name in batch], [others.index(name) for name in batch]),
        platform=platform,
    )
    free = [name for name in [*names, *others] if name not in shared]
    return product, [*batch, *free]


def _sum_away(x: Labelled, keep: set[int]) -> Labelled:
    value, labels = x
    gone = [place for place, label in enumerate(labels) if label not in keep]
    if gone:
        value = hlo.reduce_sum(hlo.convert(value, hlo.compute_dtype(value.dtype)), gone)
    return value, [label for label in labels if label in keep]


# Scaled products of 8-bit floats


def _dequantized(x: Value, scale: Value, contracted: int) -> Value:
    """x times its scales in float32. Scales are one number, one a row, or a grid of blocks (as 2-D
    as x is).
    """
    wide, scale = hlo.convert(x, torch.float32), hlo.convert(scale, torch.float32)
    if scale.numel == 1:
        return wide * hlo.reshape(scale, ())
    if scale.ndim != x.ndim:
        shape = [1 if dim == contracted else size for dim, size in enumerate(x.shape)]
        scale = hlo.reshape(scale, shape)
    for dim, size in enumerate(x.shape):
        if scale.shape[dim] not in (1, size):
            scale = _repeat_blocks(scale, dim, size)
    return wide * scale


def _repeat_blocks(scale: Value, dim: int, size: int) -> Value:
    block = -(-size // scale.shape[dim])
    spread = [*scale.shape[: dim + 1], block, *scale.shape[dim + 1 :]]
    kept = [place for place in range(scale.ndim + 1) if place != dim + 1]
    merged = [*scale.shape[:dim], scale.shape[dim] * block, *scale.shape[dim + 1 :]]
    return hlo.slice_in_dim(hlo.reshape(hlo.broadcast_in_dim(scale, spread, kept), merged), dim, 0, size)


@lowering("_scaled_mm")
def scaled_mm(
    ctx: Context,
    x: Value,
    y: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Value:
    if scale_a.numel == 1 and scale_b.numel == 1:  # after the dot, so that it is one of 8-bit operands
        product = hlo.dot_general(x, y, contract=([1], [0]), dtype=torch.float32)
        product = product * hlo.reshape(hlo.convert(scale_a, torch.float32) * hlo.convert(scale_b, torch.float32), ())
    else:
        product = contract(_dequantized(x, scale_a, 1), _dequantized(y, scale_b, 0), ([1], [0]))
    if bias is not None:
        product = product + hlo.convert(bias, torch.float32)
    if scale_result is not None and ctx.out.dtype.itemsize == 1:
        product = product * hlo.reshape(hlo.convert(scale_result, torch.float32), ())
    return product


@lowering("_scaled_mm_v2")
def scaled_mm_v2(
    ctx: Context,
    x: Value,
    y: Value,
    scale_a: Sequence[Value],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Value],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Value | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Value:
    """The shapes of the scales say which recipe it is. Swizzled scales are a layout of CUDA's and
    not taken.
    """
    if any(swizzle_a) or any(swizzle_b):
        raise NotImplementedError("_scaled_mm_v2 takes scales in plain row order only, not swizzled")
    y_scale = scale_b[0]
    if y_scale.ndim == 2 and y_scale.numel > 1 and y_scale.shape[0] == y.shape[1] and y_scale.shape[1] == 1:
        y_scale = hlo.transpose(y_scale, (1, 0))
    return scaled_mm(ctx, x, y, scale_a[0], y_scale, bias)


# Grouped products


@lowering("_grouped_mm", inferred=True)  # meta takes bfloat16 only, the CPU more
def grouped_mm(
    ctx: Context,
    x: Value,
    y: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> Value:
    """A product for each group; `offs` has the ends of the groups along the dimension that a 2-D
    operand lacks.
    """
    if offs is None:
        product = contract(x, y, ([2], [1]), ([0], [0]), platform=ctx.platform)
    elif x.ndim == 2 and y.ndim == 2:
        product = _grouped_contraction(x, y, offs)
    elif x.ndim == 2:
        product = _grouped_rows(x, y, offs)
    else:
        product = hlo.transpose(_grouped_rows(hlo.transpose(y, (1, 0)), hlo.transpose(x, (0, 2, 1)), offs), (1, 0))
    product = product if bias is None else hlo.add(product, hlo.convert(bias, product.dtype))
    return hlo.convert(product, out_dtype or x.dtype)


def _visits(offs: Value, size: int, tile: int) -> tuple[int, list[Value], list[Value]]:
    """Which tile of rows meets which group: their number's bound, (starts, ends) and (tile, group)
    of each visit.

    A group's tiles are those its rows fall in, so that all groups together visit at most size /
    tile + groups - 1.
    """
    groups = offs.shape[0]
    ends = hlo.convert(offs, torch.int32)
    starts = hlo.pad(hlo.slice_in_dim(ends, 0, 0, groups - 1), [1], [0])
    first = hlo.divide(starts, tile)
    counts = hlo.select(hlo.greater(ends, starts), hlo.divide(ends - 1, tile) - first + 1, 0)
    bound = -(-size // tile) + groups - 1
    square = (groups, groups)
    earlier = hlo.less_equal(hlo.iota(square, 1, torch.int32), hlo.iota(square, 0, torch.int32))
    totals = hlo.reduce_sum(hlo.select(earlier, hlo.expand_dims(counts, [0]), 0), [1])
    visit = hlo.iota((bound, groups), 0, torch.int32)
    passed = hlo.greater_equal(visit, hlo.expand_dims(totals, [0]))
    group = hlo.reduce_sum(hlo.convert(passed, torch.int32), [1])  # `groups` for visits that do not happen
    known = hlo.minimum(group, groups - 1)
    before = hlo.take(totals - counts, known)
    tiles = hlo.take(first, known) + hlo.iota((bound,), 0, torch.int32) - before
    return bound, [starts, ends], [hlo.select(hlo.equal(group, groups), 0, tiles), group]


Step = Callable[[Value, Value, Value, Value], Value]


def _grouped_loop(x: Value, offs: Value, dim: int, result: Sequence[int], step: Step) -> Value:
    """Calls step(sum, tile's first row, mask of its rows in the group, group) for every visit."""
    size = x.shape[dim]
    tile = min(_TILE, size)
    bound, (starts, ends), (tiles, groups) = _visits(offs, size, tile)
    last = offs.shape[0] - 1

    def body(index: Value, total: Value) -> list[Value]:
        at = [hlo.reshape(hlo.dynamic_slice(table, [index], [1]), ()) for table in (tiles, groups)]
        group = hlo.minimum(at[1], last)
        low, high = (hlo.reshape(hlo.dynamic_slice(table, [group], [1]), ()) for table in (starts, ends))
        high = hlo.select(hlo.greater(at[1], last), low, high)
        row = hlo.iota((tile,), 0, torch.int32) + at[0] * tile
        mask = hlo.bitwise_and(hlo.greater_equal(row, low), hlo.less(row, high))
        return [step(total, at[0] * tile, mask, group)]

    return hlo.fori_loop(bound, [hlo.full(result, 0, torch.float32 if x.dtype.itemsize < 8 else x.dtype)], body)[0]


def _padded(x: Value, dim: int, tile: int) -> Value:
    high = [0] * x.ndim
    high[dim] = -x.shape[dim] % tile
    return hlo.pad(x, [0] * x.ndim, high)


def _grouped_rows(x: Value, y: Value, offs: Value) -> Value:
    """Rows [T, K] by the matrices [G, K, N] of their groups."""
    rows, width = x.shape[0], y.shape[2]
    if not rows or not width:
        return hlo.full((rows, width), 0, x.dtype)
    tile = min(_TILE, rows)
    padded = _padded(x, 0, tile)
    zero = hlo.scalar(0, torch.int32)

    def step(total: Value, start: Value, mask: Value, group: Value) -> Value:
        part = hlo.dynamic_slice(padded, [start, zero], [tile, x.shape[1]])
        matrix = hlo.reshape(hlo.dynamic_slice(y, [group, zero, zero], [1, *y.shape[1:]]), y.shape[1:])
        product = hlo.convert(contract(part, matrix, ([1], [0])), total.dtype)
        old = hlo.dynamic_slice(total, [start, zero], [tile, width])
        merged = hlo.select(hlo.expand_dims(mask, [1]), product, old)
        return hlo.dynamic_update_slice(total, merged, [start, zero])

    return hlo.slice_in_dim(_grouped_loop(x, offs, 0, (padded.shape[0], width), step), 0, 0, rows)


def _grouped_contraction(x: Value, y: Value, offs: Value) -> Value:
    """[M, T] by [T, N] summed over each group's part of T: [G, M, N]."""
    size, result = x.shape[1], (offs.shape[0], x.shape[0], y.shape[1])
    if not size or 0 in result:
        return hlo.full(result, 0, x.dtype)
    tile = min(_TILE, size)
    left, right = _padded(x, 1, tile), _padded(y, 0, tile)
    zero = hlo.scalar(0, torch.int32)

    def step(total: Value, start: Value, mask: Value, group: Value) -> Value:
        a = hlo.dynamic_slice(left, [zero, start], [x.shape[0], tile])
        b = hlo.dynamic_slice(right, [start, zero], [tile, y.shape[1]])
        a = hlo.select(hlo.expand_dims(mask, [0]), a, 0)
        b = hlo.select(hlo.expand_dims(mask, [1]), b, 0)
        product = hlo.convert(contract(a, b, ([1], [0])), total.dtype)
        old = hlo.dynamic_slice(total, [group, zero, zero], [1, *result[1:]])
        return hlo.dynamic_update_slice(total, old + hlo.expand_dims(product, [0]), [group, zero, zero])

    return _grouped_loop(x, offs, 1, result, step)


@lowering("_scaled_grouped_mm")
def scaled_grouped_mm(
    ctx: Context,
    x: Value,
    y: Value,
    scale_a: Value,
    scale_b: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Value:
    """Grouped products of 8-bit floats with a scale a row of x and a column of y (of each group's,
    when both are 2-D).
    """
    if x.ndim == 2 and y.ndim == 2:
        assert offs is not None, "two 2-D operands are grouped by offs"
        product = grouped_mm(ctx, hlo.convert(x, torch.float32), hlo.convert(y, torch.float32), offs)
        left = hlo.reshape(scale_a, (offs.shape[0], x.shape[0], 1))
        return product * left * hlo.reshape(scale_b, (offs.shape[0], 1, y.shape[1]))
    left = _dequantized(x, scale_a, x.ndim - 1)
    return grouped_mm(ctx, left, _dequantized(y, scale_b, y.ndim - 2), offs, bias)
