"""Decompositions, which are unique only up to signs and phases, are checked by what they are made of.

The platform "cpu" means LAPACK; "cuda" the formulations for other platforms, which the CPU can run as well.
"""

from __future__ import annotations

import pytest
import torch

from torch_tpu import hlo
from torch_tpu.ops import decompositions, registry, solve  # noqa: F401 - registers their lowerings
from torch_tpu.runtime.client import cpu_client

PLATFORMS = ("cpu", "cuda")
DTYPES = (torch.float32, torch.complex64)
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(scope="module")
def client():
    return cpu_client()


@pytest.fixture
def run(client):
    """run("linalg_qr", a, platform="cpu", mode="r") -> CPU tensors."""

    def call(op, *tensors, platform, **attributes):
        rule = registry.LOWERINGS[registry.overload_name(registry.resolve(op))]
        with hlo.Function() as function:
            values = [function.argument(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
            results = registry.apply(rule, registry.Context(rule.op, platform=platform), values, attributes)
            text = function.module(results)
        program = client.compile(text, [(value.shape, value.dtype) for value in results])
        arrays = program.run([client.put(tensor.contiguous()) for tensor in tensors])
        return [client.get(array, value.dtype).clone() for array, value in zip(arrays, results, strict=True)]

    return call


def matrices(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def hermitian(*shape, dtype):
    a = matrices(*shape, dtype=dtype)
    return a + a.mH


def assert_orthonormal(columns):
    eye = torch.eye(columns.shape[-1], dtype=columns.dtype).expand(*columns.shape[:-2], -1, -1)
    torch.testing.assert_close(columns.mH @ columns, eye, **CLOSE)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "full"), [((2, 6, 4), False), ((2, 6, 4), True), ((3, 5), True)])
def test_svd(run, platform, dtype, shape, full):
    a = matrices(*shape, dtype=dtype)
    u, s, vh = run("_linalg_svd", a, platform=platform, full_matrices=full)
    k = min(shape[-2:])
    torch.testing.assert_close(u[..., :k] * s.unsqueeze(-2) @ vh[..., :k, :], a, **CLOSE)
    torch.testing.assert_close(s, torch.linalg.svdvals(a), **CLOSE)
    assert u.shape[-1] == (shape[-2] if full else k) and vh.shape[-2] == (shape[-1] if full else k)
    assert_orthonormal(u)
    assert_orthonormal(vh.mH)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_svd_of_low_rank_has_orthonormal_factors(run, platform):
    a = matrices(2, 7, 2) @ matrices(2, 2, 5, seed=1)
    a[1] = 0
    u, s, vh = run("_linalg_svd", a, platform=platform, full_matrices=True)
    torch.testing.assert_close(u[..., :5] * s.unsqueeze(-2) @ vh, a, **CLOSE)
    assert_orthonormal(u)
    assert_orthonormal(vh)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh_reads_one_triangle(run, platform, dtype, uplo):
    a = hermitian(2, 5, 5, dtype=dtype)
    garbage = a.tril() if uplo == "L" else a.triu()
    values, vectors = run("_linalg_eigh", garbage, platform=platform, UPLO=uplo)
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mH, a, **CLOSE)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(a), **CLOSE)
    assert_orthonormal(vectors)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_eig(run, platform, dtype):
    a = matrices(4, 5, 5, dtype=dtype)
    a[1], a[2], a[3] = 0, torch.ones(5, 5).tril(), torch.eye(5).roll(1, 0)  # zero, defective, no real eigenvalues
    values, vectors = run("linalg_eig", a, platform=platform)
    torch.testing.assert_close(a.to(torch.complex64) @ vectors, vectors * values.unsqueeze(-2), **CLOSE)
    torch.testing.assert_close(vectors.norm(dim=-2), torch.ones(4, 5), **CLOSE)
    torch.testing.assert_close(values.sum(-1), a.to(torch.complex64).diagonal(0, -2, -1).sum(-1), **CLOSE)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "mode"), [((2, 6, 4), "reduced"), ((2, 6, 4), "complete"), ((3, 5), "complete")])
