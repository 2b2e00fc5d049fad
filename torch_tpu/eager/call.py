"""A call while it is traced: its operands are arguments of a function under construction, its tensors meta tensors.

Serves a single operator (dispatch.py) and a compiled graph alike: both come from the call cache as arguments, the
operands they stand for and the arrays that storages hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import _plug, hlo
from torch_tpu.eager import origins
from torch_tpu.eager.program import Program, aval_id, drop_unused, num_bytes, spec_of
from torch_tpu.eager.trace import RandomState, Trace, scalar_dtype
from torch_tpu.hlo import Value
from torch_tpu.runtime import platform
from torch_tpu.tensor import views

Codes = Sequence[int | list[int]]
"""For each argument (list item) the operand it is, -1 for a default, -2 for a constant; for a tensor whose storage
offset is an operand as well, that operand plus one from bit 32 on, and in bit 62 whether windows start there too."""


class Call:
    """The function, the trace and what was bound in them.

    Args:
        name: of the program.
        args: all arguments in order.
        avals: for each operand that is a storage the id of its array's shape and dtype, else -1.
        wide: Python floats are float64.
    """

    def __init__(self, name: str, args: Sequence[Any], codes: Codes, avals: Sequence[int], *, wide: bool = False):
        self.function = hlo.Function(name)
        self.increment = 0
        self.rng = RandomState(self.function)
        self.trace = Trace(platform.client().platform, self.rng)
        self.storages: dict[int, Value] = {}
        self.before: dict[int, Value | None] = {}
        self.bases: dict[int, torch.Tensor] = {}
        self.data: dict[tuple[int, int], Value] = {}
        self.numbers: dict[int, Value] = {}
        self.scalars: dict[int, torch.dtype | None] = {}
        self.avals = avals
        self.operands: dict[str, int] = {}
        self.wide = wide
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
            return self._tensor(given, code & 0xFFFFFFFF, (code >> 32 & 0x3FFFFFFF) - 1, windows=bool(code >> 62))
        if code < 0:
            return given
        if isinstance(given, torch.Tensor):
            self.scalars[code] = None
            meta = torch.empty((), dtype=given.dtype, device="meta")
            self.trace.bind(meta, self._argument(code, (), given.dtype))
            return meta
        if code not in self.numbers:  # the same numbers in a list are one operand
            dtype = self.scalars[code] = self._scalar_dtype(place, given)
            self.numbers[code] = self._argument(code, (), dtype, weak=True)
        self.data[place, item] = self.numbers[code]
        return given

    def _scalar_dtype(self, place: int, number: Any) -> torch.dtype:
        return scalar_dtype(number, self.wide)

    def _tensor(self, given: torch.Tensor, operand: int, offset: int, *, windows: bool) -> torch.Tensor:
        """A meta tensor like a device tensor; offset is the operand that holds its storage offset, or -1."""
        if operand not in self.bases:
            base = torch.empty(given.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
            self.bases[operand] = base
            if self.avals[operand] > 0:
                self.storages[operand] = self._argument(operand, *spec_of(self.avals[operand]))
            self.before[operand] = self.storages.get(operand)
            self.trace.bind(base, self.before[operand]).planned = _plug.planned_size(given)
        storage = self.bases[operand].untyped_storage()
        meta = torch.empty(0, dtype=given.dtype, device="meta")
        meta.set_(storage, given.storage_offset(), given.size(), given.stride())
        if given.is_conj():
            torch._C._set_conj(meta, True)
        if given.is_neg():
            torch._C._set_neg(meta, True)
        if offset >= 0:
            dtype = torch.int32 if given.untyped_storage().nbytes() < 2**31 else torch.int64
            self.scalars[offset] = dtype
            self.trace.starts[id(meta)] = views.Start(self._argument(offset, (), dtype), windows)
        return meta

    def new_tensor(self, item: torch.Tensor) -> tuple[tuple[Any, ...], Value]:
        """A traced tensor as the entry describes a new one, and its array."""
        size, stride = tuple(item.shape), tuple(item.stride())
        cell = self.trace.cell(item)
        shared = any(base.untyped_storage()._cdata == item.untyped_storage()._cdata for base in self.bases.values())
        if shared or not views.is_whole(item) or cell.value is None:
            value = self.trace.read(item)
            order = views.physical_order(size, stride)
            if order is None:
                order, stride = views.dense_like(size, stride)
            value = hlo.transpose(value, order)
        else:
            value = cell.value
        aval, count = aval_id(value.shape, value.dtype), num_bytes(value.shape, value.dtype)
        return (list(size), list(stride), item.dtype, aval, count), value

    def written(self) -> tuple[list[tuple[int, int, int]], list[Value]]:
        """The storages that were written, as the entry lists them, and their new values."""
        writes, values = [], []
        for operand, base in self.bases.items():
            value = self.trace.cell(base).value
            if value is not self.before[operand] and value is not None:
                writes.append((operand, aval_id(value.shape, value.dtype), num_bytes(value.shape, value.dtype)))
                values.append(value)
        return writes, values

    def donate(
        self, outputs: list[Value], writes: list[tuple[int, int, int]], values: list[Value], donated: Sequence[int]
    ) -> list[bool]:
        """Gives written storages' new values their old memory; returns which arguments the program must keep."""
        keep = [False] * len(self.function.arguments)
        for (operand, _, _), value in zip(writes, values, strict=True):
            argument = self.storages.get(operand)
            if operand in donated and argument is not None and argument.type == value.type:
                place = self.function.arguments.index(argument)
                self.function.alias(place, outputs.index(value))
                keep[place] = True
        return keep

    def finish(self, outputs: list[Value], keep: list[bool]) -> tuple[Program, list[int]]:
        """The program, not compiled yet, and the operands it takes."""
        names = {value.name for value in outputs}
        keep = [kept or value.name in names for kept, value in zip(keep, self.function.arguments, strict=True)]
        state = self.rng.value
        if state is not None:  # the last argument
            place = self.function.arguments.index(state)
            self.function.arguments.append(self.function.arguments.pop(place))
            self.function.attributes.append(self.function.attributes.pop(place))
            keep = [*keep[:place], *keep[place + 1 :], True]
            self.increment = hlo.bound(self.trace.random_taken)
        drop_unused(self.function, keep)
        origins.note(self.function.name, self.function.blocks[0].lines, self.function.sources)
        inputs = [self.operands[v.name] for v in self.function.arguments if v is not state]
        scalars = [(index, self.scalars[op]) for index, op in enumerate(inputs) if op in self.scalars]
        return Program(self.function.name, self.function, outputs, scalars, self.increment), inputs
