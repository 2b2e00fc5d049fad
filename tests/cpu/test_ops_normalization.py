"""Softmaxes and layer, group, RMS and weight normalization, with and without weights, in reduced precision."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    BF16,
    F16,
    F32,
    F64,
    I64,
    channels_last,
    check,
    check_error,
    check_layouts,
    inf,
    nan,
    random,
)


@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
def test_softmaxes(name):
    check(name, (3, 4), dim=1, dtypes=(F32, BF16, F64))
    check(name, (2, 3, 4), dim=-2)
    check(name, (), dim=0)
    check(name, (0, 3), dim=1)
    check(name, (3, 4), dim=1, dtypes=(BF16, F16), dtype=F32)
    check(name, [[1, 2, 3]], dim=1, dtypes=(I64,), dtype=F32)
    check(name, [[-inf, 1.0, -inf], [-inf, -inf, -inf], [inf, 1.0, 0.0], [nan, 1.0, 2.0]], dim=1, grad=False)
    check(name, [[1e4, -1e4, 9e3]], dim=1)
    check_layouts(name, (3, 4), dim=0)


def test_softmax_refuses_a_wrong_dimension():
    check_error("softmax", (3, 4), dim=2, match="Dimension out of range")


def test_layer_norm():
    check("layer_norm", (2, 3, 4), normalized_shape=(4,), dtypes=(F32, BF16))
    check(lambda x, w, b: torch.layer_norm(x, (3, 4), w, b), (2, 3, 4), (3, 4), (3, 4), dtypes=(F32, F64))
    check(lambda x, w: torch.layer_norm(x, (4,), w), (3, 4), (4,))
    check(lambda x, w, b: torch.layer_norm(x, (4,), w, b), (0, 4), (4,), (4,))
    check(
        lambda x, w, b: torch.layer_norm(x, (4,), w, b),
        random(2, 4, dtype=BF16),
        (4,),
        (4,),
        grad=False,
    )
    check("layer_norm", [[1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3]], normalized_shape=(4,))
    check_error("layer_norm", (2, 4), normalized_shape=(3,), match="normalized_shape")


def test_group_and_instance_norm():
    check(lambda x, w, b: torch.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,), dtypes=(F32, BF16))
    check("group_norm", channels_last(2, 4, 3, 3), 2)
    check("instance_norm", (2, 3, 4))
    check_error("group_norm", (2, 5, 3), 2, match="divisible")


def test_rms_and_others():
    check(lambda x, w: torch.rms_norm(x, (4,), w), (3, 4), (4,), dtypes=(F32, BF16))
    check("rms_norm", (3, 4), normalized_shape=(4,), eps=1e-6)
    check("local_response_norm", (2, 5, 3, 3), 3)
    check(lambda v, g: torch._weight_norm(v, g, 0), (3, 4), (3, 1))
    check(lambda x: torch.softmax(x.t(), 0), (3, 4))
