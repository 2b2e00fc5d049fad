"""Results of pointwise operators in the plain case, without PyTorch's meta kernels for them.

Those are Python: about 80 us for an addition, as much as the rest of the tracing, and the first one imports sympy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def like_operand(rule: Lowering, form: Form, bound: Mapping[str, Any]) -> torch.Tensor | None:
    """The operand whose shape, dtype and strides a call's only result has; None where PyTorch has to be asked.

    The plain case: all operands are contiguous, of one shape and one floating dtype.
    """
    if form.is_out or form.functional is None or rule.promote is not RESULT or not _is_pointwise(form.functional):
        return None
    return _uniform(bound.values())


@cache
def _is_pointwise(op: OpOverload) -> bool:
    """Whether it computes one tensor, element by element, of whatever floating tensors it is given."""
    if op._schema.name in _CHECKED:
        return False
    return torch.Tag.pointwise in op.tags and [str(returned.type) for returned in op._schema.returns] == ["Tensor"]


def _uniform(arguments: Iterable[Any]) -> torch.Tensor | None:
    first: torch.Tensor | None = None
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if not argument.is_contiguous():
                return None
            if first is None:
                first = argument
            elif argument.dtype is not first.dtype or argument.shape != first.shape:
                return None
        elif not isinstance(argument, _NUMBERS):
            return None
    return first if first is not None and first.is_floating_point() else None
