"""Conditions that say whether code runs on a TPU machine: `if torch.cuda.is_available():` and its like."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Literal

NameOf = Callable[[ast.expr], str]
"""The full name of something imported; "" for all else."""


_PACKAGES = ("cuda", "deepspeed", "flash", "apex", "triton", "xla")


def guard(name_of: NameOf, test: ast.expr) -> Literal["cuda", "other", ""]:
    """What a condition says about where the code runs: "cuda" if it is false on a TPU machine, "other" if it is true."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = guard(name_of, test.operand)
        return "other" if inner == "cuda" else "cuda" if inner == "other" else ""
    if isinstance(test, ast.BoolOp):
        found = [guard(name_of, item) for item in test.values]
        if isinstance(test.op, ast.And):
            return "cuda" if "cuda" in found else "other" if all(item == "other" for item in found) else ""
        return "other" if "other" in found else "cuda" if all(item == "cuda" for item in found) else ""
    if isinstance(test, ast.Call):
        if name_of(test.func) in ("torch.tpu.is_available", "torch.accelerator.is_available"):
            return "other"
        return "cuda" if _asks_for_others(name_of, test) else ""
    if isinstance(test, ast.Attribute):
        return "cuda" if test.attr == "is_cuda" else _by_name(test.attr)
    if isinstance(test, ast.Name):
        return _by_name(test.id)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(name_of, test)
    return ""


def _asks_for_others(name_of: NameOf, call: ast.Call) -> bool:
    name = name_of(call.func)
    last = name.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    if name.startswith(("torch.accelerator", "torch.tpu", "torch.distributed", "torch_tpu")):
        return False
    if last == "startswith" and call.args and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value) in ("cuda", "xla", "mps", "xpu")
    if last == "is_torch_available":
        return False
    if last == "is_scripting":
        return True
    if isinstance(call.func, ast.Name) and call.func.id == "hasattr" and call.args:
        return name_of(call.args[0]).startswith("torch.cuda")
    if last == "is_available":
        return True
    return last.startswith("is_") and (last.endswith("_available") or any(package in last for package in _PACKAGES))


def _by_name(name: str) -> Literal["cuda", ""]:
    """A flag that says whether something optional is there: HAS_FLASH_ATTN, flash_attn_available, use_cuda."""
    lowered = name.lower()
    if "tpu" in lowered or "accelerator" in lowered:
        return ""
    flags = ("has_", "_has_", "is_cuda", "use_cuda", "_is_cuda")
    return "cuda" if lowered.startswith(flags) or lowered.endswith("_available") else ""


def _compared(name_of: NameOf, test: ast.Compare) -> Literal["cuda", "other", ""]:
    left, op, right = test.left, test.ops[0], test.comparators[0]
    texts = {item.value for side in (left, right) for item in _members(side) if isinstance(item, ast.Constant)}
    kinds = {"cuda", "xpu", "mps", "npu", "hpu", "mlu", "xla", "musa"}
    names = {str(text).partition(":")[0].lower() for text in texts if isinstance(text, str)}
    if isinstance(op, ast.Eq) and name_of(right) in ("torch.float16", "torch.half"):
        return "cuda"  # what only half precision needs
    if name_of(left).startswith("torch.version.") and isinstance(op, ast.IsNot):
        return "cuda"
    if isinstance(op, ast.In) and isinstance(left, ast.Constant) and left.value == "cuda":
        return "cuda"
    if names and names <= kinds:
        if isinstance(op, (ast.Eq, ast.In)):
            return "cuda"
        if isinstance(op, (ast.NotEq, ast.NotIn)):
            return "other"
    return ""


def _members(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]


def catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException", "OSError", "RuntimeError"})


def mentions_tpu(node: ast.AST) -> bool:
    """Whether something in it speaks of a TPU or of whichever device there is."""
    return any(map(_is_about_tpu, ast.walk(node)))


def _is_about_tpu(item: ast.AST) -> bool:
    if isinstance(item, ast.Constant):
        return item.value in ("tpu", "xla")
    name = item.attr if isinstance(item, ast.Attribute) else item.id if isinstance(item, ast.Name) else ""
    return "accelerator" in name or name == "tpu"
