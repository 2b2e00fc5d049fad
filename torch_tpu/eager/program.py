"""Programs: what the call cache runs, and the ids of shapes and dtypes that its keys use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tpu import _plug, hlo
from torch_tpu.eager.observe import observers
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Spec
from torch_tpu.runtime import platform

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


class Program:
    """A compiled function of arrays, with what its operands need before it runs."""

    __slots__ = ("executable", "increment", "name", "scalars", "text")

    def __init__(
        self,
        name: str,
        function: hlo.Function,
        results: Sequence[Value],
        scalars: Sequence[tuple[int, torch.dtype | None]] = (),
        increment: int = 0,
    ):
        self.name = name
        self.text = function.module(results)
        self.scalars = tuple(scalars)
        """(operand, dtype) of numbers, and (operand, None) of CPU tensors, that become arrays first."""
        self.increment = increment
        """Random numbers taken: the last operand is the generator's (seed, offset), which advances by this."""
        self.executable = platform.client().compile(
            self.text, [(value.shape, value.dtype) for value in results], donated=function.donated()
        )
        for observer in observers:
            observer.program_made(self)

    def run(self, values: list[Any], generator: torch.Generator | None) -> list[Any]:
        """Starts the program; numbers among the values are converted in place."""
        if self.scalars:
            client = platform.client()
            for index, dtype in self.scalars:
                values[index] = client.put(values[index]) if dtype is None else client.scalar(values[index], dtype)
        if self.increment:
            values.append(random_operand(generator, self.increment))
        return self.executable.run(values)

    def entry(self) -> Callable[[list[Any], torch.Generator | None], list[Any]]:
        """What the call cache calls: `run`, or the executable at once where no operand needs anything."""
        if self.scalars or self.increment:
            return self.run
        run = self.executable.run
        return lambda values, generator: run(values)


def random_operand(generator: torch.Generator | None, increment: int) -> Any:
    """ui64[2]: the generator's seed and offset; the offset then advances."""
    if generator is None:
        generator = torch.tpu.default_generators[0]
    elif generator.device.type != "tpu":
        raise RuntimeError(f"Expected a 'tpu' device type for generator but found '{generator.device.type}'")
    offset = generator.get_offset()
    generator.set_offset(offset + increment)
    return platform.client().put_words([generator.initial_seed(), offset])


def drop_unused(function: hlo.Function, keep: Sequence[bool]) -> list[int]:
    """Removes arguments that no line uses (or that are not to be kept); returns the indices that stay."""
    body = "\n".join(function.blocks[0].lines)
    used = set(re.findall(r"%arg\d+", body))
    staying = [index for index, value in enumerate(function.arguments) if keep[index] or value.name in used]
    function.arguments = [function.arguments[index] for index in staying]
    function.attributes = [function.attributes[index] for index in staying]
    return staying
