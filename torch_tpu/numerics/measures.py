"""How far a tensor is from the one it should be: several measures at once, all computed in float64 on the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

DEFAULTS = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""rtol and atol of `torch.testing.assert_close`, from its documentation; other dtypes must be equal."""


class Tolerance(NamedTuple):
    """An element is within tolerance if |actual - expected| <= atol + rtol |expected|. None: PyTorch's, by dtype."""

    rtol: float | None = None
    atol: float | None = None

    def check(self) -> None:
        """Refuses what no error could be within.

        Raises:
            ValueError: a tolerance is negative or no number.
        """
        for name, value in self._asdict().items():
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is at least 0, not {value}")

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """rtol and atol; integers must be equal."""
        rtol, atol = DEFAULTS.get(dtype, (0.0, 0.0))
        if dtype not in DEFAULTS:
            return rtol, atol
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol


@dataclass(frozen=True)
class Errors:
    """The errors of one or several tensors."""

    max_abs: float = 0.0
    """The largest |actual - expected|."""
    max_rel: float = 0.0
    """The largest |actual - expected| / |expected|; elements that should be zero are left out."""
    ulps: float = 0.0
    """The largest error in units of the dtype's spacing there; near zero, of the spacing at the root mean square."""
    signal: float = 0.0
    """The sum of |expected|^2 over the finite elements."""
    noise: float = 0.0
    """The sum of |actual - expected|^2 over them."""
    outside: int = 0
    """How many elements are outside of tolerance; infinities and NaNs are unless both sides have the same there."""
    count: int = 0
    """How many elements there are."""

    @property
    def within(self) -> bool:
        """Whether all elements are within tolerance."""
        return not self.outside

    @property
    def snr_db(self) -> float:
        """10 log10(signal / noise): 6 dB a bit. Infinite without an error."""
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    def __add__(self, other: Errors) -> Errors:
        """The errors of both, as of one tensor."""
        return Errors(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            max(self.ulps, other.ulps),
            self.signal + other.signal,
            self.noise + other.noise,
            self.outside + other.outside,
            self.count + other.count,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "snr_db": self.snr_db,
            "ulps": self.ulps,
            "outside": self.outside,
            "count": self.count,
        }


PYTORCH = Tolerance()


class ShapeDiffers(ValueError):
    """The two tensors cannot be compared element by element; the text says how they differ."""


def measure(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance = PYTORCH,
    *,
    wider: bool = False,
) -> Errors:
    """The errors of a tensor of any device against the one it should be, of the same shape and dtype.

    Args:
        wider: `expected` may have a wider dtype; the tolerance and the spacing are those of `actual`.

    Raises:
        ShapeDiffers: shape or dtype is another.
    """
    if actual.shape != expected.shape or (actual.dtype is not expected.dtype and not wider):
        raise ShapeDiffers(f"{_described(actual)} instead of {_described(expected)}")
    rtol, atol = tolerance.of(actual.dtype)
    found, wanted = (_wide(x) for x in (actual, expected))
    finite = found.isfinite() & wanted.isfinite()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    stray = int((~finite & ~same).sum())
    found, wanted = found[finite], wanted[finite]
    error, size = (found - wanted).abs(), wanted.abs()
    signal, noise = float(size.square().sum()), float(error.square().sum())
    return Errors(
        max_abs=math.inf if stray else _largest(error),
        max_rel=math.inf if stray else _largest((error / size)[size > 0]),
        ulps=math.inf if stray else _largest(error / _spacing(size, actual.dtype)),
        signal=signal,
        noise=noise,
        outside=stray + int((error > atol + rtol * size).sum()),
        count=expected.numel(),
    )


def _described(x: torch.Tensor) -> str:
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}"


def _wide(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu()
    return (torch.view_as_real(x.to(torch.complex128)) if x.is_complex() else x.double()).flatten()


def _largest(x: torch.Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def _spacing(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of neighbouring numbers of a dtype at a size, at least that at the sizes' root mean square."""
    if not size.numel() or dtype not in DEFAULTS:
        return torch.ones_like(size)
    info = torch.finfo(dtype)
    floor = max(float(size.square().mean().sqrt()), info.tiny)
    _, exponent = torch.frexp(size.clamp(min=floor))
    return torch.ldexp(torch.full_like(size, info.eps), exponent - 1)
