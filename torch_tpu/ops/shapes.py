"""Dimensions and sizes that PyTorch's kernels refuse, and its meta kernels do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

COUNTS_RESULT = frozenset({"aten::diag_embed", "aten::unsqueeze_copy"})
"""Operators whose dimensions are those of the result."""
OWNERS = ("self", "input_sizes", "sizes", "x", "output", "v")
"""What has the dimensions that are named: the first of these arguments that an operator has."""
DIMENSIONED = frozenset({"aten::unique_dim", "aten::unique_dim_consecutive", "aten::unique_consecutive"})
"""Operators that take no tensor without dimensions."""

SLICES = {
    "aten::select_scatter": torch.ops.aten.select.int,
    "aten::slice_scatter": torch.ops.aten.slice.Tensor,
    "aten::diagonal_scatter": torch.ops.aten.diagonal.default,
}
"""Operators that write to a view of a copy, and the view."""


def check(op: str, arguments: Mapping[str, Any]) -> None:
    """Looks at the arguments of an operator ("aten::sort") by their names.

    Raises:
        IndexError: a dimension is out of range.
        RuntimeError: what is written to a slice has another size.
    """
    owner = next((arguments[name] for name in OWNERS if name in arguments), None)
    rank = owner.dim() if isinstance(owner, torch.Tensor) else len(owner) if isinstance(owner, (list, tuple)) else None
    if rank is not None and op not in COUNTS_RESULT:
        for name in ("dim", "dim0", "dim1", "dim2"):
            check_dim(op, arguments.get(name), rank)
    if op in SLICES:
        _check_source(op, arguments)


def check_dim(op: str, dim: Any, rank: int) -> None:
    if not isinstance(dim, int):
        return
    if not rank and op in DIMENSIONED:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    reach = max(rank, 1)
    if not -reach <= dim < reach:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-reach}, {reach - 1}], but got {dim})")


def check_written(source: torch.Tensor, slice: torch.Tensor) -> None:
    """PyTorch's own words."""
    if source.shape != slice.shape:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(source.shape)}, slice size = {list(slice.shape)}"
        )


def _check_source(op: str, arguments: Mapping[str, Any]) -> None:
    view = SLICES[op]
    names = {argument.name for argument in view._schema.arguments}
    slice = view(**{name: value for name, value in arguments.items() if name in names})
    check_written(arguments["src"], slice)
