"""How the device calls an operator in each mode, and what is seen of it meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from torch_tpu import _plug
from torch_tpu.device.modes import EagerMode, set_eager_mode
from torch_tpu.eager.observe import observers
from torch_tpu.stats import counters

if TYPE_CHECKING:
    from torch_tpu.eager.program import Program
    from torch_tpu.ops.registry import Lowering

_call = eval(compile("lambda operator: lambda *args, **kwargs: operator(*args, **kwargs)", "call an operator", "eval"))
"""Dynamo starts neither in this package nor in torch.testing, where some operators are defined, but it goes through them
from a function of another file."""
_unseeded = eval(compile("lambda op, *args, **kwargs: op(*args, **kwargs)", "call an operator", "eval"))
_SEEDED = "torch.testing._internal.common_methods_invocations.wrapper_set_seed"
"""The database's function that seeds the generator before a call, where Dynamo breaks the graph: `_unseeded` replaces it."""
_NO_LIMIT = 1 << 20
NO_GRAPH = "Dynamo makes no graph of it"


@dataclass
class Seen:
    """What a case did on the device. An `Observer` of programs while it lasts."""

    lowerings: set[str] = field(default_factory=set)
    """The registry's entries that wrote its programs."""
    fallbacks: tuple[str, ...] = ()
    """Operators that ran on the CPU instead."""
    decomposed: bool = False
    """Whether one of PyTorch's decompositions was traced."""
    num_graphs: int = 0
    """Graphs that Dynamo gave to the backend."""

    def program_made(self, program: Program) -> None:
        """Says nothing about how it was made."""

    def lowered(self, rule: Lowering) -> None:
        self.lowerings.add(rule.op)

    def node_traced(self, node: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def node_run(self, node: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def graph_called(self, graph: Any, args: list[Any], call: Callable[[list[Any]], Any]) -> Any:
        return call(args)


@contextlib.contextmanager
def entered(mode: str) -> Iterator[Seen]:
    """Meanwhile operators run in a mode, and everything is traced anew, so that it can be seen."""
    seen = Seen()
    fallbacks, decompositions = dict(counters.fallbacks), counters.decompositions
    _plug.clear_table()
    guard = contextlib.ExitStack()
    if mode == "compiled":
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        guard.enter_context(mock.patch(_SEEDED, _unseeded))
        limits = {"recompile_limit": _NO_LIMIT, "accumulated_recompile_limit": _NO_LIMIT}  # each sample is a graph
        guard.enter_context(torch._dynamo.config.patch(limits))
    chosen = EagerMode.DEFER_AND_FUSE if mode == "fused" else EagerMode.DEFER_NEVER
    observers.append(seen)
    try:
        with set_eager_mode(chosen), guard:
            yield seen
    finally:
        observers.remove(seen)
        seen.fallbacks = tuple(op for op, count in counters.fallbacks.items() if count != fallbacks.get(op, 0))
        seen.decomposed = counters.decompositions != decompositions
        if mode == "compiled":
            seen.num_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]


def operator(info: Any, mode: str) -> Callable[..., Any]:
    """What an entry of the catalog is about, to be called on the device."""
    return _Compiled(info) if mode == "compiled" else info.op


class _Compiled:
    """An operator under `torch.compile`: as one graph where Dynamo can, else with graph breaks."""

    def __init__(self, info: Any):
        call = _call(info.op)
        options: dict[str, Any] = {"custom_module_name": "conformance"}
        self.whole = torch.compile(call, backend="tpu", dynamic=False, fullgraph=True, options=options)
        self.parts = torch.compile(call, backend="tpu", dynamic=False, options=options)
        self.breaks = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.breaks:
            try:
                return self.whole(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException:
                self.breaks = True
        return self.parts(*args, **kwargs)
