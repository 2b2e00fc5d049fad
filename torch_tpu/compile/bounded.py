"""Graphs with sizes that vary: one program for all sizes up to a bound.

A graph of Dynamo's or AOTAutograd's has symbolic sizes, and each of its nodes carries a fake tensor that says its shape
in them. A `BoundedTrace` lowers such a graph with `hlo.Dim`s in the place of those sizes. It is functional: views are
lowered by their copying forms, and tensors are known by their fake tensors. What cannot be done so raises BoundedError,
and the graph is compiled for each set of sizes instead.

When it runs, inputs with bounded dimensions are padded to the bounds (those that come from a bounded graph are already,
see `eager/padded.py`), and results belong to tensors of the real sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sympy
import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torch_tpu import _plug
from torch_tpu.compile.bounds import Bounds
from torch_tpu.eager import padded
from torch_tpu.errors import BoundedError
from torch_tpu.hlo import dims
from torch_tpu.tensor import views

Size = Any
"""An int, or an expression where it varies."""


COMPUTED = (torch.SymFloat, torch.SymBool)

Same = Mapping[Any, Any]
"""Variables in whose place others stand, since an operator needs them to be equal."""


def sizes_of(tensor: torch.Tensor, same: Same) -> tuple[Size, ...]:
    """A fake tensor's sizes: ints and expressions."""
    return tuple(_size(size, same) for size in tensor.shape)


def _size(size: int | torch.SymInt, same: Same) -> Size:
    if not isinstance(size, torch.SymInt):
        return size
    expr = size.node.expr.xreplace(same)
    return int(expr) if expr.is_Integer else dims.simplified(expr)


class Place(NamedTuple):
    """Where the value of a variable is found: an input, or the size of its dimension less a number."""

    input: int
    axis: int = -1
    more: int = 0

    def value(self, args: Sequence[Any]) -> int:
        given = args[self.input]
        return given if self.axis < 0 else given.shape[self.axis] - self.more


@dataclass
class Plan:
    """What of a graph's inputs and outputs varies."""

    symbols: list[Any] = field(default_factory=list)
    """The variables."""
    places: list[Place] = field(default_factory=list)
    """Where their values are found."""
    inputs: dict[int, tuple[Size, ...]] = field(default_factory=dict)
    """The sizes of inputs that have bounded dimensions."""
    numbers: list[int] = field(default_factory=list)
    """Inputs that are numbers and vary."""
    outputs: list[tuple[Size, ...] | Size | None] = field(default_factory=list)
    """The sizes of outputs that have bounded dimensions, and outputs that are sizes."""
    computed: dict[int, tuple[type, Any]] = field(default_factory=dict)
    """Outputs that are floats or bools computed from sizes: what they are, and the expression."""
    aliases: dict[int, tuple[str, int, torch.dtype]] = field(default_factory=dict)
    """Outputs that are views: of which input ("input", place) or other output ("output", place)."""
    same: dict[Any, Any] = field(default_factory=dict)
    equal: list[tuple[Place, Place]] = field(default_factory=list)
    """What must be equal for that."""
    sizes: set[Any] = field(default_factory=set)
    """Variables that are sizes of tensors, and so not negative."""
    margins: dict[Any, int] = field(default_factory=dict)
    """By how much an output is longer than a variable."""
    evaluate: Callable[..., Any] | None = None
    """From the values of the variables the outputs' sizes, and of views (sizes, strides, offset)."""

    def least(self, symbol: Any, most: int) -> int:
        """The least that a variable can be whose bound is `most`."""
        return min(LEAST, most) if symbol.is_positive else 0 if symbol in self.sizes else -most

    def upper(self, size: Size, known: Mapping[Any, int]) -> int:
        """The most that a size of an input can be, for the variables' bounds."""
        if isinstance(size, int):
            return size
        found = known.get(size)
        if found is not None:
            return found
        ranges = {symbol: ValueRanges(self.least(symbol, most), most) for symbol, most in known.items()}
        return int(bound_sympy(size, ranges).upper)

    def bind(self, args: Sequence[Any]) -> list[int]:
        """The values of the variables.

        Raises:
            BoundedError: some are not equal that the program needs to be.
        """
        for one, other in self.equal:
            if one.value(args) != other.value(args):
                raise BoundedError("sizes differ that were equal when the program was made")
        return [place.value(args) for place in self.places]


