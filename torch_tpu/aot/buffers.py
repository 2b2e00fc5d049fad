"""Which buffers a program keeps in HBM, from the compiler's dumps of its buffer assignment and live ranges."""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch_tpu.aot.hlo_text import Module

_ALLOCATION = re.compile(r"^allocation (\d+): size (\d+)(?:, color (\d+))?,(.*)$")
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(?: \(\w+\))? @\d+> \(size=(\d+),offset=(\d+)\): (.*)$")
_RANGE = re.compile(r"^    (\S+):(\d+)-(\d+)$", re.MULTILINE)
_SHAPE = re.compile(r"shape \|([^|]*)\|")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_COPIES = frozenset({"copy", "copy-start", "copy-done", "bitcast", "get-tuple-element"})
_KEPT = 12

Group = tuple[str, str, str]
"""Kind, shape and source of buffers."""


class Value(NamedTuple):
    """What a buffer holds for a while; values of one place that are alive together are one in the program too."""

    kind: str
    shape: str
    nbytes: int
    place: tuple[int, int]
    """The allocation, and the offset in it."""


@dataclass(frozen=True)
class Buffers:
    """Buffers of the same kind, shape and origin that are alive when most memory is in use; arguments always are."""

    kind: str
    """"argument", "output" or "temporary"."""
    shape: str
    """Such as "bf16[4096,14336]"."""
    source: str
    """The operation that makes them, or nothing."""
    count: int
    nbytes: int
    """All together."""


@dataclass(frozen=True)
class Assignment:
    """Bytes of HBM by what they are for."""

    arguments: int
    outputs: int
    """Those that are not in the memory of donated arguments."""
    temporaries: int
    largest: tuple[Buffers, ...]

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries


def parse(assignment: str, live_ranges: str, module: Module | None = None) -> Assignment | None:
    """Reads both dumps; None where the first is empty.

    Args:
        module: the optimized HLO, for where buffers come from.
    """
    values: dict[str, Value] = {}
    arguments: list[tuple[str, int]] = []
    totals = {"argument": 0, "output": 0, "temporary": 0}
    kind, allocation = "", 0
    for line in assignment.splitlines():
        if match := _ALLOCATION.match(line):
            allocation, size = int(match[1]), int(match[2])
            kind = _kind(match[4]) if match[3] in (None, "0") else ""
            if kind:
                totals[kind] += size
            if kind == "argument" and (shape := _SHAPE.search(match[4])):
                arguments.append((shape[1], size))
        elif kind and (match := _VALUE.match(line)):
            name = match[1].removesuffix("{}")
            values[name] = Value(kind, _LAYOUT.sub("", match[4]), int(match[2]), (allocation, int(match[3])))
    if not values:
        return None
    groups = {("argument", shape, ""): [n for s, n in arguments if s == shape] for shape, _ in arguments}
    groups |= _alive(live_ranges, values, module)
    return Assignment(totals["argument"], totals["output"], totals["temporary"], _largest(groups))


def _kind(description: str) -> str:
    """What an allocation is for; nothing for those that are part of the program or of no size."""
    if "parameter" in description:
        return "argument"
    if "maybe-live-out" in description:
        return "output"
    return "temporary" if "temp" in description else ""


def _alive(live_ranges: str, values: Mapping[str, Value], module: Module | None) -> dict[Group, list[int]]:
    """Sizes of the outputs and temporaries that are alive when most of HBM is in use.

    The moment that the compiler calls the peak counts faster memories too.
    """
    found: dict[str, tuple[int, int]] = {}
    for match in _RANGE.finditer(live_ranges):
        name = match[1].removesuffix("{}")
        if name in values and values[name].kind != "argument" and not values[name].shape.startswith("("):
            found.setdefault(name, (int(match[2]), int(match[3])))
    places: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for name, (first, last) in found.items():
        places.setdefault(values[name].place, []).append((first, last, name))
    changes: Counter[int] = Counter()
    for members in places.values():
        for first, last, nbytes in _held(members, values):
            changes[first] += nbytes
            changes[last + 1] -= nbytes
    totals = dict(zip(sorted(changes), itertools.accumulate(changes[time] for time in sorted(changes)), strict=True))
    peak = max(totals, key=lambda time: totals[time], default=0)
    groups: dict[Group, list[int]] = {}
    for members in places.values():
        alive = [name for first, last, name in sorted(members) if first <= peak <= last]
        if alive:
            name = max(
                alive, key=lambda name: values[name].nbytes
            )  # of equal ones the first: others are made in its place
            value = values[name]
            groups.setdefault((value.kind, value.shape, _source(module, name)), []).append(value.nbytes)
    return groups


def _held(members: list[tuple[int, int, str]], values: Mapping[str, Value]) -> Iterator[tuple[int, int, int]]:
    """From when to when one place holds how many bytes: those of the largest value that is alive."""
    coming = sorted(members, reverse=True)
    alive: list[tuple[int, int]] = []
    times = sorted({first for first, _, _ in members} | {last + 1 for _, last, _ in members})
    for time, following in itertools.pairwise(times):
        while coming and coming[-1][0] == time:
            _, last, name = coming.pop()
            heapq.heappush(alive, (-values[name].nbytes, last))
        while alive and alive[0][1] < time:
            heapq.heappop(alive)
        if alive:
            yield time, following - 1, -alive[0][0]


def _largest(groups: Mapping[Group, list[int]]) -> tuple[Buffers, ...]:
    """The groups that matter, the largest first."""
    found = [Buffers(*key, count=len(sizes), nbytes=sum(sizes)) for key, sizes in groups.items()]
    least = sum(group.nbytes for group in found) / 1000
    found = [group for group in found if group.nbytes >= least]
    return tuple(sorted(found, key=lambda group: -group.nbytes)[:_KEPT])


def _source(module: Module | None, name: str) -> str:
    """What makes a buffer, or what it is a copy of: the instruction's line of the program, or its name without the compiler's
    number."""
    plain = re.sub(r"\{[\d,]*\}$", "", name)
    known = module.entry.by_name if module is not None else {}
    instruction = known.get(plain)
    while instruction is not None and not instruction.source and instruction.opcode in _COPIES:
        instruction = known.get(instruction.operands[0])
    if instruction is not None and instruction.source:
        return instruction.source
    return re.sub(r"(\.(clone|remat|\d+))+$", "", plain)
