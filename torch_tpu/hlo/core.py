"""Values, blocks and functions: the smallest part of StableHLO's builder.

A `Value` is an SSA value of a function under construction. Functions are written as text, which is ten times
faster to build than objects and is what people read. `emit` appends one operation to the innermost open block of
the innermost open function of this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, overload

import torch

from torch_tpu.hlo import types

Number = bool | int | float | complex


class Value:
    """An SSA value: a name, a shape and a dtype.

    `weak` marks what came from a Python number: it takes part in type promotion as PyTorch's wrapped numbers do.
    Python's arithmetic operators work and broadcast (see `hlo.add` and the others); comparisons are functions.
    """

    __slots__ = ("name", "shape", "dtype", "weak")

    def __init__(self, name: str, shape: Sequence[int], dtype: torch.dtype, weak: bool = False):
        self.name = name
        self.shape = tuple(shape)
        self.dtype = dtype
        self.weak = weak

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def type(self) -> str:
        return types.tensor_type(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"Value({self.name}: {self.type})"

    # The operators are set in hlo/arith.py, where the functions they stand for live.
    __add__: Callable[[Value, Any], Value]
    __radd__: Callable[[Value, Any], Value]
    __sub__: Callable[[Value, Any], Value]
    __rsub__: Callable[[Value, Any], Value]
    __mul__: Callable[[Value, Any], Value]
    __rmul__: Callable[[Value, Any], Value]
    __truediv__: Callable[[Value, Any], Value]
    __rtruediv__: Callable[[Value, Any], Value]
    __neg__: Callable[[Value], Value]
    __and__: Callable[[Value, Any], Value]
    __or__: Callable[[Value, Any], Value]
    __xor__: Callable[[Value, Any], Value]
    __invert__: Callable[[Value], Value]


class Block:
    """Lines of text, and the constants already written in it (so that each is written once)."""

    __slots__ = ("lines", "constants")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[Any, Value] = {}


class Function:
    """A function under construction: `with Function(...) as f:` makes it the target of `emit`."""

    def __init__(self, name: str = "main"):
        self.name = name
        self.arguments: list[Value] = []
        self.attributes: list[str] = []
        self.blocks = [Block()]
        self.num_values = 0
        self.sizes: dict[Any, Any] = {}
        """What sizes that vary are made of (see `dims`); empty in most functions."""
        self.intervals: dict[Any, tuple[int, int]] = {}
        self.turned: dict[str, Value] = {}
        """By a value's name: the value whose order along dimension 0 it reverses."""
        self.sources: dict[int, Any] = {}
        """By a value's number: what of the user's program it comes from, where somebody records that."""
        self.inputs: Sequence[Any] = ()
        """What the operator that is being lowered was called with: for errors that the program raises while it runs."""
        self.narrow = False
        """Whether it is for a platform without 64-bit integers, which needs their divisions written out."""

    def argument(self, shape: Sequence[int], dtype: torch.dtype, weak: bool = False) -> Value:
        value = Value(f"%arg{len(self.arguments)}", shape, dtype, weak)
        self.arguments.append(value)
        self.attributes.append("")
        return value

    def alias(self, argument: int, output: int) -> None:
        """Donates an argument's memory to an output."""
        self.attributes[argument] = f" {{tf.aliasing_output = {output} : i32}}"

    def donated(self) -> list[int]:
        """The arguments whose memory is given to an output."""
        return [index for index, attribute in enumerate(self.attributes) if "aliasing_output" in attribute]

    def fresh(self) -> str:
        self.num_values += 1
        return f"%{self.num_values}"

    def __enter__(self) -> Function:
        _open_functions().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _open_functions().pop()

    def define(self, results: Sequence[Value], name: str = "main", *, public: bool = True) -> str:
        """The finished function's text; only a public one says whose memory its outputs take."""
        attributes = self.attributes if public else [""] * len(self.arguments)
        arguments = ", ".join(
            f"{value.name}: {value.type}{a}" for value, a in zip(self.arguments, attributes, strict=True)
        )
        types = ", ".join(value.type for value in results)
        lines = "\n".join(self.blocks[0].lines)
        names = ", ".join(value.name for value in results)
        return (
            f"func.func {'public' if public else 'private'} @{name}({arguments}) -> ({types}) {{\n{lines}\n"
            f"return {names}{' : ' if results else ''}{types}\n}}\n"
        )

    def module(self, results: Sequence[Value], others: Sequence[str] = ()) -> str:
        """The finished module's text.

        Args:
            others: the text of private functions that this one calls.
        """
        return f"module @{self.name} {{\n{self.define(results)}{''.join(others)}}}\n"