def plan(module: fx.GraphModule, same: Same, between: Collection[int] = (), device: str = "tpu") -> Plan | None:
    """The plan of a graph, or None where no size varies, or one of a tensor that is on another device.

    Args:
        same: variables that are equal.
        between: the inputs that another part of a split graph makes: dense, whatever PyTorch knows of their strides.
        device: the type of the device that the graph was traced on.
    """
    made = Plan(same=dict(same))
    known: dict[Any, Place] = {}
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and not isinstance(_size(value, {}), int):
            made.numbers.append(place)
            if _size(value, {}).is_Symbol:
                known[_size(value, {})] = Place(place)
        elif isinstance(value, torch.Tensor):
            sizes = sizes_of(value, {})
            if any(not isinstance(size, int) for size in sizes):
                if value.device.type != device:
                    return None
                made.inputs[place] = sizes
    for place, sizes in made.inputs.items():
        for axis, size in enumerate(sizes):
            symbol, more = _symbol_and_rest(size)
            if symbol is not None:
                known.setdefault(symbol, Place(place, axis, more))
    for symbol, other in same.items():
        made.equal.append((known.pop(symbol), known[other]))
    made.inputs = {
        place: tuple(size if isinstance(size, int) else size.xreplace(same) for size in sizes)
        for place, sizes in made.inputs.items()
    }
    used = {same.get(symbol, symbol) for symbol in _used(module)}
    unknown = set().union(*map(_variables, made.inputs.values())) - known.keys()
    if unknown:
        raise BoundedError(f"no input has the size {', '.join(map(str, unknown))}")
    made.symbols = [symbol for symbol in known if symbol in used]
    made.places = [known[symbol] for symbol in made.symbols]
    if not made.symbols:
        return None
    for node in module.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if not isinstance(value, torch.Tensor):
                continue
            if value.dtype is torch.complex32:
                raise BoundedError("complex32 is held as pairs of float16, which sizes that vary do not describe")
            made.sizes |= set(sizes_of(value, same))
    _plan_outputs(module, made, between)
    return made


def _symbol_and_rest(size: Size) -> tuple[Any, int]:
    """(s, c) for a size s + c, else (None, 0)."""
    if isinstance(size, int) or len(size.free_symbols) != 1:
        return None, 0
    (symbol,) = size.free_symbols
    rest = sympy.expand(size - symbol)
    return (symbol, int(rest)) if rest.is_Integer else (None, 0)


def _variables(sizes: Sequence[Size]) -> set[Any]:
    return set().union(*(set() if isinstance(size, int) else size.free_symbols for size in sizes))


def _used(module: fx.GraphModule) -> set[Any]:
    """The variables in the sizes of tensors and in what operators are called with."""
    found: set[Any] = set()
    for node in module.graph.nodes:
        values = tree_leaves(node.meta.get("val"))
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            values += [source.meta.get("val") for source in node.all_input_nodes]
        if node.op == "output":
            results = [source.meta.get("val") for source in node.all_input_nodes]
            found |= set().union(*(value.node.expr.free_symbols for value in results if isinstance(value, COMPUTED)))
        for value in values:
            sizes = value.shape if isinstance(value, torch.Tensor) else [value]
            if isinstance(value, torch.SymInt) and node.op != "call_function":
                continue
            for size in sizes:
                if isinstance(size, torch.SymInt):
                    found |= size.node.expr.free_symbols
    return found


def _plan_outputs(module: fx.GraphModule, made: Plan, between: Collection[int]) -> None:
    (output,) = module.graph.find_nodes(op="output")
    items = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    values = [item.meta.get("val") if isinstance(item, fx.Node) else item for item in items]
    for value in values:
        found: tuple[Size, ...] | Size | None = None
        if isinstance(value, torch.SymInt) and not isinstance(_size(value, made.same), int):
            found = _size(value, made.same)
        elif isinstance(value, COMPUTED):
            kind = float if isinstance(value, torch.SymFloat) else bool
            made.computed[len(made.outputs)] = kind, value.node.expr.xreplace(made.same)
        elif isinstance(value, torch.Tensor) and any(not isinstance(s, int) for s in sizes_of(value, made.same)):
            found = sizes_of(value, made.same)
            for size in found:
                for symbol in made.symbols:
                    more = sympy.expand(size - symbol)
                    if more.is_Integer and more > 0:
                        made.margins[symbol] = max(int(more), made.margins.get(symbol, 0))
        made.outputs.append(found)
    bases = _find_views(module, made, items, values, between)
    wanted: list[Any] = [0 if item is None else item for item in made.outputs]
    for place, base in bases.items():
        wanted[place] = _layout(items[place].meta["val"], base, made.same)
    leaves = [*tree_leaves(wanted), *(expr for _, expr in made.computed.values())]
    unknown = set().union(*(getattr(leaf, "free_symbols", set()) for leaf in leaves)) - {*made.symbols}
    if unknown:
        raise BoundedError(f"a result, or its layout, depends on {', '.join(map(str, unknown))}")
    if made.aliases or any(item is not None for item in made.outputs):
        made.evaluate = _function(made.symbols, wanted)


