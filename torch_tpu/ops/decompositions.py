"""Matrix decompositions: Cholesky, LU, LDL, QR and its reflectors, SVD, eigenvalues.

`check_errors` arguments are not for programs: infos go to `_linalg_check_errors`, which the core runs on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import matrix, matrix_loops
from torch_tpu.ops.matrix_loops import cut, identity, matmul, triangle
from torch_tpu.ops.registry import Context, lowering


def empty(dtype: torch.dtype) -> Value:
    """What PyTorch returns for a result that was not asked for."""
    return hlo.full((0,), 0, dtype)


@lowering("cholesky")
def cholesky(ctx: Context, a: Value, upper: bool = False) -> Value:
    return matrix.cholesky(ctx.platform, a, upper)[0]


@lowering("linalg_cholesky_ex")
def linalg_cholesky_ex(ctx: Context, a: Value, *, upper: bool = False, check_errors: bool = False) -> Sequence[Value]:
    return matrix.cholesky(ctx.platform, a, upper)


@lowering("linalg_lu_factor_ex")
def linalg_lu_factor_ex(ctx: Context, a: Value, *, pivot: bool = True, check_errors: bool = False) -> Sequence[Value]:
    return matrix.lu(ctx.platform, a, pivot)


@lowering("linalg_lu")
def linalg_lu(ctx: Context, a: Value, *, pivot: bool = True) -> Sequence[Value]:
    packed, pivots, _ = matrix.lu(ctx.platform, a, pivot)
    p, lower, upper = lu_unpack(ctx, packed, pivots, unpack_pivots=pivot)
    return p, lower, upper


@lowering("lu_unpack")
def lu_unpack(
    ctx: Context, packed: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> Sequence[Value]:
    """P, L and U with a = P L U."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    p = lower = upper = empty(packed.dtype)
    if unpack_pivots:
        order = hlo.expand_dims(matrix.permutation(pivots, m), [-2])
        shape = (*packed.shape[:-1], m)
        rows = hlo.iota(shape, len(shape) - 2, torch.int32)
        p = hlo.convert(hlo.equal(rows, order), packed.dtype)
    if unpack_data:
        lower = triangle(cut(packed, m, k), lower=True, offset=-1) + identity((m, k), packed.dtype)
        upper = triangle(cut(packed, k, n), lower=False)
    return p, lower, upper


@lowering("linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(
    ctx: Context, a: Value, *, hermitian: bool = False, check_errors: bool = False
) -> Sequence[Value]:
    batch = a.shape[:-2]
    if a.numel == 0:
        return a, hlo.full(a.shape[:-1], 0, torch.int32), hlo.full(batch, 0, torch.int32)
    packed, pivots, info = matrix_loops.bunch_kaufman(matrix.flat(a), hermitian and a.dtype.is_complex)
    return hlo.reshape(packed, a.shape), hlo.reshape(pivots, a.shape[:-1]), hlo.reshape(info, batch)


@lowering("linalg_qr")
def linalg_qr(ctx: Context, a: Value, mode: str = "reduced") -> Sequence[Value]:
    if mode == "r":
        m, n = a.shape[-2:]
        packed, _ = matrix.householder_qr(ctx.platform, a)
        return empty(a.dtype), cut(triangle(packed, lower=False), min(m, n), n)
    return matrix.qr(ctx.platform, a, complete=mode == "complete")


@lowering("geqrf", inferred=True)
def geqrf(ctx: Context, a: Value) -> Sequence[Value]:
    return matrix.householder_qr(ctx.platform, a)


@lowering("linalg_householder_product")
def linalg_householder_product(ctx: Context, packed: Value, taus: Value) -> Value:
    return matrix.householder_product(ctx.platform, packed, taus)


@lowering("ormqr")
def ormqr(ctx: Context, packed: Value, taus: Value, other: Value, left: bool = True, transpose: bool = False) -> Value:
    """Q other or other Q, with Q (its adjoint if transpose) the square product of reflectors."""
    size = packed.shape[-2]
    count = taus.shape[-1]
    if other.numel == 0 or count == 0:
        return other
    packed = cut(packed, size, count)
    if ctx.platform == "cpu":
        result = [(other.shape, other.dtype)]
        options = {"left": left, "transpose": transpose}
        return matrix.lapack("ormqr/unmqr", [packed, taus, other], result, **options)[0]
    q = matrix.householder_product(ctx.platform, cut(packed, size, size), taus)
    q = matrix_loops.adjoint(q) if transpose else q
    return matmul(q, other) if left else matmul(other, q)


@lowering("_linalg_svd")
def linalg_svd(
    ctx: Context, a: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Sequence[Value]:
    u, s, vh = matrix.svd(ctx.platform, a, full_matrices, compute_uv)
    return (u, s, vh) if compute_uv else (empty(a.dtype), s, empty(a.dtype))


@lowering("_linalg_eigh")
def linalg_eigh(ctx: Context, a: Value, UPLO: str = "L", compute_v: bool = True) -> Sequence[Value]:
    values, vectors = matrix.eigh(ctx.platform, a, lower=UPLO in "Ll", vectors=compute_v)
    return values, vectors if compute_v else empty(a.dtype)


@lowering("linalg_eig")
def linalg_eig(ctx: Context, a: Value) -> Sequence[Value]:
    return matrix.eig(ctx.platform, a)


@lowering("_linalg_eigvals")
def linalg_eigvals(ctx: Context, a: Value) -> Value:
    return matrix.eig(ctx.platform, a, vectors=False)[0]
