"""The signature of a call in words, for `torch_tpu.explain_recompiles`: what csrc/dispatch.cpp packs into its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import settings
from torch_tpu.eager.configure import PROGRAM_SETTINGS
from torch_tpu.eager.program import spec_of
from torch_tpu.tensor import views


def of_call(
    names: Sequence[str],
    args: Sequence[Any],
    codes: Sequence[int | list[int]],
    avals: Sequence[int],
    donated: Sequence[int],
) -> dict[str, object]:
    """A call's parts and their values: the arguments' names, and what `dispatch.miss` is called with."""
    parts: dict[str, object] = {}
    owners: dict[int, str] = {}
    for argument, given, code in zip(names, args, codes, strict=True):
        name = f"argument {argument}"
        if isinstance(code, list):
            parts[f"{name}: length"] = len(code)
            if len(set(code)) == 1 and code[0] >= 0 and len(code) > 1 and not isinstance(given[0], torch.Tensor):
                parts[f"{name}: numbers"] = "all the same"
            for place, (item, one) in enumerate(zip(given, code, strict=True)):
                _describe(parts, f"{name}[{place}]", item, one, avals, owners)
        else:
            _describe(parts, name, given, code, avals, owners)
    if donated:
        parts["memory reused of"] = ", ".join(owners[operand].removeprefix("argument ") for operand in donated)
    if torch.get_default_dtype() != torch.float32:
        parts["default dtype"] = _dtype(torch.get_default_dtype())
    for name in PROGRAM_SETTINGS:
        if getattr(settings, name) != settings.SETTINGS[name].default:
            parts[f"setting {name}"] = getattr(settings, name)
    return parts


def _describe(
    parts: dict[str, object], name: str, given: Any, code: int, avals: Sequence[int], owners: dict[int, str]
) -> None:
    if not isinstance(given, torch.Tensor):
        if code >= 0:
            parts[f"{name}:"] = f"a number ({type(given).__name__})"
        elif code == -1:
            parts[f"{name}:"] = "its default"
        else:
            parts[f"{name}:"] = tuple(given) if isinstance(given, list) else given
        return
    parts[f"{name}:"] = "a tensor"
    parts[f"{name}: dtype"] = _dtype(given.dtype)
    if given.device.type == "cpu":
        parts[f"{name}: size"] = "() on the CPU"
        return
    size, stride = tuple(given.size()), tuple(given.stride())
    parts[f"{name}: size"] = size
    parts[f"{name}: layout"] = "contiguous" if stride == views.contiguous_strides(size) else f"strides {stride}"
    operand = code & 0xFFFFFFFF
    parts[f"{name}: storage"] = _storage(given, avals[operand], by_offset=code >> 32 > 0)
    if owners.setdefault(operand, name) != name:
        parts[f"{name}: memory"] = f"that of {owners[operand]}"
    if given.is_conj() or given.is_neg():
        parts[f"{name}: view"] = "conjugate" if given.is_conj() else "negative"


def _storage(given: torch.Tensor, aval: int, by_offset: bool) -> str:
    """Whether a tensor is all of its storage's array, else what that array is and where in it the tensor begins."""
    if aval <= 0:
        return f"{given.untyped_storage().nbytes()} bytes never written"
    shape, dtype = spec_of(aval)
    if shape == tuple(given.size()) and dtype == given.dtype:
        return "its own"
    offset = "any offset" if by_offset else f"offset {given.storage_offset()}"
    return f"{_dtype(dtype)} {shape} at {offset}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
