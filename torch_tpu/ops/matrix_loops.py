"""Small matrix helpers, and the matrix algorithms that are written out as loops of StableHLO.

The algorithms take one batch dimension [b, m, n] and work on all matrices of the batch at once: a choice
such as a pivot is a vector [b], applied with comparisons against `iota`. They serve platforms that have no
such function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value, real_dtype

EPSILON = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
I32 = torch.int32


def transpose(x: Value) -> Value:
    return hlo.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def adjoint(x: Value) -> Value:
    return hlo.conj(transpose(x))


def matmul(x: Value, y: Value) -> Value:
    """x @ y for equal batches, in full precision."""
    batch = list(range(x.ndim - 2))
    contract = ([x.ndim - 1], [y.ndim - 2])
    return hlo.dot_general(x, y, contract=contract, batch=(batch, batch), precision="HIGHEST")


def identity(shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Ones on the main diagonal of [m, n]."""
    return hlo.convert(hlo.equal(hlo.iota(shape, 0, I32), hlo.iota(shape, 1, I32)), dtype)


def diagonal(x: Value) -> Value:
    """The main diagonal [..., min(m, n)]."""
    m, n = x.shape[-2:]
    k = min(m, n)
    square = cut(x, k, k)
    here = hlo.broadcast_to(identity((k, k), torch.bool), square.shape)
    return hlo.reduce_sum(hlo.select(here, square, 0), [-1])


def triangle(x: Value, *, lower: bool, offset: int = 0) -> Value:
    """torch.tril or torch.triu."""
    shape = x.shape[-2:]
    distance = hlo.iota(shape, 1, I32) - hlo.iota(shape, 0, I32)
    kept = hlo.less_equal(distance, offset) if lower else hlo.greater_equal(distance, offset)
    return hlo.select(hlo.broadcast_to(kept, x.shape), x, 0)


def cut(x: Value, m: int, n: int) -> Value:
    """The upper left m x n part, filled up with zeros where x is smaller."""
    high = [0] * (x.ndim - 2) + [m - x.shape[-2], n - x.shape[-1]]
    return hlo.pad(x, [0] * x.ndim, high)


def take_rows(x: Value, indices: Value) -> Value:
    """x[b, indices[b, i], :] for x [b, m, n] and indices [b, k]."""
    return hlo.gather(
        x,
        hlo.expand_dims(indices, [-1]),
        offset_dims=[2],
        collapsed_slice_dims=[1],
        start_index_map=[1],
        slice_sizes=[1, 1, x.shape[2]],
        operand_batching_dims=[0],
        start_indices_batching_dims=[0],
    )


def magnitude(x: Value) -> Value:
    """What LAPACK compares in its choice of pivots: |re| + |im|."""
    return hlo.abs(hlo.real(x)) + hlo.abs(hlo.imag(x)) if x.dtype.is_complex else hlo.abs(x)


def entry(x: Value, dim: int, index: Value, keep_dim: bool = False) -> Value:
    """x[b, ..., index[b], ...] along a dimension."""
    here = hlo.equal(hlo.iota(x.shape, dim, I32), _spread(index, x))
    return hlo.reduce_sum(hlo.select(here, x, 0), [dim], keep_dim)


def swap(x: Value, dim: int, first: Value, second: Value) -> Value:
    """x with its slices first[b] and second[b] along a dimension exchanged."""
    place = hlo.iota(x.shape, dim, I32)
    at_first, at_second = hlo.equal(place, _spread(first, x)), hlo.equal(place, _spread(second, x))
    from_first, from_second = entry(x, dim, first, True), entry(x, dim, second, True)
    return hlo.select(at_first, from_second, hlo.select(at_second, from_first, x))


def _spread(index: Value, x: Value) -> Value:
    return hlo.broadcast_in_dim(index, x.shape, [0])


def first_largest(x: Value) -> tuple[Value, Value]:
    """The maximum along dimension 1 of [b, n] and where it first stands (int32)."""

    def larger(value: Value, place: Value, other: Value, there: Value) -> list[Value]:
        earlier = hlo.bitwise_and(hlo.equal(value, other), hlo.less(place, there))
        keep = hlo.bitwise_or(hlo.greater(value, other), earlier)
        return [hlo.select(keep, value, other), hlo.select(keep, place, there)]

    places = hlo.iota(x.shape, 1, I32)
    largest = hlo.reduce([x, places], [float("-inf"), torch.iinfo(I32).max], larger, [1])
    assert isinstance(largest, list)
    return largest[0], largest[1]


