"""Linear systems, inverses, determinants and least squares; singular matrices raise PyTorch's error."""

from __future__ import annotations

import math

import pytest
import torch
from op_checks import C64, F32, F64, check, check_error, check_out, tensors

WELL = [[4.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.2, -1.0, 5.0]]


def test_solve():
    check("solve", WELL, (3, 2), dtypes=(F32, F64, C64))
    check("solve", WELL, (3,))
    check(lambda a, b: torch.linalg.solve(a, b, left=False), WELL, (2, 3))
    check("solve_triangular", WELL, (3, 2), upper=True)
    check("solve_triangular", WELL, (2, 3), upper=False, left=False, unitriangular=True)
    check_error(torch.linalg.solve, [[1.0, 2.0], [2.0, 4.0]], (2,), match="singular")
    check_out("solve", WELL, (3, 2))


@pytest.mark.parametrize("dtype", (F32, F64, C64))
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (1, 1), (2, 0), (0, 2), (2, 2)])
def test_matrices_that_contain_nan(place, dtype):
    """OpenBLAS goes on after a pivot that is NaN, and reports numbers and zeros; NaN is not positive."""
    a = torch.tensor(WELL, dtype=dtype)
    a[place] = math.nan
    b = torch.ones(3, dtype=dtype)
    for call in (
        torch.linalg.inv_ex,
        torch.linalg.inv,
        lambda a: torch.linalg.solve_ex(a, b.to(a.device)),
        lambda a: torch.linalg.solve(a, b.to(a.device)),
        torch.linalg.lu_factor_ex,
        torch.linalg.det,
        torch.linalg.slogdet,
        lambda a: torch.linalg.cholesky_ex(a).info,
    ):
        for found, expected in zip(tensors(call(a.to("tpu"))), tensors(call(a)), strict=True):
            torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
    if torch.linalg.cholesky_ex(a).info:
        with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
            torch.linalg.cholesky(a.to("tpu"))


def test_zeros_after_a_pivot_that_is_nan():
    a = torch.tensor([[math.nan, 1.0], [1.0, 1.0]], device="tpu")
    assert torch.linalg.inv(a).isnan().all() and torch.linalg.solve(a, torch.ones(2, device="tpu")).isnan().all()


def test_inverses():
    check("inv", WELL, dtypes=(F32, F64, C64))
    check("inv", (0, 0))
    check("cholesky_inverse", [[2.0, 0.0], [1.0, 3.0]])
    check("cholesky_solve", (2, 1), [[2.0, 0.0], [1.0, 3.0]])
    check_error(torch.linalg.inv, [[1.0, 2.0], [2.0, 4.0]], match="singular")
    check("tensorinv", (2, 3, 6), ind=2)


def test_determinants():
    check("det", WELL, dtypes=(F32, F64, C64))
    check("slogdet", WELL)
    check("logdet", WELL)
    check("det", (2, 3, 3))
    check("det", [[1.0, 2.0], [2.0, 4.0]], grad=False)
    check("det", (0, 0))


def test_least_squares():
    check(lambda a, b: torch.linalg.lstsq(a, b).solution, (5, 3), (5, 2))
