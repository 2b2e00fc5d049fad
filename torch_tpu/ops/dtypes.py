"""Dtypes that PyTorch's kernels refuse, and its meta kernels do not: a lowering would cast them without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

INDICES = ("index", "indices")
FACTORS = ("mat1", "mat2", "mat", "vec", "batch1", "batch2")


SAME_OUT = ("neg", "round", "bitwise_not", "nan_to_num", "sort", "index_select")
"""Operators whose out= has the dtype of their input, where most others may have one that the result can be cast to."""

SUBTRACTIONS = ("aten::sub", "aten::rsub")


def check(op: str, arguments: Mapping[str, Any]) -> None:
    """Looks at the arguments of an operator ("aten::gather") by their names.

    Raises:
        TypeError: an index is no integer, tensors differ in dtype that must not, or bools are subtracted.
    """
    if op.removeprefix("aten::") in SAME_OUT:
        for name in ("out", "values"):
            given = arguments.get(name)
            if isinstance(given, torch.Tensor) and given.dtype != arguments["self"].dtype:
                raise TypeError(f"{name} is {given.dtype}, not {arguments['self'].dtype}")
    if op.rstrip("_") in SUBTRACTIONS and any(map(_is_bool, (arguments["self"], arguments["other"]))):
        raise TypeError("bools are not subtracted")
    for name in INDICES:
        given = arguments.get(name)
        if isinstance(given, torch.Tensor) and (given.is_floating_point() or given.is_complex()):
            raise TypeError(f"{name} has the dtype {given.dtype}, which is no integer")
    for names in _alike(arguments):
        found = [arguments[name].dtype for name in names if isinstance(arguments.get(name), torch.Tensor)]
        if len(set(found)) > 1:
            raise TypeError(f"{', '.join(names)} have different dtypes: {', '.join(map(str, found))}")


def _is_bool(operand: Any) -> bool:
    return isinstance(operand, bool) or (isinstance(operand, torch.Tensor) and operand.dtype is torch.bool)


def _alike(arguments: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Which tensors must have the same dtype."""
    if sum(name in arguments for name in FACTORS) > 1 and arguments.get("out_dtype") is None:
        yield ("self", *FACTORS)
    if "index" in arguments or "mask" in arguments:
        for source in ("source", "src"):
            if source in arguments:
                yield "self", source
