"""From ATen calls on meta tensors to a StableHLO function.

A `Trace` gives every storage a *cell* that holds an SSA value, reads tensors through their views and writes them back.
One call, a decomposition's many calls and a recorded sequence are all traced in this way: sizes, strides, dtypes and
errors come from PyTorch's meta kernels, values from the lowerings.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu import hlo
from torch_tpu.eager import pointwise
from torch_tpu.eager.observe import observers
from torch_tpu.errors import UnsupportedOpError
from torch_tpu.hlo import Value
from torch_tpu.ops import bounds, decomp, dtypes, random, registry, schema, shapes
from torch_tpu.ops.registry import Context, Lowering, Spec
from torch_tpu.stats import counters
from torch_tpu.tensor import views
from torch_tpu.tensor.views import View

WIDE = (torch.float64, torch.complex128, 7, 10)
"""Dtypes that make a Python float float64; the numbers are theirs in an argument of the type ScalarType."""
UNIFORM = frozenset({"aten::fill.Scalar", "aten::fill.Tensor", "aten::zero", "aten::threshold"})
"""Operators that write the same to elements that overlap: one number everywhere, or what was there, cut."""


class Cell:
    """What a storage holds while it is traced."""

    __slots__ = ("value", "tensor", "planned")

    def __init__(self, value: Value | None, tensor: torch.Tensor):
        self.value = value
        self.planned: Sequence[int] = ()
        """The shape that the first value should have, if it is not yet there and a view is written."""
        self.tensor = tensor  # keeps the storage, and so its identity, alive


class RandomState:
    """The generator's seed and offset: an argument of a function, made when it is first asked for."""

    def __init__(self, function: hlo.Function):
        self.function = function
        self.value: Value | None = None

    def __call__(self) -> Value:
        if self.value is None:
            self.value = self.function.argument((2,), torch.uint64)
        return self.value


@contextlib.contextmanager
def without_alerts() -> Iterator[None]:
    """For meta kernels, some of which say that GPUs do not compute the same every time; the lowerings do."""
    state = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if not state[0]:
        yield
        return
    torch._C._set_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(state[0], warn_only=state[1])


