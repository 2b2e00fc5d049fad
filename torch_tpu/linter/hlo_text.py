"""Reading what the TPU compiler says: the text of optimized HLO, with layouts, estimated cycles and places in Python.

A shape such as `bf16[4,512,64]{1,2,0:T(8,128)(2,1)S(1)}` has its dimensions from the fastest to the slowest, the tile that
the fastest ones are padded to, and the memory it is in (1: VMEM; none: HBM).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "token": 0, "opaque": 0}
"""Bits of element types whose name does not say them."""


class Spot(NamedTuple):
    """A place in a Python program."""

    file: str
    line: int
    column: int


@dataclass(frozen=True)
class Array:
    """The shape of an array, and how it lies in memory."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...]
    """Dimensions, the fastest first."""
    tile: tuple[int, ...]
    """What the fastest dimensions are padded to multiples of, the fastest last; empty: no padding."""
    space: int
    """0: the device's memory (HBM)."""

    @property
    def bits(self) -> int:
        digits = re.match(r"[a-z]+(\d+)", self.dtype)
        return BITS[self.dtype] if self.dtype in BITS else int(digits[1]) if digits else 8

    @property
    def num_bytes(self) -> int:
        """Of its elements."""
        return math.prod(self.dims) * self.bits // 8

    @property
    def padded_bytes(self) -> int:
        """That it takes in memory."""
        sizes = [self.dims[dim] for dim in self.order]
        for place, tile in enumerate(reversed(self.tile)):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // tile) * tile
        missing = self.tile[: max(0, len(self.tile) - len(sizes))]
        return math.prod(sizes) * math.prod(missing) * self.bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def layout(self) -> str:
        tile = f":T({','.join(map(str, self.tile))})" if self.tile else ""
        return f"{{{','.join(map(str, self.order))}{tile}}}"


