"""What AOTAutograd decomposes before a graph gets here: operators with a Python float that varies from call to call.

PyTorch makes such a float (a learning rate) data by a pass that rewrites binary operators; elsewhere it becomes a
constant, and each new value a new graph. So operators that take it in another way are written as binary ones. Numbers
that do not vary are left as they are: the lowerings know all operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
Rule = Callable[..., Any]


def varies(*numbers: Any) -> bool:
    return any(
        isinstance(item, torch.SymFloat) for n in numbers for item in (n if isinstance(n, (list, tuple)) else [n])
    )


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return torch.add(x, torch.mul(y, alpha)) if varies(alpha) else NotImplemented


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return torch.sub(x, torch.mul(y, alpha)) if varies(alpha) else NotImplemented


def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return torch.add(x, torch.mul(torch.mul(y, z), value)) if varies(value) else NotImplemented


def _addcdiv(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return torch.add(x, torch.mul(torch.div(y, z), value)) if varies(value) else NotImplemented


def _lerp(x: Any, y: Any, weight: Any) -> Any:
    return torch.add(x, torch.mul(torch.sub(y, x), weight)) if varies(weight) else NotImplemented


def _fill(x: Any, value: Any) -> Any:
    return torch.mul(torch.ones_like(x), value) if varies(value) else NotImplemented


def _full_like(x: Any, value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    return torch.mul(torch.ones_like(x, dtype=dtype, **kwargs), value) if varies(value) else NotImplemented


def _full(size: Any, value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    if not varies(value):
        return NotImplemented
    return torch.mul(torch.ones(size, dtype=dtype or torch.get_default_dtype(), **kwargs), value)


def _with_value(operation: Callable[..., Any], x: Any, y: Any, z: Any, value: Any) -> Any:
    return operation(x, y, z, value=value)


def _opened(operation: Callable[..., Any], keyword: str = "") -> Rule:
    """A foreach operator as one call for each of its tensors.

    Args:
        keyword: by which the operator takes its number; else it is the last argument, or a list of numbers is.
    """

    def rule(*args: Any, **kwargs: Any) -> Any:
        number = kwargs.get(keyword, 1) if keyword else args[-1]
        if not varies(number):
            return NotImplemented
        lists = args if keyword else args[:-1]
        numbers = number if isinstance(number, (list, tuple)) else [number] * len(lists[0])
        rows = zip(zip(*lists, strict=True), numbers, strict=True)
        return [operation(*row, **{keyword: n}) if keyword else operation(*row, n) for row, n in rows]

    return rule


@cache
def table() -> dict[OpOverload, Rule]:
    """Overload -> function that returns NotImplemented where no number varies."""
    found: dict[OpOverload, Rule] = {
        aten.add.Tensor: _add,
        aten.sub.Tensor: _sub,
        aten.addcmul.default: _addcmul,
        aten.addcdiv.default: _addcdiv,
        aten.lerp.Scalar: _lerp,
        aten.fill.Scalar: _fill,
        aten.full_like.default: _full_like,
        aten.full.default: _full,
    }
    for name in ("add", "sub", "mul", "div", "pow", "lerp"):
        foreach = getattr(aten, f"_foreach_{name}")
        for overload in ("Scalar", "ScalarList"):
            if overload in foreach.overloads():
                found[getattr(foreach, overload)] = _opened(getattr(torch, name))
    for name in ("add", "sub"):
        found[getattr(aten, f"_foreach_{name}").List] = _opened(getattr(torch, name), "alpha")
    for name in ("addcmul", "addcdiv"):
        for overload in ("Scalar", "ScalarList"):
            foreach = getattr(aten, f"_foreach_{name}")
            found[getattr(foreach, overload)] = _opened(partial(_with_value, getattr(torch, name)))
    return found
