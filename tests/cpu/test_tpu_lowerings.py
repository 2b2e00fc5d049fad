"""Lowerings for platforms other than the CPU, run by XLA's CPU client: other formulations, the same values."""

from __future__ import annotations

import re

import pytest
import torch

from torch_tpu import export
from torch_tpu.runtime.client import cpu_client


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def on_tpu(function, *args):
    """What the program for a TPU computes, and its text."""
    made = export.exported_to_mlir(torch.export.export(Call(function), args), platform="tpu")
    client = cpu_client()
    program = client.compile(made.text, [(out.shape, out.dtype) for out in made.outputs])
    (array,) = program.run([client.put(arg) for arg in args])
    return client.get(array, made.outputs[0].dtype), made.text


def integers(*shape):
    return torch.randint(-(2**62), 2**62, shape)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(3, 4), (4, 5)]),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
        (torch.dot, [(7,), (7,)]),
        (torch.mv, [(3, 4), (4,)]),
        (lambda x, y: torch.einsum("abc,cbd->da", x, y), [(2, 3, 4), (4, 3, 5)]),
        (lambda x, w: torch.conv2d(x, w, stride=2, padding=1, dilation=2), [(2, 3, 7, 8), (4, 3, 3, 2)]),
        (lambda x, w: torch.conv1d(x, w, groups=3), [(2, 6, 7), (9, 2, 3)]),
        (lambda x, w: torch.conv_transpose2d(x, w, stride=2, padding=1), [(2, 4, 4, 5), (4, 3, 3, 2)]),
        (lambda x, w: torch.conv_transpose1d(x, w, groups=2, stride=3, output_padding=1), [(1, 4, 5), (4, 3, 2)]),
        (torch.conv3d, [(1, 2, 3, 4, 5), (2, 2, 2, 2, 2)]),
    ],
)
def test_products_of_64_bit_integers_are_exact_and_no_dots(function, shapes):
    args = [integers(*shape) for shape in shapes]
    got, text = on_tpu(function, *args)
    assert "dot_general" not in text and "stablehlo.convolution" not in text
    torch.testing.assert_close(got, function(*args), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 5, 60, 64, 67, 96, 1000, 521, 1042])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_transforms_in_double_precision(name, size):
    function = getattr(torch.fft, name)
    length = size // 2 + 1 if name == "irfft" else size
    x = torch.randn(3, length, dtype=torch.float64 if name == "rfft" else torch.complex128)
    run = (lambda x: function(x, size)) if name == "irfft" else function
    got, text = on_tpu(run, x)
    assert "stablehlo.fft" not in text
    torch.testing.assert_close(got, run(x), rtol=1e-12, atol=1e-12)


def test_transforms_over_several_dimensions():
    x = torch.randn(4, 5, 6, 2, dtype=torch.float64)
    for function in (torch.fft.rfftn, torch.fft.fftn, lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=(0, 1, 2)))):
        got, text = on_tpu(function, x)
        assert "stablehlo.fft" not in text
        torch.testing.assert_close(got, function(x))


def test_transforms_in_single_precision_are_those_of_the_compiler():
    assert "stablehlo.fft" in on_tpu(torch.fft.fft, torch.randn(8, dtype=torch.complex64))[1]


WIDE = [0, 1, -1, 2, 3, 7, 10, 2**31, 2**32 - 1, 2**53 + 1, -(2**62) - 3, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_64_bit_divisions_are_exact_without_64_bit_divisions(name):
    function = getattr(torch, name)
    numbers = torch.cat([torch.tensor(WIDE), integers(200), torch.randint(-100, 100, (50,)), integers(50) >> 31])
    x, y = (grid.reshape(-1) for grid in torch.meshgrid(numbers, numbers, indexing="ij"))
    keep = (y != 0) & ((x != -(2**63)) | (y != -1))  # what traps on a CPU
    x, y = x[keep], y[keep]
    got, text = on_tpu(function, x, y)
    assert not re.search(r"stablehlo\.(divide|remainder) .*i64", text)
    torch.testing.assert_close(got, function(x, y), rtol=0, atol=0)


def test_64_bit_divisions_by_zero_are_xlas():
    x = torch.tensor([5, -5, 0])
    got, _ = on_tpu(lambda x: torch.div(x, x - x, rounding_mode="trunc").to(torch.int64), x)
    assert got.shape == x.shape
    assert on_tpu(torch.fmod, x, x - x)[0].tolist() == [5, -5, 0]


def test_common_divisors_of_64_bit_integers():
    x, y = integers(50), integers(50)
    torch.testing.assert_close(on_tpu(torch.gcd, x, y)[0], torch.gcd(x, y), rtol=0, atol=0)
