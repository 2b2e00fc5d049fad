"""Writing by index: assignments, accumulation over repeated indices, reductions, on views and in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from op_checks import (
    BF16,
    F32,
    I32,
    I64,
    check,
    check_error,
    check_in_place,
    check_out,
    index,
    mask,
    random,
    values,
)

ROWS = values([2, 0, 2], I64)
DISTINCT = values([2, -3], I64)


def put(*where):
    def run(x, value, *indices):
        x = x.clone()
        taken = iter(indices)
        x[tuple(next(taken) if item is Ellipsis else item for item in where)] = value
        return x

    return run


def test_assignment():
    check(put(...), (3, 4), (2, 4), DISTINCT, dtypes=(F32, BF16, I64))
    check(put(...), (3, 4), (4,), DISTINCT)
    check(put(slice(None), ...), (4, 3), (2,), DISTINCT)
    check(put(..., ...), (3, 4), (2,), DISTINCT, values([1, 1], I64))
    check(put(...), (3, 4), values(5.0), mask(3, 4))
    check(put(...), (3, 4), (2, 4), values([True, False, True]))
    check(put(slice(1, None), 2), (3, 4), (2,))
    check(put(...), (3, 4), (0, 4), values([], I64))
    check(lambda x: x.clone().index_put_((torch.tensor([0, 1], device=x.device),), x[0] * 2), (3, 4))
    check_error(lambda x, i: x.__setitem__(i, x.clone()), (3, 4), DISTINCT, match="shape mismatch|cannot be broadcast")


def test_index_put_accumulates():
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), (3, 4), ROWS, (3, 4), dtypes=(F32, I64))
    check(lambda x, i, v: x.index_put((i, i), v, accumulate=True), (3, 4), ROWS, (3,))
    check(lambda x, i, v: x.clone().t().index_put_((i,), v, accumulate=True), (4, 3), ROWS, (3, 4))
    check("put", (3, 4), values([0, 5, -1], I64), (3,))
    check("put", (3, 4), values([0, 5, 5], I64), (3,), True)


def test_rows():
    check("index_add", (3, 4), 0, ROWS, (3, 4), dtypes=(F32, BF16, I64))
    check("index_add", (4, 3), -1, values([0, 0], I32), (4, 2), alpha=2.5)
    check("index_copy", (3, 4), 0, values([2, 0], I64), (2, 4), dtypes=(F32, I64))
    check("index_copy", (), 0, values([0], I64), (1,))
    for reduce in ("prod", "mean", "amax", "amin"):
        check("index_reduce", (3, 4), 0, ROWS, (3, 4), reduce, grad=False)
        check("index_reduce", (3, 4), 0, ROWS, (3, 4), reduce, include_self=False, grad=False)
    check_error("index_add", (3, 4), 0, ROWS, (2, 4))


def test_elements():
    check("scatter", (3, 4), 1, values([[0, 2], [1, 3]], I64), (2, 2), dtypes=(F32, I64))
    check("scatter", (3, 4), 1, values([[0, 2], [1, 3]], I64), 2.5)
    check("scatter", (), 0, values(0, I64), values(3.0))
    check("scatter_add", (3, 4), 1, index(3, 6, high=4), (3, 6), dtypes=(F32, BF16, I64))
    check("scatter_add", (3, 4), 0, index(5, 2, high=3), (5, 4), grad=False)
    check("scatter", (3, 4), 1, index(3, 6, high=4), (3, 6), reduce="add", grad=False)
    check("scatter", (3, 4), 1, values([[0], [1], [2]], I64), 2.0, reduce="multiply", grad=False)
    check_error("scatter", (3, 4), 1, index(3, 2, high=4), values([[1, 2]] * 3, I64), match="dtype")


@pytest.mark.parametrize("reduce", ("sum", "prod", "mean", "amax", "amin"))
def test_scatter_reduce(reduce):
    where = index(3, 6, high=4)
    check("scatter_reduce", (3, 4), 1, where, (3, 6), reduce)
    check("scatter_reduce", (3, 4), 1, where, (3, 6), reduce, include_self=False)
    check("scatter_reduce", [[1, 2, 3]], 1, values([[0, 0]], I64), [[5, 6]], reduce, dtypes=(I64,))


def test_in_place_and_out():
    check_in_place("index_add", (3, 4), 0, ROWS, (3, 4), grad=True)
    check_in_place("scatter", (3, 4), 1, values([[0], [1], [2]], I64), 1.5)
    check_in_place("scatter_add", (3, 4), 1, index(3, 6, high=4), (3, 6))
    check_in_place("index_copy", (3, 4), 0, values([1], I64), (1, 4))
    check_in_place("put", (3, 4), values([0, 5], I64), (2,))
    check_out("scatter_add", (3, 4), 1, index(3, 6, high=4), random(3, 6))
    check_out("index_add", (3, 4), 0, ROWS, (3, 4))


@pytest.mark.parametrize("values", [(), (1,), (0,), (3,), (1, 1), (1, 0)])
@pytest.mark.parametrize("chosen", [[], [False] * 4, [1, 2], [True, False, True, False]])
def test_index_put_takes_the_values_that_the_cpu_takes(chosen, values):
    """Also where nothing is chosen."""

    def put(device: str) -> Any:
        index = torch.tensor(chosen, dtype=torch.int64 if not chosen else None, device=device)
        try:
            return torch.zeros(4, device=device).index_put_((index,), torch.ones(values, device=device)).tolist()
        except RuntimeError as error:
            return str(error).partition("\n")[0]

    assert put("tpu") == put("cpu")
