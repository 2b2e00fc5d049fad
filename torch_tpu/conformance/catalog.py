"""The cases: every operator of PyTorch's database and of `overloads.py`, by dtype, phase, mode and place."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torch_tpu.runtime.topology import GENERATIONS

PHASES: tuple[str, ...] = ("forward", "backward", "inplace", "out", "errors")
"""forward: the values. backward: the gradients. inplace, out: the other ways to call it. errors: that wrong calls
raise what they raise elsewhere."""
MODES: tuple[str, ...] = ("strict", "fused", "compiled")
"""How the device runs it: each operator by itself, operators recorded and fused, `torch.compile`."""
HERE = "here"
PLACES: tuple[str, ...] = (HERE, *GENERATIONS)
"""here: run on this machine's device, and values compared. A TPU generation: its compiler is asked, nothing runs."""
DTYPES: tuple[str, ...] = (
    "float32", "bfloat16", "int64", "bool", "float16", "float64", "complex64", "complex128", "int32", "int16", "int8",
    "uint8",
)  # fmt: skip
"""Those of the support matrix, in the order in which they are run."""
MATRIX_PHASES: tuple[str, ...] = ("forward", "backward")
"""The phases that are run in all modes and places."""


@dataclass(frozen=True, order=True)
class Case:
    """What is judged as one: an operator, a dtype, a phase, and how and where it is run."""

    op: str
    dtype: str
    phase: str
    mode: str = "strict"
    place: str = HERE

    def __str__(self) -> str:
        how = ("" if self.mode == "strict" else f" {self.mode}") + ("" if self.place == HERE else f" for {self.place}")
        return f"{self.op} {self.dtype} {self.phase}{how}"

    def to_json(self) -> dict[str, str]:
        """Without what is at its default."""
        row = {"op": self.op, "dtype": self.dtype, "phase": self.phase}
        row |= {"mode": self.mode} if self.mode != "strict" else {}
        return row | ({"place": self.place} if self.place != HERE else {})

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Case:
        return Case(row["op"], row["dtype"], row["phase"], row.get("mode", "strict"), row.get("place", HERE))


@cache
def operators() -> tuple[Any, ...]:
    """PyTorch's `OpInfo`s, by name, those of the operators on lists of tensors among them, and this package's.

    Raises:
        ImportError: a package that torch.testing needs is missing.
    """
    try:
        from torch.testing._internal import common_methods_invocations as database

        from torch_tpu.conformance.overloads import overloads
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'torch_tpu[dev]'") from error
    lists = [getattr(database, f"foreach_{kind}_op_db") for kind in ("unary", "binary", "pointwise", "reduce", "other")]
    return tuple(sorted([*database.op_db, *itertools.chain(*lists), *overloads()], key=full_name))


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
            raise ValueError(f"there are no samples of {pattern!r}")
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


def cases(
    patterns: Sequence[str],
    dtypes: Sequence[str],
    phases: Sequence[str],
    shard: tuple[int, int],
    modes: Sequence[str] = ("strict",),
    places: Sequence[str] = (HERE,),
) -> list[Case]:
    """The cases of the chosen operators, of one shard of them; those of an operator and a dtype follow each other.

    Raises:
        ValueError: an operator, a dtype, a phase, a mode or a place does not exist.
    """
    for kind, known, asked in (("phase", PHASES, phases), ("mode", MODES, modes), ("place", PLACES, places)):
        for name in asked:
            if name not in known:
                raise ValueError(f"there is no {kind} {name!r}; there are: {', '.join(known)}")
    index, count = shard
    kinds = [(name, dtype_of(name)) for name in dtypes]
    settings = list(itertools.product(modes, places))
    return [
        Case(full_name(info), name, phase, mode, place)
        for info in select(patterns)[index::count]
        for name, dtype in kinds
        for phase in phases_of(info, dtype)
        if phase in phases
        for mode, place in settings
        if phase in MATRIX_PHASES or (mode, place) == ("strict", HERE)
    ]
