"""The miss path of the call cache: from one ATen call to an entry that csrc/dispatch.cpp runs from then on.

`prepare` says once for each overload how it is served; `miss` traces a call with a new signature into a program and
installs it. Both are called by the plug. An entry lists, for each return of the schema, a new tensor as
(size, stride, dtype, aval, bytes), the position of an argument, None, or a list of these; and the storages that are
written as (operand, aval, bytes). Its program returns the new tensors' arrays and then the written storages'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import _plug, hlo, ops, recompiles
from torch_tpu.eager import configure, fallback, host, signature
from torch_tpu.eager.program import Program, aval_id, drop_unused, num_bytes, spec_of
from torch_tpu.eager.trace import Trace, is_static_integral, is_wide, scalar_dtype
from torch_tpu.hlo import Value
from torch_tpu.ops import decomp, registry, schema
from torch_tpu.runtime import platform
from torch_tpu.tensor import views

AGAIN = ...
"""What `miss` returns when the call should be looked up again."""

RUNTIME_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AssertionError,
    NotImplementedError,
    KeyError,
    ArithmeticError,
)

_refused: dict[bytes, str] = {}


def resolve(name: str, overload: str) -> OpOverload:
    """The overload as Python knows it; called once for each."""
    namespace, _, packet = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def prepare(op: OpOverload) -> dict[str, Any]:
    """How an overload is served: kind is program, python or composite; and which arguments are constants or data."""
    ops.load()
    configure.configure()
    name = registry.overload_name(op)
    plan: dict[str, Any] = {"kind": "program", "static": set(), "static_integral": set(), "data": set(), "views": False}
    if name in host.OPERATORS:
        plan["kind"] = "python"
        return plan
    rule = schema.lowering_of(op)
    if rule is not None and platform.client().platform in rule.platforms:
        plan |= {
            "views": True,
            "static": set(rule.static),
            "static_integral": set(rule.static_integral),
            "data": set(rule.data),
        }
        return plan
    plan["static"] = {"*"}
    if decomp.composite_only(op):
        plan["kind"] = "composite"
    return plan


def call_python(op: OpOverload, args: list[Any]) -> Any:
    pairs = list(zip(op._schema.arguments, args, strict=True))
    return host.OPERATORS[registry.overload_name(op)](
        *(value for argument, value in pairs if not argument.kwarg_only),
        **{argument.name: value for argument, value in pairs if argument.kwarg_only},
    )


def miss(
    op: OpOverload,
    args: list[Any],
    codes: list[int | list[int]],
    avals: list[int],
    donated: list[int],
    key: bytes | None,
) -> Any:
    """Serves a call that has no entry.

    Args:
        args: all arguments in schema order.
        codes: for each argument (list item) the operand it is, -1 for a default, -2 for a constant; for a tensor whose
            storage offset is an operand as well, that operand plus one in the upper 32 bits.
        avals: for each operand that is a storage the id of its array's shape and dtype, else -1.
        donated: operands whose memory the result may reuse.
        key: the signature, or None if the call cannot be cached.

    Returns:
        The result, or AGAIN after an entry was made.
    """
    name = registry.overload_name(op)
    special = host.SPECIAL.get(name)
    answer = host.write_out(op, args) if special is None else special(*args)
    if answer is not NotImplemented:
        return answer
    if key is None:
        return fallback.uncacheable(op, args)
    if key in _refused:
        return fallback.run(op, args, _refused[key])
    if host.retype_arguments(args) or host.resize_outputs(op, args):
        return AGAIN
    try:
        program = _build(op, args, codes, avals, donated, key)
        parts = signature.of_call(op, args, codes, avals, donated)
        recompiles.record("operator", name, parts, program=program.executable.key)
        return AGAIN
    except views.OverlapError:
        raise
    except RUNTIME_ERRORS as error:
        if name == "aten::copy_":
            raise  # what a fallback itself needs
        reason = f"{type(error).__name__}: {error}"
        result = fallback.run(op, args, reason)  # the CPU raises its own error where the call is wrong
        _refused[key] = reason
        return result


def _build(
    op: OpOverload,
    args: list[Any],
    codes: list[int | list[int]],
    avals: list[int],
    donated: list[int],
    key: bytes,
) -> Program:
    call = _Call(op, args, codes, avals)
    rule = schema.lowering_of(op)
    with call.function:
        if rule is not None and rule.dynamic and call.trace.platform in rule.platforms:
            return _build_dynamic(call, rule, key)
        answer = call.trace.call(op, *call.split_arguments(), data=call.data)
        returns, results = call.describe(answer)
        writes, written = call.written()
        outputs = results + written
        keep = [False] * len(call.function.arguments)
        for (operand, _, _), value in zip(writes, written, strict=True):
            argument = call.storages.get(operand)
            if operand in donated and argument is not None and argument.type == value.type:
                place = call.function.arguments.index(argument)
                call.function.alias(place, outputs.index(value))
                keep[place] = True
        program, inputs = call.finish(outputs, keep)
    _plug.install(key, program.entry(), False, inputs, returns, writes)
    return program


def _build_dynamic(call: _Call, rule: registry.Lowering, key: bytes) -> Program:
    """A lowering with a data-dependent number of rows: its results are cut to size on the host's word."""
    results = call.trace.lower_dynamic(call.op, rule, *call.split_arguments(), data=call.data)
    program, inputs = call.finish(results, [False] * len(call.function.arguments))
    specs = [(value.shape, value.dtype) for value in results]

    def run(values: list[Any], generator: torch.Generator | None) -> Any:
        return host.cut_rows(call.op, rule, call.static_args, specs, program.run(values, generator))

    _plug.install(key, run, True, inputs, [], [])
    return program