def lu(a: Value, pivot: bool) -> tuple[Value, Value]:
    """L and U in one matrix and the pivots, column by column (Golub and Van Loan, algorithm 3.4.1)."""
    b, m, n = a.shape
    rows, columns = hlo.iota(a.shape, 1, I32), hlo.iota(a.shape, 2, I32)
    count = min(m, n)

    def step(index: Value, packed: Value, pivots: Value) -> list[Value]:
        here = hlo.broadcast_in_dim(index, (b,), [])
        if pivot:
            column = magnitude(entry(packed, 2, here))
            candidates = hlo.greater_equal(hlo.iota((b, m), 1, I32), index)
            _, chosen = first_largest(hlo.select(candidates, column, -1))
            packed = swap(packed, 1, here, chosen)
        else:
            chosen = here
        row, column = entry(packed, 1, here, True), entry(packed, 2, here, True)
        head = entry(row, 2, here, True)
        factors = hlo.divide(column, hlo.select(hlo.equal(head, 0), 1, head))
        below, right = hlo.greater(rows, index), hlo.greater(columns, index)
        update = hlo.select(right, packed - hlo.multiply(factors, row), packed)
        update = hlo.select(hlo.equal(columns, index), hlo.broadcast_to(factors, a.shape), update)
        mark = hlo.equal(hlo.iota(pivots.shape, 1, I32), index)
        return [hlo.select(below, update, packed), hlo.select(mark, hlo.expand_dims(chosen, [1]) + 1, pivots)]

    packed, pivots = hlo.fori_loop(count, [a, hlo.full((b, count), 0, I32)], step)
    return packed, pivots


def permutation(pivots: Value, rows: int) -> Value:
    """The order of rows after the exchanges of LAPACK's pivots [b, k]."""
    b, count = pivots.shape

    def step(index: Value, order: Value) -> list[Value]:
        here = hlo.broadcast_in_dim(index, (b,), [])
        return [swap(order, 1, here, entry(pivots, 1, here) - 1)]

    return hlo.fori_loop(count, [hlo.iota((b, rows), 1, I32)], step)[0]


def jacobi(a: Value) -> tuple[Value, Value]:
    """One-sided Jacobi: V that makes the columns of a V orthogonal, in Brent and Luk's parallel order (1985).

    Returns a V and V transposed: row j is column j.
    """
    n = a.shape[-1]
    half = (n + 1) // 2
    eye = hlo.broadcast_to(identity((n, n), a.dtype), a.shape)
    rows = hlo.concatenate([transpose(a), eye], 2)
    rows = hlo.pad(rows, [0, 0, 0], [0, 2 * half - n, 0])  # a zero column meets no rotation
    real = real_dtype(a.dtype)
    tolerance = EPSILON[real] * n**0.5

    def part(x: Value, start: int, stop: int) -> Value:
        return hlo.slice_in_dim(x, 1, start, stop)

    def step(_: Value, top: Value, bottom: Value, worst: Value) -> list[Value]:
        top, bottom, ratio = _rotate(top, bottom, n, tolerance)
        worst = hlo.maximum(worst, hlo.reduce_max(ratio, [0, 1, 2]))
        if half == 1:
            return [top, bottom, worst]
        upper = hlo.concatenate([part(top, 0, 1), part(bottom, 0, 1), part(top, 1, half - 1)], 1)
        lower = hlo.concatenate([part(bottom, 1, half), part(top, half - 1, half)], 1)
        return [upper, lower, worst]

    def sweep(count: Value, top: Value, bottom: Value, _: Value) -> list[Value]:
        state = hlo.fori_loop(max(1, 2 * half - 1), [top, bottom, hlo.scalar(0, real)], step)
        return [count + 1, *state]

    def unfinished(count: Value, top: Value, bottom: Value, worst: Value) -> Value:
        return hlo.bitwise_and(hlo.less(count, 40), hlo.greater(worst, tolerance))

    top, bottom = hlo.slice_in_dim(rows, 1, 0, half), hlo.slice_in_dim(rows, 1, half, 2 * half)
    init = [hlo.scalar(0, I32), top, bottom, hlo.scalar(1, real)]
    _, top, bottom, _ = hlo.while_loop(init, unfinished, sweep)
    rows = hlo.slice_in_dim(hlo.concatenate([top, bottom], 1), 1, 0, n)
    return hlo.slice_in_dim(rows, 2, 0, n), hlo.slice_in_dim(rows, 2, n, 2 * n)


