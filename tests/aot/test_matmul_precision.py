"""What the TPU compiler makes of each matmul precision, which is what the emulation on the CPU copies.

The compiler's estimate of a large product's cycles counts its passes: on a v5e the product is all there is to wait for.
"""

from __future__ import annotations

import re

import pytest
import torch

from torch_tpu import aot, settings


def cycles(dtype: torch.dtype, precision: str, topology: str = "v5e-1") -> int:
    """The estimate for a product of 2048 x 2048 matrices with a float32 result."""
    x = torch.empty(2048, 2048, dtype=dtype, device="meta")
    with settings.override(matmul_precision=precision):
        compiled = aot.compile(lambda x: torch.mm(x, x, out_dtype=torch.float32), (x,), topology)
        text = compiled.optimized_hlo
    assert text is not None
    return sum(map(int, re.findall(r'estimated_cycles":"(\d+)"', text)))


@pytest.mark.slow
def test_passes():
    one = cycles(torch.bfloat16, "medium")
    passes = {
        (dtype, precision): cycles(dtype, precision) / one
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for precision in ("medium", "high", "highest")
    }
    expected = {torch.bfloat16: (1, 1, 1), torch.float16: (1, 3, 3), torch.float32: (1, 3, 6)}
    for dtype, counts in expected.items():
        for precision, count in zip(("medium", "high", "highest"), counts, strict=True):
            assert passes[dtype, precision] == pytest.approx(count, rel=0.1), (dtype, precision)


def test_the_default_is_medium():
    assert cycles(torch.float32, "default") == cycles(torch.float32, "medium")


def test_complex_products_are_three_real_ones():
    x = torch.empty(256, 256, dtype=torch.complex64, device="meta")
    text = aot.compile(lambda x: x @ x, (x,)).optimized_hlo
    assert text is not None and len(re.findall(r"f32\[256,256\]\S* convolution\(", text)) == 3


def test_depthwise_kernels_are_rounded_like_others():
    x = torch.empty(8, 64, 32, 32, device="meta")
    weight = torch.empty(64, 1, 3, 3, device="meta")

    def convolve(x, w):
        return torch.nn.functional.conv2d(x, w, groups=64)

    for precision, narrow in (("medium", True), ("highest", False)):
        with settings.override(matmul_precision=precision):
            text = aot.compile(convolve, (x, weight)).optimized_hlo
        assert text is not None and ("bf16[" in text) is narrow, precision
