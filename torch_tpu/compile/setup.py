"""What PyTorch's compiler is told about the device, once Dynamo is imported. Loads no XLA and no lowerings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu.device import imports, patches, register


def set_up() -> None:
    """Registers the backend, and makes it what functions that touch the device get from a plain `torch.compile`.

    Called when Dynamo is imported.
    """
    import torch._dynamo

    torch._dynamo.register_backend(tpu, name="tpu")
    imports.after(
        "torch._inductor.compile_fx", lambda: patches.inductor_leaves_graphs_on_the_device(touches_device, tpu)
    )
    torch._dynamo.trace_rules.add("torch_tpu")
    patches.graphs_end_where_the_precision_is_set()
    patches.compiled_optimizers_keep_their_state_on_the_device()
    patches.compiled_optimizers_need_no_inductor()
    imports.after("torch.nn.attention.flex_attention", patches.flex_attention_takes_the_device)
    imports.after("torch._higher_order_ops.associative_scan", patches.associative_scan_takes_the_device)
    imports.after("torch._meta_registrations", patches.grouped_products_are_traced_in_more_dtypes)
    imports.after("torch._meta_registrations", patches.cells_without_biases_are_traced)
    imports.after("torch.utils._sympy.reference", patches.remainders_of_numbers_are_data)
    imports.after("torch._subclasses.fake_tensor", patches.operators_without_meta_kernels_are_tried_on_the_cpu)
    # An operator may be called while a function around it is being compiled, with Dynamo watching every frame.
    register.wrap_hooks(lambda hook: torch._dynamo.disable(hook, reason="the device's own work"))


def tpu(module: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """The backend "tpu": see `torch_tpu.compile.backend.compile_graph`."""
    return importlib.import_module("torch_tpu.compile.backend").compile_graph(module, inputs, **kwargs)


def touches_device(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph takes, holds or makes a tensor on the device."""
    if any(map(_is_on_device, inputs)):
        return True
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        if any(map(_is_on_device, value if isinstance(value, (tuple, list)) else [value])):
            return True
    return False


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"
