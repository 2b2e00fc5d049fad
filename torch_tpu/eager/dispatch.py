"""The miss path of the call cache: from one ATen call to an entry that csrc/dispatch.cpp runs from then on.

`prepare` says once for each overload how it is served; `miss` traces a call with a new signature into a program and
installs it. Both are called by the plug. An entry lists, for each return of the schema, a new tensor as
(size, stride, dtype, aval, bytes), the position of an argument, None, a list of these, or, of a graph, a number as
("constant", number) and a view as ("argument" or "result", its position, size, stride, dtype, offset in bytes, whether it
is conjugated and whether it is negated unlike that); and the storages that are written as (operand, aval, bytes). Its program
returns the new tensors' arrays and then the written storages'.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import _plug, errors, ops, recompiles, settings
from torch_tpu.eager import configure, fallback, host, signature
from torch_tpu.eager.call import Call, Codes
from torch_tpu.eager.program import Program
from torch_tpu.eager.trace import is_static_integral, is_wide
from torch_tpu.hlo import Value, is_integer
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
    """How an overload is served: kind is program, python or composite; and which arguments are constants or data.

    `overlap` says of arguments that are read which elements they may share with one that is written.
    """
    ops.load()
    configure.configure()
    name = registry.overload_name(op)
    plan: dict[str, Any] = {"kind": "program", "static": set(), "static_integral": set(), "data": set(), "views": False}
    plan |= {"counted": -1, "overlap": schema.overlap_of(op), "fitted": set()}
    plan |= {"varying": {}, "range": (-1, -1)}
    if name in host.OPERATORS:
        plan["kind"] = "python"
        return plan

    def place(name: str) -> int:
        names = [argument.name for argument in op._schema.arguments]
        return names.index(name) if name else -1

    rule = schema.lowering_of(op)
    if rule is not None and platform.client().platform in rule.platforms:
        plan |= {
            "views": True,
            "static": set(rule.static),
            "static_integral": set(rule.static_integral),
            "data": set(rule.data),
            "varying": dict(rule.varying) | {name: registry.ANY for name in rule.drawn_from or () if name},
            "range": tuple(map(place, rule.drawn_from or ("", ""))),
            "fitted": set(rule.fitted) if rule.promote is registry.NONE else set(),  # others are promoted, or rounded
            "counted": place("end") if rule.counted else -1,
        }
        return plan
    plan["static"] = {"*"}
    if decomp.composite_only(op):
        plan["kind"] = "composite"
    return plan


def call_python(op: OpOverload, args: list[Any]) -> Any:
    function, positional, named = _python_kernel(op)
    return function(*args[:positional], **dict(zip(named, args[positional:], strict=True)))


@cache
def _python_kernel(op: OpOverload) -> tuple[Callable[..., Any], int, tuple[str, ...]]:
    """What answers an operator on the host, how many arguments it takes by position, and the names of the others."""
    arguments = op._schema.arguments
    positional = sum(not argument.kwarg_only for argument in arguments)
    named = tuple(argument.name for argument in arguments[positional:])
    return host.OPERATORS[registry.overload_name(op)], positional, named


def miss(
    op: OpOverload,
    args: list[Any],
    codes: Codes,
    avals: list[int],
    donated: list[int],
    key: bytes | None,
) -> Any:
    """Serves a call that has no entry.

    Args:
        args: all arguments in schema order.
        codes: which arguments are operands.
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
    if host.retype_arguments(args):
        return AGAIN
    try:
        if host.resize_outputs(op, args):
            return AGAIN
        program = _build(op, args, codes, avals, donated, key)
        if settings.eager_mode != "fused":
            parts = signature.of_call([a.name for a in op._schema.arguments], args, codes, avals, donated)
            recompiles.record("operator", name, parts, program=program.executable.key)
        return AGAIN
    except views.OverlapError:
        raise
    except ImportError as error:
        if not sys.is_finalizing():
            raise
        raise errors.shutting_down(name, args) from error
    except RUNTIME_ERRORS as error:
        failure = error if isinstance(error, errors.CompileError) else None
        if name == "aten::copy_" or (failure is not None and failure.exceeds_memory):
            raise  # what a fallback itself needs, or what the CPU's memory is no answer to
        reason = f"{type(error).__name__}: {error}"
        # Where the call is wrong the CPU raises its own error.
        result = fallback.run(op, args, reason, valid=failure is not None)
        _refused[key] = reason
        return result


