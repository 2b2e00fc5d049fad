"""Fourier transforms: real and complex, sizes, dimensions, norms, and shifts."""

from __future__ import annotations

import pytest
import torch
from op_checks import C64, F32, F64, I64, check, check_error, check_out, strided


@pytest.mark.parametrize("norm", ("backward", "ortho", "forward"))
def test_norms(norm):
    check("fft", (6,), dtypes=(C64,), norm=norm)
    check("rfft", (6,), norm=norm)
    check("irfft", (4,), dtypes=(C64,), norm=norm)


def test_sizes_and_dimensions():
    check("fft", (3, 5), dtypes=(F32, F64, C64))
    check("fft", (3, 5), n=7, dim=0)
    check("ifft", (3, 5), dtypes=(C64,), n=3)
    check("rfft", (3, 5), n=4, dim=-2)
    check("irfft", (3, 4), dtypes=(C64,), n=5)
    check("fft2", (2, 3, 4))
    check("rfft2", (3, 4))
    check("irfftn", (3, 4), dtypes=(C64,))
    check("fftn", (2, 3, 4), dim=(0, 2))
    check("hfft", (4,), dtypes=(C64,))
    check("ihfft", (4,))
    check("rfft", [1, 2, 3], dtypes=(I64,))
    check("fft", strided(3, 4))


def test_helpers():
    check("fftshift", (5,))
    check("ifftshift", (2, 4))
    assert torch.equal(torch.fft.fftfreq(5, device="tpu").cpu(), torch.fft.fftfreq(5))
    check(lambda x: torch.stft(x, 8, 4, window=torch.hann_window(8, device=x.device), return_complex=True), (2, 20))
    check_out(torch.fft.fft, (5,), dtypes=(C64,))
    check_error(torch.fft.fft, (3,), n=0, match="Invalid number of data points")
