"""Operators of other libraries that have no kernel for this device: they run on the CPU, where they have one, and count.

csrc/foreign.cpp calls `call_foreign`. A library, or a user, gives one a kernel by `torch.library.register_kernel`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import errors
from torch_tpu.eager import fallback
from torch_tpu.ops import registry, schema


def call_foreign(op: OpOverload, args: list[Any]) -> Any:
    """Serves a call that no kernel of this device does.

    Raises:
        UnsupportedOpError: if the CPU has none either, or the result would share memory with an argument.
    """
    name = registry.overload_name(op)
    why = ""
    if op.namespace == "aten":
        why = "the device has no kernel for it"
    elif not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        why = "it has no kernel for this device, and none for the CPU"
    elif schema.returns_view(op):
        why = "its result shares memory with an argument, which no kernel of the CPU can bring about here"
    if why:
        raise errors.unsupported(
            name, args, why=why, do=f'give it one: torch.library.register_kernel("{op._schema.name}", "tpu", function)'
        )
    return fallback.run(op, args, f"{op.namespace} has no kernel of it for this device")


__all__ = ["call_foreign"]
