"""Who watches programs being made: `torch_tpu.explain`, `torch_tpu.lint`. Asked on the miss path only, so it costs a hit
nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch_tpu.eager.program import Program
    from torch_tpu.ops.registry import Lowering


class Observer(Protocol):
    """What is told."""

    def program_made(self, program: Program) -> None:
        """A program was compiled or found in a cache."""

    def lowered(self, rule: Lowering) -> None:
        """A lowering wrote its part of a program."""

    def node_traced(self, node: Any) -> AbstractContextManager[None]:
        """A call of a compiled graph is traced; entered for as long as that takes."""

    def node_run(self, node: Any) -> AbstractContextManager[None]:
        """A call of a compiled graph runs between its programs; entered for as long as that takes."""

    def graph_called(self, graph: Any, args: list[Any], call: Callable[[list[Any]], Any]) -> Any:
        """A compiled graph is called; does so by `call(args)` and returns what that returns."""


class CallWatcher(TorchDispatchMode):
    """A dispatch mode that sees every ATen call, also those that higher-order operators make."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions are seen as the graphs they run."""
        return True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(op, HigherOrderOperator):
            with self:
                return op.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **(kwargs or {}))
        return self.call(op, args, kwargs or {})

    def call(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """Makes an ATen call, and returns what it returns."""
        raise NotImplementedError


observers: list[Observer] = []
