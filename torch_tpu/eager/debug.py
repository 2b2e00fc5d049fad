"""Debug eager mode: each call is checked, run and waited for, and its errors name the operator and the Python line.

Called by the plug (csrc/dispatch.cpp, run_checked) while `settings.eager_mode` is "debug". XLA clamps or drops indices
that are out of range; here they are read on the host first and refused as PyTorch's CPU kernels refuse them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import errors
from torch_tpu.eager import transfer
from torch_tpu.ops import registry
from torch_tpu.runtime import platform

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Range = tuple[torch.Tensor, int, int, str]
"""Indices, the least and the first too large value, and what they index."""
Arguments = dict[str, Any]


def _along_dim(named: Arguments, negative: bool = False) -> Iterator[Range]:
    x, index = named["self"], named["index"]
    dim = named["dim"] % max(x.dim(), 1)
    size = x.shape[dim] if x.dim() else 1
    yield index, -size if negative else 0, size, f"dimension {dim} with size {size}"


def _along_dim_or_from_its_end(named: Arguments) -> Iterator[Range]:
    return _along_dim(named, negative=True)


def _in_all(named: Arguments) -> Iterator[Range]:
    count = named["self"].numel()
    yield named["index"], -count, count, f"a tensor with {count} elements"


def _advanced(named: Arguments) -> Iterator[Range]:
    x, dim = named["self"], 0
    for index in named["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()  # a mask: its shape is checked when it runs
            continue
        if index is not None and dim < x.dim():
            yield index, -x.shape[dim], x.shape[dim], f"dimension {dim} with size {x.shape[dim]}"
        dim += 1


def _rows(named: Arguments) -> Iterator[Range]:
    count = named["weight"].shape[0]
    yield named["indices"], 0, count, f"an embedding with {count} rows"


def _classes(named: Arguments) -> Iterator[Range]:
    x, target = named["self"], named["target"]
    count = x.shape[1 if x.dim() > 1 else 0]
    used = transfer.to_cpu(target)
    yield used[used != named["ignore_index"]], 0, count, f"{count} classes"


INDICES: dict[str, Callable[[Arguments], Iterator[Range]]] = {
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy",
         "index_reduce"),
        _along_dim,
    ),
    "index_fill": _along_dim_or_from_its_end,
    **dict.fromkeys(("take", "put"), _in_all),
    **dict.fromkeys(("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"), _advanced),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _rows),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _classes),
}  # fmt: skip
"""Operator without its trailing underscore -> the ranges of its indices."""


def check_call(op: OpOverload, args: list[Any]) -> None:
    """Before a call.

    Raises:
        IndexError: an index is out of range.
    """
    ranges = INDICES.get(op._schema.name.removeprefix("aten::").rstrip("_"))
    if ranges is None:
        return
    named = {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=True)}
    for index, low, high, what in ranges(named):
        if index.numel() == 0 or index.dtype not in INTEGERS:
            continue
        values = transfer.to_cpu(index).long()
        wrong = values[(values < low) | (values >= high)]
        if wrong.numel():
            what = f"{registry.overload_name(op)}: index {int(wrong[0])} is out of bounds for {what}"
            raise IndexError(_describe(op, args, what))


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


def caller() -> str:
    """The user's line that led to this call: the innermost one outside torch and torch_tpu."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_LIBRARIES, "<frozen")):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a thread without Python code of the user, such as autograd's"


__all__ = ["INDICES", "caller", "check_call", "explain_error", "finish_call"]