def _find_views(
    module: fx.GraphModule, made: Plan, items: Sequence[Any], values: Sequence[Any], between: Collection[int]
) -> dict[int, torch.Tensor]:
    """What outputs are views of, by their place, as fake tensors.

    AOTAutograd makes a view anew from what it is a view of, by the strides and the offset of what the graph returns.
    What is only a part of its storage is made as a tensor of its own, so that nothing else can be a view of it.
    """
    owners: dict[int, tuple[str, int, torch.Tensor]] = {}
    bases: dict[int, torch.Tensor] = {}
    inputs = module.graph.find_nodes(op="placeholder")
    for place, node in enumerate(inputs):
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and (place not in between or _is_whole(fake)):
            owners.setdefault(_storage(fake), ("input", place, fake))
    tensors = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    for place in sorted(tensors, key=lambda place: not _is_whole(values[place])):
        if _is_whole(values[place]):
            owners.setdefault(_storage(values[place]), ("output", place, values[place]))
        kind, source, base = owners.get(_storage(values[place]), ("output", place, None))
        if base is not None and (kind, source) != ("output", place) and items[place] not in inputs:
            made.aliases[place] = (kind, source, values[place].dtype)
            bases[place] = base
    return bases


def _alias(base: torch.Tensor, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], distance: int) -> Any:
    """A tensor on the storage of another one.

    Args:
        distance: in bytes, from where the other one begins.
    """
    offset = (base.storage_offset() * base.itemsize + distance) // dtype.itemsize
    if dtype == base.dtype:
        return base.as_strided(size, stride, offset)
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), offset, size, stride)


def _is_whole(fake: torch.Tensor) -> bool:
    """Whether a tensor has all of its storage, as far as is known from the sizes that the graph was made with."""
    return hint(fake.untyped_storage().nbytes()) == _elements(fake) * fake.dtype.itemsize


def _storage(fake: torch.Tensor) -> int:
    return fake.untyped_storage()._cdata


def _elements(fake: torch.Tensor) -> int:
    return hint(fake.numel())


def hint(number: int | torch.SymInt) -> int:
    """The number that the graph was made with; where data decides, a large one."""
    if not isinstance(number, torch.SymInt):
        return number
    return 1 << 40 if number.node.hint is None else int(number.node.hint)


def _layout(fake: torch.Tensor, base: torch.Tensor, same: Same) -> tuple[Any, ...]:
    """Sizes, strides, and how far in bytes it is from where its base begins."""
    strides = tuple(_size(stride, same) for stride in fake.stride())
    start, base_start = (_size(x.storage_offset(), same) * x.dtype.itemsize for x in (fake, base))
    return sizes_of(fake, same), strides, start - base_start


def _function(symbols: Sequence[Any], wanted: Any) -> Callable[..., Any]:
    """A function of the variables that evaluates expressions."""
    for leaf in tree_leaves(wanted):
        for call in leaf.atoms(sympy.Function) if isinstance(leaf, sympy.Expr) else ():
            if type(call).__name__ not in _FUNCTIONS:
                raise BoundedError(f"{leaf} is not computed from sizes")
    found: Callable[..., Any] = sympy.lambdify(symbols, wanted, modules=[_FUNCTIONS, "math"])
    return found


_FUNCTIONS = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": max,
    "Min": min,
    "ToFloat": float,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloatPow": operator.pow,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
}


