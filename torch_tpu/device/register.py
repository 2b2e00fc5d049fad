"""Making `tpu` a device of this PyTorch. Runs at `import torch`, so it loads neither XLA nor the lowerings."""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_tpu import _plug

SKIPPED = frozenset({
    "aten::_to_copy", "aten::clone", "aten::_pin_memory", "aten::is_pinned",
    "aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes", "aten::lift",
    "aten::expand_as", "aten::_resize_output_", "aten::resize_as_",
})  # fmt: skip
"""Overloads whose composite kernel is as good as any (an `empty` and a `copy_`), and those that return views although
their schemas do not say so."""

_registered = False


def _lazy(module: str, name: str) -> Any:
    """A function of a module that is imported when it is called first."""

    def call(*args: Any) -> Any:
        import importlib

        function = getattr(importlib.import_module(module), name)
        hooks[name] = function
        return function(*args)

    return call


hooks: dict[str, Any] = {
    name: _lazy(f"torch_tpu.{module}", name)
    for module, names in {
        "eager.dispatch": ("resolve", "prepare", "miss", "call_python", "execute", "execute_callback"),
        "device.events": ("record_event", "query_event", "synchronize_event", "elapsed_time", "query_stream",
                          "synchronize"),
        "device.memory": ("memory_info",),
    }.items()
    for name in names
}  # fmt: skip
"""The Python functions that csrc calls, by name."""


def register() -> None:
    """Registers the device; later calls do nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    torch.utils.rename_privateuse1_backend("tpu")
    _plug.set_hooks(hooks)
    _plug.register_device()
    _plug.register_kernels(SKIPPED)
    from torch_tpu.device import backend, module, patches

    torch._register_device_module("tpu", module.make())
    torch.utils.generate_methods_for_privateuse1_backend()
    patches.apply()
    backend.register()
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    from torch_tpu.runtime import platform

    if platform.in_bad_fork():
        _plug.set_bad_fork()
