"""How an operator is served, said without calling it: for `torch-tpu ops`, `explain` and the table in docs/ops.md."""

from __future__ import annotations

import inspect
import linecache
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import ops
from torch_tpu.device import register
from torch_tpu.eager import host
from torch_tpu.ops import decomp, registry, schema
from torch_tpu.ops.registry import Lowering
from torch_tpu.runtime import platform

KINDS: dict[str, str] = {
    "lowering": "a function of torch_tpu/ops writes its StableHLO",
    "derived": "an in-place, out= or similar form of an operator with a lowering, derived from its schema",
    "decomposition": "PyTorch's own definition of it in terms of other operators, traced into one program",
    "composite": "PyTorch's own definition of it, whose operators are called one by one",
    "view": "shares its input's memory and runs nothing; programs read and write through it",
    "device": "a function of the device itself (csrc/device.cpp): memory, sizes and storages",
    "host": "answered in Python, because it needs a value or a size that depends on data",
    "fallback": "runs on the CPU, counted",
    "compiled": "part of a graph that torch.compile made one program of",
}
"""The ways to serve an operator."""


@dataclass(frozen=True)
class Served:
    """How one overload is served."""

    op: str
    """Such as "aten::add_.Tensor"."""
    kind: str
    """One of `KINDS`."""
    by: str
    """The function or the operator that does the work."""
    where: str
    """Its file and line, where it has one."""


def served(op: OpOverload) -> Served:
    """How an overload is served on the platform that this process would use. Starts nothing."""
    ops.load()
    name = registry.overload_name(op)
    if name in host.OPERATORS:
        return Served(name, "host", *_place(host.OPERATORS[name]))
    if name in register.SKIPPED:
        return Served(name, "composite", "PyTorch's own kernel", "")
    rule = schema.lowering_of(op)
    if rule is not None and platform.choose() in rule.platforms:
        by, where = place(rule)
        direct = rule.op == name
        return Served(name, "lowering" if direct else "derived", by if direct else f"{by} of {rule.op}", where)
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1") and _is_own(name):
        return Served(name, "view" if schema.returns_view(op) else "device", "csrc/device.cpp", "")
    if schema.returns_view(op):
        return Served(name, "view", "PyTorch's own kernel", "")
    if decomp.is_decomposed(op):
        return Served(name, "decomposition", *_decomposition(op))
    if decomp.composite_only(op):
        return Served(name, "composite", "PyTorch's own kernel", "")
    return Served(name, "fallback", "PyTorch's CPU kernel", "")


def overloads(pattern: str = "") -> Iterator[OpOverload]:
    """All ATen overloads whose name, such as "add.Tensor", contains a text; in order, without the `aten::`."""
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = full.partition("::")
        if namespace != "aten" or pattern not in name:
            continue
        try:
            yield registry.resolve(name)
        except ValueError:
            continue  # registered for TorchScript only


def _is_own(name: str) -> bool:
    """A kernel of csrc/device.cpp, not the one of csrc/dispatch.cpp that serves everything else."""
    return name.removeprefix("aten::") in {
        "empty.memory_format", "empty_strided", "resize_", "set_.source_Storage", "set_", "set_.source_Tensor",
        "set_.source_Storage_storage_offset", "as_strided", "view", "_reshape_alias", "unfold", "view_as_real",
        "view_as_complex",
    }  # fmt: skip


def _decomposition(op: OpOverload) -> tuple[str, str]:
    functional = schema.form(op).functional
    for candidate in (op, functional):
        if candidate is not None and candidate in decomp.decomposition_table:
            return _place(decomp.decomposition_table[candidate])
    return "PyTorch's decomposition", ""


def place(rule: Lowering) -> tuple[str, str]:
    """A lowering's function, and its file and line."""
    by, where = _place(rule.function)
    return _row(rule) if "<lambda>" in by else (by, where)


def _row(rule: Lowering) -> tuple[str, str]:
    """A lowering that is a row of a table: the builder it wraps, and the first line of a table that names it."""
    cells = [cell.cell_contents for cell in getattr(rule.function, "__closure__", None) or ()]
    builder = next((content for content in cells if callable(content)), rule.function)
    by, where = _place(builder)
    name = rule.op.removeprefix("aten::")
    for quoted in (f'"{name}"', f'"{name.partition(".")[0]}"'):
        for place, line in _table_lines():
            if quoted in line:
                return ("a row of a table" if "<" in by else by), place
    return by, where if where.startswith("torch_tpu/ops/") else _place(rule.function)[1]


@cache
def _table_lines() -> list[tuple[str, str]]:
    """Every line of the family files with a string in it, with its place."""
    folder = os.path.dirname(ops.__file__)
    return [
        (f"torch_tpu/ops/{family}.py:{number}", line)
        for family in ops.FAMILIES
        for number, line in enumerate(linecache.getlines(os.path.join(folder, f"{family}.py")), start=1)
        if '"' in line
    ]


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's name, and its file and line relative to the package that has it."""
    while isinstance(function, partial):
        function = function.func
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", repr(inner)).replace("<locals>.", "")
    if code is None:
        return name, ""
    path = code.co_filename
    for package in ("torch_tpu", "torch"):
        _, found, rest = path.rpartition(f"{os.sep}{package}{os.sep}")
        if found:
            path = f"{package}{os.sep}{rest}"
            break
    return name, f"{path}:{code.co_firstlineno}"