_state = threading.local()


def _open_functions() -> list[Function]:
    try:
        return _state.functions
    except AttributeError:
        _state.functions = []
        return _state.functions


def current() -> Function:
    """The function that `emit` writes to."""
    functions = _open_functions()
    if not functions:
        raise RuntimeError("no hlo.Function is open in this thread; use `with hlo.Function():`")
    return functions[-1]


def block() -> Block:
    return current().blocks[-1]


class Place(NamedTuple):
    """What of a Python program an operation comes from."""

    name: str
    """Of the operator, such as "aten::add.Tensor"."""
    file: str
    line: int
    column: int


_location = ""
"""What `emit` writes behind each operation: nothing, unless somebody wants to know its place."""


@contextmanager
def placed(place: Place | None) -> Iterator[None]:
    """Meanwhile operations are written with their place, which XLA keeps in its metadata. It changes the text, and so the
    program's key in the caches. For all threads."""
    global _location
    before = _location
    if place is None:
        _location = ""
    else:
        name, file = (text.replace("\\", "\\\\").replace('"', "'") for text in (place.name, place.file))
        _location = f' loc("{name}"("{file}":{place.line}:{place.column}))'
    try:
        yield
    finally:
        _location = before


def emit(operation: str, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Appends `%n = operation` and returns the value; the operation's text includes its type signature."""
    function = current()
    value = Value(function.fresh(), shape, dtype)
    function.blocks[-1].lines.append(f"{value.name} = {operation}{_location}")
    return value


def emit_many(operation: str, results: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[Value]:
    """As `emit`, for an operation with any number of results."""
    function = current()
    if not results:
        function.blocks[-1].lines.append(f"{operation}{_location}")
        return []
    name = function.fresh()
    function.blocks[-1].lines.append(f"{name}:{len(results)} = {operation}{_location}")
    return [Value(f"{name}#{index}", shape, dtype) for index, (shape, dtype) in enumerate(results)]


@contextmanager
def open_block() -> Iterator[Block]:
    """Collects what is emitted inside into a block of its own, for `region`."""
    function = current()
    function.blocks.append(Block())
    try:
        yield function.blocks[-1]
    finally:
        function.blocks.pop()


def depth() -> int:
    """How many blocks are open, one in the other."""
    return len(current().blocks)


@contextmanager
def outer_block(depth: int) -> Iterator[None]:
    """Emits into the innermost of the blocks that were open at an earlier `depth()`: in front of what is built inside."""
    blocks = current().blocks
    inner = blocks[depth:]
    del blocks[depth:]
    try:
        yield
    finally:
        blocks.extend(inner)


def region(parameters: Sequence[Value], body: Callable[..., Value | Sequence[Value]]) -> tuple[str, list[Value]]:
    """The text of a region with one block, and what it returns. Outer values can be used inside.

    Args:
        parameters: what the block's arguments look like (only shape and dtype are used).
        body: called with the block's arguments, returns the values that the block returns.
    """
    function = current()
    arguments = [Value(f"%b{function.fresh()[1:]}", value.shape, value.dtype) for value in parameters]
    with open_block() as inner:
        returned = body(*arguments)
        results = [returned] if isinstance(returned, Value) else list(returned)
        names = ", ".join(value.name for value in results)
        signature = ", ".join(value.type for value in results)
        inner.lines.append(f"stablehlo.return {names}{' : ' if results else ''}{signature}")
    header = ", ".join(f"{value.name}: {value.type}" for value in arguments)
    label = f"^bb0({header}):\n" if arguments else ""
    return "{\n" + label + "\n".join(inner.lines) + "\n}", results


@overload
def as_list(value: Value) -> list[Value]: ...
@overload
def as_list(value: Sequence[Value]) -> list[Value]: ...
def as_list(value: Value | Sequence[Value]) -> list[Value]:
    return [value] if isinstance(value, Value) else list(value)
