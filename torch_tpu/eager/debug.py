"""Debug eager mode: each call is checked, run and waited for, and its errors name the operator and the Python line.

Called by the plug (csrc/dispatch.cpp, run_checked) while `settings.eager_mode` is "debug". Indices are read on the host
first and refused as PyTorch's CPU kernels refuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._ops import OpOverload

from torch_tpu import errors
from torch_tpu._frames import caller
from torch_tpu.eager import transfer
from torch_tpu.ops import bounds, registry
from torch_tpu.runtime import platform


def check_call(op: OpOverload, args: list[Any]) -> None:
    """Before a call.

    Raises:
        IndexOutOfRangeError: an index is out of range.
    """
    if not bounds.has_indices(op._schema.name):
        return
    named = {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=True)}
    for index, low, high, what, ignored in bounds.ranges(op._schema.name, named):
        values = transfer.to_cpu(index).long()
        values = values if ignored is None else values[values != ignored]
        wrong = values[(values < low) | (values >= high)]
        if wrong.numel():
            what = bounds.message(registry.overload_name(op), int(wrong[0]), what)
            raise errors.IndexOutOfRangeError(_describe(op, args, what))


def finish_call(op: OpOverload, args: list[Any]) -> None:
    """After a call: waits for it.

    Raises:
        ExecutionError: it failed while it ran.
    """
    platform.client().synchronize()


def explain_error(op: OpOverload, args: list[Any], error: BaseException) -> None:
    """Adds to an error which call raised it, once: the innermost call."""
    if not getattr(error, "__notes__", None):
        error.add_note(_describe(op, args, f"raised by {registry.overload_name(op)}"))


def _describe(op: OpOverload, args: Sequence[Any], what: str) -> str:
    given = [arg for arg in args if arg is not None]
    return errors.message(what, inputs=given) + f"\n  called at {caller()}"
