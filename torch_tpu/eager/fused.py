"""Fused programs: what csrc/record.cpp runs in the place of the calls it recorded.

Each recorded call is a program of its own already (`Program`, not compiled). A fused program is a main function that
calls them one after the other, each different one written once; XLA inlines and fuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from torch_tpu import _plug, errors, hlo, recompiles
from torch_tpu.eager.program import Program, Start, spec_of
from torch_tpu.hlo import Value
from torch_tpu.runtime import platform

Wired = tuple[Program, Sequence[int], bool]
"""A call: its program, where its operands come from (an operand of the fused program, or -1 - a result counted over
all calls), and whether it computes a part of the forward pass again."""


def fuse(
    calls: Sequence[Wired], avals: Sequence[int], outputs: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> tuple[Callable[[list[Any]], list[Any]], list[int]]:
    """Makes the program of a batch of calls.

    Args:
        avals: the arrays among its operands, by their ids; numbers and random states follow in order of their use.
        outputs: the results to return.
        pairs: (operand, result) where nothing else holds the operand and the result replaces it.

    Returns:
        What to call with the operands' values, and the operands it donates.

    Raises:
        CompileError: XLA refused the program.
    """
    first, last = calls[0][0].name, calls[-1][0].name
    main = hlo.Function(f"fused_{len(calls)}_{first}_{last}")
    with main:
        for aval in avals:
            main.argument(*spec_of(aval))
        operands = _Operands(main, calls)
        results: list[Value] = []
        names: dict[int, str] = {}
        texts: list[str] = []
        kept: dict[str, Value] = {}
        for position, (program, sources, again) in enumerate(calls):
            if not again:
                kept = {}
            elif position and not calls[position - 1][2]:
                kept = _kept_apart(calls[position:], operands.values[: len(avals)], results)
            if program.digest not in names:
                names[program.digest] = f"f{len(names)}"
                texts.append(program.function.define(program.results, names[program.digest], public=False))
            taken = [operands.values[source] if source >= 0 else results[-1 - source] for source in sources]
            taken = [kept.get(value.name, value) for value in taken]
            results += _call(names[program.digest], program, taken)
    returned = [results[index] for index in outputs]
    donated = []
    for operand, result in pairs:
        if operands.values[operand].type == results[result].type:
            main.alias(operand, outputs.index(result))
            donated.append(operand)
    fused = _Fused(main, returned, texts, operands)
    signature = {
        "operators": tuple(program.name for program, _, _ in calls),
        "their programs": tuple(_said(program) for program, _, _ in calls),
        "operands": tuple(tuple(sources) for _, sources, _ in calls),
        "results": tuple(outputs),
        "memory reused of operands": tuple(donated),
    }
    recompiles.record("fused", "recorded operators", signature, program=fused.compile("normal").key)
    return fused.run_fused, donated


def _kept_apart(calls: Sequence[Wired], arrays: Sequence[Value], results: Sequence[Value]) -> dict[str, Value]:
    """What calls that compute a part of the forward pass again take from outside, by the names it has there.

    XLA would find that it has computed the same before, and keep that instead. Behind a barrier together with the newest
    result it knows of neither, and computes it not before that result is there.
    """
    taken: dict[str, Value] = {}
    for _, sources, again in calls:
        if not again:
            break
        for source in sources:
            if 0 <= source < len(arrays):
                taken[arrays[source].name] = arrays[source]
            elif -len(results) <= source < 0:
                taken[results[-1 - source].name] = results[-1 - source]
    return dict(zip(taken, hlo.optimization_barrier([*taken.values(), *results[-1:]]), strict=False))


def _said(program: Program) -> str:
    """A program by its types; what else is in it, such as sizes and constants of the operator, by a few digits."""
    taken = ", ".join(value.type for value in program.function.arguments)
    made = ", ".join(value.type for value in program.results)
    return f"{program.name}({taken}) -> {made} #{program.digest & 0xFFFFFF:06x}"


def _call(name: str, program: Program, operands: Sequence[Value]) -> list[Value]:
    given = ", ".join(value.name for value in operands)
    types = ", ".join(value.type for value in program.function.arguments)
    returned = ", ".join(value.type for value in program.results)
    text = f"func.call @{name}({given}) : ({types}) -> ({returned})"
    if len(program.results) == 1:
        return [hlo.emit(text, program.results[0].shape, program.results[0].dtype)]
    return hlo.emit_many(text, [(value.shape, value.dtype) for value in program.results])


class _Operands:
    """What the operands of a batch of calls are in its program.

    Arrays are its first arguments. All numbers of a dtype are one argument, a vector: a program with a thousand
    arguments takes XLA's CPU client seconds to compile and hundreds of microseconds to start.

    Args:
        main: the program's function, with the arrays as its arguments.
    """

    def __init__(self, main: hlo.Function, calls: Sequence[Wired]):
        self.values = list(main.arguments)
        self.packs: dict[torch.dtype, list[int]] = {}
        """By dtype: the operands that are numbers of it, in order."""
        self.tensors: list[int] = []
        """Operands that are CPU tensors."""
        self.states: list[int] = []
        """Operands that are random states, as (seed, offset)."""
        for program, sources, _ in calls:
            dtypes = dict(program.scalars)
            for place, (source, argument) in enumerate(zip(sources, program.function.arguments, strict=True)):
                if source != len(self.values):
                    continue
                self.values.append(argument)
                dtype = dtypes.get(place)
                if dtype is not None:
                    self.packs.setdefault(dtype, []).append(source)
                else:
                    (self.tensors if place in dtypes else self.states).append(source)
        for dtype, numbers in self.packs.items():
            pack = main.argument((len(numbers),), dtype)
            for index, source in enumerate(numbers):
                self.values[source] = hlo.reshape(hlo.slice(pack, [index], [index + 1]), ())
        for source in (*self.tensors, *self.states):
            self.values[source] = main.argument(self.values[source].shape, self.values[source].dtype)
        self.num_arrays = len(main.arguments) - len(self.packs) - len(self.tensors) - len(self.states)


class _Fused(Program):
    """A main function and those it calls."""

    __slots__ = ("operands", "parts")

    def __init__(self, main: hlo.Function, results: Sequence[Value], parts: Sequence[str], operands: _Operands):
        self.parts = tuple(parts)
        self.operands = operands
        super().__init__(main.name, main, results)

    @property
    def text(self) -> str:
        return self.function.module(self.results, self.parts)

    def run_fused(self, values: list[Any]) -> list[Any]:
        client, operands = platform.client(), self.operands
        given = values[: operands.num_arrays]
        for dtype, numbers in operands.packs.items():
            given.append(client.vector([values[index] for index in numbers], dtype))
        given += [client.put(values[index]) for index in operands.tensors]
        given += [client.put_words(values[index]) for index in operands.states]
        return self.executable.run(given)


def compile_recipe(program: Program) -> Callable[..., list[Any]] | Start:
    """What runs a call by itself that was made to be recorded."""
    program.compile()
    return program.entry()


def run_recipe(program: Program, values: list[Any]) -> list[Any]:
    """Runs one recorded call by itself.

    Raises:
        CompileError, ExecutionError: it failed; the message names the operator.
    """
    return program.run_recorded(values)


def can_run_alone(error: BaseException, arrays: Sequence[Any]) -> bool:
    """Whether running the calls of a batch one by one may succeed, or at least say which of them failed.

    Args:
        arrays: the operands; a program that fails may have taken the memory of some.
    """
    if isinstance(error, errors.CompileError):
        return True
    failed = isinstance(error, (errors.TpuError, torch.OutOfMemoryError, torch.linalg.LinAlgError))
    return failed and not any(array.is_deleted() for array in arrays)


class FailedValue:
    """Stands in a storage for an array that was never computed, since its program failed."""

    def __init__(self, error: BaseException):
        self._error = error

    def __call__(self) -> NoReturn:
        raise errors.ExecutionError(
            errors.message(
                "a tensor has no value",
                why=f"the program that was to compute it failed: {self._error}",
                do="look at the first error; it was raised where the recorded operators ran",
            )
        )


_plug.defer(FailedValue)


def failed_value(error: BaseException) -> FailedValue:
    return FailedValue(error)
