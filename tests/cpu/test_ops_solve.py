"""Linear systems, inverses, determinants and least squares; singular matrices raise PyTorch's error."""

from __future__ import annotations

import torch
from op_checks import C64, F32, F64, check, check_error, check_out

WELL = [[4.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.2, -1.0, 5.0]]


def test_solve():
    check("solve", WELL, (3, 2), dtypes=(F32, F64, C64))
    check("solve", WELL, (3,))
    check(lambda a, b: torch.linalg.solve(a, b, left=False), WELL, (2, 3))
    check("solve_triangular", WELL, (3, 2), upper=True)
    check("solve_triangular", WELL, (2, 3), upper=False, left=False, unitriangular=True)
    check_error(torch.linalg.solve, [[1.0, 2.0], [2.0, 4.0]], (2,), match="singular")
    check_out("solve", WELL, (3, 2))


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
