"""Cutting a graph around the calls that no program can do: they run in between, one by one, as in eager mode.

Nodes are given *levels*: programs have even ones, what runs in between has odd ones, and a node's level is the least
that is not below that of anything it depends on. So a graph becomes as few programs as its dependencies allow.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.passes.split_module import split_module

from torch_tpu.compile.interpreter import HANDLERS
from torch_tpu.eager import host
from torch_tpu.ops import decomp, registry, schema

IN_BETWEEN = frozenset({"aten::_local_scalar_dense", "aten::_assert_async", "aten::_assert_async.msg"})
"""Operators whose result is needed on the host."""

RANDOM_STATE = frozenset({"run_and_save_rng_state", "run_with_rng_state"})


def can_lower(node: fx.Node, platform: str) -> bool:
    """Whether a call can be part of a program, as far as that can be said without trying."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return target.name() in HANDLERS
    if not isinstance(target, OpOverload):
        return True
    if not decomp.is_known(target):
        return False
    name = registry.overload_name(target)
    tags = target.tags
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags or name in IN_BETWEEN:
        return False
    if schema.returns_view(target):
        return True
    rule = schema.lowering_of(target)
    if rule is not None:
        return platform in rule.platforms and not rule.dynamic
    if name in host.OPERATORS and not decomp.is_decomposed(target):
        return False
    return bool(decomp.candidates(target)) or schema.form(target).functional not in (None, target)


def refused(module: fx.GraphModule, platform: str) -> set[fx.Node]:
    """The calls that cannot be part of a program."""
    calls = [node for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    found = {node for node in calls if node.op != "call_function" or not can_lower(node, platform)}
    constant: set[fx.Node] = {node for node in module.graph.nodes if node.op == "get_attr"}
    for node in calls:
        if node.target is operator.getitem:
            constant |= {node} if node.args[0] in constant else set()
        elif _keeps_random_state(node):
            continue
        elif _is_on_host(node):
            folds = all(source in constant for source in node.all_input_nodes) and not _is_random(node)
            if folds and node not in found:
                constant.add(node)
            elif not _is_host_scalar(node):
                found.add(node)
        elif any(_is_host_array(source) and source not in constant for source in node.all_input_nodes):
            found.add(node)
    _refuse_what_leaves(calls, found)
    return found


def _refuse_what_leaves(calls: list[fx.Node], found: set[fx.Node]) -> None:
    """Results on the host that somebody else needs there cannot be values of a program, nor what they come from."""
    for node in reversed(calls):
        if node in found or node.target is operator.getitem or _keeps_random_state(node) or not _is_on_host(node):
            continue
        users = [user for one in node.users for user in (one.users if one.target is operator.getitem else [one])]
        if any(user in found or user.op == "output" for user in users):
            found.add(node)


def _keeps_random_state(node: fx.Node) -> bool:
    """PyTorch takes the state to be on the host."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in RANDOM_STATE


def _values(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val", node.meta.get("example_value"))
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]


def _is_on_host(node: fx.Node) -> bool:
    values = _values(node)
    return bool(values) and all(value.device.type == "cpu" for value in values)


def _is_host_array(node: fx.Node) -> bool:
    return any(value.device.type == "cpu" and value.dim() for value in _values(node))


def _is_host_scalar(node: fx.Node) -> bool:
    """A number that is a CPU tensor, computed from such numbers and not written to another."""
    if _written(node):
        return False
    sources = [source for source in node.all_input_nodes if _values(source)]
    return not _is_random(node) and not any(map(_is_host_array, [node, *sources])) and all(map(_is_on_host, sources))


def is_plain(module: fx.GraphModule) -> bool:
    """Whether all values are tensors on the device, made by operators of ATen."""
    return all(
        isinstance(node.meta.get("val"), torch.Tensor) and not _is_on_host(node)
        if node.op == "placeholder"
        else node.op == "output" or node.target is operator.getitem or isinstance(node.target, OpOverload)
        for node in module.graph.nodes
    )


def takes_random_numbers(module: fx.GraphModule) -> bool:
    """Whether a graph, or a body of an operator in it, has an operator that takes random numbers."""
    return any(
        _is_random(node) or _keeps_random_state(node)
        for graph in module.modules()
        if isinstance(graph, fx.GraphModule)
        for node in graph.graph.nodes
    )


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory a view shares."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        target = node.target
        if not (isinstance(target, OpOverload) and schema.returns_view(target)):
            break
        node = node.args[0]
    return node


def levels(module: fx.GraphModule, apart: Collection[fx.Node]) -> dict[fx.Node, int]:
    """The level of every call, where those `apart` run in between."""
    level: dict[fx.Node, int] = {}
    latest_use: dict[fx.Node, int] = {}
    latest_write: dict[fx.Node, int] = {}
    last = 0
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method", "call_module"):
            continue
        least = max((level.get(source, 0) for source in node.all_input_nodes), default=0)
        roots = [_root(source) for source in node.all_input_nodes]
        least = max([least, *(latest_write.get(root, 0) for root in roots)])
        written = [_root(source) for source in _written(node)]
        least = max([least, *(latest_use.get(root, 0) for root in written)])
        if node in apart:
            last = least = max(last, least | 1)  # in their own order: they may have effects
        elif node.target is operator.getitem:
            least = max(level.get(source, 0) for source in node.all_input_nodes)
        else:
            least += least & 1
        level[node] = least
        for root in roots:
            latest_use[root] = max(latest_use.get(root, 0), least)
        for root in written:
            latest_write[root] = least
    return level


def _written(node: fx.Node) -> list[fx.Node]:
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return []
    names = [argument.name for argument in node.target._schema.arguments]
    found: list[Any] = []
    for place in schema.form(node.target).written:
        found.append(node.args[place] if place < len(node.args) else node.kwargs.get(names[place]))
    opened = [item for given in found for item in (given if isinstance(given, (list, tuple)) else [given])]
    return [item for item in opened if isinstance(item, fx.Node)]


def written_inputs(module: fx.GraphModule) -> set[int]:
    """The positions of the inputs that a graph writes to."""
    inputs = {node: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    written = {_root(target) for node in module.graph.nodes if node.op == "call_function" for target in _written(node)}
    return {inputs[node] for node in written if node in inputs}


def split(module: fx.GraphModule, apart: Collection[fx.Node]) -> tuple[fx.GraphModule, list[str]]:
    """A module that calls the parts in the order of their levels, and the names of those that are programs."""
    level = levels(module, apart)
    whole = split_module(module, module, lambda node: level[node], tuple_return=True)
    calls = [node for node in whole.graph.nodes if node.op == "call_module"]
    last = next((node for node in reversed(whole.graph.nodes) if node.op in ("placeholder", "get_attr")), None)
    for call in sorted(calls, key=lambda node: _level_of(str(node.target))):
        for node in (call, *[user for user in call.users if user.target is operator.getitem]):
            if last is not None:
                last.append(node)
            last = node
    whole.recompile()
    return whole, [str(call.target) for call in calls if _level_of(str(call.target)) % 2 == 0]


def _level_of(name: str) -> int:
    return int(name.rpartition("_")[2])