@dataclass(frozen=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    """Its results."""
    operands: tuple[str, ...]
    calls: tuple[str, ...]
    """Computations that it consists of, or runs."""
    cycles: int
    """What the compiler expects it to take; 0 where it does not say."""
    turns: int
    """Of a loop, where the compiler knows."""
    spot: Spot | None
    operator: str
    """The ATen operator it comes from, as far as the compiler kept it."""
    target: str
    """Of a custom call."""


@dataclass
class Computation:
    """Instructions by name, in the order they run."""

    name: str
    is_entry: bool
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who uses each instruction."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            for operand in instruction.operands:
                found.setdefault(operand, []).append(instruction)
        return found

    def arrays_of(self, name: str) -> tuple[Array, ...]:
        known = self.instructions.get(name)
        return known.arrays if known is not None else ()


class Module:
    """A parsed module."""

    def __init__(self, computations: dict[str, Computation]):
        self.computations = computations

    def executed(self) -> Iterator[tuple[Computation, int]]:
        """The entry and the bodies of loops and branches, and how often each runs as far as that is known."""
        todo = [(computation, 1) for computation in self.computations.values() if computation.is_entry]
        while todo:
            computation, times = todo.pop()
            yield computation, times
            for instruction in computation.instructions.values():
                if instruction.opcode in ("while", "conditional", "call"):
                    for name in instruction.calls:
                        if name in self.computations:
                            todo.append((self.computations[name], times * instruction.turns))

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions of a fusion, and of fusions in it; of all else the instruction itself."""
        if instruction.opcode != "fusion":
            yield instruction
            return
        for name in instruction.calls:
            for inner in self.computations[name].instructions.values():
                yield from self.inside(inner)


_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([^)]*)\)")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_METADATA = re.compile(r"metadata=\{(.*?)\}(?:,|$)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_FRAME_ROW = re.compile(r"^(\d+) (?:\"(.*)\"|\{(.*)\})$")


def parse(text: str) -> Module:
    """A module from `HloModule.to_string()`."""
    spots = _spots(text)
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    for line in text.splitlines():
        if current is None:
            header = _HEADER.match(line)
            if header is not None:
                current = computations[header[2]] = Computation(header[2], bool(header[1]))
        elif line.startswith("}"):
            current = None
        elif " = " in line:
            made = _instruction(line.strip(), spots)
            current.instructions[made.name] = made
    return Module(computations)


def _instruction(line: str, spots: dict[int, Spot]) -> Instruction:
    left, _, rest = line.removeprefix("ROOT ").partition(" = ")
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].strip()
    opcode = _OPCODE.match(rest)
    assert opcode is not None, line
    close = _closing(rest, opcode.end() - 1)
    operands, attributes = rest[opcode.end() : close], rest[close + 1 :]
    metadata = _METADATA.search(attributes)
    spot, operator = _place(metadata[1], spots) if metadata is not None else (None, "")
    branches = _BRANCHES.search(attributes)
    calls = _CALLED.findall(attributes) + (re.findall(r"%?([\w.\-]+)", branches[1]) if branches else [])
    cycles, turns = _CYCLES.search(attributes), _TURNS.search(attributes)
    target = re.search(r'custom_call_target="([^"]*)"', attributes)
    return Instruction(
        left.strip().lstrip("%"),
        opcode[1],
        arrays(shape),
        tuple(re.findall(r"%([\w.\-]+)", operands)),
        tuple(calls),
        int(cycles[1]) if cycles else 0,
        int(turns[1]) if turns else 1,
        spot,
        operator,
        target[1] if target else "",
    )


def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays in the text of a shape, which may be a tuple."""
    found = []
    for dtype, sizes, layout in _SHAPE.findall(shape):
        dims = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
        order, _, rest = layout.partition(":")
        tiles = _TILE.search(rest)
        tile = tuple(int(size) for size in tiles[1].split(",") if size.isdigit()) if tiles else ()
        space = re.search(r"S\((\d+)\)", rest)
        fastest = tuple(int(dim) for dim in order.split(",") if dim) or tuple(reversed(range(len(dims))))
        found.append(Array(dtype, dims, fastest, tile, int(space[1]) if space else 0))
    return tuple(found)


def _closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"a parenthesis is not closed: {text[:200]}")


def _place(metadata: str, spots: dict[int, Spot]) -> tuple[Spot | None, str]:
    operator = re.search(r'op_name="([^"]*)"', metadata)
    frame = re.search(r"stack_frame_id=(\d+)", metadata)
    spot = spots.get(int(frame[1])) if frame else None
    file = re.search(r'source_file="([^"]*)"', metadata)
    if file is not None and file[1] != "-":
        line, column = (re.search(rf"source_{what}=(\d+)", metadata) for what in ("line", "column"))
        spot = Spot(file[1], int(line[1]) if line else 0, int(column[1]) if column else 0)
    return spot, operator[1].rpartition("/")[2] if operator else ""


def _spots(text: str) -> dict[int, Spot]:
    """The stack frames in the tables before the first computation, by their ids."""
    tables: dict[str, dict[int, str]] = {}
    current: dict[int, str] | None = None
    for line in text.partition("\n%")[0].splitlines():
        row = _FRAME_ROW.match(line)
        if row is not None and current is not None:
            current[int(row[1])] = row[2] if row[2] is not None else row[3]
        elif line.isalpha():
            current = tables.setdefault(line, {})
    names = tables.get("FileNames", {})
    locations = {}
    for number, fields in tables.get("FileLocations", {}).items():
        known = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", fields)}
        file = names.get(known.get("file_name_id", 0), "")
        locations[number] = Spot(file, known.get("line", 0), known.get("column", 0))
    found = {}
    for number, fields in tables.get("StackFrames", {}).items():
        location = re.search(r"file_location_id=(\d+)", fields)
        if location is not None and int(location[1]) in locations:
            found[number] = locations[int(location[1])]
    return found