class Trace:
    """One function under construction and the storages it knows."""

    def __init__(self, platform: str, rng: Callable[[], Value] | None = None):
        self.platform = platform
        self.cells: dict[int, Cell] = {}
        self._rng = rng
        self.starts: dict[int, views.Start] = {}
        """Offsets that are operands, by the id of the argument they belong to: see `views.read`."""
        self.random_taken = 0
        """Random numbers that the function takes: what the generator's offset advances by."""

    def random_state(self) -> Value:
        """ui64[2]: the generator's seed and offset, behind what earlier operators of this function take."""
        assert self._rng is not None, "this trace has no generator"
        state = self._rng()
        if self.random_taken:
            taken = hlo.broadcast_to(hlo.scalar(self.random_taken, state.dtype), (2,))
            state = state + taken * hlo.literal([0, 1], state.dtype)
        return state

    def _random_source(self) -> Callable[[], Value]:
        """For a lowering that may ask first inside a loop: what it then gets is known outside of the loop as well."""
        depth = hlo.depth()

        def source() -> Value:
            with hlo.outer_block(depth):
                return self.random_state()

        return source

    @contextlib.contextmanager
    def random_from(self, state: Value) -> Iterator[None]:
        """Meanwhile random operators take their numbers from a state that `random_state` returned earlier."""
        before = self._rng, self.random_taken
        self._rng, self.random_taken = (lambda: state), 0
        try:
            yield
        finally:
            self._rng, self.random_taken = before

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function on meta tensors; what it calls of ATen is lowered."""
        with _Mode(self), _Constants(self):
            return function(*args, **kwargs)

    # ------------------------------------------------------------------------------------------------ storages

    def bind(self, tensor: torch.Tensor, value: Value | None) -> Cell:
        """Gives a meta tensor's storage a value."""
        cell = Cell(value, tensor)
        self.cells[tensor.untyped_storage()._cdata] = cell
        return cell

    def cell(self, tensor: torch.Tensor) -> Cell:
        found = self.cells.get(tensor.untyped_storage()._cdata)
        return found if found is not None else self.bind(tensor, None)

    def shape_of(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def is_contiguous(self, tensor: torch.Tensor) -> bool:
        return tensor.is_contiguous()

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the host, where a decomposition made it."""
        return tensor.device.type == "cpu"

    def read(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor; a CPU tensor (a constant of a decomposition) is written into the program."""
        if self.is_constant(tensor):
            return hlo.literal(tensor.detach(), tensor.dtype)
        cell = self.cell(tensor)
        if cell.value is None:
            return hlo.full(tuple(tensor.shape), 0, hlo.types.held_dtype(tensor.dtype))
        return views.read(cell.value, View.of(tensor), self.starts.get(id(tensor)))

    def write(self, tensor: torch.Tensor, value: Value, *, uniform: bool = False) -> None:
        """Assigns a tensor, through its view, with its dtype; the value must broadcast to its shape.

        Args:
            uniform: elements that share memory get the same number, so that they do not matter.
        """
        cell, start = self.cell(tensor), self.starts.get(id(tensor))
        value = hlo.broadcast_to(hlo.convert(value, tensor.dtype), tuple(tensor.shape))
        is_there = cell.value is not None and (value.name, value.shape) == (cell.value.name, cell.value.shape)
        if is_there and views.is_whole(tensor) and tensor.is_contiguous():
            return
        if uniform:
            for dim, stride in enumerate(tensor.stride()):
                if stride == 0 and tensor.shape[dim] > 1:
                    tensor = tensor.narrow(dim, 0, 1)
                    value = hlo.slice_in_dim(value, dim, 0, 1)
        numel = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        cell.value = views.write(cell.value, numel, View.of(tensor), value, start, cell.planned)

    # --------------------------------------------------------------------------------------------------- calls

    def call(
        self,
        op: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        data: Mapping[tuple[int, int], Value] | None = None,
    ) -> Any:
        """Runs a call on meta tensors and lowers it.

        Args:
            data: values that stand for numbers or tensors of the arguments, by (schema position, list item or 0).

        Raises:
            UnsupportedOpError: there is neither a lowering nor a decomposition of it into lowerings.
        """
        if schema.returns_view(op):
            return op(*args, **kwargs)
        rule = schema.lowering_of(op)
        if rule is not None and self.platform in rule.platforms and not rule.dynamic:
            bound = _bind_arguments(op, args, kwargs)
            if op._schema.name.startswith("aten::_foreach_") and len(rows := _rows(op, bound)) > 1 and _meet(rows):
                return self._in_turns(op, bound, data or {})
            return self._lower(op, rule, bound, data or {})
        return self._decompose(op, args, kwargs)

    def _in_turns(self, op: OpOverload, bound: Mapping[str, Any], data: Mapping[tuple[int, int], Value]) -> None:
        """An operator that writes to a list, where what it does to one element changes what it reads for the next."""
        lists = {name: value for name, value in bound.items() if isinstance(value, (list, tuple))}
        several = {place for place, argument in enumerate(op._schema.arguments) if argument.name in lists}
        for index in range(max(map(len, lists.values()))):
            row = {**bound, **{name: [value[index]] for name, value in lists.items()}}
            own = {(place, 0): value for (place, item), value in data.items() if place not in several or item == index}
            self.call(op, (), row, own)

    def _decompose(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for function in decomp.candidates(op):
            counters.decompositions += 1
            answer = self.run(function, *args, **kwargs)
            if answer is not NotImplemented:
                return answer
        functional = schema.form(op).functional
        if functional is None or functional is op:
            raise UnsupportedOpError(f"{registry.overload_name(op)} has neither a lowering nor a decomposition")
        return self._write_through(op, functional, _bind_arguments(op, args, kwargs))

    def _write_through(self, op: OpOverload, functional: OpOverload, bound: dict[str, Any]) -> Any:
        """An in-place or out= form whose functional form is decomposed."""
        form = schema.form(op)
        positional, named = _call_arguments(op, bound)
        meta = op(*positional, **named)
        names = {argument.name for argument in functional._schema.arguments}
        answer = self.call(functional, (), {name: value for name, value in bound.items() if name in names})
        results = _tensors_of([answer] if isinstance(answer, torch.Tensor) else answer)
        targets = self._targets(op, bound, form.written)
        if form.is_out:
            _check_out(op, targets, [None if result is None else result.dtype for result in results[form.num_new :]])
        for target, result in zip(targets, results[form.num_new :], strict=True):
            if target is not None and result is not None:
                self.write(target, self.read(result))
        return meta

    def _targets(self, op: OpOverload, bound: dict[str, Any], written: Sequence[int]) -> list[torch.Tensor | None]:
        return _tensors_of([bound.get(op._schema.arguments[index].name) for index in written])

    def _lower(
        self, op: OpOverload, rule: Lowering, bound: dict[str, Any], data: Mapping[tuple[int, int], Value]
    ) -> Any:
        form = schema.form(op)
        functional = form.functional
        assert functional is not None
        dtypes.check(functional._schema.name, bound)
        shapes.check(functional._schema.name, bound)
        if rule.promote is not registry.NONE or functional._schema.name in dtypes.JOINED:
            dtypes.check_promotion(_tensors_of([bound.get(argument.name) for argument in functional._schema.arguments]))
        outs, meta = ((), None) if rule.inferred else self._metadata(op, rule, form, bound)
        if not form.written:
            meta = dtypes.of_self(functional._schema.name, meta, bound)
        first = next((t for t in _tensors_of(bound.values()) if t is not None), None)
        if first is None and outs:
            dtypes.check_made(functional._schema.name, outs[0].dtype)
        ctx = Context(rule.op, outs, self.platform, self._random_source() if rule.random else None)
        ctx.contiguous = first is None or self.is_contiguous(first)
        positional, named = self._values(op, functional, rule, bound, data)
        hlo.current().inputs = [*positional, *named.values()]
        if self.platform == "cpu" and bounds.has_indices(functional._schema.name):
            names = (argument.name for argument in functional._schema.arguments)
            bounds.check(functional._schema.name, dict(zip(names, positional, strict=False)) | named)
        for observer in observers:
            observer.lowered(rule)
        results = registry.apply(rule, ctx, positional, named)
        if ctx.state is not None:
            self.random_taken += random.offsets([Spec(v.shape, v.dtype) for v in results if v is not None])
        declared = len(results) - self._count_undeclared(op, rule, bound)
        self._write_undeclared(op, rule, bound, results[declared:])
        results = results[:declared]
        if rule.format_of:
            meta = _formatted(meta, results, [bound.get(name) for name in rule.format_of])
        if not form.written:
            return self._new_results(op, bound, meta, results)
        targets = self._targets(op, bound, form.written)
        if not form.is_out and rule.op != "aten::copy":
            _check_casts(targets, outs[form.num_new :])
        fresh = results[: len(results) - len(targets)]
        for target, value in zip(targets, results[len(fresh) :], strict=True):
            if target is None or value is None:
                continue
            shape = self.shape_of(target)
            if not form.is_out and hlo.broadcast_shapes(value.shape, shape) != shape:
                raise RuntimeError(
                    f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)}"
                )
            self.write(target, value, uniform=rule.op in UNIFORM)
        return self._written_results(op, bound, meta, fresh)

    def lower_dynamic(
        self,
        op: OpOverload,
        rule: Lowering,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        data: Mapping[tuple[int, int], Value],
    ) -> list[Value]:
        """The padded results and the number of rows of a lowering with a data-dependent size."""
        functional = schema.form(op).functional
        assert functional is not None
        bound = _bind_arguments(op, args, kwargs)
        shapes.check(functional._schema.name, bound)
        positional, named = self._values(op, functional, rule, bound, data)
        hlo.current().inputs = [*positional, *named.values()]
        for observer in observers:
            observer.lowered(rule)
        return [
            v for v in registry.apply(rule, Context(rule.op, (), self.platform), positional, named) if v is not None
        ]

    @without_alerts()
    def _metadata(
        self, op: OpOverload, rule: Lowering, form: schema.Form, bound: dict[str, Any]
    ) -> tuple[tuple[Spec, ...], Any]:
        """The results of the functional form, and what PyTorch's meta kernel of the called form returns, if any."""
        functional = form.functional
        assert functional is not None
        likes = pointwise.like_operands(rule, form, bound)
        if likes is not None:
            made = [torch.empty(like.shape, dtype=like.dtype, device="meta") for like in likes if not form.written]
            is_list = str(functional._schema.returns[0].type) == "List[Tensor]"
            return tuple(_specs(likes)), made if is_list else made[0] if made else None
        meta: Any = None
        positional, named = _call_arguments(op, bound)
        layouts = [(t, t.shape, t.stride()) for t in self._targets(op, bound, form.written) if t is not None]
        with contextlib.suppress(NotImplementedError, ZeroDivisionError):  # a mean of nothing, in Python
            meta = op(*positional, **named)
        for target, shape, stride in layouts:
            if target.shape != shape and not form.is_out:  # meta kernels written in Python resize it
                raise RuntimeError(
                    f"output with shape {list(shape)} doesn't match the broadcast shape {list(target.shape)}"
                )
            if target.shape == shape and target.stride() != stride:  # sort's meta kernel changes strides
                target.as_strided_(shape, stride)
        if not form.written:
            return (tuple(_specs(meta)) if meta is not None else ()), meta
        targets = self._targets(op, bound, form.written)
        if form.is_out and schema.casts_out(op) and torch.Tag.pointwise not in functional.tags:
            # a sum is computed in the dtype of out=
            return tuple(Spec(tuple(t.shape), t.dtype) for t in targets if t is not None), meta
        names = {argument.name for argument in functional._schema.arguments}
        try:
            answer = functional(**{name: value for name, value in bound.items() if name in names})
            specs = tuple(_specs(answer))
            if form.is_out:
                _check_out(op, targets, [spec.dtype for spec in specs[form.num_new :]])
            return specs, meta
        except NotImplementedError:
            if form.num_new:
                return (), meta
            return tuple(Spec(tuple(t.shape), t.dtype) for t in targets if t is not None), meta

    def _new_results(self, op: OpOverload, bound: dict[str, Any], meta: Any, results: list[Value | None]) -> Any:
        queue = list(results)

        def fresh(like: torch.Tensor | None) -> torch.Tensor | None:
            value = queue.pop(0)
            if value is None:
                return None
            if like is None or like.untyped_storage()._cdata in self.cells:
                like = torch.empty(value.shape, dtype=value.dtype, device="meta")
            self.bind(like, None)
            self.write(like, value)
            return like

        if meta is None:
            return _as_declared(op, bound, [fresh(None) for _ in results])
        if isinstance(meta, torch.Tensor):
            return fresh(meta)
        return type(meta)(
            [fresh(item) for item in part]
            if isinstance(part, (list, tuple))
            else part
            if isinstance(part, int)
            else fresh(part)
            for part in meta
        )

    def _written_results(self, op: OpOverload, bound: dict[str, Any], meta: Any, fresh: list[Value | None]) -> Any:
        """What an overload that writes returns: the written arguments themselves, and new tensors in between."""
        by_name = {argument.name: bound.get(argument.name) for argument in op._schema.arguments}
        aliases = {}
        for argument in op._schema.arguments:
            if argument.alias_info is not None:
                for letter in argument.alias_info.before_set:
                    aliases[letter] = by_name[argument.name]
        metas = [] if meta is None else [meta] if isinstance(meta, torch.Tensor) else list(meta)
        answers: list[Any] = []
        queue = list(fresh)
        for index, returned in enumerate(op._schema.returns):
            if returned.alias_info is not None:
                answers.append(aliases[next(iter(returned.alias_info.before_set))])
                continue
            value = queue.pop(0)
            like = metas[index] if index < len(metas) else None
            answers.append(
                None
                if value is None
                else self._new_results(op, bound, like, [value])
                if like is not None
                else self._bind_new(value)
            )
        return None if not answers else answers[0] if len(answers) == 1 else tuple(answers)

    def _bind_new(self, value: Value) -> torch.Tensor:
        made = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self.bind(made, value)
        return made

    def _count_undeclared(self, op: OpOverload, rule: Lowering, bound: dict[str, Any]) -> int:
        return sum(bound.get(name) is not None for name in rule.writes)

    def _write_undeclared(
        self, op: OpOverload, rule: Lowering, bound: dict[str, Any], values: list[Value | None]
    ) -> None:
        targets = [bound[name] for name in rule.writes if bound.get(name) is not None]
        for target, value in zip(targets, values, strict=True):
            if value is not None:
                self.write(target, value)

    # ----------------------------------------------------------------------------------------------- arguments

    def _values(
        self,
        op: OpOverload,
        functional: OpOverload,
        rule: Lowering,
        bound: dict[str, Any],
        data: Mapping[tuple[int, int], Value],
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the lowering takes them: see `ops/registry.py`."""
        places = {argument.name: index for index, argument in enumerate(op._schema.arguments)}
        wide = is_wide(bound)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        complete = True
        for argument in functional._schema.arguments:
            name = argument.name
            if name in schema.DROPPED or name not in bound or _is_default(argument, bound[name]):
                complete = False
                continue
            value = self._value(rule, argument, bound[name], places[name], data, wide)
            if argument.kwarg_only or not complete:
                named[name] = value
            else:
                positional.append(value)
        return positional, named

    def _value(
        self,
        rule: Lowering,
        argument: torch._C.Argument,
        given: Any,
        place: int,
        data: Mapping[tuple[int, int], Value],
        wide: bool,
    ) -> Any:
        kind = _kind(str(argument.type))
        if isinstance(given, int) and _kind(str(argument.real_type)) == "ScalarType":
            return dtypes.numbered(given)

        def one(item: Any, index: int) -> Any:
            if (place, index) in data:
                return data[place, index]
            if isinstance(item, torch.Tensor):
                return self.read(item)
            if isinstance(item, NUMBERS) and _is_operand(rule, argument.name, kind, item):
                return weak_scalar(item, wide)
            return item

        if isinstance(given, (list, tuple)) and kind in ("Tensor", "number", "float"):
            return [one(item, index) for index, item in enumerate(given)]
        return one(given, 0)


class _Mode(TorchDispatchMode):
    """Sends the ATen calls of a decomposition to a trace."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not decomp.is_known(op):
            raise UnsupportedOpError(f"{op} is not an ATen operator")
        tensors = _tensors_of([*args, *kwargs.values()])
        if all(t is None or self.trace.is_constant(t) for t in tensors) and _device(kwargs) == "cpu":
            return op(*args, **kwargs)  # a constant that a decomposition makes on the host
        return self.trace.call(op, args, kwargs)


class _Constants(TorchFunctionMode):
    """Keeps the numbers in `torch.tensor(numbers, device="meta")`, which PyTorch drops before it calls ATen."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor or function is torch.Tensor.new_tensor:
            like = args[0] if function is torch.Tensor.new_tensor else None
            device = kwargs.get("device") or (like.device if like is not None else "cpu")
            if torch.device(device).type == "meta":
                dtype = kwargs.get("dtype") or (like.dtype if like is not None else None)
                data = args[-1] if len(args) > (like is not None) else kwargs["data"]
                return self.trace._bind_new(self.trace.read(torch.tensor(data, dtype=dtype)))
        return function(*args, **kwargs)


def _device(kwargs: Mapping[str, Any]) -> str:
    device = kwargs.get("device")
    return "cpu" if device is None else torch.device(device).type


NUMBERS = (bool, int, float, complex, hlo.Dim, hlo.Computed)


def is_wide(bound: Mapping[str, Any]) -> bool:
    """A Python float is float64 in the program: some tensor is, or the result will be."""
    if torch.get_default_dtype() in WIDE or bound.get("dtype") in WIDE:
        return True
    return any(t is not None and t.dtype in WIDE for t in _tensors_of(bound.values()))


def weak_scalar(number: Any, wide: bool) -> Value:
    """A Python number as a constant that promotes as PyTorch's wrapped numbers do."""
    made = hlo.scalar(number, scalar_dtype(number, wide))
    return Value(made.name, made.shape, made.dtype, weak=True)


def scalar_dtype(number: Any, wide: bool) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, (int, hlo.Dim)):
        return torch.int64
    if isinstance(number, (float, hlo.Computed)):
        return torch.float64 if wide else torch.float32
    return torch.complex128 if wide else torch.complex64