def _rotate(top: Value, bottom: Value, length: int, tolerance: float) -> tuple[Value, Value, Value]:
    """Makes the first `length` entries of row i of top and of bottom orthogonal; and the cosine they had."""
    x, y = hlo.slice_in_dim(top, 2, 0, length), hlo.slice_in_dim(bottom, 2, 0, length)
    product = hlo.reduce_sum(hlo.multiply(hlo.conj(x), y), [2], keep_dim=True)
    alpha = hlo.reduce_sum(hlo.square(hlo.abs(x)), [2], keep_dim=True)
    beta = hlo.reduce_sum(hlo.square(hlo.abs(y)), [2], keep_dim=True)
    size = hlo.abs(product)
    scale = hlo.multiply(hlo.sqrt(alpha), hlo.sqrt(beta))
    ratio = hlo.select(hlo.greater(scale, 0), hlo.divide(size, scale), 0)
    active = hlo.greater(ratio, tolerance)
    zeta = hlo.divide(beta - alpha, 2 * hlo.select(active, size, 1))
    sign = hlo.select(hlo.less(zeta, 0), hlo.full_like(zeta, -1), 1)
    tangent = hlo.divide(sign, hlo.abs(zeta) + hlo.sqrt(1 + hlo.square(zeta)))
    cosine = hlo.select(active, hlo.reciprocal(hlo.sqrt(1 + hlo.square(tangent))), 1)
    sine = hlo.convert(hlo.select(active, hlo.multiply(cosine, tangent), 0), top.dtype)
    cosine = hlo.convert(cosine, top.dtype)
    whole = hlo.convert(hlo.select(active, size, 1), top.dtype)
    phase = hlo.select(active, hlo.divide(hlo.conj(product), whole), 1)
    turned = hlo.multiply(phase, bottom)
    return cosine * top - sine * turned, sine * top + cosine * turned, ratio


def bunch_kaufman(a: Value, hermitian: bool) -> tuple[Value, Value, Value]:
    """LDL decomposition of symmetric or Hermitian a (its lower triangle) with LAPACK's pivots, and info.

    Diagonal pivoting of Bunch and Kaufman (1977), in the form of LAPACK's sytf2/hetf2: exchanges are not applied to
    the columns of L that are finished. Every matrix of the batch is at a column of its own.
    """
    b, n, _ = a.shape
    a = triangle(a, lower=True)
    strict = triangle(a, lower=True, offset=-1)
    whole = a + (adjoint(strict) if hermitian else transpose(strict))
    if hermitian:
        whole = hlo.select(_on_diagonal(whole), hlo.convert(hlo.real(whole), a.dtype), whole)

    def unfinished(column: Value, *_: Value) -> Value:
        return hlo.reduce_or(hlo.less(column, n), [0])

    def step(column: Value, packed: Value, pivots: Value, info: Value) -> list[Value]:
        open_ = hlo.less(column, n)
        chosen, double, zero = _choose_pivot(packed, column)
        last = column + hlo.convert(double, I32)
        changed = _eliminate(_exchange(packed, column, last, chosen), column, double, zero, hermitian)
        packed = hlo.select(hlo.broadcast_in_dim(open_, a.shape, [0]), changed, packed)
        place = hlo.iota(pivots.shape, 1, I32)
        first, final = _spread(column, pivots), _spread(last, pivots)
        here = hlo.bitwise_and(hlo.greater_equal(place, first), hlo.less_equal(place, final))
        mark = hlo.select(double, -1 - chosen, chosen + 1)
        pivots = hlo.select(here, _spread(mark, pivots), pivots)
        failed = hlo.bitwise_and(hlo.bitwise_and(zero, open_), hlo.equal(info, 0))
        return [last + 1, packed, pivots, hlo.select(failed, column + 1, info)]

    start = hlo.full((b,), 0, I32)
    _, packed, pivots, info = hlo.while_loop([start, whole, hlo.full((b, n), 0, I32), start], unfinished, step)
    return triangle(packed, lower=True), pivots, info


