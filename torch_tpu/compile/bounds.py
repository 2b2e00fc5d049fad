"""How large the arrays of a dimension that varies are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_tpu.compile.options import Options


class Bounds:
    """The bounds of the variables of one function's sizes; its forward and its backward graph share them.

    The first size seen decides: there is room for half as much again. A size above the bound moves it up in the same
    way, so that sizes that keep growing need few programs. With several buckets smaller sizes have halved bounds.
    """

    def __init__(self, options: Options):
        self.step = options.bucket_size
        self.num_buckets = options.num_dynamic_buckets
        self.limits: dict[Any, int] = {}
        """The largest that PyTorch was told a variable can be, by `mark_dynamic(max=...)` or `torch._check`."""
        self._tops: dict[Any, int] = {}

    def of(self, symbol: Any, size: int) -> int:
        """The bound for a variable that is to have room for a size."""
        limit = self.limits.get(symbol)
        top = self._tops.get(symbol, 0)
        if size > top:
            top = roomy(size, self.step)
            if limit is not None and size <= limit:
                top = min(top, limit)
            self._tops[symbol] = top
        for _ in range(self.num_buckets - 1):
            if size > top // 2:
                break
            top //= 2
        return top

    def choose(self, symbols: Sequence[Any], sizes: Sequence[int], margins: Mapping[Any, int]) -> tuple[int, ...]:
        """The bounds of several variables; margins say how much larger than a variable results become."""
        return tuple(
            self.of(symbol, abs(size) + margins.get(symbol, 0)) for symbol, size in zip(symbols, sizes, strict=True)
        )


def roomy(size: int, step: int) -> int:
    """A power of two that leaves room for half as much again, or above `step` a multiple of it, for a quarter."""
    bound = 1 << max(size + size // 2 - 1, 1).bit_length()
    if bound <= step:
        return bound
    return -(-(size + size // 4) // step) * step