def _kind(type_name: str) -> str:
    """Optional[List[Tensor]] -> Tensor."""
    return type_name.replace("Optional[", "").replace("List[", "").rstrip("]")


def _is_operand(rule: Lowering, name: str, kind: str, number: Any) -> bool:
    if kind == "Tensor":
        return True
    if kind == "number":
        if name in rule.static:
            return False
        return not (name in rule.static_integral and is_static_integral(number))
    return kind == "float" and name in rule.data


def is_static_integral(number: Any) -> bool:
    """Numbers that a `static_integral` argument keeps as constants; csrc/dispatch.cpp has the same rule."""
    return isinstance(number, (bool, int)) or (
        isinstance(number, float) and (number == 0.5 or number.is_integer() or math.isinf(number))
    )


def _is_default(argument: torch._C.Argument, value: Any) -> bool:
    if not argument.has_default_value():
        return False
    default = argument.default_value
    return value is default or (
        type(value) is type(default) and not isinstance(value, torch.Tensor) and value == default
    )


def _bind_arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | dict(kwargs)


def _rows(op: OpOverload, bound: Mapping[str, Any]) -> list[list[torch.Tensor]]:
    """The tensors that belong together in the lists of an operator that writes to the first one; else nothing."""
    first = op._schema.arguments[0]
    if first.alias_info is None or not first.alias_info.is_write:
        return []
    lists = [value for value in bound.values() if isinstance(value, (list, tuple))]
    if len({len(value) for value in lists}) != 1:
        return []  # which PyTorch's meta kernel refuses
    return [[item for item in row if isinstance(item, torch.Tensor)] for row in zip(*lists, strict=True)]


