"""Fourier transforms as dots, for platforms whose compiler has none in double precision; registers no lowering.

Along one dimension of n = a b elements: transforms of a elements, twiddle factors, transforms of b elements (Cooley and
Tukey, "An algorithm for the machine calculation of complex Fourier series", 1965). Lengths without small factors become a
convolution of another length (Bluestein, "A linear filtering approach to the computation of discrete Fourier
transform", 1970). Angles are reduced in integers, so that roots of unity are exact to the last bits for all lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value

_DIRECT = 64
"""Up to this length a transform is one product with a matrix."""
_DIRECT_PRIME = 512
"""The same for lengths that have no factors."""


def transform(x: Value, kind: str, lengths: Sequence[int]) -> Value:
    """As `hlo.fft`: FFT, IFFT, RFFT or IRFFT over the last dimensions; the inverse ones divide by the lengths."""
    if kind == "RFFT":
        (size,) = lengths
        whole = _along_last(hlo.make_complex(x, hlo.zeros_like(x)), -1)
        return hlo.slice_in_dim(whole, x.ndim - 1, 0, size // 2 + 1)
    if kind == "IRFFT":
        (size,) = lengths
        known = hlo.slice_in_dim(x, x.ndim - 1, 1, size - size // 2)
        x = hlo.concatenate([x, hlo.reverse(hlo.conj(known), [x.ndim - 1])], x.ndim - 1)
        return hlo.real(_along_last(x, 1)) * (1 / size)
    for offset in range(len(lengths)):
        dim = x.ndim - 1 - offset
        x = hlo.move_dim(_along_last(hlo.move_dim(x, dim, -1), -1 if kind == "FFT" else 1), -1, dim)
    return x if kind == "FFT" else hlo.multiply(x, 1 / math.prod(lengths))


def _along_last(x: Value, sign: int) -> Value:
    """The sums of x[j] exp(sign 2 pi i j k / n) along the last dimension."""
    size = x.shape[-1]
    inner = max((d for d in range(2, math.isqrt(size) + 1) if size % d == 0), default=1)
    if size <= _DIRECT or (inner == 1 and size <= _DIRECT_PRIME):
        return _times(x, _roots(size, size, size, sign))
    if inner == 1:
        return _by_convolution(x, sign)
    outer = size // inner
    # j = outer j1 + j2 and k = k1 + inner k2
    split = hlo.reshape(x, (*x.shape[:-1], inner, outer))
    first = hlo.move_dim(_along_last(hlo.move_dim(split, -2, -1), sign), -1, -2)
    twiddles = _roots(inner, outer, size, sign)
    second = _along_last(first * hlo.broadcast_to(twiddles, first.shape), sign)
    return hlo.reshape(hlo.move_dim(second, -1, -2), x.shape)


def _times(x: Value, matrix: Value) -> Value:
    return hlo.dot_general(x, matrix, contract=([x.ndim - 1], [0]), precision="HIGHEST")


def _roots(rows: int, columns: int, size: int, sign: int) -> Value:
    """complex128[rows, columns]: exp(sign 2 pi i row column / size)."""
    shape, dtype = (rows, columns), _index_dtype(size)
    product = hlo.iota(shape, 0, dtype) * hlo.iota(shape, 1, dtype)
    return _unit(hlo.remainder(product, size), size, sign)


def _index_dtype(size: int) -> torch.dtype:
    """What products of two numbers up to `size` fit in. TPUs divide 64-bit integers by long programs."""
    return torch.int32 if size * size < 1 << 31 else torch.int64


def _unit(part: Value, of: int, sign: int) -> Value:
    """exp(sign 2 pi i part / of) for integers below `of`: from tables, since sines in double precision are long programs.

    A long table is the product of two short ones.
    """
    step = of if of <= _DIRECT else math.isqrt(of - 1) + 1
    fine = hlo.take(_table(1, min(step, of), of, sign), hlo.remainder(part, step))
    if step == of:
        return fine
    coarse = hlo.take(_table(step, -(-of // step), of, sign), hlo.divide(part, step))
    return fine * coarse


def _table(step: int, count: int, of: int, sign: int) -> Value:
    """complex128[count]: exp(sign 2 pi i step k / of)."""
    angles = [2 * math.pi * (step * k / of) for k in range(count)]
    return hlo.make_complex(
        hlo.literal([math.cos(angle) for angle in angles], torch.float64),
        hlo.literal([sign * math.sin(angle) for angle in angles], torch.float64),
    )


def _by_convolution(x: Value, sign: int) -> Value:
    """Bluestein's: j k = (j^2 + k^2 - (k - j)^2) / 2."""
    size = x.shape[-1]
    length = 1 << (2 * size - 2).bit_length()
    index = hlo.iota((size,), 0, _index_dtype(size))
    chirp = _unit(hlo.remainder(index * index, 2 * size), 2 * size, sign)
    room = length - size
    padded = hlo.pad(x * hlo.broadcast_to(chirp, x.shape), [0] * x.ndim, [0] * (x.ndim - 1) + [room])
    back = hlo.conj(chirp)
    mirrored = hlo.reverse(hlo.slice_in_dim(back, 0, 1, size), [0])
    gap = hlo.full((length - 2 * size + 1,), 0, x.dtype)
    kernel = _along_last(hlo.concatenate([back, gap, mirrored], 0), -1)
    product = _along_last(padded, -1)
    found = _along_last(product * hlo.broadcast_to(kernel, product.shape), 1) * (1 / length)
    return hlo.slice_in_dim(found, x.ndim - 1, 0, size) * hlo.broadcast_to(chirp, x.shape)