class BoundedRun:
    """How a graph with a plan is called."""

    def __init__(self, module: fx.GraphModule, made: Plan, bounds: Bounds, written: set[int], kind: str):
        self.plan = made
        self.bounds = bounds
        self.all_written = written
        self.written = written & made.inputs.keys()
        inputs = module.graph.find_nodes(op="placeholder")
        kinds = [_kind(node, place in made.numbers) for place, node in enumerate(inputs)]
        extra = [place for place in made.places if place.axis >= 0]
        self.num_inputs = len(inputs)
        # then the values of variables that no input is, as data, and the bounds, as part of the signature
        self.number = _plug.define_graph(kinds + ["float"] * len(extra) + ["other"] * len(made.symbols), written, kind)
        self._random_taken: Callable[..., Any] = lambda *values: 0
        self.fake_mode: Any = detect_fake_mode([node.meta.get("val") for node in inputs])
        self._take_limits()

    def _take_limits(self) -> None:
        """What PyTorch knows of how large sizes can be."""
        for symbol in self.plan.symbols:
            known = self.fake_mode.shape_env.var_to_range.get(symbol)
            most = getattr(known, "upper", None)
            if most is not None and most.is_Integer and most < 1 << 31:
                self.bounds.limits[symbol] = int(most)

    def takes_random(self, number: Size) -> None:
        """Told when the graph is lowered: how many random numbers it takes."""
        self._random_taken = _function(self.plan.symbols, dims.as_expr(number))

    def __call__(self, args: list[Any]) -> list[Any]:
        made = self.plan
        values = made.bind(args)
        bounds = self.bounds.choose(made.symbols, values, made.margins)
        known = dict(zip(made.symbols, bounds, strict=True))
        given = list(args)
        for place, sizes in made.inputs.items():
            given[place] = padded.padded_tensor(args[place], tuple(made.upper(size, known) for size in sizes))
        extra = [value for value, place in zip(values, made.places, strict=True) if place.axis >= 0]
        before = {place: _plug.get_value(given[place]) for place in self.written}
        operands = [*given, *extra, *bounds]
        answer: list[Any] = _plug.call_graph(self.number, operands, lambda: self._random_taken(*values))
        for place, array in before.items():
            self._write_back(args[place], given[place], array)
        for place, (made_as, expr) in made.computed.items():
            known = dict(zip(made.symbols, values, strict=True))
            answer[place] = made_as(sympy_interp(PythonReferenceAnalysis, known, expr))
        if made.evaluate is not None:
            given_at = {id(item): place for place, item in enumerate(given) if place in made.inputs}
            evaluated = made.evaluate(*values)
            for place, sizes in enumerate(evaluated):
                if made.outputs[place] is None or place in made.aliases:
                    continue
                item = answer[place]
                if not isinstance(item, torch.Tensor):
                    answer[place] = int(sizes)
                elif id(item) in given_at:
                    answer[place] = args[given_at[id(item)]]
                else:
                    answer[place] = padded.real_tensor(item, [int(size) for size in sizes])
            for place, (kind, owner, dtype) in made.aliases.items():
                base = (args if kind == "input" else answer)[owner]
                answer[place] = _alias(base, dtype, *evaluated[place])
        return answer

    def _write_back(self, target: torch.Tensor, whole: torch.Tensor, before: Any) -> None:
        """An input that was written: its storage gets the new array."""
        after = _plug.get_value(whole)
        if after is before or whole is target:
            return
        if target.is_contiguous() and views.is_whole(target):
            padded.set_real(target, after, tuple(whole.shape), tuple(target.shape))
        else:
            target.copy_(padded.real_tensor(whole, target.shape))


def equate(made: Plan, sizes: Sequence[Any], args: Sequence[Any]) -> dict[Any, Any] | None:
    """Which variables must be equal so that sizes are the same, if they are in this call; else None."""
    first, second = sizes[:2]
    gap = sympy.expand(first - second)
    symbols = sorted(gap.free_symbols, key=str)
    if len(sizes) != 2 or len(symbols) != 2 or sympy.expand(gap - symbols[0] + symbols[1]) * sympy.expand(
        gap + symbols[0] - symbols[1]
    ) != 0 or not set(symbols) <= set(made.symbols):  # fmt: skip
        return None
    values = dict(zip(made.symbols, made.bind(args), strict=True))
    if values[symbols[0]] != values[symbols[1]]:
        return None
    kept, gone = symbols
    return {**{old: kept if new == gone else new for old, new in made.same.items()}, gone: kept}


LEAST = 2
"""Dynamo makes graphs of their own for sizes of 0 and 1."""


def _kind(node: fx.Node, is_number: bool) -> str:
    value = node.meta.get("val")
    if is_number:
        return "float"  # an operand
    return "tensor" if value is None or isinstance(value, torch.Tensor) else "other"
