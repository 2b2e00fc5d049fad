"""Matrix products: every rank, batches, transposed operands, empty inner dimensions, integers, alpha and beta."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_checks import (
    BF16,
    C64,
    F32,
    F64,
    I64,
    U8,
    check,
    check_error,
    check_in_place,
    check_out,
    expanded,
    nan,
    strided,
    transposed,
    values,
)


def test_ranks():
    check("mm", (3, 4), (4, 2), dtypes=(F32, BF16, F64, C64, I64))
    check("bmm", (2, 3, 4), (2, 4, 2), dtypes=(F32, BF16))
    check("mv", (3, 4), (4,))
    check("dot", (4,), (4,), dtypes=(F32, C64, I64))
    check("vdot", (4,), (4,), dtypes=(C64,))
    for shapes in (((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 3))):
        check("matmul", *shapes)
    check("outer", (3,), (4,))
    check(lambda x, y: torch.einsum("bij,bkj->ik", x, y), (2, 3, 4), (2, 5, 4))
    check("tensordot", (2, 3, 4), (4, 3, 5), dims=([1, 2], [1, 0]))
    check("kron", (2, 2), (3, 2))
    check(lambda x, y, z: torch.linalg.multi_dot([x, y, z]), (2, 3), (3, 4), (4, 2))


def test_layouts():
    check("mm", transposed(3, 4), transposed(4, 2))
    check("mm", strided(3, 4), expanded(4, 2))
    check("matmul", expanded(2, 3, 4), transposed(4, 2))


def test_empty():
    check("mm", (3, 0), (0, 2))
    check("mm", (0, 3), (3, 2))
    check("bmm", (0, 2, 3), (0, 3, 2))
    check("addmm", (3, 2), (3, 0), (0, 2))


def test_sums_with_factors():
    check("addmm", (2,), (3, 4), (4, 2), dtypes=(F32, BF16))
    check("addmm", (3, 2), (3, 4), (4, 2), beta=0.5, alpha=2)
    check("addmm", [[nan, nan]], (1, 4), (4, 2), beta=0, grad=False)
    check("baddbmm", (3, 2), (2, 3, 4), (2, 4, 2), beta=0.5)
    check("addbmm", (3, 2), (2, 3, 4), (2, 4, 2), alpha=2)
    check("addmv", (3,), (3, 4), (4,), alpha=2)
    check("addr", (3, 2), (3,), (2,), beta=2)
    check("addmm", [[1, 2]], [[1, 2]], [[1, 2], [3, 4]], dtypes=(I64,))


def test_linear():
    check("linear", (2, 3, 4), (5, 4), (5,), dtypes=(F32, BF16))
    check("linear", (4,), (5, 4))
    check("bilinear", (2, 3), (2, 4), (5, 3, 4), (5,))
    check("bilinear", (2, 3), (2, 4), (5, 3, 4), dtypes=(U8,))
    check(lambda x, w: F.linear(x.t(), w), (4, 3), (5, 4))


def test_written():
    check_in_place("addmm", (3, 2), (3, 4), (4, 2), grad=True)
    check_in_place("baddbmm", (2, 3, 2), (2, 3, 4), (2, 4, 2))
    check_out("mm", (3, 4), (4, 2))
    check_out("addmm", (2,), (3, 4), (4, 2))


def test_errors():
    check_error("mm", (3, 4), (3, 2), match="cannot be multiplied|must match")
    check_error("mm", (3, 4), (4,), match="2-D|matrix|2D")
    check_error("bmm", (2, 3, 4), (3, 4, 2), match="batch|Expected size")
    check_error("dot", (3,), (4,))


def test_dtypes_that_differ_are_refused():
    check_error("mm", (3, 4), values([[1]] * 4, I64), match="dtype")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64])
def test_batches_of_one(dtype):
    """Of any layout: XLA's CPU client cannot run some of them in bfloat16."""
    x, y = torch.randn(1, 1, 33, 23, dtype=dtype), torch.randn(1, 1, 33, 17, dtype=dtype)
    a, b = (t.to("tpu").requires_grad_() for t in (x, y))
    x.requires_grad_(), y.requires_grad_()
    for left, right in ((x, y), (a, b)):
        (left.transpose(2, 3) @ right).abs().sum().backward()
    torch.testing.assert_close(a.grad.cpu(), x.grad)
    torch.testing.assert_close((a.transpose(2, 3) @ b).cpu(), x.transpose(2, 3) @ y)
    torch.testing.assert_close((a @ a.transpose(2, 3)).cpu(), x @ x.transpose(2, 3))
