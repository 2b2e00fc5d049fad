"""Which operators take indices, and what these may be.

XLA clamps indices that are out of range, or drops what they would write. On the CPU a program therefore checks its
indices while it runs, and fails (`check`); in debug mode they are read before a call, on every platform
(`eager/debug.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Arguments = Mapping[str, Any]
"""A call's arguments by name; tensors are anything with a shape and a dtype."""


class Range(NamedTuple):
    """Indices and what they may be."""

    index: Any
    """A tensor."""
    low: int
    high: int
    """The first number that is too large."""
    what: str
    """What they index."""
    ignored: int | None = None
    """A number that is no index."""


def _along_dim(named: Arguments, negative: bool = False) -> Iterator[Range]:
    shape = named["self"].shape
    dim = named["dim"] % max(len(shape), 1)
    size = shape[dim] if shape else 1
    yield Range(named["index"], -size if negative else 0, size, f"dimension {dim} with size {size}")


def _along_dim_or_from_its_end(named: Arguments) -> Iterator[Range]:
    return _along_dim(named, negative=True)


def _in_all(named: Arguments) -> Iterator[Range]:
    count = 1
    for size in named["self"].shape:
        count *= size
    yield Range(named["index"], -count, count, f"a tensor with {count} elements")


def _advanced(named: Arguments) -> Iterator[Range]:
    shape, dim = named["self"].shape, 0
    for index in named["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += len(index.shape)  # a mask: its shape is checked when it runs
            continue
        if index is not None and dim < len(shape):
            yield Range(index, -shape[dim], shape[dim], f"dimension {dim} with size {shape[dim]}")
        dim += 1


def _rows(named: Arguments) -> Iterator[Range]:
    count = named["weight"].shape[0]
    yield Range(named["indices"], 0, count, f"an embedding with {count} rows")


def _classes(named: Arguments) -> Iterator[Range]:
    shape = named["self"].shape
    count = shape[1 if len(shape) > 1 else 0]
    yield Range(named["target"], 0, count, f"{count} classes", named["ignore_index"])


def _classes_of_rows(named: Arguments) -> Iterator[Range]:
    shape = named["self"].shape
    count = shape[-1] if shape else 1
    yield Range(named["target"], 0, count, f"{count} classes")


def _lists_of_classes(named: Arguments) -> Iterator[Range]:
    """Each list ends at -1."""
    for found in _classes_of_rows(named):
        yield found._replace(low=-1)


def _pivots(named: Arguments) -> Iterator[Range]:
    if named.get("unpack_pivots", True):
        rows = named["LU_data"].shape[-2]
        yield Range(named["LU_pivots"], 1, rows + 1, f"{rows} rows, counted from 1")


def _order(named: Arguments) -> Iterator[Range]:
    if named.get("sorter") is not None:
        count = named["sorter"].shape[-1]
        yield Range(named["sorter"], 0, count, f"{count} boundaries")


def _lengths(named: Arguments) -> Iterator[Range]:
    if named.get("lengths") is not None and not named.get("unsafe", False):
        shape, axis = named["data"].shape, named.get("axis", 0)
        yield Range(named["lengths"], 0, shape[axis] + 1, f"lengths in dimension {axis} with size {shape[axis]}")


_INDICES: dict[str, Callable[[Arguments], Iterator[Range]]] = {
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy",
         "index_reduce"),
        _along_dim,
    ),
    "index_fill": _along_dim_or_from_its_end,
    **dict.fromkeys(("take", "put"), _in_all),
    **dict.fromkeys(("index", "index_put", "_index_put_impl"), _advanced),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _rows),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _classes),
    "multi_margin_loss": _classes_of_rows,
    "multilabel_margin_loss_forward": _lists_of_classes,
    "lu_unpack": _pivots,
    "searchsorted": _order,
    "segment_reduce": _lengths,
}  # fmt: skip
"""Operator without its trailing underscore -> the ranges of its indices."""


def has_indices(op: str) -> bool:
    """Whether an operator ("aten::gather") takes indices."""
    return _key(op) in _INDICES


def ranges(op: str, named: Arguments) -> Iterator[Range]:
    """The indices of a call that are not empty."""
    for found in _INDICES[_key(op)](named):
        if found.index.dtype in INTEGERS and 0 not in found.index.shape:
            yield found


def message(op: str, index: int | str, what: str) -> str:
    """What an error says."""
    return f"{op}: index {index} is out of bounds for {what}"


def check(op: str, named: Arguments) -> None:
    """Writes into a program for the CPU that it fails where an index is out of range.

    As unsigned numbers, the distances from the least index that is allowed are too large on both sides of the range:
    one reduction, and it finds an index to report.
    """
    for index, low, high, what, ignored in ranges(op, named):
        index = hlo.convert(index, torch.int64)
        if ignored is not None:
            index = hlo.select(hlo.equal(index, ignored), low, index)
        distances = hlo.bitcast(index - low, torch.uint64)
        farthest = hlo.reduce(distances, 0, hlo.maximum, range(index.ndim))
        assert isinstance(farthest, hlo.Value), "one value gives one"
        found = hlo.bitcast(farthest, torch.int64) + low
        outside = hlo.greater_equal(farthest, high - low)
        hlo.fail_if(outside, message(op, "{}", what), [found], error="IndexError")


def _key(op: str) -> str:
    return op.removeprefix("aten::").rstrip("_")


def require_all(platform: str, holds: Value, message: str) -> None:
    """On the CPU the program fails where a bool of any shape is not true everywhere; elsewhere nothing is checked."""
    if platform == "cpu" and holds.numel:
        hlo.fail_if(hlo.reduce_or(~holds, range(holds.ndim)), message)
