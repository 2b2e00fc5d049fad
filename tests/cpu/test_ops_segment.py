"""Segment reductions by lengths and offsets, with empty segments."""

from __future__ import annotations

import pytest
import torch
from op_checks import F32, F64, I64, check, values

LENGTHS = values([2, 0, 3], I64)


@pytest.mark.parametrize("reduce", ("sum", "mean", "max", "min", "prod"))
def test_reductions(reduce):
    check(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, initial=1.0), (5, 2), LENGTHS, dtypes=(F32, F64))
    check(lambda x, n: torch.segment_reduce(x, reduce, offsets=n, initial=1.0), (5,), values([0, 2, 5], I64))


def test_axis():
    check(lambda x, n: torch.segment_reduce(x, "sum", lengths=n, axis=1), (2, 5), values([[2, 3], [5, 0]], I64))
