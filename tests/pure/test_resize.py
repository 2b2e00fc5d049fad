"""The way TPUs resize (products with dense matrices), which the CPU's own way does not run."""

from __future__ import annotations

import pytest
import torch

from torch_tpu import hlo
from torch_tpu.ops import registry, resize  # noqa: F401 - registers their lowerings
from torch_tpu.runtime.client import cpu_client

aten = torch.ops.aten


@pytest.fixture(scope="module")
def client():
    return cpu_client()


@pytest.mark.parametrize("size", [(5, 14), (16, 3)], ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"])
def test_dense_matrices_resize_as_pytorch_does(client, name, align_corners, size):
    x = torch.randn(2, 3, 8, 7, generator=torch.Generator().manual_seed(0))
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    wanted = forward(x, size, align_corners)
    for op, tensor, answer, arguments in (
        (forward, x, wanted, (size, align_corners)),
        (backward, wanted, backward(wanted, size, x.shape, align_corners), (size, tuple(x.shape), align_corners)),
    ):
        rule = registry.LOWERINGS[registry.overload_name(op.default)]
        context = registry.Context(rule.op, (registry.Spec(tuple(answer.shape), answer.dtype),), "tpu")
        with hlo.Function() as function:
            value = function.argument(tuple(tensor.shape), tensor.dtype)
            (result,) = registry.apply(rule, context, [value, *arguments], {})
            text = function.module([result])
        assert "dot_general" in text and "gather" not in text
        (array,) = client.compile(text, [(result.shape, result.dtype)]).run([client.put(tensor)])
        torch.testing.assert_close(client.get(array, result.dtype), answer, rtol=1e-5, atol=1e-5)
