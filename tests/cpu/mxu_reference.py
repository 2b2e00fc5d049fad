"""What an MXU makes of products, computed in float64: the reference of the tests of emulated rounding.

Written apart from the lowerings. A float32 number is split into one, two or three bfloat16 numbers, each the rounding
to nearest even of what the ones before leave. The products of parts that one, three and six passes keep are those of
XLA's BF16_BF16_F32, BF16_BF16_F32_X3 and BF16_BF16_F32_X6 (openxla/xla, xla/service/gpu/transforms/
dot_algorithm_rewriter.cc), and are listed here one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KEPT = {
    1: [(0, 0)],
    3: [(0, 0), (0, 1), (1, 0)],
    6: [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)],
}
"""Passes -> the parts, counted from the leading one, that are multiplied."""

Bilinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    """The three bfloat16 parts of float32 values, in float64."""
    found, rest = [], x.float().double()
    for _ in range(3):
        found.append(rest.float().bfloat16().double())
        rest = rest - found[-1]
    return found


def _terms(x: torch.Tensor, y: torch.Tensor, passes: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    left, right = parts(x), parts(y)
    return ((left[i], right[j]) for i, j in KEPT[passes])


def product(function: Bilinear, x: torch.Tensor, y: torch.Tensor, passes: int) -> torch.Tensor:
    """function(x, y) as an MXU forms it, with sums in float64."""
    return sum(function(a, b) for a, b in _terms(x, y, passes))


def accumulation_error(function: Bilinear, x: torch.Tensor, y: torch.Tensor, passes: int) -> torch.Tensor:
    """A bound of what sums in float32 add to the error of each element, in any order.

    Products of bfloat16 numbers are exact in float32. A sum of n numbers in any order errs by at most
    n u / (1 - n u) times the sum of their magnitudes, with u = 2**-24 (Higham, "Accuracy and Stability of Numerical
    Algorithms", 2nd edition, section 4.2). There are K terms in each pass and then the passes themselves.
    """
    count = int(function(torch.ones_like(x, dtype=torch.float64), torch.ones_like(y, dtype=torch.float64)).max())
    n = (count + passes) * 2.0**-24
    magnitude = sum(function(a.abs(), b.abs()) for a, b in _terms(x, y, passes))
    return n / (1 - n) * magnitude + 2.0**-126


class Mxu(TorchDispatchMode):
    """Functions of float64 tensors on the CPU, forward and backward, with products as an MXU forms them.

    Everything else is in float64. Attention must be written out, so that its products are seen.
    """

    def __init__(self, passes: int):
        super().__init__()
        self.passes = passes
        self.count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(op)
        if rule is None:
            assert "mm" not in op._opname and "conv" not in op._opname and "attention" not in op._opname, op
            return op(*args, **kwargs)
        self.count += 1
        return rule(self.passes, *args, **kwargs)


def _added(function: Bilinear) -> Callable[..., torch.Tensor]:
    def rule(passes: int, x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        return beta * x + alpha * product(function, a, b, passes)

    return rule


def _convolution(passes: int, x: Any, weight: Any, bias: Any, *rest: Any) -> torch.Tensor:
    made = product(lambda a, b: torch.ops.aten.convolution(a, b, None, *rest), x, weight, passes)
    return made if bias is None else made + bias.view(-1, *[1] * (x.dim() - 2))


def _convolution_backward(passes: int, grad: Any, x: Any, weight: Any, sizes: Any, *rest: Any) -> Any:
    *how, mask = rest

    def of(place: int) -> Callable[..., torch.Tensor]:
        wanted = [index == place for index in range(3)]
        return lambda g, i, w: torch.ops.aten.convolution_backward(g, i, w, sizes, *how, wanted)[place]

    return (
        product(lambda g, w: of(0)(g, x, w), grad, weight, passes) if mask[0] else None,
        product(lambda g, i: of(1)(g, i, weight), grad, x, passes) if mask[1] else None,
        of(2)(grad, x, weight) if mask[2] else None,
    )


_RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.mm.default: lambda passes, a, b: product(torch.mm, a, b, passes),
    torch.ops.aten.bmm.default: lambda passes, a, b: product(torch.bmm, a, b, passes),
    torch.ops.aten.addmm.default: _added(torch.mm),
    torch.ops.aten.baddbmm.default: _added(torch.bmm),
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
}
