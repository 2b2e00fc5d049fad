"""Reading by index: integers, slices, lists, masks, None, broadcast and negative indices; and dynamic sizes."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    ALL,
    BF16,
    BOOL,
    F32,
    I32,
    I64,
    channels_last,
    check,
    check_error,
    check_in_place,
    check_out,
    index,
    mask,
    strided,
    values,
)

ROWS = values([2, 0, -1, 0], I64)


def test_advanced_indexing():
    check(lambda x, i: x[i], (3, 4), ROWS, dtypes=ALL)
    check(lambda x, i: x[:, i], (4, 3), ROWS)
    check(lambda x, i, j: x[i, j], (3, 4), ROWS, ROWS)
    check(lambda x, i, j: x[i[:, None], j], (3, 4), ROWS, values([0, 3], I64))
    check(lambda x, i, j: x[i, :, j], (3, 4, 5), ROWS, ROWS)
    check(lambda x, i: x[..., i, None], (2, 4, 3), ROWS)
    check(lambda x, i: x[i, 1:], strided(3, 4), ROWS)
    check(lambda x, i: x[i], (3, 4), values(1, I64))
    check(lambda x, i: x[i], (3, 4), values([], I64))
    check(lambda x, i: x[i], (3, 4), values([2, 1], I32))
    check(lambda x, i: x[i], channels_last(3, 2, 4, 5), ROWS)
    check(lambda x: x[[0, 2]], (3, 4))
    check(lambda x: x[[0, 1], [1, -1]], (3, 4))
    check(lambda x: x[torch.tensor([0, 1])], (3, 4))
    check_error(lambda x: x[5], (3,), match="out of bounds")
    check_error(lambda x: x[0, 0], (3,), match="too many indices")
    check_error(lambda x, i: x[i], (3,), values([0.5]), match="tensors used as indices")


def test_masks():
    check(lambda x, m: x[m], (3, 4), mask(3, 4), dtypes=ALL)
    check(lambda x, m: x[m], (3, 4), values([True, False, True]))
    check(lambda x, m: x[:, m], (3, 4), values([True, False, False, True]))
    check(lambda x, m, i: x[m, i], (3, 4), values([True, False, True]), values([1, 2], I64))
    check(lambda x, m: x[m], (2, 3), values([[False] * 3] * 2))
    check(lambda x: x[x > 0], (5,))
    check(lambda x: x[True], (2, 3))
    check_error(lambda x, m: x[m], (3, 4), mask(2), match="shape of the mask")


def test_one_index_per_row():
    check("gather", (3, 4), 1, index(3, 2, high=4), dtypes=ALL)
    check("gather", (3, 4), -2, index(2, 4, high=3))
    check("gather", (), 0, values(0, I64))
    check("gather", (3, 0), 1, index(3, 0, high=1))
    check("take_along_dim", (3, 4), index(3, 1, high=4), 1)
    check("take", (3, 4), values([[0, 5], [-1, 11]], I64), dtypes=(F32, I64))
    check("index_select", (3, 4), 1, values([3, 0, 3], I64), dtypes=ALL)
    check("index_select", (3, 4), -2, values([1], I32))
    check("index_select", (), 0, values([0], I64))
    check_error("gather", (3, 4), 1, index(4, 2, high=4), match="Size does not match")
    check_error("gather", (3, 4), 2, index(3, 2, high=4), error=IndexError)


def test_dynamic_sizes():
    check("nonzero", [0, 3, 0, 1], dtypes=(I64, F32, BF16, BOOL))
    check("nonzero", (2, 3), strides=True)
    check("nonzero", (2, 3), as_tuple=True, strides=True)
    check("nonzero", (2, 0))
    check("nonzero", values(5.0))
    check("nonzero_static", [0, 3, 0, 1], size=3, fill_value=-1)
    check("masked_select", (3, 4), mask(3, 4), dtypes=(F32, I64))
    check("masked_select", (3, 4), mask(4))
    check("argwhere", [[0, 1], [2, 0]])
    check("where", values([[True, False], [False, True]]))
    check("repeat_interleave", values([2, 0, 3], I64))


def test_masked_writes():
    check("masked_fill", (3, 4), mask(4), -1.5, dtypes=(F32, BF16))
    check("masked_fill", [1, 2], values([True, False]), 7, dtypes=(I64,))
    check("masked_fill", (3, 4), mask(3, 4), values(2.0))
    check("masked_scatter", (3, 4), mask(3, 4), (12,))
    check("index_fill", (3, 4), 1, values([0, -1], I64), 2.5)
    check_in_place("masked_scatter", (3, 4), mask(3, 4), (12,))
    check_in_place("index_fill", (3, 4), 0, values([2], I64), 1.5, dtypes=(F32, I64))


def test_out():
    check_out("gather", (3, 4), 1, index(3, 2, high=4))
    check_out("index_select", (3, 4), 1, values([3, 0], I64))
    check_out("take", (3, 4), values([0, 5], I64))
    check_out("nonzero", [0, 3, 0, 1])
    check_out("masked_select", (3, 4), values([[True, False, True, True]] * 3))


def test_bytes_as_masks_warn():
    x = torch.arange(4.0, device="tpu")
    chosen = torch.tensor([1, 0, 1, 0], dtype=torch.uint8, device="tpu")
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8"):
        assert x[chosen].tolist() == [0, 2]
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8"):
        x[chosen] = 9
    assert x.tolist() == [9, 1, 9, 3]


def test_out_of_dynamic_results_fits():
    x = torch.tensor([0.0, 2.0], device="tpu")
    for wrong in (torch.empty(0, device="tpu"), torch.empty(0, dtype=torch.int32, device="tpu")):
        with pytest.raises(RuntimeError, match="scalar type Long"):
            torch.nonzero(x, out=wrong)
    with pytest.raises(RuntimeError, match="same device"):
        torch.nonzero(x, out=torch.empty(0, dtype=torch.int64))
    out = torch.empty(0, dtype=torch.int64, device="tpu")
    torch.nonzero(x, out=out)
    assert out.tolist() == [[1]]