class _Call:
    """One call being traced: its operands as arguments of a function, its tensors as meta tensors."""

    def __init__(self, op: OpOverload, args: list[Any], codes: list[int | list[int]], avals: list[int]):
        self.op = op
        self.function = hlo.Function(op._schema.name.replace("::", "_"))
        self.increment = 0
        self.rng: Value | None = None
        self.trace = Trace(platform.client().platform, self._random)
        self.storages: dict[int, Value] = {}
        self.before: dict[int, Value | None] = {}
        self.bases: dict[int, torch.Tensor] = {}
        self.data: dict[tuple[int, int], Value] = {}
        self.scalars: dict[int, torch.dtype | None] = {}
        self.avals = avals
        self.static_args = [None if isinstance(arg, (torch.Tensor, list)) else arg for arg in args]
        self.operands: dict[str, int] = {}
        self.wide = is_wide({a.name: given for a, given in zip(op._schema.arguments, args, strict=True)})
        self.meta_args: list[Any] = []
        for place, (given, code) in enumerate(zip(args, codes, strict=True)):
            if isinstance(code, list):
                self.meta_args.append([self._operand(place, i, x, c) for i, (x, c) in enumerate(zip(given, code))])
            else:
                self.meta_args.append(self._operand(place, 0, given, code))

    def _argument(self, operand: int, shape: Sequence[int], dtype: torch.dtype, weak: bool = False) -> Value:
        value = self.function.argument(shape, dtype, weak)
        self.operands[value.name] = operand
        return value

    def _operand(self, place: int, item: int, given: Any, code: int) -> Any:
        if isinstance(given, torch.Tensor) and given.device.type != "cpu":
            return self._tensor(given, code & 0xFFFFFFFF, (code >> 32) - 1)
        if code < 0:
            return given
        if isinstance(given, torch.Tensor):
            self.scalars[code] = None
            meta = torch.empty((), dtype=given.dtype, device="meta")
            self.trace.bind(meta, self._argument(code, (), given.dtype))
            return meta
        dtype = scalar_dtype(given, self.wide)
        self.scalars[code] = dtype
        self.data[place, item] = self._argument(code, (), dtype, weak=True)
        return given

    def _tensor(self, given: torch.Tensor, operand: int, offset: int) -> torch.Tensor:
        """A meta tensor like a device tensor; offset is the operand that holds its storage offset, or -1."""
        if operand not in self.bases:
            base = torch.empty(given.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
            self.bases[operand] = base
            if self.avals[operand] > 0:
                self.storages[operand] = self._argument(operand, *spec_of(self.avals[operand]))
            self.before[operand] = self.storages.get(operand)
            self.trace.bind(base, self.before[operand])
        storage = self.bases[operand].untyped_storage()
        meta = torch.empty(0, dtype=given.dtype, device="meta")
        meta.set_(storage, given.storage_offset(), given.shape, given.stride())
        if given.is_conj():
            torch._C._set_conj(meta, True)
        if given.is_neg():
            torch._C._set_neg(meta, True)
        if offset >= 0:
            dtype = torch.int32 if given.untyped_storage().nbytes() < 2**31 else torch.int64
            self.scalars[offset] = dtype
            self.trace.offsets[id(meta)] = self._argument(offset, (), dtype)
        return meta

    def _random(self) -> Value:
        if self.rng is None:
            self.rng = self.function.argument((2,), torch.uint64)
        return self.rng

    def split_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword-only arguments; those left at their default are not passed on."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument, given in zip(self.op._schema.arguments, self.meta_args, strict=True):
            if argument.kwarg_only:
                if given is not None or not argument.has_default_value():
                    named[argument.name] = given
            else:
                positional.append(given)
        if named.get("device") is not None:
            named["device"] = torch.device("meta")
        if "generator" in named:  # the values come from the program's random operand
            named["generator"] = None
        return positional, named

    def describe(self, answer: Any) -> tuple[list[Any], list[Value]]:
        """The entry's returns, and the values of the new tensors in order."""
        places = {id(meta): place for place, meta in enumerate(self.meta_args) if isinstance(meta, torch.Tensor)}
        results: list[Value] = []

        def one(item: torch.Tensor | None) -> Any:
            if item is None:
                return None
            if isinstance(item, int):
                return ("constant", item)
            if id(item) in places and places[id(item)] in schema.form(self.op).written:
                return places[id(item)]
            made, value = self._new(item)
            results.append(value)
            return made

        items = [] if not self.op._schema.returns else [answer] if len(self.op._schema.returns) == 1 else list(answer)
        returns = [[one(part) for part in item] if isinstance(item, (list, tuple)) else one(item) for item in items]
        return returns, results

    def _new(self, item: torch.Tensor) -> tuple[tuple[Any, ...], Value]:
        if not isinstance(item, torch.Tensor):
            raise NotImplementedError(f"{self.op} returns {type(item).__name__}, which no program can")
        size, stride = tuple(item.shape), tuple(item.stride())
        cell = self.trace.cell(item)
        shared = any(base.untyped_storage()._cdata == item.untyped_storage()._cdata for base in self.bases.values())
        exact = item.untyped_storage().nbytes() == num_bytes(size, item.dtype) and not item.is_conj()
        if shared or not exact or item.storage_offset() or cell.value is None or item.is_neg():
            value = self.trace.read(item)
            order = views.physical_order(size, stride)
            if order is None:
                order, stride = tuple(range(len(size))), views.contiguous_strides(size)
            value = hlo.transpose(value, order)
        else:
            value = cell.value
        aval, count = aval_id(value.shape, value.dtype), num_bytes(value.shape, value.dtype)
        return (list(size), list(stride), item.dtype, aval, count), value

    def written(self) -> tuple[list[tuple[int, int, int]], list[Value]]:
        writes, values = [], []
        for operand, base in self.bases.items():
            value = self.trace.cell(base).value
            if value is not self.before[operand] and value is not None:
                writes.append((operand, aval_id(value.shape, value.dtype), num_bytes(value.shape, value.dtype)))
                values.append(value)
        return writes, values

    def finish(self, outputs: list[Value], keep: list[bool]) -> tuple[Program, list[int]]:
        """Compiles; returns the program and the operands it takes."""
        names = {value.name for value in outputs}
        keep = [kept or value.name in names for kept, value in zip(keep, self.function.arguments, strict=True)]
        if self.rng is not None:  # the last argument
            place = self.function.arguments.index(self.rng)
            self.function.arguments.append(self.function.arguments.pop(place))
            self.function.attributes.append(self.function.attributes.pop(place))
            keep = [*keep[:place], *keep[place + 1 :], True]
            self.increment = self.trace.random_taken
        drop_unused(self.function, keep)
        inputs = [self.operands[v.name] for v in self.function.arguments if v is not self.rng]
        scalars = [(index, self.scalars[op]) for index, op in enumerate(inputs) if op in self.scalars]
        return Program(self.function.name, self.function, outputs, scalars, self.increment), inputs


__all__ = ["call_python", "is_static_integral", "miss", "prepare", "resolve"]
