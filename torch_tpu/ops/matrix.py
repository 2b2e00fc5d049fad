"""Matrix kernels that the lowerings of linear algebra are built from; registers none itself.

All take batches of matrices [..., m, n]. On the CPU they are LAPACK's functions (see `runtime/lapack.py`),
elsewhere StableHLO's operations, the functions that XLA's compilers expand ("Qr", "Eigh", ...) or the loops
of `matrix_loops.py` and `matrix_schur.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import matrix_loops, matrix_schur
from torch_tpu.ops.matrix_loops import adjoint, cut, diagonal, identity, matmul, real_dtype, triangle

_PREFIX = {torch.float32: "s", torch.float64: "d", torch.complex64: "c", torch.complex128: "z"}
Result = tuple[tuple[int, ...], torch.dtype]


def lapack(
    function: str, operands: Sequence[Value], results: Sequence[Result], **characters: str | bool
) -> list[Value]:
    """Calls one of LAPACK's functions for each matrix of a batch; matrices are column-major there.

    Args:
        function: without the letter of the dtype; two names, as in "orgqr/ungqr", are for real and complex.
        characters: options: LAPACK's letters, or truth values.
    """
    names = function.split("/")
    dtype, rank = operands[0].dtype, operands[0].ndim
    config = ", ".join(
        f"{name} = {str(value).lower()}" if isinstance(value, bool) else f"{name} = {ord(value)} : ui8"
        for name, value in characters.items()
    )

    def layout(ndim: int) -> list[int]:
        order = list(range(ndim - 1, -1, -1))
        return [ndim - 2, ndim - 1, *order[2:]] if ndim == rank else order

    return hlo.custom_call(
        f"lapack_{_PREFIX[dtype]}{names[-1] if dtype.is_complex else names[0]}_ffi",
        operands,
        results,
        config=f"{{{config}}}",
        operand_layouts=[layout(value.ndim) for value in operands],
        result_layouts=[layout(len(shape)) for shape, _ in results],
    )


def _require_convergence(info: Value, name: str) -> None:
    """The program fails where an iterative function of LAPACK gave up: it has not written its results then."""
    hlo.fail_if(
        hlo.reduce_or(hlo.not_equal(info, 0), range(info.ndim)),
        f"linalg.{name}: The algorithm failed to converge because the input matrix contained non-finite values, or has "
        "too many repeated singular values or eigenvalues.",
        error="LinAlgError",
    )


def cholesky(platform: str, a: Value, upper: bool) -> tuple[Value, Value]:
    """The factor, and info: the order of the first leading minor that is not positive, or 0."""
    batch = a.shape[:-2]
    if a.numel == 0:
        return a, hlo.full(batch, 0, torch.int32)
    if platform == "cpu":
        factor, info = lapack("potrf", [a], [(a.shape, a.dtype), (batch, torch.int32)], uplo="U" if upper else "L")
        undefined = _first(hlo.is_nan(hlo.real(diagonal(factor))))  # OpenBLAS takes NaN for positive
        return triangle(factor, lower=not upper), hlo.select(hlo.equal(info, 0), undefined, info)
    a = adjoint(a) if upper else a
    factor = triangle(hlo.cholesky(a), lower=True)
    failed = hlo.is_nan(hlo.real(diagonal(factor)))

    def first_minor() -> Value:
        half = triangle(a, lower=True)
        whole = half + adjoint(triangle(half, lower=True, offset=-1))
        pivots = hlo.real(diagonal(hlo.reshape(matrix_loops.lu(flat(whole), pivot=False)[0], a.shape)))
        return _first(hlo.bitwise_not(hlo.greater(pivots, 0)))

    anything = hlo.reduce_or(failed, range(failed.ndim))
    info = hlo.conditional(anything, first_minor, lambda: hlo.full(batch, 0, torch.int32))[0]
    return adjoint(factor) if upper else factor, info


def _first(found: Value) -> Value:
    """The number (from 1) of the first true value along the last dimension, or 0."""
    size = found.shape[-1]
    order = hlo.select(found, hlo.iota(found.shape, found.ndim - 1, torch.int32) + 1, size + 1)
    first = hlo.reduce(order, size + 1, hlo.minimum, [-1])
    assert isinstance(first, Value)
    return hlo.select(hlo.greater(first, size), 0, first)


def lu(platform: str, a: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    """L and U in one matrix, LAPACK's pivots (int32, from 1), and info: the first zero pivot's number, or 0."""
    batch, size = a.shape[:-2], min(a.shape[-2:])
    if a.numel == 0:
        return a, hlo.full((*batch, size), 0, torch.int32), hlo.full(batch, 0, torch.int32)
    results = [(a.shape, a.dtype), ((*batch, size), torch.int32)]
    if platform == "cpu" and pivot:
        packed, pivots, _ = lapack("getrf", [a], [*results, (batch, torch.int32)])
        packed = _after_undefined_pivots(packed)
        return packed, pivots, _first(hlo.equal(diagonal(packed), 0))
    if platform == "tpu" and pivot:
        packed, pivots, _ = hlo.custom_call(
            "LuDecomposition", [a], [*results, ((*batch, a.shape[-2]), torch.int32)], api_version=1
        )
        pivots = pivots + 1
    else:
        factors, exchanges = matrix_loops.lu(flat(a), pivot)
        packed, pivots = hlo.reshape(factors, a.shape), hlo.reshape(exchanges, results[1][0])
    return packed, pivots, _first(hlo.equal(diagonal(packed), 0))


def _after_undefined_pivots(packed: Value) -> Value:
    """NaN where an LU decomposition depends on a pivot that is NaN: OpenBLAS goes on as if that were one."""
    first = _first(_is_nan(diagonal(packed)))
    first = hlo.expand_dims(hlo.select(hlo.equal(first, 0), max(packed.shape), first), [-1, -2])
    row = hlo.iota(packed.shape, packed.ndim - 2, torch.int32) + 1
    column = hlo.iota(packed.shape, packed.ndim - 1, torch.int32) + 1
    return hlo.select(hlo.greater(row, first) & hlo.greater_equal(column, first), math.nan, packed)


def _is_nan(x: Value) -> Value:
    return hlo.is_nan(hlo.real(x)) | hlo.is_nan(hlo.imag(x)) if x.dtype.is_complex else hlo.is_nan(x)


def permutation(pivots: Value, rows: int) -> Value:
    """Row i of the permuted matrix is row permutation[i] of the original: the pivots' exchanges, applied in order."""
    batch, count = pivots.shape[:-1], pivots.shape[-1]
    if pivots.numel == 0:
        return hlo.iota((*batch, rows), len(batch), torch.int32)
    exchanges = hlo.reshape(pivots, (pivots.numel // count, count))
    return hlo.reshape(matrix_loops.permutation(exchanges, rows), (*batch, rows))


def solve_triangular(
    platform: str,
    a: Value,
    b: Value,
    *,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    operation: str = "N",
) -> Value:
    """X with op(a) X = b (left) or X op(a) = b; operation is N, T (transpose) or C (adjoint). Same batches."""
    if b.numel == 0:
        return b
    if platform == "cpu":
        options = {"side": "L" if left else "R", "uplo": "U" if upper else "L"}
        options |= {"trans_x": operation, "diag": "U" if unit else "N"}
        return lapack("trsm", [a, b], [(b.shape, b.dtype)], **options)[0]
    name = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[operation]
    return hlo.triangular_solve(a, b, left=left, lower=not upper, unit=unit, transpose=name)


def householder_qr(platform: str, a: Value) -> tuple[Value, Value]:
    """R and, below its diagonal, the reflectors; and their factors (LAPACK's geqrf)."""
    taus = (*a.shape[:-2], min(a.shape[-2:]))
    if a.numel == 0:
        return a, hlo.full(taus, 0, a.dtype)
    results = [(a.shape, a.dtype), (taus, a.dtype)]
    if platform == "cpu":
        packed, factors = lapack("geqrf", [a], results)
    else:
        packed, factors = hlo.custom_call("Qr", [a], results, api_version=1)
    return packed, factors


def householder_product(platform: str, packed: Value, taus: Value) -> Value:
    """The first columns (as many as packed has) of the product of reflectors (LAPACK's orgqr)."""
    if packed.numel == 0:
        return packed
    if taus.shape[-1] == 0:
        return hlo.broadcast_to(identity(packed.shape[-2:], packed.dtype), packed.shape)
    if platform == "cpu":
        return lapack("orgqr/ungqr", [packed, taus], [(packed.shape, packed.dtype)])[0]
    name = "ProductOfElementaryHouseholderReflectors"
    return hlo.custom_call(name, [packed, taus], [(packed.shape, packed.dtype)], api_version=1)[0]


def qr(platform: str, a: Value, complete: bool = False) -> tuple[Value, Value]:
    """Q [m, k] and R [k, n], where k is m for a complete decomposition, else min(m, n)."""
    m, n = a.shape[-2:]
    k = m if complete else min(m, n)
    packed, taus = householder_qr(platform, a)
    return householder_product(platform, cut(packed, m, k), taus), cut(triangle(packed, lower=False), k, n)


def eigh(platform: str, a: Value, lower: bool = True, vectors: bool = True) -> tuple[Value, Value]:
    """Ascending eigenvalues and orthonormal eigenvectors (in columns) of a Hermitian matrix; one triangle of
    it is read."""
    values = (a.shape[:-1], real_dtype(a.dtype))
    if a.numel == 0:
        return hlo.full(*values[:1], 0, values[1]), a
    if platform == "cpu":
        results = [(a.shape, a.dtype), values, (a.shape[:-2], torch.int32)]
        mode = {"mode": "V" if vectors else "N", "uplo": "L" if lower else "U"}
        found, w, info = lapack("syevd/heevd", [a], results, **mode)
        _require_convergence(info, "eigh")
        return w, found
    half = triangle(a if lower else adjoint(a), lower=True)
    whole = half + adjoint(triangle(half, lower=True, offset=-1))
    tolerance = "1e-6" if a.dtype in (torch.float32, torch.complex64) else "1e-14"
    options = f'"1,1,100,{tolerance}"'  # lower triangle, sorted, most sweeps, tolerance
    found, w = hlo.custom_call("Eigh", [whole], [(a.shape, a.dtype), values], config=options, api_version=1)
    return w, found


def svd(platform: str, a: Value, full: bool = False, vectors: bool = True) -> tuple[Value, Value, Value]:
    """U, descending singular values, and the adjoint of V; full: U and V are square. Without `vectors` only the
    singular values mean anything."""
    (m, n), batch, real = a.shape[-2:], a.shape[:-2], real_dtype(a.dtype)
    k = min(m, n)
    shapes = ((*batch, m, m if full else k), (*batch, k), (*batch, n if full else k, n))
    if a.numel == 0:
        sides = [hlo.broadcast_to(identity(shape[-2:], a.dtype), shape) for shape in (shapes[0], shapes[2])]
        return sides[0], hlo.full(shapes[1], 0, real), sides[1]
    if platform == "cpu":
        mode = ("A" if full else "S") if vectors else "N"
        results = [(a.shape, a.dtype), (shapes[1], real), (shapes[0], a.dtype), (shapes[2], a.dtype)]
        _, s, u, vh, info = lapack("gesdd", [a], [*results, (batch, torch.int32)], mode=mode)
        _require_convergence(info, "svd")
        return u, s, vh
    if m < n:
        v, s, uh = svd(platform, adjoint(a), full, vectors)
        return adjoint(uh), s, adjoint(v)
    return _jacobi_svd(platform, a, full, vectors)


def _jacobi_svd(platform: str, a: Value, full: bool, vectors: bool) -> tuple[Value, Value, Value]:
    """QR decomposition, then one-sided Jacobi of R (Drmac and Veselic, 2008, without its pivoting); m >= n."""
    (m, n), batch, real = a.shape[-2:], a.shape[:-2], real_dtype(a.dtype)
    scale = hlo.reduce_max(hlo.abs(a), [-1, -2], keep_dim=True)
    scale = hlo.select(hlo.equal(scale, 0), 1, scale)
    q, r = qr(platform, hlo.divide(a, hlo.broadcast_to(hlo.convert(scale, a.dtype), a.shape)))
    columns, right = matrix_loops.jacobi(flat(r))
    s = hlo.sqrt(hlo.reduce_sum(hlo.square(hlo.abs(columns)), [-1]))
    order = hlo.iota(s.shape, 1, torch.int32)
    s, order = hlo.sort([s, order], 1, lambda x, y, *_: hlo.greater(x, y))
    values = hlo.multiply(hlo.reshape(s, (*batch, n)), hlo.squeeze(scale, [-1]))
    if not vectors:
        return a, values, a
    columns, right = matrix_loops.take_rows(columns, order), matrix_loops.take_rows(right, order)
    lengths = hlo.expand_dims(hlo.convert(hlo.select(hlo.equal(s, 0), 1, s), a.dtype), [-1])
    units = hlo.reshape(hlo.divide(columns, lengths), (*batch, n, n))
    u = matmul(q, matrix_loops.transpose(units))
    # Columns of zero singular values are zero so far; a QR decomposition completes the others to a basis.
    basis, triangular = qr(platform, u, complete=full)
    phase = diagonal(triangular)
    size = hlo.abs(phase)
    phase = hlo.select(hlo.greater(size, 0.5), hlo.divide(phase, hlo.convert(size, a.dtype)), 1)
    if basis.shape[-1] > n:
        rest = hlo.full((*batch, m - n), 1, a.dtype)
        phase = hlo.concatenate([phase, rest], -1)
    u = hlo.multiply(basis, hlo.expand_dims(phase, [-2]))
    assert values.dtype is real
    return u, values, hlo.conj(hlo.reshape(right, (*batch, n, n)))


def eig(platform: str, a: Value, vectors: bool = True) -> tuple[Value, Value]:
    """Eigenvalues and eigenvectors (in columns, of length 1) of any square matrix; complex."""
    dtype, batch = hlo.complex_dtype(a.dtype), a.shape[:-2]
    values, vectors_like = (a.shape[:-1], a.dtype), (a.shape, dtype)
    if a.numel == 0:
        return hlo.full(values[0], 0, dtype), hlo.full(a.shape, 0, dtype)
    if platform != "cpu":
        found, columns = matrix_schur.eig(flat(hlo.convert(a, dtype)))
        return hlo.reshape(found, values[0]), hlo.reshape(columns, a.shape)
    numbers = [values] if a.dtype.is_complex else [values, values]
    results = [*numbers, vectors_like, vectors_like, (batch, torch.int32)]
    right = "V" if vectors else "N"
    *parts, info = lapack("geev", [a], results, compute_left="N", compute_right=right)
    _require_convergence(info, "eig")
    return parts[0] if a.dtype.is_complex else hlo.make_complex(parts[0], parts[1]), parts[-1]


def flat(a: Value) -> Value:
    """One batch dimension."""
    count = 1
    for size in a.shape[:-2]:
        count *= size
    return hlo.reshape(a, (count, *a.shape[-2:]))