def _build(
    op: OpOverload,
    args: list[Any],
    codes: Codes,
    avals: list[int],
    donated: list[int],
    key: bytes,
) -> Program:
    call = _OpCall(op, args, codes, avals)
    rule = schema.lowering_of(op)
    with call.function:
        if rule is not None and rule.dynamic and call.trace.platform in rule.platforms:
            return _build_dynamic(call, rule, key)
        answer = call.trace.call(op, *call.split_arguments(), data=call.data)
        returns, results = call.describe(answer)
        writes, written = call.written()
        outputs = results + written
        program, inputs = call.finish(outputs, call.donate(outputs, writes, written, donated))
    if settings.eager_mode == "fused":
        program.verify()
    else:
        program.compile()  # where XLA refuses it, the CPU serves the call
    entry = None if settings.eager_mode == "fused" else program.entry()
    _plug.install(key, entry, False, inputs, returns, writes, program)
    return program


def _build_dynamic(call: _OpCall, rule: registry.Lowering, key: bytes) -> Program:
    """A lowering with a data-dependent number of rows: its results are cut to size on the host's word."""
    results = call.trace.lower_dynamic(call.op, rule, *call.split_arguments(), data=call.data)
    program, inputs = call.finish(results, [False] * len(call.function.arguments))
    specs = [(value.shape, value.dtype) for value in results]

    def run(values: list[Any], generator: torch.Generator | None) -> Any:
        return host.cut_rows(call.op, rule, call.static_args, specs, program.run(values, generator))

    _plug.install(key, run, True, inputs, [], [])
    return program


class _OpCall(Call):
    """A call of an ATen operator."""

    def __init__(self, op: OpOverload, args: list[Any], codes: Codes, avals: list[int]):
        bound = {a.name: given for a, given in zip(op._schema.arguments, args, strict=True)}
        self.op = op
        self._fitted = _fitted_dtype(op, bound)
        super().__init__(op._schema.name.replace("::", "_"), args, codes, avals, wide=is_wide(bound))
        self.static_args = [None if isinstance(arg, (torch.Tensor, list)) else arg for arg in args]

    def _scalar_dtype(self, place: int, number: Any) -> torch.dtype:
        """The result's dtype where a number must fit it."""
        rule = schema.lowering_of(self.op)
        if self._fitted is None or rule is None or self.op._schema.arguments[place].name not in rule.fitted:
            return super()._scalar_dtype(place, number)
        if rule.promote is not registry.NONE and not (is_integer(self._fitted) and isinstance(number, int)):
            return super()._scalar_dtype(place, number)  # the result's dtype is another one, or the number is rounded
        return self._fitted

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
            if not isinstance(item, torch.Tensor):
                raise NotImplementedError(f"{self.op} returns {type(item).__name__}, which no program can")
            made, value = self.new_tensor(item)
            results.append(value)
            return made

        items = [] if not self.op._schema.returns else [answer] if len(self.op._schema.returns) == 1 else list(answer)
        returns = [[one(part) for part in item] if isinstance(item, (list, tuple)) else one(item) for item in items]
        return returns, results


def _fitted_dtype(op: OpOverload, bound: dict[str, Any]) -> torch.dtype | None:
    """The dtype that numbers declared `fitted` must fit: the result's, where the call says which."""
    rule = schema.lowering_of(op)
    if rule is None or not rule.fitted:
        return None
    if bound.get("dtype") is not None:  # which the plug passes as a number
        made: torch.Tensor = torch.ops.aten.empty.memory_format([0], dtype=bound["dtype"], device="meta")
        return made.dtype
    return bound["self"].dtype if "self" in bound else None


__all__ = ["call_python", "is_static_integral", "miss", "prepare", "resolve"]
