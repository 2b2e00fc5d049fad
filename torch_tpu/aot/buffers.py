"""Which buffers a program keeps in HBM, from the compiler's dumps of its buffer assignment and live ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch_tpu.aot.hlo_text import Module

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(?:, color (\d+))?,(.*)$")
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(?: \(\w+\))? @(\d+)> \(size=(\d+),offset=\d+\): (.*)$")
_ALIVE = re.compile(r"^    (\S+): (\d+) bytes")
_SHAPE = re.compile(r"shape \|([^|]*)\|")
_LAYOUT = re.compile(r"\{[^{}]*\}")
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
            kinds[match[1]], shapes[match[1]] = kind, _LAYOUT.sub("", match[4])
    if not kinds:
        return None
    groups = {("argument", shape, ""): [n for s, n in arguments if s == shape] for shape, _ in arguments}
    groups |= _alive(live_ranges, kinds, shapes, module)
    return Assignment(totals["argument"], totals["output"], totals["temporary"], _largest(groups))


def _kind(description: str) -> str:
    """What an allocation is for; nothing for those that are part of the program or of no size."""
    if "parameter" in description:
        return "argument"
    if "maybe-live-out" in description:
        return "output"
    return "temporary" if "temp" in description else ""


def _alive(
    live_ranges: str, kinds: Mapping[str, str], shapes: Mapping[str, str], module: Module | None
) -> dict[Group, list[int]]:
    """Sizes of the outputs and temporaries that are alive at the peak."""
    _, _, peak = live_ranges.partition("(peak):\n")
    groups: dict[Group, list[int]] = {}
    for line in peak.splitlines():
        match = _ALIVE.match(line)
        if match is None:
            continue
        name = match[1].removesuffix("{}")
        full = match[1] if match[1] in kinds else name
        if kinds.get(full, "argument") != "argument":
            groups.setdefault((kinds[full], shapes[full], _source(module, name)), []).append(int(match[2]))
    return groups


def _largest(groups: Mapping[Group, list[int]]) -> tuple[Buffers, ...]:
    """The groups that matter, the largest first."""
    found = [Buffers(*key, count=len(sizes), nbytes=sum(sizes)) for key, sizes in groups.items()]
    least = sum(group.nbytes for group in found) / 1000
    found = [group for group in found if group.nbytes >= least and not group.shape.startswith("(")]
    return tuple(sorted(found, key=lambda group: -group.nbytes)[:_KEPT])


def _source(module: Module | None, name: str) -> str:
    """What makes a buffer: the instruction's line of the program, or its name without the compiler's number."""
    plain = re.sub(r"\{[\d,]*\}$", "", name)
    instruction = module.entry.by_name.get(plain) if module is not None else None
    if instruction is not None and instruction.source:
        return instruction.source
    return re.sub(r"(\.(clone|remat|\d+))+$", "", plain)
