"""Reading optimized HLO as text: computations, instructions, shapes, layouts, attributes, places in Python.

The text is what XLA prints of a scheduled module (`HloModule::ToString`); the TPU compiler prints it itself, so that it can
be read even where its binary form is too new for jaxlib. Parts are parsed when they are asked for: large modules have tens
of thousands of instructions.

A shape such as `bf16[4,512,64]{1,2,0:T(8,128)(2,1)S(1)}` has its dimensions from the fastest to the slowest, the tile that
the fastest ones are padded to, and the memory it is in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple


def names(text: str) -> frozenset[str]:
    """A set of names, written as one text."""
    return frozenset(text.split())


BITS: dict[str, int] = {
    "pred": 8,
    "s2": 2,
    "u2": 2,
    "s4": 4,
    "u4": 4,
    "f4e2m1fn": 4,
    "s8": 8,
    "u8": 8,
    "s16": 16,
    "u16": 16,
    "f16": 16,
    "bf16": 16,
    "s32": 32,
    "u32": 32,
    "f32": 32,
    "s64": 64,
    "u64": 64,
    "f64": 64,
    "c64": 64,
    "c128": 128,
}
"""Of an element, by the names of HLO; the types f8... have 8, and tokens and opaque values none."""

_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_TILE = re.compile(r"T\(([^)]*)\)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.<>-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_OPERAND = re.compile(r"%([^\s,()]+)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|condition|body|true_computation|false_computation|branch_computations|called_computations)="
    r"(?:\{([^}]*)\}|%?([\w.<>-]+))"
)
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_UNKNOWN_CYCLES = 2**63 - 1


class Spot(NamedTuple):
    """A place in a Python program."""

    file: str
    line: int
    column: int


@dataclass(frozen=True)
class Shape:
    """An array: one part of an instruction's type."""

    dtype: str
    dims: tuple[int, ...]
    space: int
    """0 is HBM; others are on the chip (1: VMEM) or on the host."""
    layout_text: str = ""
    """What is in the braces."""

    @property
    def numel(self) -> int:
        return math.prod(self.dims)

    @property
    def bits(self) -> int:
        """Of an element."""
        return BITS.get(self.dtype, 8 if self.dtype.startswith("f8") else 0)

    @property
    def nbytes(self) -> int:
        """Without padding."""
        return -(-self.numel * self.bits // 8)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions, the fastest first."""
        listed = self.layout_text.partition(":")[0]
        return tuple(int(dim) for dim in listed.split(",") if dim) or tuple(reversed(range(len(self.dims))))

    @property
    def tile(self) -> tuple[int, ...]:
        """What the fastest dimensions are padded to multiples of, the fastest last; empty: no padding."""
        found = _TILE.search(self.layout_text)
        return tuple(int(size) for size in found[1].split(",") if size.isdigit()) if found else ()

    @property
    def padded_bytes(self) -> int:
        """What it takes in memory."""
        sizes, tile = [self.dims[dim] for dim in self.order], self.tile
        for place, wanted in enumerate(reversed(tile)):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // wanted) * wanted
        missing = tile[: max(0, len(tile) - len(sizes))]
        return math.prod(sizes) * math.prod(missing) * self.bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def layout(self) -> str:
        """Order and tile, as HLO writes them."""
        tile = f":T({','.join(map(str, self.tile))})" if self.tile else ""
        return f"{{{','.join(map(str, self.order))}{tile}}}"

    @property
    def hbm_bytes(self) -> int:
        return self.nbytes if self.space == 0 else 0


def shapes_of(text: str) -> list[Shape]:
    """The arrays in a type, with those of tuples in order.

    >>> shapes_of("(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, u32[]{:S(2)})")[0].nbytes
    2048
    """
    found = []
    for match in _SHAPE.finditer(text):
        dims = tuple(int(size.lstrip("<=")) for size in match[2].split(",") if size)
        space = _MEMORY_SPACE.search(match[3] or "")
        found.append(Shape(match[1], dims, int(space[1]) if space else 0, match[3] or ""))
    return found


@dataclass
class Instruction:
    """One line. Its parts are found when they are asked for."""

    name: str
    opcode: str
    root: bool
    type_text: str
    operand_text: str
    """What is between the parentheses: operands, the number of a parameter, or the value of a constant."""
    attributes: str
    """What follows them."""
    frames: Mapping[int, Spot] = field(default_factory=dict, repr=False)
    """The module's table of places."""

    @cached_property
    def shapes(self) -> list[Shape]:
        return shapes_of(self.type_text)

    @property
    def shape(self) -> Shape:
        """Of an instruction that returns one array."""
        return self.shapes[0]

    @cached_property
    def operands(self) -> list[str]:
        """Names of instructions in the same computation."""
        return [] if self.opcode in ("constant", "parameter") else _OPERAND.findall(self.operand_text)

    @cached_property
    def called(self) -> list[str]:
        """Names of the computations it refers to, in order."""
        names = []
        for several, one in _CALLED.findall(self.attributes):
            names += [name.strip().lstrip("%") for name in several.split(",")] if several else [one]
        return names

    def attribute(self, name: str) -> str | None:
        """A plain attribute such as `condition=%c` or `custom_call_target="t"`, without % and quotes."""
        match = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.<>-]+))', self.attributes)
        return (match[1] if match[1] is not None else match[2]) if match else None

    def braced(self, name: str) -> str | None:
        """What is in the braces of an attribute such as `window={size=3x3}`."""
        match = re.search(rf"\b{name}=\{{([^{{}}]*)\}}", self.attributes)
        return match[1] if match else None

    @cached_property
    def cycles(self) -> int | None:
        """The compiler's own estimate, where it has one."""
        match = _CYCLES.search(self.attributes)
        found = int(match[1]) if match else 0
        return found if 0 < found < _UNKNOWN_CYCLES else None

    def _number(self, name: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", self.attributes)
        return int(found[1]) if found else 0

    @cached_property
    def source(self) -> str:
        """The file and line in its metadata, or nothing. The file "-" is the StableHLO text itself."""
        file, line = self.attribute("source_file"), self._number("source_line")
        return f"{file}:{line}" if file and line else ""

    @cached_property
    def spot(self) -> Spot | None:
        """The place in Python that its metadata names, where the StableHLO had one."""
        file = self.attribute("source_file")
        if file and file != "-":
            return Spot(file, self._number("source_line"), self._number("source_column"))
        return self.frames.get(self._number("stack_frame_id"))

    @cached_property
    def operator(self) -> str:
        """The ATen operator it comes from, as far as the compiler kept it."""
        return (self.attribute("op_name") or "").rpartition("/")[2]


@dataclass
class Computation:
    """A list of instructions."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """By number."""
        return {int(i.operand_text): i for i in self.instructions if i.opcode == "parameter"}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Instructions that use each one."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in instruction.operands:
                found.setdefault(operand, []).append(instruction)
        return found

    @cached_property
    def root(self) -> Instruction:
        return next((i for i in reversed(self.instructions) if i.root), self.instructions[-1])


@dataclass
class Module:
    """All computations of a program."""

    computations: dict[str, Computation]
    entry: Computation

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions of a fusion, and of fusions in it; of all else the instruction itself."""
        if instruction.opcode != "fusion":
            yield instruction
            return
        for name in instruction.called:
            for inner in self.computations[name].instructions:
                yield from self.inside(inner)


def parse(text: str) -> Module:
    """Reads a module.

    Raises:
        ValueError: there is no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    frames = _frames(text)
    for line in text.splitlines():
        if line.startswith("}"):
            current = None
        elif current is not None:
            instruction = _instruction(line, frames)
            if instruction is not None:
                current.instructions.append(instruction)
        elif line.endswith("{") and (match := _COMPUTATION.match(line)):
            current = computations[match[2]] = Computation(match[2])
            entry = current if match[1] else entry
    if entry is None:
        raise ValueError("the text is no HLO module: it has no ENTRY computation")
    return Module(computations, entry)


_FRAME_ROW = re.compile(r"^(\d+) (?:\"(.*)\"|\{(.*)\})$")


def _frames(text: str) -> dict[int, Spot]:
    """The places in the tables before the first computation, by the ids of their stack frames."""
    tables: dict[str, dict[int, str]] = {}
    current: dict[int, str] | None = None
    for line in text.partition("\n%")[0].splitlines():
        row = _FRAME_ROW.match(line)
        if row is not None and current is not None:
            current[int(row[1])] = row[2] if row[2] is not None else row[3]
        elif line.isalpha():
            current = tables.setdefault(line, {})
    files, places = tables.get("FileNames", {}), {}
    for number, text_of_fields in tables.get("FileLocations", {}).items():
        fields = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text_of_fields)}
        file = files.get(fields.get("file_name_id", 0), "")
        places[number] = Spot(file, fields.get("line", 0), fields.get("column", 0))
    ids = {number: re.search(r"file_location_id=(\d+)", row) for number, row in tables.get("StackFrames", {}).items()}
    return {number: places[int(found[1])] for number, found in ids.items() if found and int(found[1]) in places}


def _instruction(line: str, frames: Mapping[int, Spot]) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    start = match.end()
    end = _closing(line, start) + 1 if line[start] == "(" else line.index(" ", start)
    opening = line.index("(", end)
    closing = _closing(line, opening)
    return Instruction(
        name=match[2],
        opcode=line[end:opening].strip(),
        root=match[1] is not None,
        type_text=line[start:end],
        operand_text=line[opening + 1 : closing],
        attributes=line[closing + 1 :],
        frames=frames,
    )


def _closing(line: str, opening: int) -> int:
    """Where the parenthesis that opens at a place is closed."""
    depth = 0
    for place in _parentheses(line, opening):
        depth += 1 if line[place] == "(" else -1
        if depth == 0:
            return place
    raise ValueError(f"unbalanced parentheses: {line[:120]}")


_PARENTHESIS = re.compile(r"[()]")


def _parentheses(line: str, start: int) -> Iterator[int]:
    return (match.start() for match in _PARENTHESIS.finditer(line, start))