def test_qr(run, platform, dtype, shape, mode):
    a = matrices(*shape, dtype=dtype)
    q, r = run("linalg_qr", a, platform=platform, mode=mode)
    torch.testing.assert_close(q @ r, a, **CLOSE)
    assert q.shape == torch.linalg.qr(a, mode)[0].shape
    assert_orthonormal(q)
    torch.testing.assert_close(r, r.triu())


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 5, 5), (2, 6, 4), (4, 6)])
def test_lu(run, platform, dtype, shape):
    a = matrices(*shape, dtype=dtype)
    p, lower, upper = run("linalg_lu", a, platform=platform)
    torch.testing.assert_close(p @ lower @ upper, a, **CLOSE)
    packed, pivots, info = run("linalg_lu_factor_ex", a, platform=platform)
    torch.testing.assert_close([packed, pivots, info], list(torch.linalg.lu_factor_ex(a)), **CLOSE)


def test_lu_without_pivoting(run):
    a = matrices(2, 5, 5) + 5 * torch.eye(5)
    packed, pivots, info = run("linalg_lu_factor_ex", a, platform="cpu", pivot=False)
    torch.testing.assert_close((packed.tril(-1) + torch.eye(5)) @ packed.triu(), a, **CLOSE)
    assert pivots.tolist() == 2 * [[1, 2, 3, 4, 5]] and info.tolist() == [0, 0]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_and_the_minor_that_fails(run, platform, upper):
    a = matrices(2, 4, 4)
    a = torch.cat([a @ a.mH + torch.eye(4), torch.diag(torch.tensor([1.0, 2, -3, 1]))[None]])
    factor, info = run("linalg_cholesky_ex", a, platform=platform, upper=upper)
    torch.testing.assert_close(factor[:2], torch.linalg.cholesky(a[:2], upper=upper), **CLOSE)
    assert info.tolist() == [0, 0, 3] and info.dtype is torch.int32


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_singular_matrix_has_an_info(run, platform):
    a = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 0, 1]))])
    assert run("linalg_inv_ex", a, platform=platform)[1].tolist() == [0, 2]
    assert run("linalg_lu_factor_ex", a, platform=platform)[2].tolist() == [0, 2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_ldl_is_lapacks(run, dtype, symmetric):
    a = matrices(20, 6, 6, dtype=dtype)
    a = a + a.mT if symmetric else a + a.mH
    a[0] = 0
    found = run("linalg_ldl_factor_ex", a, platform="cpu", hermitian=not symmetric)
    expected = torch.linalg.ldl_factor_ex(a, hermitian=not symmetric)
    torch.testing.assert_close(found, list(expected), rtol=1e-3, atol=1e-4)
    factors, pivots = expected.LD[1:], expected.pivots[1:]
    b = matrices(19, 6, 2, dtype=dtype)
    (x,) = run("linalg_ldl_solve", factors, pivots, b, platform="cpu", hermitian=not symmetric)
    torch.testing.assert_close(a[1:] @ x, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(("left", "adjoint"), [(True, False), (True, True), (False, False), (False, True)])
def test_lu_solve(run, platform, left, adjoint):
    a, b = matrices(3, 5, 5, dtype=torch.complex64), matrices(2, 1, 5, 5, dtype=torch.complex64, seed=1)
    packed, pivots = torch.linalg.lu_factor(a)
    (x,) = run("linalg_lu_solve", packed, pivots, b, platform=platform, left=left, adjoint=adjoint)
    matrix = a.mH if adjoint else a
    torch.testing.assert_close(matrix @ x if left else x @ matrix, b.expand_as(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd"])
@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 4, 6)])
def test_lstsq(run, platform, driver, shape):
    a, b = matrices(*shape), matrices(2, shape[1], 3, seed=1)
    found = run("linalg_lstsq", a, b, platform=platform, driver=driver)
    expected = torch.linalg.lstsq(a, b, driver=driver)
    torch.testing.assert_close(found, list(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", ["linalg_qr", "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_lu_factor_ex"])
@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)])
def test_empty_matrices(run, op, shape):
    found = run(op, torch.empty(shape), platform="cpu")
    expected = registry.resolve(op)(torch.empty(shape))
    assert [tuple(x.shape) for x in found] == [tuple(x.shape) for x in expected]