def _meet(rows: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether the first tensor of a row may share memory with a tensor of another row."""
    spans: dict[int, list[tuple[int, int, int, bool]]] = {}
    for index, row in enumerate(rows):
        for tensor in row:
            start, end = views.span(tensor)
            spans.setdefault(tensor.untyped_storage()._cdata, []).append((start, end, index, tensor is row[0]))
    for found in spans.values():
        reached, together, written = 0, set[int](), False
        for start, end, index, is_first in sorted(found):
            if start >= reached:
                together, written = set(), False
            reached = max(reached, end)
            together.add(index)
            written |= is_first
            if written and len(together) > 1:
                return True
    return False


def _call_arguments(op: OpOverload, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for a call on meta tensors."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in op._schema.arguments:
        if argument.name not in bound:
            continue
        value = bound[argument.name]
        if argument.name == "device":
            value = torch.device("meta")
        elif argument.name == "generator":
            value = None
        if argument.kwarg_only or len(positional) + len(named) > len(positional):
            named[argument.name] = value
        else:
            positional.append(value)
    is_factory = not any(isinstance(v, torch.Tensor) for v in positional)
    if is_factory and "device" not in named and any(a.name == "device" and a.kwarg_only for a in op._schema.arguments):
        named["device"] = torch.device("meta")
    return positional, named


def _as_declared(op: OpOverload, bound: dict[str, Any], made: list[torch.Tensor | None]) -> Any:
    """Results as the schema has them. Of several lists, self_out is as long as the argument self."""
    queue, answers = list(made), list[Any]()
    for returned in op._schema.returns:
        if str(returned.type) != "List[Tensor]":
            answers.append(queue.pop(0))
            continue
        like = bound.get(returned.name.removesuffix("_out"))
        count = len(like) if isinstance(like, (list, tuple)) else len(queue)
        answers.append([queue.pop(0) for _ in range(count)])
    return answers[0] if len(answers) == 1 else tuple(answers)


def _formatted(meta: Any, results: Sequence[Value | None], models: Sequence[Any]) -> Any:
    """The results' metadata, with the first one channels_last if one of the models is."""
    value, *rest = results
    for model in models:
        if value is None or not isinstance(model, torch.Tensor) or model.is_contiguous():
            continue
        for memory_format, ndim in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if value.ndim == model.dim() == ndim and model.is_contiguous(memory_format=memory_format):
                first = torch.empty(value.shape, dtype=value.dtype, device="meta", memory_format=memory_format)
                if not rest:
                    return first
                others = [None] * len(rest) if meta is None else list(meta)[1:]
                return (first, *others)
    return meta


def _check_casts(targets: Sequence[torch.Tensor | None], results: Sequence[Spec]) -> None:
    """In-place operators refuse results that their tensor's dtype cannot hold; not all meta kernels say so."""
    for target, result in zip(targets, results, strict=False):
        if target is not None and not torch.can_cast(result.dtype, target.dtype):
            raise RuntimeError(
                f"result type {result.dtype} can't be cast to the desired output type {target.dtype}; "
                "use the operator that returns a new tensor"
            )


def _check_out(op: OpOverload, targets: Sequence[torch.Tensor | None], dtypes: Sequence[torch.dtype | None]) -> None:
    """Refuses `out=` tensors of a dtype to which the result is not cast; not all meta kernels do."""
    for target, dtype in zip(targets, dtypes, strict=False):
        if target is None or dtype is None or target.dtype is dtype:
            continue
        if not schema.casts_out(op):
            raise RuntimeError(f"Expected out tensor to have dtype {dtype}, but got {target.dtype} instead")
        if not torch.can_cast(dtype, target.dtype):
            raise RuntimeError(f"result type {dtype} can't be cast to the desired output type {target.dtype}")


def _tensors_of(values: Any) -> list[torch.Tensor | None]:
    """Tensors (and undefined ones) in order, lists opened."""
    found: list[torch.Tensor | None] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += [item for item in value if item is None or isinstance(item, torch.Tensor)]
        elif value is None or isinstance(value, torch.Tensor):
            found.append(value)
    return found


def _specs(answer: Any) -> list[Spec]:
    items = [answer] if isinstance(answer, torch.Tensor) or answer is None else list(answer)
    return [Spec(tuple(t.shape), t.dtype) if t is not None else Spec((), torch.float32) for t in _tensors_of(items)]
