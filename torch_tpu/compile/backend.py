"""What `torch.compile(backend="tpu")` calls with each of Dynamo's graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from torch_tpu.compile import control_flow, saved
from torch_tpu.compile.bounds import Bounds
from torch_tpu.compile.decompositions import table
from torch_tpu.compile.graphs import Graph, why_compiled
from torch_tpu.compile.options import Options, parse
from torch_tpu.eager import origins

_numbers = itertools.count()

assert control_flow  # registers its handlers


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: a function like the graph, run by programs.

    Args:
        inputs: fake tensors and symbolic numbers like those the function will be called with.
        options: see `torch_tpu.compile.options.Options`.

    Raises:
        ValueError: an option or a mode that does not exist, or a value out of range.
    """
    chosen = parse(options, mode)
    name = chosen.custom_module_name or f"graph_{next(_numbers)}"
    bounds, reason = Bounds(chosen), why_compiled()
    compiled: dict[str, Callable[..., Any]] = {
        kind: partial(_compile, kind=kind, name=f"{name}_{suffix}", options=chosen, bounds=bounds, reason=reason)
        for kind, suffix in (("forward", "fwd"), ("backward", "bwd"), ("inference", "inf"))
    }
    keeps = saved.can_keep(module, chosen)
    if keeps:
        compiled = {kind: saved.keepable(compiler) for kind, compiler in compiled.items()}
    make = aot_autograd(
        fw_compiler=compiled["forward"],
        bw_compiler=compiled["backward"],
        inference_compiler=compiled["inference"],
        partition_fn=_partition,
        decompositions=table(),
        keep_inference_input_mutations=True,
    )
    with saved.kept(module, chosen) if keeps else nullcontext(), _lines_in_bodies(module):
        return make(module, inputs)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's partition into forward and backward graph, for XLA.

    Cheap values that a product in the backward graph needs as an array (a norm's result, a gate) are computed there again:
    XLA fuses what leads to them, so they are not kept from the forward graph on. What a scan collects is saved as it is: its
    backward scan runs from the last step to the first, over values that are turned around, and where the forward graph turns
    them, all activations are copied.
    """
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.flip.default):
        if any(user.target is torch.ops.higher_order.scan for user in node.users):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        return min_cut_rematerialization_partition(joint, *args, **kwargs)


@contextmanager
def _lines_in_bodies(module: fx.GraphModule) -> Iterator[None]:
    """Meanwhile the bodies of loops and branches are traced with the lines that Dynamo noted of their nodes.

    PyTorch calls their code where it traces them again, and then every node is of the line of the loop. The top of a graph is
    interpreted, node by node, which is what is done here for the rest, where lines are recorded: for plans.
    """
    if not (origins.recording and any(isinstance(child, fx.GraphModule) for child in module.children())):
        yield
        return

    def call(wrapped: Any, graph: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not fx.traceback.has_preserved_node_meta():
            return before(wrapped, graph, *args, **kwargs)
        return fx.Interpreter(graph).run(*args)

    before = fx.graph_module._WrappedCall.__call__
    with mock.patch.object(fx.graph_module._WrappedCall, "__call__", call):
        yield


def _compile(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    kind: str,
    name: str,
    options: Options,
    bounds: Bounds,
    reason: str,
) -> Graph:
    graph = Graph(module, options, kind, name, bounds)
    graph.reason = reason  # a backward graph may be made later
    return graph
