"""Making `tpu` a device of this PyTorch. Runs at `import torch`, so it loads neither XLA nor the lowerings."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from torch_tpu import _plug, settings
from torch_tpu.runtime import platform

SKIPPED = frozenset({
    "aten::_to_copy", "aten::clone", "aten::_pin_memory", "aten::is_pinned",
    "aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes", "aten::lift",
    "aten::expand_as", "aten::_resize_output_", "aten::resize_as_",
})  # fmt: skip
"""Overloads whose composite kernel is as good as any (an `empty` and a `copy_`), and those that return views although
their schemas do not say so."""

_registered = False


HOOKS: dict[str, tuple[str, ...]] = {
    "eager.dispatch": ("resolve", "prepare", "miss", "call_python"),
    "eager.debug": ("check_call", "finish_call", "explain_error"),
    "device.events": ("record_event", "query_event", "synchronize_event", "elapsed_time", "query_stream",
                      "synchronize"),
    "device.memory": ("memory_info",),
    "device.module": ("device_count",),
    "errors": ("refuse_fork",),
}  # fmt: skip
"""Module -> its functions that csrc calls. A module is imported when one of them is called first."""


def _lazy(module: str, name: str) -> Any:
    def call(*args: Any) -> Any:
        imported = importlib.import_module(f"torch_tpu.{module}")
        for each in HOOKS[module]:
            hooks[each] = getattr(imported, each)
        return hooks[name](*args)

    return call


hooks: dict[str, Any] = {name: _lazy(module, name) for module, names in HOOKS.items() for name in names}
"""The functions by name, as csrc sees them."""


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
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    patches.apply()
    backend.register()
    settings.watch("eager_mode", _set_debug)
    _set_debug(settings.eager_mode)
    os.register_at_fork(after_in_child=_after_fork)
    platform.before_stop.append(_plug.close)


def _set_debug(mode: str) -> None:
    _plug.set_debug(mode == "debug")


def _after_fork() -> None:
    if platform.in_bad_fork():
        _plug.set_bad_fork()
