"""Running an ATen graph on meta tensors through a `Trace`, which writes its program.

Device tensors, and CPU tensors without dimensions that the graph is given, are meta tensors here; ints, bools and what
is computed from them are Python's own, so that a graph with symbolic sizes gives one program for each set of sizes.
CPU tensors that depend on nothing the graph is given are computed here, once: they are constants of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.node import map_aggregate, map_arg

from torch_tpu.eager import origins
from torch_tpu.eager.observe import observers
from torch_tpu.eager.trace import Trace
from torch_tpu.errors import TpuError
from torch_tpu.hlo import Value
from torch_tpu.ops import schema
from torch_tpu.tensor import views

META = torch.device("meta")

Handler = Callable[..., Any]
Strides = dict[int, tuple[int, ...]]
HANDLERS: dict[str, Handler] = {}
"""Higher-order operator -> function of (interpreter, *args, **kwargs); filled by `control_flow`."""

FAILURES = (
    TpuError,
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AssertionError,
    KeyError,
    AttributeError,
    ArithmeticError,
)


class CannotLower(Exception):
    """A node of a graph that no program can do."""

    def __init__(self, node: fx.Node, reason: str):
        super().__init__(f"{node.format_node()}: {reason}")
        self.node = node
        self.reason = reason


STRIDES = "torch_tpu_strides"
"""In a node's `meta`, where its fake tensors are not kept: their strides by their place, those that are contiguous left out."""


def strides_of(node: fx.Node) -> Strides | None:
    """The strides of a node's results that are not contiguous; None where nothing is known of them."""
    if "val" not in node.meta:
        kept: Strides | None = node.meta.get(STRIDES)
        return kept
    value = node.meta["val"]
    found: Strides = {}
    for place, item in enumerate(value if isinstance(value, (tuple, list)) else [value]):
        if not isinstance(item, torch.Tensor):
            continue
        if any(isinstance(number, torch.SymInt) for number in (*item.shape, *item.stride())):
            return None
        if item.stride() != views.contiguous_strides(item.shape):
            found[place] = item.stride()
    return found


class Interpreter:
    """Runs graphs for one trace."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._origins: dict[int, torch.Tensor] = {}

    def settle(self, given: Any) -> Any:
        """An argument as graphs use it. A tensor whose offset varies is read once: views of it cannot say so."""
        if not isinstance(given, torch.Tensor) or id(given) not in self.trace.starts:
            return given
        made = self.new(self.read(given), given)
        self._origins[id(made)] = given
        return made

    def run(self, module: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        """The graph's outputs for meta tensors and numbers.

        Raises:
            CannotLower: names the first node that is not in a program's power.
        """
        queue = iter(args)
        values: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(queue)
            elif node.op == "get_attr":
                values[node] = _attribute(module, node.target)
            elif node.op == "output":
                answer = map_arg(node.args[0], values.__getitem__)
                return list(answer) if isinstance(answer, (tuple, list)) else [answer]
            else:
                with origins.of_node(node):
                    values[node] = self._call(node, values)
        raise AssertionError("a graph has an output node")

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        try:
            if isinstance(node.target, OpOverload):
                if observers:
                    with observers[-1].node_traced(node):
                        return self._laid_out(node, self.call(node.target, args, kwargs))
                return self._laid_out(node, self.call(node.target, args, kwargs))
            if isinstance(node.target, HigherOrderOperator):
                handler = HANDLERS.get(node.target.name())
                if handler is None:
                    raise CannotLower(node, "a higher-order operator that is not lowered")
                return handler(self, *args, **kwargs)
            assert node.op == "call_function" and callable(node.target), node.format_node()
            return node.target(*args, **kwargs)
        except CannotLower as error:
            raise CannotLower(node, error.reason) from error
        except FAILURES as error:
            raise CannotLower(node, f"{type(error).__name__}: {error}") from error

    def _laid_out(self, node: fx.Node, answer: Any) -> Any:
        """New tensors with the strides that the graph was made with: what views it has depends on them."""
        target, known = node.target, strides_of(node)
        assert isinstance(target, OpOverload)
        if known is None or target._schema.is_mutable or schema.returns_view(target):
            return answer
        if isinstance(answer, torch.Tensor):
            return self._with_strides(answer, known.get(0))
        if not isinstance(answer, (tuple, list)):
            return answer
        return [
            self._with_strides(item, known.get(place)) if isinstance(item, torch.Tensor) else item
            for place, item in enumerate(answer)
        ]

    def _with_strides(self, made: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
        size = tuple(made.shape)
        strides = strides or views.contiguous_strides(size)
        differ = any(a != b and n > 1 for a, b, n in zip(made.stride(), strides, size, strict=True))
        if not differ or not views.is_whole(made) or views.physical_order(size, strides) is None:
            return made
        return self.new(self.read(made), torch.empty_strided(size, strides, dtype=made.dtype, device=META))

    def call(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """One ATen call; with host tensors only, it is made on the host."""
        if is_host_call(args, kwargs):
            return op(*args, **kwargs)
        if op._schema.is_mutable and self._origins:
            args, kwargs = map_aggregate((args, kwargs), lambda x: self._origins.get(id(x), x))
        args, kwargs = map_aggregate((args, kwargs), _on_meta)
        return self.trace.call(op, args, kwargs)

    # ------------------------------------------------------------------------------------------------- for handlers

    def read(self, value: Any) -> Value:
        """The SSA value of a tensor."""
        return self.trace.read(value)

    def new(self, value: Value, like: torch.Tensor | None = None) -> torch.Tensor:
        """A meta tensor that holds an SSA value; with the strides of a tensor of that shape, if one is given."""
        if like is None:
            meta = torch.empty(value.shape, dtype=value.dtype, device=META)
        else:
            meta = torch.empty_strided(value.shape, like.stride(), dtype=value.dtype, device=META)
        self.trace.bind(meta, None)
        self.trace.write(meta, value)
        return meta


def is_host_call(args: Any, kwargs: Any) -> bool:
    """No tensor of the program takes part: only tensors on the CPU, or a factory for one."""
    found: list[torch.device] = []

    def look(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            found.append(item.device)
        elif isinstance(item, torch.device):
            found.append(item)
        return item

    map_aggregate(args, look)
    map_aggregate(kwargs, look)
    return bool(found) and all(device.type == "cpu" for device in found)


def _on_meta(item: Any) -> Any:
    return META if isinstance(item, torch.device) else item


def _attribute(module: fx.GraphModule, target: Any) -> Any:
    found: Any = module
    for name in str(target).split("."):
        found = getattr(found, name)
    return found
