"""Making `tpu` a device of this PyTorch. Runs at `import torch`, so it loads neither XLA nor the lowerings."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_tpu import _plug, settings
from torch_tpu.runtime import platform

SKIPPED = frozenset({
    "aten::_to_copy", "aten::clone", "aten::_pin_memory", "aten::is_pinned",
    "aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes", "aten::lift",
    "aten::expand_as", "aten::_resize_output_", "aten::resize_as_",
    "aten::empty_like", "aten::empty_permuted", "aten::new_empty", "aten::new_empty_strided",
})  # fmt: skip
"""Overloads whose composite kernel is as good as any (an `empty`, and a `copy_` to it), and those that return views although
their schemas do not say so."""

_registered = False
_step_hook: Any = None
_wrap: Callable[[Any], Any] = lambda hook: hook  # noqa: E731


HOOKS: dict[str, tuple[str, ...]] = {
    "eager.dispatch": ("resolve", "prepare", "miss", "call_python"),
    "eager.program": ("scalar",),
    "eager.transfer": ("copy_across", "address_of"),
    "eager.sparse": ("call_sparse",),
    "eager.foreign": ("call_foreign",),
    "eager.fused": ("fuse", "compile_recipe", "run_recipe", "can_run_alone", "failed_value"),
    "compile.graphs": ("miss_graph",),
    "eager.debug": ("check_call", "finish_call", "explain_error"),
    "device.graphs": ("begin_capture", "end_capture", "dump_graph"),
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
            hooks[each] = _wrap(getattr(imported, each))
        return hooks[name](*args)

    return call


hooks: dict[str, Any] = {name: _lazy(module, name) for module, names in HOOKS.items() for name in names}
"""The functions by name, as csrc sees them."""


def wrap_hooks(wrap: Callable[[Any], Any]) -> None:
    """Calls the functions through a wrapper from now on."""
    global _wrap
    _wrap = wrap
    for name, hook in hooks.items():
        hooks[name] = wrap(hook)


def register() -> None:
    """Registers the device; later calls do nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    torch.utils.rename_privateuse1_backend("tpu")
    _plug.set_hooks(hooks)
    _plug.register_device()
    _plug.register_graphs()
    from torch_tpu.device import backend, collectives, imports, module, patches, recurrent

    recurrent.register()
    _plug.register_kernels(SKIPPED)
    _plug.register_sparse()
    torch._register_device_module("tpu", module.make())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # What an uninitialized parameter lets be done to it, as `cuda`.
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.tpu)
    patches.apply()
    backend.register()
    imports.after("torch._dynamo", _set_up_compiler)
    imports.after("torch.nested._internal.ops", patches.attention_of_jagged_tensors_is_refused)
    imports.after("accelerate.state", patches.accelerate_finds_the_device)
    imports.after("accelerate.utils.modeling", patches.accelerate_knows_the_memory_of_the_device)
    imports.after("safetensors", patches.safetensors_loads_to_the_device)
    collectives.register()
    settings.watch("eager_mode", _set_mode)
    _set_mode(settings.eager_mode)
    for name in ("fuse_least", "fuse_most", "fuse_bytes"):
        settings.watch(name, lambda _: _set_cuts())
    os.register_at_fork(after_in_child=_after_fork)
    platform.before_stop.append(_plug.close)


def _set_up_compiler() -> None:
    importlib.import_module("torch_tpu.compile.setup").set_up()


def _set_mode(mode: str) -> None:
    global _step_hook
    _plug.set_debug(mode == "debug")
    _set_cuts()
    _plug.set_recording(mode == "fused")
    if mode == "fused" and _step_hook is None:
        # The end of a step is a place that every step has: each then runs the same programs.
        _step_hook = register_optimizer_step_post_hook(lambda *_: _plug.end_step())
    elif mode != "fused" and _step_hook is not None:
        _step_hook.remove()
        _step_hook = None


def _set_cuts() -> None:
    _plug.set_cuts(settings.fuse_least, settings.fuse_most, settings.fuse_bytes)


def _after_fork() -> None:
    if platform.in_bad_fork():
        _plug.set_bad_fork()
