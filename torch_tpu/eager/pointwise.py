"""Results of pointwise operators in the plain case, without PyTorch's meta kernels for them.

Those are Python: about 80 us for an addition, as much as the rest of the tracing, and the first one imports sympy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu.ops.registry import RESULT, Lowering
from torch_tpu.ops.schema import Form

_NUMBERS = (bool, int, float)
"""What decides nothing about the result where all tensors are floating."""
_CHECKED = frozenset(
    f"aten::{name}" for name in ("__lshift__", "__rshift__", "clamp", "mvlgamma", "polygamma", "softshrink")
)
"""Operators that PyTorch refuses in plain cases: shifts of floating numbers, a clamp to nothing, some numbers."""


def like_operands(rule: Lowering, form: Form, bound: Mapping[str, Any]) -> list[torch.Tensor] | None:
    """The operands whose shapes, dtypes and strides a call's results have; None where PyTorch has to be asked.

    The plain case: all operands of a result are contiguous, of one floating dtype, and of one shape but for those
    without dimensions that follow the first one. Of operators over lists every row is such a case.
    """
    if form.is_out or form.functional is None:
        return None
    if form.functional._schema.name.startswith("aten::_foreach_"):
        if not _is_pointwise_list(form.functional):
            return None
        lengths = {len(value) for value in bound.values() if isinstance(value, (list, tuple))}
        if len(lengths) != 1:
            return None
        rows = [[_pick(value, index) for value in bound.values()] for index in range(lengths.pop())]
    elif rule.promote is RESULT and _is_pointwise(form.functional):
        rows = [list(bound.values())]
    else:
        return None
    found = [_like(row) for row in rows]
    return None if any(like is None for like in found) else [like for like in found if like is not None]


@cache
def _is_pointwise(op: OpOverload) -> bool:
    """Whether it computes one tensor, element by element, of whatever floating tensors it is given."""
    if op._schema.name in _CHECKED:
        return False
    return torch.Tag.pointwise in op.tags and [str(returned.type) for returned in op._schema.returns] == ["Tensor"]


@cache
def _is_pointwise_list(op: OpOverload) -> bool:
    """Whether each element goes through an operator whose first overload is pointwise; but not the maximum of each."""
    name = op._schema.name.removeprefix("aten::_foreach_")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and name != "max" and _is_pointwise(getattr(packet, packet.overloads()[0]))


def _pick(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, (list, tuple)) else argument


def _like(arguments: Sequence[Any]) -> torch.Tensor | None:
    first: torch.Tensor | None = None
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if not argument.is_contiguous():
                return None
            if first is None:
                first = argument
            elif argument.dtype is not first.dtype or (argument.shape != first.shape and argument.ndim):
                return None
        elif not isinstance(argument, _NUMBERS):
            return None
    return first if first is not None and first.is_floating_point() else None
