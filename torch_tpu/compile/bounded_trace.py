"""Lowering a graph with sizes that vary, by the fake tensors of its nodes; see `bounded`."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_leaves

from torch_tpu import hlo
from torch_tpu.compile.bounded import BoundedRun, Plan, Same, Size, hint, sizes_of
from torch_tpu.compile.interpreter import FAILURES
from torch_tpu.eager.call import Call
from torch_tpu.eager.trace import Trace
from torch_tpu.errors import BoundedError
from torch_tpu.hlo import Value, dims, layout
from torch_tpu.ops import movement, registry, schema
from torch_tpu.ops.registry import Spec
from torch_tpu.tensor import views


class BoundedTrace(Trace):
    """A trace in which fake tensors stand for values, of shapes with Dims."""

    def __init__(self, trace: Trace, fake_mode: Any, same: Same):
        """Goes on where a trace, of which only inputs are known, ends."""
        super().__init__(trace.platform, trace._rng)
        self.cells, self.starts = trace.cells, trace.starts
        self.fakes: dict[int, tuple[torch.Tensor, Value]] = {}
        self.inputs: dict[int, torch.Tensor] = {}
        """Meta tensors by the ids of the fake tensors they are inputs for."""
        self.fake_mode = fake_mode
        self.same = same
        self._known: Any = None

    def shape_of(self, fake: torch.Tensor) -> tuple[int, ...]:
        return tuple(self._dim(size) for size in fake.shape)

    def _dim(self, size: Any) -> Any:
        """A symbolic number as lowerings take it."""
        if isinstance(size, torch.SymInt):
            return dims.dim(size.node.expr.xreplace(self.same))
        if isinstance(size, torch.SymFloat):
            return dims.Computed(size.node.expr.xreplace(self.same))
        if isinstance(size, torch.SymBool):
            raise BoundedError(f"{size} is decided by sizes")
        return size

    def assign(self, fake: torch.Tensor, value: Value) -> None:
        """Gives a fake tensor its value, which must have its shape."""
        shape = self.shape_of(fake)
        if value.shape != shape:
            raise BoundedError(f"a result has the shape {value.shape}, not {shape}")
        self.fakes[id(fake)] = (fake, value)

    def is_contiguous(self, tensor: torch.Tensor) -> bool:
        """By the sizes that the graph was made with: asking the fake tensor itself would count as a decision by sizes."""
        sizes, strides = [tuple(map(hint, given)) for given in (tensor.shape, tensor.stride())]
        return strides == views.contiguous_strides(sizes)

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Numbers that vary are tensors on the host, too."""
        return id(tensor) not in self.fakes and super().is_constant(tensor)

    def read(self, tensor: torch.Tensor) -> Value:
        found = self.fakes.get(id(tensor))
        return super().read(tensor) if found is None else found[1]

    def write(self, tensor: torch.Tensor, value: Value, *, uniform: bool = False) -> None:
        if id(tensor) not in self.fakes:
            raise BoundedError("a tensor is written that the graph does not hold")
        value = hlo.broadcast_to(hlo.convert(value, tensor.dtype), self.shape_of(tensor))
        self.assign(tensor, value)
        given = self.inputs.get(id(tensor))
        if given is not None:
            whole = layout.compact(value, range(value.ndim))
            super().write(given, fitted(whole, given.shape))

    def call(self, op: OpOverload, args: Any, kwargs: Any, data: Any = None, known: Any = None) -> Any:
        """As `Trace.call`.

        Args:
            known: the fake tensors of the result, if they are known.
        """
        if op is torch.ops.aten.as_strided.default:
            return self._strided(known, *args, **kwargs)
        if schema.returns_view(op):
            op = copying(op)
        elif op._schema.is_mutable and not all(
            target is None or id(target) in self.inputs for target in self._targets(op, *self._bound(op, args, kwargs))
        ):
            raise BoundedError(f"{registry.overload_name(op)} writes to a tensor in between")
        self._known = known
        return super().call(op, args, kwargs, data)

    def _strided(self, known: Any, x: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> torch.Tensor:
        """The values of graphs lie one after the other, whatever strides PyTorch says they have."""
        if known is None or not x.is_contiguous():
            raise BoundedError("a view by strides is not lowered with sizes that vary")
        size, stride, offset = map_aggregate((size, stride, storage_offset or 0), self._dim)
        self.assign(known, movement.strided(self.read(x), size, stride, offset))
        return known

    @staticmethod
    def _bound(op: OpOverload, args: Any, kwargs: Any) -> tuple[dict[str, Any], Sequence[int]]:
        bound = dict(kwargs)
        for argument, value in zip(op._schema.arguments, args, strict=False):
            bound[argument.name] = value
        return bound, schema.form(op).written

    def _metadata(self, op: Any, rule: Any, form: Any, bound: dict[str, Any]) -> tuple[tuple[Spec, ...], Any]:
        answer, self._known = self._known, None
        if answer is None:
            called = form.functional if form.written else op
            names = {argument.name for argument in called._schema.arguments}
            with self.fake_mode:
                answer = called(**{name: value for name, value in bound.items() if name in names})
        specs = [
            Spec((), torch.float32) if item is None else Spec(self.shape_of(item), item.dtype)
            for item in _results(answer)
        ]
        return tuple(specs), answer

    def _values(self, op: Any, functional: Any, rule: Any, bound: Any, data: Any) -> Any:
        return super()._values(op, functional, rule, map_aggregate(bound, self._dim), data)

    def _new_results(self, op: OpOverload, bound: dict[str, Any], meta: Any, results: list[Value | None]) -> Any:
        meta, self._known = (self._known if meta is None else meta), None
        if meta is None:
            raise BoundedError(f"PyTorch does not say which shape {registry.overload_name(op)} returns")
        for fake, value in zip(_results(meta), results, strict=True):
            if isinstance(fake, torch.Tensor) and value is not None:
                if id(fake) in self.fakes:
                    raise BoundedError(f"{registry.overload_name(op)} returns a tensor that stands for another already")
                shape = self.shape_of(fake)
                if value.shape == (0,) != shape:  # statistics: PyTorch says for the CPU alone that there are none
                    value = hlo.full(shape, 0, value.dtype)  # which nothing reads
                self.assign(fake, value)
        return meta


def _results(answer: Any) -> list[torch.Tensor | None]:
    """The tensors among what an operator returns, and those it leaves out."""
    return [item for item in tree_leaves(answer) if item is None or isinstance(item, torch.Tensor)]


def copying(op: OpOverload) -> OpOverload:
    """The overload that does the same as a view and returns a new tensor."""
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").lstrip("_") + "_copy", None)
    found = getattr(packet, op._schema.overload_name or "default", None)
    if found is None:
        raise BoundedError(f"{registry.overload_name(op)} makes a view that is not lowered with sizes that vary")
    copy: OpOverload = found
    return copy


def num_guards(env: ShapeEnv) -> int:
    """How often PyTorch has decided something by the sizes."""
    return len(env.guards) + sum(env.counter.values())


def fitted(value: Value, shape: Sequence[int]) -> Value:
    """The array of a value, its bounded dimensions brought to given sizes."""
    value = layout.compact(value, range(value.ndim))
    raw = layout.retag(value, [dims.bound(size) for size in value.shape])
    for axis, size in enumerate(shape):
        raw = layout.resized(raw, axis, size) if raw.shape[axis] != size else raw
    return raw


class BoundedInterpreter:
    """Lowers a graph by the fake tensors of its nodes.

    Args:
        made: the graph's plan.
        bounds: of the plan's variables.
        values: theirs, 0-d.
    """

    def __init__(
        self, trace: Trace, made: Plan, fake_mode: Any, bounds: Mapping[Any, int], values: Mapping[Any, Value]
    ):
        self.trace = BoundedTrace(trace, fake_mode, made.same)
        self.plan = made
        self.bounds = bounds
        for symbol, most in bounds.items():
            dims.declare(hlo.current(), symbol, values[symbol], most, made.least(symbol, most))

    @classmethod
    def of(cls, call: Call, run: BoundedRun) -> BoundedInterpreter:
        """For a call of a graph: its trace goes on in the interpreter's."""
        symbols, count = run.plan.symbols, len(call.meta_args)
        extra = iter(range(run.num_inputs, count))
        places = [place.input if place.axis < 0 else next(extra) for place in run.plan.places]
        values = {symbol: call.data[place, 0] for symbol, place in zip(symbols, places, strict=True)}
        bounds = dict(zip(symbols, call.meta_args[count - len(symbols) :], strict=True))
        made = cls(call.trace, run.plan, run.fake_mode, bounds, values)
        call.trace = made.trace
        return made

    def run(self, module: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        """The graph's outputs: fake tensors, which the trace knows, and numbers.

        Raises:
            BoundedError: a node cannot be lowered with sizes that vary.
        """
        env = self.trace.fake_mode.shape_env
        decided = num_guards(env)
        answer = self._run(module, args)
        if num_guards(env) != decided:
            raise BoundedError("PyTorch's definition of an operator decides by the sizes")
        return answer

    def _run(self, module: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        values: dict[fx.Node, Any] = {}
        queue = iter(args)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = self._input(node, next(queue))
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(module)
            elif node.op == "output":
                answer = map_arg(node.args[0], values.__getitem__)
                return list(answer) if isinstance(answer, (tuple, list)) else [answer]
            else:
                values[node] = self._call(node, values)
        raise AssertionError("a graph has an output node")

    def _input(self, node: fx.Node, given: Any) -> Any:
        fake = node.meta.get("val")
        if not isinstance(given, torch.Tensor):
            return given if fake is None or not isinstance(fake, torch.SymInt) else fake
        assert isinstance(fake, torch.Tensor), node.format_node()
        array = Trace.read(self.trace, given)
        shape = [
            size if isinstance(size, int) else dims.plain(size, bound)
            for size, bound in zip(sizes_of(fake, self.trace.same), array.shape, strict=True)
        ]
        self.trace.inputs[id(fake)] = given
        self.trace.assign(fake, layout.retag(array, shape))
        return fake

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        known = node.meta.get("val")
        if isinstance(known, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return known
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        try:
            if isinstance(node.target, HigherOrderOperator):
                raise BoundedError(f"{node.target.name()} is not lowered with sizes that vary")
            if not isinstance(node.target, OpOverload):
                assert callable(node.target), node.format_node()
                return node.target(*args, **kwargs)
            known = None if node.target._schema.is_mutable else known
            return self.trace.call(node.target, args, kwargs, known=known)
        except dims.DifferentSizes:
            raise
        except FAILURES as error:
            raise BoundedError(f"{node.format_node()}: {type(error).__name__}: {error}") from error


def describe(call: Call, interpreter: BoundedInterpreter, answers: Sequence[Any]) -> tuple[list[Any], list[Value]]:
    """The entry's returns, and the values of the new tensors in order."""
    trace = interpreter.trace
    places = {id(arg): place for place, arg in enumerate(call.meta_args) if isinstance(arg, torch.Tensor)}
    made = interpreter.plan
    returns: list[Any] = []
    results: list[Value] = []
    for place, (item, sizes) in enumerate(zip(answers, made.outputs, strict=True)):
        if place in made.aliases or place in made.computed:
            returns.append(None)
            continue
        if not isinstance(item, torch.Tensor):
            varying = isinstance(item, torch.SymInt) and sizes is not None
            returns.append(None if item is None else ("constant", 0) if varying else ("constant", item))
            continue
        given = trace.inputs.get(id(item))
        if given is not None:
            returns.append(places[id(given)])
            continue
        value = trace.read(item)
        shape = [_output_bound(size, value.shape[axis], interpreter.bounds, made) for axis, size in
                 enumerate(sizes_of(item, trace.same))]  # fmt: skip
        order = _order(item)
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis], step = step, step * max(shape[axis], 1)
        meta = torch.empty_strided(shape, strides, dtype=item.dtype, device="meta")
        trace.bind(meta, None)
        Trace.write(trace, meta, fitted(value, shape))
        one, array = call.new_tensor(meta)
        returns.append(one)
        results.append(array)
    return returns, results


def _output_bound(size: Size, dim: int, bounds: Mapping[Any, int], made: Plan) -> int:
    """A result a little longer than a variable has the variable's bound, so that it can be the next call's input."""
    if isinstance(size, int):
        return size
    for symbol, most in bounds.items():
        more = sympy.expand(size - symbol)
        if more.is_Integer and 0 <= more <= made.margins.get(symbol, 0):
            return most
    return dims.interval(dim)[1]


def _order(fake: torch.Tensor) -> list[int]:
    """The dimensions of a result from the largest stride to the smallest, by the sizes that the graph was made with."""
    strides = [hint(stride) for stride in fake.stride()]
    return sorted(range(fake.dim()), key=lambda axis: (-strides[axis], axis))