def _on_diagonal(x: Value) -> Value:
    return hlo.equal(hlo.iota(x.shape, x.ndim - 2, I32), hlo.iota(x.shape, x.ndim - 1, I32))


def _choose_pivot(packed: Value, column: Value) -> tuple[Value, Value, Value]:
    """The row to exchange with, whether the pivot is a 2 x 2 block, and whether the column is zero (or NaN)."""
    b, n, _ = packed.shape
    place = hlo.iota((b, n), 1, I32)
    threshold = (1 + 17**0.5) / 8
    sizes = magnitude(entry(packed, 2, column))
    own = entry(sizes, 1, column)
    below, row = first_largest(hlo.select(hlo.greater(place, _spread(column, place)), sizes, -1))
    below = hlo.maximum(below, 0)
    others = magnitude(entry(packed, 1, row))
    around = hlo.bitwise_and(
        hlo.greater_equal(place, _spread(column, place)), hlo.not_equal(place, _spread(row, place))
    )
    widest = hlo.reduce_max(hlo.select(around, others, 0), [1])
    stay = hlo.greater_equal(own, threshold * below)
    ratio = hlo.divide(below, hlo.select(hlo.equal(widest, 0), 1, widest))
    stay = hlo.bitwise_or(stay, hlo.greater_equal(own, threshold * (below * ratio)))
    zero = hlo.bitwise_or(hlo.equal(hlo.maximum(own, below), 0), hlo.is_nan(own))
    stay = hlo.bitwise_or(stay, zero)
    single = hlo.bitwise_or(stay, hlo.greater_equal(entry(others, 1, row), threshold * widest))
    return hlo.select(stay, column, row), hlo.bitwise_not(single), zero


def _exchange(packed: Value, column: Value, last: Value, chosen: Value) -> Value:
    """Rows and columns `last` and `chosen` exchanged in the part that starts at `column`."""
    moved = swap(swap(packed, 1, last, chosen), 2, last, chosen)
    begin = _spread(column, packed)
    rows, columns = hlo.iota(packed.shape, 1, I32), hlo.iota(packed.shape, 2, I32)
    inside = hlo.bitwise_and(hlo.greater_equal(rows, begin), hlo.greater_equal(columns, begin))
    return hlo.select(inside, moved, packed)


def _eliminate(packed: Value, column: Value, double: Value, zero: Value, hermitian: bool) -> Value:
    """Divides one or two columns by the pivot block and subtracts their product from the rest."""
    conj = hlo.conj if hermitian else (lambda x: x)
    after = column + hlo.convert(double, I32)
    x, y = entry(packed, 2, column, True), entry(packed, 2, column + 1, True)
    p, q, r = entry(x, 1, column, True), entry(x, 1, column + 1, True), entry(y, 1, column + 1, True)
    pair = hlo.broadcast_in_dim(double, p.shape, [0])
    dead = hlo.broadcast_in_dim(zero, p.shape, [0])
    # [u v] = [x y] inverse([[p, conj(q)], [q, r]]), scaled by q as in LAPACK; for a single pivot u = x / p.
    safe = hlo.select(pair, q, 1)
    left, right = hlo.divide(r, safe), hlo.divide(p, conj(safe))
    factor = hlo.divide(1, hlo.select(pair, left * right - 1, 1))
    u = hlo.select(
        pair,
        factor * (left * x - y) * hlo.divide(1, conj(safe)),
        hlo.divide(x, hlo.select(hlo.bitwise_or(pair, dead), 1, p)),
    )
    v = hlo.select(pair, factor * (right * y - x) * hlo.divide(1, safe), 0)
    update = hlo.multiply(u, transpose(conj(x))) + hlo.select(
        pair, hlo.multiply(v, transpose(conj(y))), hlo.zeros_like(packed)
    )
    rows, columns = hlo.iota(packed.shape, 1, I32), hlo.iota(packed.shape, 2, I32)
    first, second = _spread(column, packed), _spread(after, packed)
    below, behind = hlo.greater(rows, second), hlo.greater(columns, second)
    result = hlo.select(behind, packed - update, packed)
    result = hlo.select(hlo.equal(columns, first), hlo.broadcast_to(u, packed.shape), result)
    at_second = hlo.bitwise_and(hlo.equal(columns, second), hlo.greater(second, first))
    result = hlo.select(at_second, hlo.broadcast_to(v, packed.shape), result)
    result = hlo.select(hlo.bitwise_and(below, hlo.bitwise_not(hlo.broadcast_to(dead, packed.shape))), result, packed)
    if hermitian:
        result = hlo.select(_on_diagonal(result), hlo.convert(hlo.real(result), packed.dtype), result)
    return result


