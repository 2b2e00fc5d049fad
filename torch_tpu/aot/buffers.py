"""Which buffers a program keeps in HBM, from the compiler's dumps of its buffer assignment and live ranges."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch_tpu.aot.hlo_text import Module

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(?:, color (\d+))?,(.*)$")
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(?: \(\w+\))? @(\d+)> \(size=(\d+),offset=\d+\): (.*)$")
_RANGE = re.compile(r"^    (\S+):(\d+)-(\d+)$", re.MULTILINE)
_SHAPE = re.compile(r"shape \|([^|]*)\|")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_COPIES = frozenset({"copy", "copy-start", "copy-done", "bitcast", "get-tuple-element"})
_KEPT = 12

Group = tuple[str, str, str]
"""Kind, shape and source of buffers."""


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
    kinds: dict[str, str] = {}
    shapes: dict[str, str] = {}
    sizes: dict[str, int] = {}
    arguments: list[tuple[str, int]] = []
    totals = {"argument": 0, "output": 0, "temporary": 0}
    kind = ""
    for line in assignment.splitlines():
        if match := _ALLOCATION.match(line):
            kind = _kind(match[3]) if match[2] in (None, "0") else ""
            if kind:
                totals[kind] += int(match[1])
            if kind == "argument" and (shape := _SHAPE.search(match[3])):
                arguments.append((shape[1], int(match[1])))
        elif kind and (match := _VALUE.match(line)):
            name = match[1].removesuffix("{}")
            kinds[name], shapes[name], sizes[name] = kind, _LAYOUT.sub("", match[4]), int(match[3])
    if not kinds:
        return None
    groups = {("argument", shape, ""): [n for s, n in arguments if s == shape] for shape, _ in arguments}
    groups |= _alive(live_ranges, kinds, shapes, sizes, module)
    return Assignment(totals["argument"], totals["output"], totals["temporary"], _largest(groups))


def _kind(description: str) -> str:
    """What an allocation is for; nothing for those that are part of the program or of no size."""
    if "parameter" in description:
        return "argument"
    if "maybe-live-out" in description:
        return "output"
    return "temporary" if "temp" in description else ""


def _alive(
    live_ranges: str,
    kinds: Mapping[str, str],
    shapes: Mapping[str, str],
    sizes: Mapping[str, int],
    module: Module | None,
) -> dict[Group, list[int]]:
    """Sizes of the outputs and temporaries that are alive when most of HBM is in use.

    The moment that the compiler calls the peak counts faster memories too.
    """
    ranges: dict[str, tuple[int, int]] = {}
    changes: Counter[int] = Counter()
    for match in _RANGE.finditer(live_ranges):
        name = match[1].removesuffix("{}")
        if kinds.get(name, "argument") != "argument" and name not in ranges:
            first, last = ranges[name] = int(match[2]), int(match[3])
            changes[first] += sizes[name]
            changes[last + 1] -= sizes[name]
    totals = dict(zip(sorted(changes), itertools.accumulate(changes[time] for time in sorted(changes)), strict=True))
    peak = max(totals, key=lambda time: totals[time], default=0)
    groups: dict[Group, list[int]] = {}
    for name, (first, last) in ranges.items():
        if first <= peak <= last:
            groups.setdefault((kinds[name], shapes[name], _source(module, name)), []).append(sizes[name])
    return groups


def _largest(groups: Mapping[Group, list[int]]) -> tuple[Buffers, ...]:
    """The groups that matter, the largest first."""
    found = [Buffers(*key, count=len(sizes), nbytes=sum(sizes)) for key, sizes in groups.items()]
    least = sum(group.nbytes for group in found) / 1000
    found = [group for group in found if group.nbytes >= least and not group.shape.startswith("(")]
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
