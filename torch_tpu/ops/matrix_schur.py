"""Eigenvalues of general matrices as loops of StableHLO, for platforms without LAPACK's geev.

Complex throughout: reduction to Hessenberg form, the shifted QR algorithm to Schur form, back substitution
(Golub and Van Loan, sections 7.4 to 7.6). One batch dimension [b, n, n]; every matrix has an active block of
its own.
"""

from __future__ import annotations

from torch_tpu import hlo
from torch_tpu.hlo import Value, real_dtype
from torch_tpu.ops.matrix_loops import EPSILON, I32, adjoint, diagonal, entry, first_largest, identity, matmul

_SWEEPS = 30
"""At most, for each eigenvalue; two or three are usual."""


def eig(a: Value) -> tuple[Value, Value]:
    """Eigenvalues [b, n] and eigenvectors in columns: of length 1, with their largest entry real."""
    triangular, basis = _schur(*_hessenberg(a))
    vectors = matmul(basis, _back_substitute(triangular))
    length = hlo.sqrt(hlo.reduce_sum(hlo.square(hlo.abs(vectors)), [1], keep_dim=True))
    vectors = hlo.divide(vectors, hlo.convert(length, a.dtype))
    b, n, _ = a.shape
    columns = hlo.reshape(hlo.transpose(vectors, [0, 2, 1]), (b * n, n))
    size, place = first_largest(hlo.abs(columns))
    phase = hlo.divide(hlo.conj(entry(columns, 1, place)), hlo.convert(size, a.dtype))
    return diagonal(triangular), vectors * hlo.reshape(phase, (b, 1, n))


def _hessenberg(a: Value) -> tuple[Value, Value]:
    """H with zeros below its first subdiagonal, and the unitary Q with a = Q H Q^H."""
    b, n, _ = a.shape
    rows = hlo.iota((b, n, 1), 1, I32)

    def step(index: Value, h: Value, q: Value) -> list[Value]:
        here = hlo.broadcast_in_dim(index, (b,), [])
        x = hlo.select(hlo.greater(rows, index), entry(h, 2, here, True), 0)
        head = entry(x, 1, here + 1, True)
        size = hlo.abs(head)
        length = hlo.sqrt(hlo.reduce_sum(hlo.square(hlo.abs(x)), [1], keep_dim=True))
        one = hlo.convert(hlo.select(hlo.greater(size, 0), size, 1), a.dtype)
        phase = hlo.select(hlo.greater(size, 0), hlo.divide(head, one), 1)
        v = x + hlo.select(hlo.equal(rows, index + 1), phase * hlo.convert(length, a.dtype), hlo.zeros_like(x))
        square = hlo.reduce_sum(hlo.square(hlo.abs(v)), [1], keep_dim=True)
        factor = hlo.convert(hlo.select(hlo.greater(square, 0), hlo.divide(2, square), 0), a.dtype)
        scaled = factor * v
        h = h - scaled * matmul(adjoint(v), h)
        h = h - matmul(h, v) * adjoint(scaled)
        q = q - matmul(q, v) * adjoint(scaled)
        return [h, q]

    start = hlo.broadcast_to(identity((n, n), a.dtype), a.shape)
    h, q = hlo.fori_loop(max(0, n - 2), [a, start], step)
    below = hlo.greater(hlo.iota(a.shape, 1, I32), hlo.iota(a.shape, 2, I32) + 1)
    return hlo.select(below, 0, h), q


def _schur(h: Value, q: Value) -> tuple[Value, Value]:
    """Upper triangular T and unitary Q, from Hessenberg form: QR steps with Wilkinson's shift, and deflation."""
    b, n, _ = h.shape
    if n == 1:
        return h, q
    on_subdiagonal = hlo.equal(hlo.iota(h.shape, 1, I32), hlo.iota(h.shape, 2, I32) + 1)
    place = hlo.iota((b, n), 1, I32)
    epsilon = EPSILON[real_dtype(h.dtype)]

    def deflate(h: Value) -> tuple[Value, Value]:
        """h with its small subdiagonal entries set to zero, and which rows have one that is not."""
        below = hlo.abs(hlo.reduce_sum(hlo.select(on_subdiagonal, h, 0), [2]))
        sizes = hlo.abs(diagonal(h))
        above = hlo.pad(sizes, [0, 1], [0, -1])
        coupled = hlo.greater(below, epsilon * (sizes + above))
        kept = hlo.broadcast_in_dim(coupled, h.shape, [0, 1])
        return hlo.select(hlo.bitwise_and(on_subdiagonal, hlo.bitwise_not(kept)), 0, h), coupled

    def unfinished(count: Value, h: Value, q: Value, coupled: Value) -> Value:
        return hlo.bitwise_and(hlo.less(count, _SWEEPS * n), hlo.reduce_or(coupled, [0, 1]))

    def sweep(count: Value, h: Value, q: Value, coupled: Value) -> list[Value]:
        last = hlo.reduce(hlo.select(coupled, place, 0), 0, hlo.maximum, [1])
        assert isinstance(last, Value)
        free = hlo.bitwise_and(hlo.bitwise_not(coupled), hlo.less(place, hlo.broadcast_in_dim(last, (b, n), [0])))
        first = hlo.reduce(hlo.select(free, place, 0), 0, hlo.maximum, [1])
        assert isinstance(first, Value)
        h, q = _chase(h, q, first, last, _shift(h, last, count))
        return [count + 1, *deflate_with(h, q)]

    def deflate_with(h: Value, q: Value) -> list[Value]:
        h, coupled = deflate(h)
        return [h, q, coupled]

    _, h, q, _ = hlo.while_loop([hlo.scalar(0, I32), *deflate_with(h, q)], unfinished, sweep)
    return h, q


