"""Debug eager mode: each call is checked, run and waited for, and its errors name the operator and the Python line.

Called by the plug (csrc/dispatch.cpp, run_checked) while `settings.eager_mode` is "debug". Indices are read on the host
first and refused as PyTorch's CPU kernels refuse them.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import errors
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


_LIBRARIES = tuple(os.path.dirname(module.__file__ or "") + os.sep for module in (torch, errors))
_FRAME = re.compile(r'File "(.*)", line (\d+), in (\S+)')


def is_users(file: str) -> bool:
    """Whether code is neither torch's nor torch_tpu's."""
    return not file.startswith((*_LIBRARIES, "<frozen", "<eval_with_key>"))


def caller() -> str:
    """The user's line that led to this call: the innermost one outside torch and torch_tpu."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a thread without Python code of the user, such as autograd's"


def innermost(trace: str) -> str:
    """The user's innermost line in the text of a traceback; nothing if there is none."""
    found = [f"{file}:{line} in {function}" for file, line, function in _FRAME.findall(trace) if is_users(file)]
    return found[-1] if found else ""


def raised_at(error: BaseException) -> str:
    """The user's innermost line that an error came through; nothing if there is none."""
    return innermost("".join(traceback.format_tb(error.__traceback__)))


__all__ = ["caller", "check_call", "explain_error", "finish_call", "innermost", "is_users", "raised_at"]
