"""Lowering the graphs of torch.export: with static shapes, or padded to the largest that their sizes may be."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram

from torch_tpu import errors, hlo
from torch_tpu.compile import bounded, decompositions
from torch_tpu.compile.bounded import Size
from torch_tpu.compile.bounded_trace import BoundedInterpreter
from torch_tpu.compile.interpreter import Interpreter
from torch_tpu.eager.trace import Trace


def decompositions_of(program: ExportedProgram) -> dict[Any, Any]:
    """What to decompose first. With sizes that vary, operators that are composed of others: the latter have lowerings."""
    if not _varies(program.graph_module):
        return {}
    known = torch.export.default_decompositions().items()
    return {**{op: made for op, made in known if op._can_decompose()}, **decompositions.table()}


class Lowering:
    """How an exported program is lowered.

    Raises:
        UnsupportedOpError: a size that varies has no upper bound.
    """

    def __init__(self, program: ExportedProgram):
        self.module = program.graph_module
        _prepare(self.module)
        self.plan: bounded.Plan | None = None
        self.bounds: dict[Any, int] = {}
        """Of the plan's variables."""
        if not _varies(self.module):
            return
        devices = {value.device.type for value in _inputs(self.module) if isinstance(value, torch.Tensor)}
        if len(devices) != 1:
            raise errors.UnsupportedOpError(
                f"the exported program has inputs on {sorted(devices)}, and sizes that vary"
            )
        self.plan = bounded.plan(self.module, {}, device=devices.pop())
        if self.plan is not None:
            self.bounds = {symbol: _most(program, symbol) for symbol in self.plan.symbols}

    def sizes_of(self, tensor: torch.Tensor) -> tuple[Size, ...]:
        """A fake tensor's sizes: numbers, and expressions of the variables."""
        return tuple(tensor.shape) if self.plan is None else bounded.sizes_of(tensor, self.plan.same)

    def bound(self, size: Size) -> int:
        """The most that a size can be."""
        return size if self.plan is None else self.plan.upper(size, self.bounds)

    def lower(self, trace: Trace, function: hlo.Function, args: list[Any]) -> tuple[list[Any], Trace, list[str]]:
        """The results, the trace that knows them, and the variables, whose values become arguments of the function.

        Raises:
            BoundedError: a call cannot be lowered with sizes that vary.
        """
        if self.plan is None:
            return Interpreter(trace).run(self.module, args), trace, []
        values = {symbol: function.argument((), torch.int64) for symbol in self.bounds}
        fake_mode = detect_fake_mode(_inputs(self.module))
        interpreter = BoundedInterpreter(trace, self.plan, fake_mode, self.bounds, values)
        return interpreter.run(self.module, args), interpreter.trace, [str(symbol) for symbol in values]


def _prepare(module: fx.GraphModule) -> None:
    """Makes a graph that was traced on another device independent of it."""
    for node in module.graph.nodes:
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
            continue
        if "device" in node.kwargs:  # what the graph makes itself is made by the program
            node.kwargs = {**node.kwargs, "device": torch.device("tpu")}
        if node.target is torch.ops.aten.view.default:  # which was legal for that device's strides
            with module.graph.inserting_before(node):
                options: dict[str, Any] = {"memory_format": torch.contiguous_format}
                dense = module.graph.call_function(torch.ops.aten.clone.default, (node.args[0],), options)
            node.args = (dense, *node.args[1:])


def _inputs(module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]


def _varies(module: fx.GraphModule) -> bool:
    sizes = [size for x in _inputs(module) for size in (x.shape if isinstance(x, torch.Tensor) else [x])]
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _most(program: ExportedProgram, symbol: Any) -> int:
    """The upper bound of a variable."""
    most = getattr(program.range_constraints.get(symbol), "upper", None)
    if most is None or not most.is_Integer or most >= 1 << 31:
        raise errors.UnsupportedOpError(
            errors.message(
                f"the size {symbol} has no upper bound",
                why="arrays that vary in size are padded to the largest size",
                do="export with torch.export.Dim(name, max=...)",
            )
        )
    return int(most)
