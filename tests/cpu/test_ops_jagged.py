"""Jagged nested tensors: padding, what reduces their rows, and gradients."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from torch_tpu.errors import UnsupportedOpError

aten = torch.ops.aten
OFFSETS = torch.tensor([0, 2, 2, 7])
REDUCTIONS = {
    "to_padded_tensor": lambda x: x.to_padded_tensor(0.5),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "softmax": lambda x: x.softmax(1).values(),
}


WITHOUT_GRADIENT = ("sum", "mean")
"""PyTorch has none for them on any device."""


def _values(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_gradients(name, dtype, counters):
    results = {}
    for device in ("cpu", "tpu"):
        values = _values(dtype).to(device).requires_grad_()
        offsets = torch.tensor([0, 2, 3, 7], device=device)
        result = REDUCTIONS[name](torch.nested.nested_tensor_from_jagged(values, offsets))
        results[device] = [result.detach().cpu()]
        if name not in WITHOUT_GRADIENT:
            (result * result).sum().backward()
            results[device].append(values.grad.cpu())
    torch.testing.assert_close(results["tpu"], results["cpu"])
    assert not counters.fallbacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("length", [0, 1, 4, 9])
def test_padding(length, dtype, counters):
    values = _values().mul(3).to(dtype)
    for offsets in (OFFSETS, OFFSETS.int(), torch.tensor([0, 0, 0])):
        got = aten._jagged_to_padded_dense_forward(values.to("tpu"), [offsets.to("tpu")], [length], 1.0)
        expected = values.new_ones(offsets.numel() - 1, length, 3)
        for row, (start, end) in enumerate(pairwise(offsets)):
            kept = values[start:end][:length]
            expected[row, : len(kept)] = kept
        torch.testing.assert_close(got.cpu(), expected)
    assert not counters.fallbacks


def test_padding_of_nothing():
    offsets = [torch.zeros(3, dtype=torch.int64, device="tpu")]
    empty = torch.ones(0, 3, device="tpu")
    assert aten._jagged_to_padded_dense_forward(empty, offsets, [2], 0.5).tolist() == [[[0.5] * 3] * 2] * 2
    assert aten._padded_dense_to_jagged_forward(torch.ones(2, 4, 3, device="tpu"), offsets, 0).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_taking_the_padding_away(dtype, counters):
    dense = torch.arange(18).reshape(3, 6, 1).to(dtype)
    offsets = OFFSETS.to("tpu")
    expected = aten._padded_dense_to_jagged_forward(dense, [OFFSETS], 7)
    got = aten._padded_dense_to_jagged_forward(dense.to("tpu"), [offsets], 7)
    torch.testing.assert_close(got.cpu(), expected)
    assert not counters.fallbacks
    torch.testing.assert_close(aten._padded_dense_to_jagged_forward(dense.to("tpu"), [offsets]).cpu(), expected)
    cut = aten._padded_dense_to_jagged_forward(dense[:, :3].to("tpu"), [offsets], 7)
    assert cut[-2:].eq(0).all(), "rows that were cut"


def test_only_one_dimension_is_jagged():
    offsets = [OFFSETS.to("tpu")] * 2
    with pytest.raises((RuntimeError, AssertionError), match=r"[Oo]nly one jagged dim|single jagged dim"):
        aten._jagged_to_padded_dense_forward(_values().to("tpu"), offsets, [2, 2])


def test_another_padding_makes_no_program(counters):
    values, offsets = _values().to("tpu"), OFFSETS.to("tpu")
    made = []
    for padding in (0.5, 0.25, -1.5):
        aten._jagged_to_padded_dense_forward(values, [offsets], [5], padding)
        made.append(counters.compiles + counters.disk_hits + counters.memory_hits)
    assert made[0] == made[-1]


def test_attention_is_refused_by_name():
    heads = _values().to("tpu").reshape(7, 1, 3)
    x = torch.nested.nested_tensor_from_jagged(heads, OFFSETS.to("tpu")).transpose(1, 2)
    with pytest.raises(UnsupportedOpError, match="no attention of jagged tensors"):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
