"""Solving linear systems, inverses and determinants, least squares."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import matrix, matrix_loops
from torch_tpu.ops.decompositions import empty
from torch_tpu.ops.matrix_loops import adjoint, diagonal, identity, matmul
from torch_tpu.ops.registry import Context, lowering


def broadcast_batches(a: Value, b: Value) -> tuple[Value, Value]:
    """Both with the batch dimensions they have in common."""
    batch = hlo.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return hlo.broadcast_to(a, (*batch, *a.shape[-2:])), hlo.broadcast_to(b, (*batch, *b.shape[-2:]))


def is_vector(a: Value, b: Value) -> bool:
    """Whether b is a batch of vectors, one a matrix, as torch.linalg.solve decides it."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def _identity_like(a: Value) -> Value:
    return hlo.broadcast_to(identity(a.shape[-2:], a.dtype), a.shape)


# Triangular systems


@lowering("linalg_solve_triangular")
def linalg_solve_triangular(
    ctx: Context, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    a, b = broadcast_batches(a, b)
    return matrix.solve_triangular(ctx.platform, a, b, upper=upper, left=left, unit=unitriangular)


@lowering("triangular_solve")
def triangular_solve(
    ctx: Context, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Sequence[Value]:
    a, b = broadcast_batches(a, b)
    operation = "T" if transpose else "N"
    x = matrix.solve_triangular(ctx.platform, a, b, upper=upper, unit=unitriangular, operation=operation)
    return x, a


@lowering("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(ctx: Context, b: Value, factor: Value, upper: bool = False) -> Value:
    """b solved by L L^H, or by U^H U."""
    factor, b = broadcast_batches(factor, b)
    for operation in ("C", "N") if upper else ("N", "C"):
        b = matrix.solve_triangular(ctx.platform, factor, b, upper=upper, operation=operation)
    return b


@lowering("cholesky_inverse")
def cholesky_inverse(ctx: Context, factor: Value, upper: bool = False) -> Value:
    return cholesky_solve(ctx, _identity_like(factor), factor, upper)


# By LU decomposition


def _permute(b: Value, order: Value, dim: int) -> Value:
    """b with its rows (dim -2) or columns (dim -1) taken in the order [..., n] given; same batches."""
    if b.numel == 0:
        return b
    rows = b if dim == -2 else matrix_loops.transpose(b)
    taken = matrix_loops.take_rows(matrix.flat(rows), _flat(order))
    taken = hlo.reshape(taken, rows.shape)
    return taken if dim == -2 else matrix_loops.transpose(taken)


def _flat(order: Value) -> Value:
    size = order.shape[-1]
    return hlo.reshape(order, (order.numel // size, size))


def _inverse(order: Value) -> Value:
    """The inverse permutation."""
    size = order.shape[-1]
    shape = (*order.shape, size)
    match = hlo.equal(hlo.expand_dims(order, [-1]), hlo.iota(shape, len(shape) - 1, torch.int32))
    return hlo.reduce_sum(hlo.select(match, hlo.iota(shape, len(shape) - 2, torch.int32), 0), [-2])


@lowering("linalg_lu_solve")
def linalg_lu_solve(
    ctx: Context, packed: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False
) -> Value:
    """A X = b, or X A = b, for A = P L U; or for its adjoint."""
    if b.numel == 0:
        batch = hlo.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
        return hlo.full((*batch, *b.shape[-2:]), 0, b.dtype)
    order = matrix.permutation(pivots, packed.shape[-1])
    packed, b = broadcast_batches(packed, b)
    order = hlo.broadcast_to(order, packed.shape[:-1])
    platform, dim = ctx.platform, -2 if left else -1

    def solve(value: Value, upper: bool) -> Value:
        operation = "C" if adjoint else "N"
        return matrix.solve_triangular(
            platform, packed, value, upper=upper, left=left, unit=not upper, operation=operation
        )

    if left is not adjoint:  # P^T first, then L and U; or, for the adjoint from the right, L^H and U^H
        return solve(solve(_permute(b, order, dim), False), True)
    return _permute(solve(solve(b, True), False), _inverse(order), dim)


@lowering("_linalg_solve_ex")
def linalg_solve_ex(
    ctx: Context, a: Value, b: Value, *, left: bool = True, check_errors: bool = False
) -> Sequence[Value]:
    packed, pivots, info = matrix.lu(ctx.platform, a)
    vector = is_vector(a, b)
    right = hlo.expand_dims(b, [-1]) if vector else b
    x = linalg_lu_solve(ctx, packed, pivots, right, left=left)
    return hlo.squeeze(x, [-1]) if vector else x, packed, pivots, info


@lowering("linalg_inv_ex")
def linalg_inv_ex(ctx: Context, a: Value, *, check_errors: bool = False) -> Sequence[Value]:
    packed, pivots, info = matrix.lu(ctx.platform, a)
    return linalg_lu_solve(ctx, packed, pivots, _identity_like(a)), info


def _determinant_sign(pivots: Value, dtype: torch.dtype) -> Value:
    """Minus one to the number of exchanges."""
    place = hlo.iota(pivots.shape, pivots.ndim - 1, torch.int32) + 1
    odd = hlo.reduce(hlo.not_equal(pivots, place), False, hlo.bitwise_xor, [-1])
    assert isinstance(odd, Value)
    return hlo.select(odd, hlo.scalar(-1, dtype), 1)


def _determinant_lu(ctx: Context, a: Value) -> tuple[Value, Value]:
    """The LU decomposition that PyTorch's formulas for the gradients expect: of the transposed matrix, where a
    is real and contiguous."""
    transposed = not a.dtype.is_complex and ctx.contiguous
    packed, pivots, _ = matrix.lu(ctx.platform, matrix_loops.transpose(a) if transposed else a)
    return packed, pivots


@lowering("_linalg_det")
def linalg_det(ctx: Context, a: Value) -> Sequence[Value]:
    packed, pivots = _determinant_lu(ctx, a)
    product = hlo.reduce_prod(diagonal(packed), [-1])
    return hlo.multiply(product, _determinant_sign(pivots, a.dtype)), packed, pivots


@lowering("_linalg_slogdet")
def linalg_slogdet(ctx: Context, a: Value) -> Sequence[Value]:
    packed, pivots = _determinant_lu(ctx, a)
    factors = diagonal(packed)
    sizes = hlo.abs(factors)
    if a.dtype.is_complex:
        zero = hlo.equal(sizes, 0)
        signs = hlo.divide(factors, hlo.convert(hlo.select(zero, 1, sizes), a.dtype))
    else:
        signs = hlo.select(hlo.is_nan(factors), 0, hlo.sign(factors))
    sign = hlo.multiply(hlo.reduce_prod(signs, [-1]), _determinant_sign(pivots, a.dtype))
    return sign, hlo.reduce_sum(hlo.log(sizes), [-1]), packed, pivots


# By other decompositions


@lowering("linalg_ldl_solve")
def linalg_ldl_solve(ctx: Context, packed: Value, pivots: Value, b: Value, *, hermitian: bool = False) -> Value:
    """The factors brought to a = P L D L^T P^T, then four simple solves."""
    packed, b = broadcast_batches(packed, b)
    if b.numel == 0:
        return b
    hermitian = hermitian and packed.dtype.is_complex
    pivots = hlo.broadcast_to(pivots, packed.shape[:-1])
    lower, order, below, paired = matrix_loops.standard_ldl(matrix.flat(packed), _flat(pivots))
    lower = hlo.reshape(lower, packed.shape)
    order = hlo.reshape(order, pivots.shape)
    y = matrix.solve_triangular(ctx.platform, lower, _permute(b, order, -2), upper=False, unit=True)
    y = hlo.reshape(matrix_loops.solve_blocks(matrix.flat(packed), below, paired, matrix.flat(y), hermitian), b.shape)
    operation = "C" if hermitian else "T"
    y = matrix.solve_triangular(ctx.platform, lower, y, upper=False, unit=True, operation=operation)
    return _permute(y, _inverse(order), -2)


def _tolerance(given: Value | None, otherwise: Value | float, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """A tolerance for each matrix of a batch, with a last dimension of size 1."""
    if given is None:
        return otherwise if isinstance(otherwise, Value) else hlo.full((*shape, 1), otherwise, dtype)
    return hlo.broadcast_to(hlo.expand_dims(hlo.convert(given, dtype), [-1]), (*shape, 1))


@lowering("linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    ctx: Context, a: Value, *, atol: Value | None = None, rtol: Value | None = None, hermitian: bool = False
) -> Value:
    """V diag(1/s) U^H over the singular values (or eigenvalues) above max(atol, rtol * the largest)."""
    (m, n), batch, real = a.shape[-2:], a.shape[:-2], hlo.real_dtype(a.dtype)
    for given in (atol, rtol):
        if given is not None:
            batch = hlo.broadcast_shapes(batch, given.shape)
    if a.numel == 0:
        return hlo.full((*batch, n, m), 0, a.dtype)
    if hermitian:
        s, u = matrix.eigh(ctx.platform, a)
        v = u
        sizes = hlo.abs(s)
    else:
        u, s, vh = matrix.svd(ctx.platform, a)
        v, sizes = adjoint(vh), s
    absolute = _tolerance(atol, 0.0, batch, real)
    default: Value | float = max(m, n) * matrix_loops.EPSILON[real]
    if atol is not None:
        default = hlo.select(hlo.greater(absolute, 0), hlo.full_like(absolute, 0), default)
    relative = _tolerance(rtol, default, batch, real)
    largest = hlo.reduce_max(sizes, [-1], keep_dim=True)
    kept = hlo.greater(sizes, hlo.maximum(absolute, relative * largest))
    inverse = hlo.select(kept, hlo.divide(1, hlo.broadcast_to(s, kept.shape)), 0)
    inverse = hlo.expand_dims(hlo.convert(inverse, a.dtype), [-2])
    scaled = hlo.multiply(v, inverse)
    uh = hlo.broadcast_to(adjoint(u), (*batch, *adjoint(u).shape[-2:]))
    return matmul(scaled, uh)


@lowering("linalg_lstsq", static=("rcond",), inferred=True)
def linalg_lstsq(
    ctx: Context, a: Value, b: Value, rcond: float | None = None, *, driver: str | None = None
) -> Sequence[Value]:
    """Least squares of smallest norm: by QR for "gels" (a has full rank), else by the singular values.

    The residuals of "gelsd" and "gelss" are there as if the rank were full: their shape cannot depend on data.
    """
    (m, n), real = a.shape[-2:], hlo.real_dtype(a.dtype)
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise ValueError(f"lstsq has the drivers gels, gelsy, gelsd and gelss, not {driver}")
    vector = is_vector(a, b)
    a_batch = a.shape[:-2]
    residuals, rank, values = empty(real), empty(torch.int64), empty(real)
    right = hlo.expand_dims(b, [-1]) if vector else b
    wide, right = broadcast_batches(a, right)
    if a.numel == 0 or right.numel == 0:
        x = hlo.full((*right.shape[:-2], n, right.shape[-1]), 0, a.dtype)
        if driver != "gels":
            rank = hlo.full(a_batch, 0, torch.int64)
            if driver != "gelsy":
                values = hlo.full((*a_batch, min(m, n)), 0, real)
    elif driver == "gels":
        x = _solve_full_rank(ctx.platform, wide, right)
    else:
        u, s, vh = matrix.svd(ctx.platform, a)
        limit = rcond if rcond is not None else max(m, n) * matrix_loops.EPSILON[real]
        limit = limit if limit >= 0 else matrix_loops.EPSILON[real]
        kept = hlo.greater(s, limit * hlo.reduce_max(s, [-1], keep_dim=True))
        inverse = hlo.select(kept, hlo.divide(1, hlo.select(kept, s, 1)), 0)
        rank = hlo.reduce_sum(hlo.convert(kept, torch.int64), [-1])
        uh, right = broadcast_batches(adjoint(u), right)
        scaled = hlo.multiply(hlo.expand_dims(hlo.convert(inverse, a.dtype), [-1]), matmul(uh, right))
        v, scaled = broadcast_batches(adjoint(vh), scaled)
        x = matmul(v, scaled)
        values = values if driver == "gelsy" else s
    if a.numel and right.numel and m > n and driver != "gelsy":
        difference = right - matmul(wide, x)
        residuals = hlo.reduce_sum(hlo.square(hlo.abs(difference)), [-2])
    return hlo.squeeze(x, [-1]) if vector else x, residuals, rank, values


def _solve_full_rank(platform: str, a: Value, b: Value) -> Value:
    m, n = a.shape[-2:]
    if m >= n:
        q, r = matrix.qr(platform, a)
        return matrix.solve_triangular(platform, r, matmul(adjoint(q), b), upper=True)
    q, r = matrix.qr(platform, adjoint(a))
    return matmul(q, matrix.solve_triangular(platform, r, b, upper=True, operation="C"))
