"""Dtypes that PyTorch's kernels refuse, and its meta kernels do not: a lowering would cast them without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

INDICES = ("index", "indices")
FACTORS = ("mat1", "mat2", "mat", "vec", "batch1", "batch2")


def check(arguments: Mapping[str, Any]) -> None:
    """Looks at an operator's arguments by their names.

    Raises:
        TypeError: an index is no integer, or tensors differ in dtype that must not.
    """
    for name in INDICES:
        given = arguments.get(name)
        if isinstance(given, torch.Tensor) and (given.is_floating_point() or given.is_complex()):
            raise TypeError(f"{name} has the dtype {given.dtype}, which is no integer")
    for names in _alike(arguments):
        found = [arguments[name].dtype for name in names if isinstance(arguments.get(name), torch.Tensor)]
        if len(set(found)) > 1:
            raise TypeError(f"{', '.join(names)} have different dtypes: {', '.join(map(str, found))}")


def _alike(arguments: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Which tensors must have the same dtype."""
    if sum(name in arguments for name in FACTORS) > 1 and arguments.get("out_dtype") is None:
        yield ("self", *FACTORS)
    if "index" in arguments or "mask" in arguments:
        for source in ("source", "src"):
            if source in arguments:
                yield "self", source
