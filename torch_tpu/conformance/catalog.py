"""The cases: every operator of PyTorch's database, by dtype and phase."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

PHASES: tuple[str, ...] = ("forward", "backward", "inplace", "out", "errors")
"""forward: the values. backward: the gradients. inplace, out: the other ways to call it. errors: that wrong calls
raise what they raise elsewhere."""


@dataclass(frozen=True, order=True)
class Case:
    """What is judged as one: an operator, a dtype, a phase."""

    op: str
    dtype: str
    phase: str

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.phase}"


@cache
def operators() -> tuple[Any, ...]:
    """PyTorch's `OpInfo`s, by name.

    Raises:
        ImportError: a package that torch.testing needs is missing.
    """
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'torch_tpu[dev]'") from error
    return tuple(sorted(op_db, key=full_name))


def full_name(info: Any) -> str:
    """Such as "add" or "div.floor_rounding"."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def packet(info: Any) -> str:
    """The ATen packet that an operator is about, such as "softmax"."""
    return str(info.aten_name or info.name.rpartition(".")[2])


@cache
def by_name() -> dict[str, Any]:
    return {full_name(info): info for info in operators()}


def select(patterns: Sequence[str]) -> list[Any]:
    """The operators that match any of the patterns; all of them if there are none.

    Raises:
        ValueError: a pattern matches nothing.
    """
    if not patterns:
        return list(operators())
    found: dict[str, Any] = {}
    for pattern in patterns:
        matching = {
            name: info for name, info in by_name().items() if fnmatch.fnmatchcase(name, pattern) or info.name == pattern
        }
        if not matching:
            raise ValueError(f"PyTorch's operator database has no {pattern!r}")
        found |= matching
    return [found[name] for name in sorted(found)]


def phases_of(info: Any, dtype: torch.dtype) -> list[str]:
    """The phases that PyTorch's CPU has for an operator and a dtype."""
    if not info.supports_dtype(dtype, "cpu"):
        return []
    found = ["forward"]
    if info.supports_autograd and dtype in info.supported_backward_dtypes("cpu"):
        found.append("backward")
    if info.get_inplace() is not None:
        found.append("inplace")
    if info.supports_out:
        found.append("out")
    if info.error_inputs_func is not None and dtype is torch.float32:
        found.append("errors")
    return found


def dtype_of(name: str) -> torch.dtype:
    """torch.float32 for "float32".

    Raises:
        ValueError: there is no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


def cases(patterns: Sequence[str], dtypes: Sequence[str], phases: Sequence[str], shard: tuple[int, int]) -> list[Case]:
    """The cases of the chosen operators, of one shard of them.

    Raises:
        ValueError: an operator, a dtype or a phase does not exist.
    """
    for phase in phases:
        if phase not in PHASES:
            raise ValueError(f"there is no phase {phase!r}; there are: {', '.join(PHASES)}")
    index, count = shard
    kinds = [(name, dtype_of(name)) for name in dtypes]
    return [
        Case(full_name(info), name, phase)
        for info in select(patterns)[index::count]
        for name, dtype in kinds
        for phase in phases_of(info, dtype)
        if phase in phases
    ]
