"""Products and functions of matrices that are no decomposition: cross, powers, exponentials, norms, conditions."""

from __future__ import annotations

import pytest
import torch
from op_checks import BF16, C64, F32, F64, I64, check, check_error, check_out


def test_cross():
    check("cross", (2, 3), (2, 3), dim=-1, dtypes=(F32, BF16, I64, C64))
    check("cross", (3, 4), (3, 1), dim=0)
    check_out("cross", (2, 3), (2, 3), dim=1)
    check_error("cross", (2, 4), (2, 4), dim=1, match="length 3")


def test_powers_and_exponentials():
    check("matrix_exp", (3, 3), dtypes=(F32, F64))
    check("matrix_exp", (2, 2, 2))
    check("matrix_exp", (0, 3, 3))
    for power in (0, 1, 3, 5):
        check("matrix_power", (3, 3), power)


def test_norms():
    check("matrix_norm", (3, 4), dtypes=(F32, C64))
    check("matrix_norm", (3, 4), 2, grad=False)
    check("matrix_norm", (3, 4), "nuc", grad=False)
    check("cond", [[2.0, 1.0], [1.0, 3.0]])
    check("matrix_rank", [[1.0, 2.0], [2.0, 4.0]], grad=False)
    check("vander", (3,))
    check("householder_product", (4, 2), (2,), grad=False)


@pytest.mark.parametrize(
    "factorize",
    [
        torch.linalg.inv_ex,
        torch.linalg.lu_factor_ex,
        lambda a, **kwargs: torch.linalg.cholesky_ex(-a, **kwargs),
        lambda a, **kwargs: torch.linalg.solve_ex(a, a, **kwargs),
    ],
)
def test_errors_are_raised_where_that_is_asked_for(factorize):
    singular = torch.diag(torch.tensor([1.0, 0.0, 1.0])).to("tpu")
    factorize(singular)
    with pytest.raises(RuntimeError) as expected:
        factorize(singular.cpu(), check_errors=True)
    with pytest.raises(type(expected.value)):
        factorize(singular, check_errors=True)
