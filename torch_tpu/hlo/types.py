"""Element types and tensor types of StableHLO, spoken in `torch.dtype`."""

from __future__ import annotations

import math
import numbers
import struct
from typing import Any

import torch

NAMES: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.float8_e8m0fnu: "f8E8M0FNU",
}
"""The dtypes XLA can hold. Any other dtype is a declared gap."""

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {torch.float64: torch.complex128}
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


ROUNDED_TO_FLOAT8 = (torch.float16, torch.bfloat16, torch.float32)
"""What becomes float8 in one step; PyTorch makes float32 of all others first."""
LARGEST_E4M3 = torch.finfo(torch.float8_e4m3fn).max
SATURATES = torch.tensor(2 * LARGEST_E4M3).to(torch.float8_e4m3fn).float().item() == LARGEST_E4M3
"""Whether casts to float8_e4m3fn end at its largest number; before PyTorch 2.13 they overflowed to NaN."""


def element_name(dtype: torch.dtype) -> str:
    try:
        return NAMES[dtype]
    except KeyError:
        raise TypeError(f"XLA has no element type for {dtype}; it has {', '.join(map(str, NAMES))}") from None


def tensor_type(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """`tensor<8x4xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element_name(dtype)}>"


def is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def is_unsigned(dtype: torch.dtype) -> bool:
    return dtype in _UNSIGNED


def is_integer(dtype: torch.dtype) -> bool:
    """True for integers, false for bool, floating point and complex."""
    return not (dtype is torch.bool or dtype.is_floating_point or dtype.is_complex)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex dtype's parts; any other dtype is returned as it is."""
    return _REAL.get(dtype, dtype)


def complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype with parts of the given dtype (float32 for what is narrower)."""
    if dtype.is_complex:
        return dtype
    return _COMPLEX.get(dtype, torch.complex64)


def held_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of values that stand for a tensor of the given dtype: complex64 for complex32, which XLA lacks."""
    return torch.complex64 if dtype is torch.complex32 else dtype


def bits_dtype(dtype: torch.dtype) -> torch.dtype:
    """The unsigned integer of the same width."""
    return _BITS[dtype.itemsize]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype arithmetic is done in: float32 for floating point narrower than that (PyTorch's opmath type)."""
    dtype = held_dtype(dtype)
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def scalar_text(number: Any, dtype: torch.dtype) -> str:
    """A number as an MLIR literal of the given dtype."""
    if dtype is torch.bool:
        return "true" if number else "false"
    if dtype.is_complex:
        value, part = complex(number), real_dtype(dtype)
        return f"({scalar_text(value.real, part)}, {scalar_text(value.imag, part)})"
    if dtype.is_floating_point:
        return _float_text(float(number), dtype)
    if (isinstance(number, float) and not number.is_integer()) or not isinstance(number, numbers.Real):
        raise TypeError(f"{number!r} is not an integer and cannot be a constant of {dtype}")
    return str(math.trunc(number))


def _float_text(value: float, dtype: torch.dtype) -> str:
    if dtype is torch.float64:
        if value - value == 0.0:
            return _with_point(repr(value))
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    exact = torch.tensor(value, dtype=torch.float64).to(dtype)
    wide = exact.to(torch.float64).item()
    if wide - wide == 0.0:
        return _with_point(repr(wide))
    bits = exact.reshape(1).view(bits_dtype(dtype)).to(torch.int64).item()
    return f"0x{bits:0{2 * dtype.itemsize}X}"


def _with_point(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa if "." in mantissa else mantissa + ".0"
    return f"{mantissa}e{exponent}" if exponent else mantissa
