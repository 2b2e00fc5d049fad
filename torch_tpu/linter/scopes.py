"""What the interpreter of `flow.py` knows of a file: functions, classes, scopes, loops; and whom it tells."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch_tpu.linter.syntax import Definition, LoopKind
from torch_tpu.linter.values import Value

if TYPE_CHECKING:
    from torch_tpu.linter.expressions import Expressions


@dataclass
class Function:
    """A function of the file."""

    node: Definition
    owner: Class | None
    name: str
    returns: Value | None = None
    hot: str = ""
    """Where it runs in every step, in words; empty if it does not."""


@dataclass
class Class:
    """A class of the file."""

    name: str
    is_module: bool
    attributes: dict[str, Value] = field(default_factory=dict)
    methods: dict[str, Function] = field(default_factory=dict)


@dataclass
class Scope:
    """The names of a function or of the module."""

    parent: Scope | None
    names: dict[str, Value] = field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass
class Loop:
    node: ast.AST
    kind: LoopKind
    assigned: frozenset[str]
    """The names that change in it."""


class Events(Protocol):
    """What is told; each gets the flow, for where it happens."""

    def imported(self, flow: Expressions, node: ast.stmt, name: str) -> None:
        """A module, or something of one, is imported."""

    def used(self, flow: Expressions, node: ast.expr, name: str) -> None:
        """Something imported is named."""

    def called(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """A call."""

    def text(self, flow: Expressions, node: ast.expr, text: str) -> None:
        """A string that is neither compared nor a member of a list of choices."""

    def decided(self, flow: Expressions, node: ast.expr, value: Value) -> None:
        """Python takes the truth of a value."""

    def indexed(self, flow: Expressions, node: ast.Subscript, base: Value, index: Value) -> None:
        """`base[index]` is read."""

    def assigned(self, flow: Expressions, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        """`target = value`."""

    def chosen(self, flow: Expressions, node: ast.If | ast.IfExp) -> None:
        """Something depends on whether CUDA is there."""


@dataclass(frozen=True)
class Call:
    """A call that `Events.called` is told of."""

    callee: Value
    receiver: Value | None
    """What it is a method of, unless that is imported."""
    method: str
    args: tuple[Value, ...]
    keywords: Mapping[str, Value]
    result: Value
