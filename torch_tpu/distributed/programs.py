"""The StableHLO of collectives: one small program for each kind, reduction, shapes, dtype and group.

A program takes one array, or one for each member of the group which it concatenates, and returns one or one for each
member in the same way. What only moves, moves as unsigned integers of the same width, so that it arrives bit for bit.

Every member must start the programs that it shares with another in the same order, and XLA's CPU client keeps that
order only among those that one thread starts, while autograd starts some in its own. So each also takes the last result
of the one before it and returns the next.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal

import torch

from torch_tpu import hlo
from torch_tpu.eager.program import Program
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Spec
from torch_tpu.runtime import platform
from torch_tpu.runtime.client import Client

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "scatter"]
Reduction = Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]

_NATIVE: dict[str, Callable[[Value, Value], Value]] = {
    "sum": hlo.add,
    "avg": hlo.add,
    "product": hlo.multiply,
    "min": hlo.minimum,
    "max": hlo.maximum,
}
"""What XLA's own reductions know."""
_BITWISE: dict[str, Callable[[Value, Value], Value]] = {
    "band": hlo.bitwise_and,
    "bor": hlo.bitwise_or,
    "bxor": hlo.bitwise_xor,
}
_ON_BOOL = {"sum": "max", "bor": "max", "max": "max", "product": "min", "band": "min", "min": "min"}
"""Reductions of bool as those of 0 and 1."""
_LINK = Spec((1024,), torch.float32)
"""What links a program to the next. XLA's CPU client runs a program of under 1000 additions in the thread that starts
it, which would then wait for the other processes."""
_last: dict[tuple[Client, tuple[int, ...]], Any] = {}
_lock = threading.Lock()


@dataclass
class Programs:
    """The programs of one group.

    Args:
        processes: the group's members, as the job numbers them.
    """

    processes: tuple[int, ...]
    _made: dict[Any, Program] = field(default_factory=dict)

    def run(
        self, kind: Kind, operands: Sequence[tuple[Any, Spec]], results: Sequence[Spec], detail: str | int = ""
    ) -> list[Any]:
        """Starts a collective with its operands' arrays and returns the results', which may not be there yet.

        Raises:
            TypeError: the reduction is not defined for the dtype.
        """
        program = self.get(kind, [spec for _, spec in operands], results, detail)
        with _lock:
            client = platform.client()
            before = _last.get((client, self.processes))
            if before is None:
                before = client.put(torch.zeros(_LINK.shape, dtype=_LINK.dtype))
            *returned, _last[client, self.processes] = program.run([*(array for array, _ in operands), before], None)
        if not client.runs and len(operands) == 1 and kind in ("broadcast", "all_gather"):
            for array in returned:  # sizes that members compare, for example: those who are not there have the same
                array.repeat_values(operands[0][0])
        return returned

    def get(self, kind: Kind, operands: Sequence[Spec], results: Sequence[Spec], detail: str | int = "") -> Program:
        """The program of a collective, written and compiled at the first call.

        Args:
            operands: the arrays' shapes and dtypes: one, or one for each member.
            results: the same for what it returns.
            detail: the reduction, or the place in the group of the one whose data is sent.

        Raises:
            TypeError: the reduction is not defined for the dtype.
        """
        key = (kind, tuple(operands), tuple(results), detail)
        program = self._made.get(key)
        if program is None:
            with hlo.Function(kind) as function:
                values = [function.argument(*spec) for spec in operands]
                answer = _KINDS[kind](_join(values), len(self.processes), detail)
                returned = _split(answer, results)
                returned.append(hlo.add(function.argument(*_LINK), 1))
            program = self._made[key] = Program(kind, function, returned, processes=self.processes)
        return program


def _join(values: Sequence[Value]) -> Value:
    if len(values) == 1:
        return values[0] if values[0].ndim else hlo.reshape(values[0], (1,))
    return hlo.concatenate([hlo.reshape(value, (value.numel,)) for value in values], 0)


def _split(value: Value, results: Sequence[Spec]) -> list[Value]:
    if len(results) == 1:
        return [hlo.reshape(value, results[0].shape)]
    flat, start, parts = hlo.reshape(value, (value.numel,)), 0, []
    for spec in results:
        stop = start + math.prod(spec.shape)
        parts.append(hlo.reshape(hlo.slice_in_dim(flat, 0, start, stop), spec.shape))
        start = stop
    return parts


def _divisible(x: Value, size: int) -> Value:
    """x with a first dimension that splits into equal parts, in the same order."""
    return x if x.shape[0] % size == 0 else hlo.reshape(x, (x.numel,))


def _as_bits(x: Value, move: Callable[[Value], Value]) -> Value:
    if x.dtype is torch.bool:
        return hlo.convert(move(hlo.convert(x, torch.uint8)), torch.bool)
    return hlo.bitcast(move(hlo.bitcast(x, hlo.bits_dtype(x.dtype))), x.dtype)


def _only(x: Value, source: int) -> Value:
    """x where it is the source's, zeros elsewhere: what sums, minus the others' data."""
    mine = hlo.compare("EQ", hlo.replica_id(), source)
    return hlo.select(hlo.broadcast_in_dim(mine, x.shape, ()), x, hlo.zeros_like(x))


def _broadcast(x: Value, size: int, source: int) -> Value:
    return _as_bits(x, lambda bits: hlo.all_reduce(_only(bits, source), hlo.add, size))


def _scatter(x: Value, size: int, source: int) -> Value:
    return _as_bits(x, lambda bits: hlo.reduce_scatter(_only(bits, source), hlo.add, size))


def _all_gather(x: Value, size: int, _: str) -> Value:
    return _as_bits(x, partial(hlo.all_gather, num_replicas=size))


def _all_to_all(x: Value, size: int, _: str) -> Value:
    return _as_bits(_divisible(x, size), partial(hlo.all_to_all, num_replicas=size))


def _all_reduce(x: Value, size: int, reduction: Reduction) -> Value:
    return _reduced(x, size, reduction, hlo.all_reduce)


def _reduce_scatter(x: Value, size: int, reduction: Reduction) -> Value:
    return _reduced(_divisible(x, size), size, reduction, hlo.reduce_scatter)


def _reduced(x: Value, size: int, reduction: Reduction, how: Callable[..., Value]) -> Value:
    dtype = x.dtype
    if dtype is torch.bool and reduction in _ON_BOOL:
        wide = how(hlo.convert(x, torch.uint8), _NATIVE[_ON_BOOL[reduction]], size)
        return hlo.convert(wide, torch.bool)
    if reduction in _BITWISE and not dtype.is_floating_point:
        return _folded(x, size, _BITWISE[reduction], how)
    if reduction not in _NATIVE or dtype is torch.bool:
        raise TypeError(f"ReduceOp.{reduction.upper()} is not defined for {dtype}")
    result = how(x, _NATIVE[reduction], size)
    if reduction == "avg":
        wide = hlo.convert(result, hlo.compute_dtype(dtype))
        result = hlo.convert(hlo.divide(wide, size), dtype)
    return result


def _folded(x: Value, size: int, combine: Callable[[Value, Value], Value], how: Callable[..., Value]) -> Value:
    """A reduction that XLA's collectives do not know: everyone's data comes together and is combined on the spot."""
    exchange = hlo.all_gather if how is hlo.all_reduce else hlo.all_to_all
    everything = exchange(x, size)
    length = everything.shape[0] // size
    return reduce(combine, (hlo.slice_in_dim(everything, 0, i * length, (i + 1) * length) for i in range(size)))


_KINDS: dict[str, Callable[..., Value]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "scatter": _scatter,
}
