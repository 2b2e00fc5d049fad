"""Decompositions, compared by what is unique in them: the product of the factors, values, and gradients of both."""

from __future__ import annotations

import torch
from op_checks import C64, F32, F64, check, check_error, random


def positive(*shape):
    def make(dtype):
        x = random(*shape, low=-1, high=1)(dtype)
        return x @ x.mH + 2 * torch.eye(shape[-1], dtype=dtype)

    return make


def test_cholesky():
    check("cholesky", positive(3, 3), dtypes=(F32, F64, C64))
    check("cholesky", positive(2, 3, 3), upper=True)
    check("cholesky", (0, 0))
    check_error(torch.linalg.cholesky, [[1.0, 2.0], [2.0, 1.0]], match="not positive-definite")
    check_error("cholesky", (2, 3), match="square")


def test_qr():
    def product(x):
        q, r = torch.linalg.qr(x)
        return q @ r, r.abs(), q.mH @ q

    check(product, (4, 3), dtypes=(F32, F64))
    check(product, (3, 4), grad=False)
    check(lambda x: torch.linalg.qr(x, mode="r")[1].abs(), (4, 3), grad=False)


def test_svd():
    check("svdvals", (4, 3), dtypes=(F32, F64))
    check(lambda x: torch.linalg.svd(x, full_matrices=False)[1], (3, 4))

    def product(x):
        u, s, v = torch.linalg.svd(x, full_matrices=False)
        return (u * s) @ v

    check(product, (3, 2), grad=False, dtypes=(F32, C64))
    check("pinv", (3, 2))


def test_eigenvalues():
    check("eigvalsh", positive(3, 3), dtypes=(F32, F64, C64))

    def product(x):
        values, vectors = torch.linalg.eigh(x)
        return (vectors * values[..., None, :]) @ vectors.mH

    check(product, positive(2, 3, 3))
    check(lambda x: torch.linalg.eigvals(x).abs().sort()[0], (3, 3), grad=False)


def test_lu():
    def product(x):
        p, lower, upper = torch.linalg.lu(x)
        return p @ lower @ upper, upper

    check(product, (3, 3), dtypes=(F32, F64))
    check(product, (2, 3, 4), grad=False)
    check("lu_factor", (3, 3), grad=False)
