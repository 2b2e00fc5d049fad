"""Results that are views of an input which the graph changes.

For `x.mul_(2); return x[1:]` AOTAutograd's graph returns a part of the product, and copies the product to x at its end.
Where the view's place depends on sizes, AOTAutograd then makes it anew on x, with the offset of what the graph returned:
it must be that of the view of x.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from torch_tpu.ops import schema


def look_at_inputs(module: fx.GraphModule) -> None:
    """Makes the views among a graph's results that are of what an input is set to views of that input, set by then."""
    graph = module.graph
    inputs = set(graph.find_nodes(op="placeholder"))
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    moved: dict[fx.Node, fx.Node | None] = {copy.args[1]: copy for copy in copies if copy.args[0] in inputs}
    if not moved:
        return
    (output,) = graph.find_nodes(op="output")
    kept = set(moved)

    def view(node: fx.Node) -> fx.Node | None:
        if node not in moved:
            base = node.args[0] if _is_view(node) else None
            new = view(base) if isinstance(base, fx.Node) else None
            moved[node] = None if new is None else _again(graph, node, new)
        return moved[node]

    with graph.inserting_before(output):
        output.args = fx.map_arg(output.args, lambda node: node if node in kept else view(node) or node)
    graph.eliminate_dead_code()
    module.recompile()


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_view(node.args[0])
    return isinstance(node.target, OpOverload) and schema.returns_view(node.target)


def _again(graph: fx.Graph, node: fx.Node, base: fx.Node) -> fx.Node:
    """The same view of another base."""
    made = graph.node_copy(node, lambda source: base if source is node.args[0] else source)
    call: Callable[..., object] = node.target  # type: ignore[assignment]
    args, kwargs = tree_map_only(fx.Node, lambda source: source.meta["val"], (made.args, made.kwargs))
    made.meta = {**node.meta, "val": call(*args, **kwargs)}
    return made
