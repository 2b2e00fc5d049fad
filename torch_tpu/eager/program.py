"""Programs: what the call cache runs, and the ids of shapes and dtypes that its keys use."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torch_tpu import _plug, hlo
from torch_tpu.eager.observe import observers
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Spec
from torch_tpu.runtime import mlir, platform
from torch_tpu.runtime.client import Executable
from torch_tpu.runtime.options import Effort

_specs: list[Spec] = [Spec((), torch.float32)]  # 0 stands for "nothing yet"
_ids: dict[Spec, int] = {}


def aval_id(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The id of an array's shape and dtype."""
    spec = Spec(tuple(shape), dtype)
    found = _ids.get(spec)
    if found is None:
        found = _ids[spec] = len(_specs)
        _specs.append(spec)
        _plug.define_aval(found, list(spec.shape), dtype)
    return found


def spec_of(aval: int) -> Spec:
    return _specs[aval]


def num_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count


class Start(NamedTuple):
    """The parts of `Program.run`: the call cache makes its calls itself (`start` in csrc/dispatch.cpp)."""

    execute: Callable[[Sequence[Any]], Any]
    handlers: list[Any]
    numbers: list[tuple[int, torch.dtype]]
    """Operands that become arrays first, by `scalar`."""
    explain: Callable[[Exception], None]
    """Raises what an error of `execute` means."""


def scalar(number: complex, dtype: torch.dtype) -> Any:
    """A number as an array."""
    return platform.client().scalar(number, dtype)


class Program:
    """A function of arrays, with what its operands need before it runs. Compiled when it first runs by itself."""

    __slots__ = (
        "__weakref__",
        "_executable",
        "digest",
        "function",
        "increment",
        "name",
        "processes",
        "results",
        "scalars",
    )

    def __init__(
        self,
        name: str,
        function: hlo.Function,
        results: Sequence[Value],
        scalars: Sequence[tuple[int, torch.dtype | None]] = (),
        increment: int = 0,
        processes: Sequence[int] = (),
    ):
        self.name = name
        self.function = function
        self.results = tuple(results)
        self.scalars = tuple(scalars)
        """(operand, dtype) of numbers, and (operand, None) of CPU tensors, that become arrays first."""
        self.increment = increment
        """Random numbers taken: the last operand is the generator's (seed, offset), which advances by this."""
        self.processes = tuple(processes)
        """The processes of a job that run it together, one replica each; empty: this one alone."""
        text = function.define(results, "f", public=False)
        self.digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        """The same, in every process, for all that compute the same, such as an operator and its in-place form."""
        self._executable: Executable | None = None

    @property
    def text(self) -> str:
        """The StableHLO module."""
        return self.function.module(self.results)

    @property
    def computes(self) -> bool:
        """Whether there is anything to run: not for a graph that only makes views."""
        return bool(self.results or self.function.blocks[0].lines)

    @property
    def executable(self) -> Executable:
        return self._executable or self.compile()

    def compile(self, effort: Effort = "low") -> Executable:
        """Compiles the function, or finds it in a cache.

        Raises:
            CompileError: XLA refused it.
        """
        specs = [(value.shape, value.dtype) for value in self.results]
        self._executable = platform.client().compile(
            self.text, specs, donated=self.function.donated(), effort=effort, processes=self.processes
        )
        for observer in observers:
            observer.program_made(self)
        return self._executable

    def verify(self) -> None:
        """Refuses at once what compiling would refuse later, together with other programs.

        Raises:
            ValueError: it is no legal StableHLO.
        """
        mlir.parse(self.text)

    def run(self, values: list[Any], generator: torch.Generator | None) -> list[Any]:
        """Starts the program; numbers among the values are converted in place."""
        if self.increment:
            values.append(_plug.take_random(generator, self.increment))
        return self.run_recorded(values)

    def run_recorded(self, values: list[Any]) -> list[Any]:
        """As `run`, where the last value of a program that takes random numbers is the (seed, offset) to take."""
        if self.scalars:
            client = platform.client()
            for index, dtype in self.scalars:
                values[index] = client.put(values[index]) if dtype is None else client.scalar(values[index], dtype)
        if self.increment:
            values[-1] = platform.client().put_words(values[-1])
        return self.executable.run(values)

    def entry(self) -> Callable[[list[Any], torch.Generator | None], list[Any]] | Start:
        """What the call cache calls: `run`, or what `run` would where operands are arrays and numbers alone."""
        if not self.computes:
            return _run_nothing
        executable = self.executable
        numbers = [(index, dtype) for index, dtype in self.scalars if dtype is not None]
        if len(numbers) < len(self.scalars) or self.increment or not isinstance(executable, Executable):
            return self.run
        return Start(*executable.calls, numbers, executable.explain)


def _run_nothing(values: list[Any], generator: torch.Generator | None) -> list[Any]:
    """The entry of what does not compute."""
    return []


def drop_unused(function: hlo.Function, keep: Sequence[bool]) -> list[int]:
    """Removes arguments that no line uses (or that are not to be kept); returns the indices that stay."""
    body = "\n".join(function.blocks[0].lines)
    used = set(re.findall(r"%arg\d+", body))
    staying = [index for index, value in enumerate(function.arguments) if keep[index] or value.name in used]
    function.arguments = [function.arguments[index] for index in staying]
    function.attributes = [function.attributes[index] for index in staying]
    return staying
