"""Who watches programs being made: `torch_tpu.explain`. Asked on the miss path only, so it costs a hit nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

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

    def graph_called(self, graph: Any, args: list[Any], call: Callable[[list[Any]], Any]) -> Any:
        """A compiled graph is called; does so by `call(args)` and returns what that returns."""


observers: list[Observer] = []