def _shift(h: Value, last: Value, count: Value) -> Value:
    """The eigenvalue of the active block's last 2 x 2 part that is nearer to its last entry [b]."""
    row, above = entry(h, 1, last), entry(h, 1, last - 1)
    p, q = entry(above, 1, last - 1), entry(above, 1, last)
    r, s = entry(row, 1, last - 1), entry(row, 1, last)
    half, product = (p - s) * 0.5, q * r
    root = hlo.sqrt(half * half + product)
    plus, minus = half + root, half - root
    larger = hlo.select(hlo.greater(hlo.abs(plus), hlo.abs(minus)), plus, minus)
    zero = hlo.equal(larger, 0)
    shift = s - hlo.select(zero, 0, hlo.divide(product, hlo.select(zero, 1, larger)))
    exceptional = hlo.equal(hlo.remainder(count, 10), 9)  # breaks cycles
    return hlo.select(exceptional, s + hlo.convert(hlo.abs(r), h.dtype), shift)


def _chase(h: Value, q: Value, first: Value, last: Value, shift: Value) -> tuple[Value, Value]:
    """One implicit QR step on rows first[b] to last[b]: a bulge is made at the top and rotated out below."""
    b, n, _ = h.shape
    zero = hlo.scalar(0, I32)

    def step(index: Value, h: Value, q: Value) -> list[Value]:
        pair = hlo.dynamic_slice(h, [zero, index, zero], [b, 2, n])
        here = hlo.broadcast_in_dim(index, (b,), [])
        starts = hlo.equal(here, first)
        column = hlo.select(starts, here, here - 1)
        upper, lower = hlo.index_in_dim(pair, 1, 0), hlo.index_in_dim(pair, 1, 1)
        x = entry(upper, 1, column) - hlo.select(starts, shift, 0)
        y = entry(lower, 1, column)
        length = hlo.sqrt(hlo.square(hlo.abs(x)) + hlo.square(hlo.abs(y)))
        inside = hlo.bitwise_and(hlo.less_equal(first, here), hlo.less(here, last))
        active = hlo.bitwise_and(inside, hlo.greater(length, 0))
        divisor = hlo.convert(hlo.select(active, length, 1), h.dtype)
        cosine = hlo.select(active, hlo.divide(hlo.conj(x), divisor), 1)
        sine = hlo.select(active, hlo.divide(hlo.conj(y), divisor), 0)
        p, r = (hlo.broadcast_in_dim(value, (b, n), [0]) for value in (cosine, sine))
        turned = [p * upper + r * lower, hlo.conj(p) * lower - hlo.conj(r) * upper]
        h = hlo.dynamic_update_slice(h, hlo.stack(turned, 1), [zero, index, zero])
        results = []
        for matrix in (h, q):
            pair = hlo.dynamic_slice(matrix, [zero, zero, index], [b, n, 2])
            left, right = hlo.index_in_dim(pair, 2, 0), hlo.index_in_dim(pair, 2, 1)
            turned = [hlo.conj(p) * left + hlo.conj(r) * right, p * right - r * left]
            results.append(hlo.dynamic_update_slice(matrix, hlo.stack(turned, 2), [zero, zero, index]))
        return results

    h, q = hlo.fori_loop(n - 1, [h, q], step)
    below = hlo.greater(hlo.iota(h.shape, 1, I32), hlo.iota(h.shape, 2, I32) + 1)
    return hlo.select(below, 0, h), q


def _back_substitute(t: Value) -> Value:
    """The eigenvectors of an upper triangular matrix: upper triangular with ones on the diagonal."""
    b, n, _ = t.shape
    values = hlo.expand_dims(diagonal(t), [1])
    smallest = hlo.reduce_max(hlo.abs(t), [1, 2], keep_dim=True) * EPSILON[real_dtype(t.dtype)]
    smallest = hlo.convert(hlo.select(hlo.equal(smallest, 0), 1, smallest), t.dtype)
    rows, place = hlo.iota(t.shape, 1, I32), hlo.iota((b, 1, n), 2, I32)

    def step(count: Value, x: Value) -> list[Value]:
        index = (n - 1) - count
        row = entry(t, 1, hlo.broadcast_in_dim(index, (b,), []), True)
        sums = matmul(hlo.select(hlo.greater(place, index), row, 0), x)
        gap = values - entry(row, 2, hlo.broadcast_in_dim(index, (b,), []), True)
        tiny = hlo.less(hlo.abs(gap), hlo.real(smallest))
        found = hlo.divide(sums, hlo.select(tiny, smallest, gap))
        found = hlo.select(hlo.equal(place, index), 1, hlo.select(hlo.greater(place, index), found, 0))
        return [hlo.select(hlo.equal(rows, index), hlo.broadcast_to(found, t.shape), x)]

    return hlo.fori_loop(n, [hlo.zeros_like(t)], step)[0]