def standard_ldl(packed: Value, pivots: Value) -> tuple[Value, Value, Value, Value]:
    """From LAPACK's form to a = P L D L^T P^T.

    Returns the unit lower triangle L (below its diagonal), the order of rows that P^T takes, D's subdiagonal
    [b, n] (at the first of a pair), and for each column 0, 1 or 2: single, first or second of a pair.
    """
    b, n, _ = packed.shape
    negative = hlo.less(pivots, 0)
    # Pairs stand side by side, so a negative column is a pair's second if an odd number before it is negative.
    earlier = hlo.less(hlo.iota((b, n, n), 2, I32), hlo.iota((b, n, n), 1, I32))
    marks = hlo.broadcast_in_dim(hlo.convert(negative, I32), (b, n, n), [0, 2])
    before = hlo.reduce_sum(hlo.select(earlier, marks, 0), [2])
    odd = hlo.equal(hlo.remainder(before, 2), 1)
    kind = hlo.select(negative, hlo.select(odd, hlo.full_like(before, 2), 1), 0)
    first = hlo.equal(kind, 1)
    rows, columns = hlo.iota((b, n, n), 1, I32), hlo.iota((b, n, n), 2, I32)
    coupling = hlo.bitwise_and(hlo.equal(rows, columns + 1), hlo.broadcast_in_dim(first, (b, n, n), [0, 2]))
    below = hlo.reduce_sum(hlo.select(coupling, packed, 0), [1])
    lower = hlo.select(hlo.bitwise_or(coupling, hlo.less_equal(rows, columns)), 0, packed)
    target = hlo.select(negative, -1 - pivots, pivots - 1)

    def step(index: Value, lower: Value, order: Value) -> list[Value]:
        here = hlo.broadcast_in_dim(index, (b,), [])
        chosen = entry(target, 1, here)
        chosen = hlo.select(hlo.equal(entry(kind, 1, here), 1), here, chosen)
        begin = here - hlo.convert(hlo.equal(entry(kind, 1, here), 2), I32)
        done = hlo.less(columns, _spread(begin, lower))
        return [hlo.select(done, swap(lower, 1, here, chosen), lower), swap(order, 1, here, chosen)]

    lower, order = hlo.fori_loop(n, [lower, hlo.iota((b, n), 1, I32)], step)
    return lower, order, below, kind


def solve_blocks(packed: Value, below: Value, kind: Value, x: Value, hermitian: bool) -> Value:
    """D^-1 x, for D the diagonal of packed and, where kind is 1 or 2, 2 x 2 blocks with `below` beside it."""
    main = diagonal(packed)

    def shifted(value: Value, by: int, filling: int) -> Value:
        """value[b, i + by, ...]"""
        low, high = [0] * value.ndim, [0] * value.ndim
        low[1], high[1] = -by, by
        return hlo.pad(value, low, high, filling)

    def column(value: Value) -> Value:
        return hlo.broadcast_in_dim(value, x.shape, [0, 1])

    first, second = hlo.equal(kind, 1), hlo.equal(kind, 2)
    off = hlo.select(second, shifted(below, -1, 0), below)
    partner = hlo.select(first, shifted(main, 1, 1), shifted(main, -1, 1))
    other = hlo.select(column(first), shifted(x, 1, 0), shifted(x, -1, 0))
    upper = hlo.conj(off) if hermitian else off
    determinant = hlo.multiply(main, partner) - hlo.multiply(off, upper)
    coupled = column(partner) * x - column(hlo.select(first, upper, off)) * other
    pair = hlo.bitwise_or(first, second)
    divisor = hlo.select(pair, determinant, main)
    return hlo.divide(hlo.select(column(pair), coupled, x), column(divisor))
