"""`torch_tpu.lint(fn, *args)`: what the TPU compiler makes of a function, as findings with Python lines.

`capture.py` runs the function on a device that only compiles; `products.py` and this file judge what the compiler wrote. All shares are of the compiler's own estimates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch_tpu import errors
from torch_tpu.aot import hlo_text, loops
from torch_tpu.aot.hlo_text import Computation, Instruction, Module, Shape, Spot
from torch_tpu.linter import capture, products, rules
from torch_tpu.linter.capture import Captured
from torch_tpu.linter.rules import Finding, Rule, in_order
from torch_tpu.ops import registry, schema
from torch_tpu.runtime.compile_only import Planned
from torch_tpu.runtime.examine import examine

MOVES = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "transpose", "reshape", "slice",
    "concatenate", "pad", "fusion", "reverse",
})  # fmt: skip
"""What a fusion that only moves data consists of."""
WASTE = 1.5
"""Shapes that take this many times the size of their elements are reported."""
LEAST_BYTES = 1 << 16
"""Fewer bytes of padding, or of copies, are not worth a word."""
MANY = 6
"""So many different sizes at one line are reported."""
_INSTEAD = {
    "float64": "float32",
    "int64": "int32",
    "uint64": "uint32",
    "complex128": "complex64",
    "complex64": "pairs of real tensors where there is a choice",
}
_ALGORITHMS = frozenset({
    "bessel", "ctc", "decompositions", "fft", "gamma", "grid_sample", "histogram", "linalg", "polynomials", "random",
    "sampling", "scan", "segment", "solve", "sorting",
})  # fmt: skip
"""Modules of torch_tpu/ops whose operators take many steps: no program can choose the layouts in between."""
_UNCHECKED = "call the function whose name ends in _ex, which does not check its result"
_SHARED = frozenset({"tuple", "get-tuple-element", "bitcast", "parameter", "while", "conditional", "call"})
"""Instructions whose results are in the memory of others."""


@dataclass(frozen=True)
class Report:
    """What `lint` found; `print` it, or look at its findings."""

    findings: tuple[Finding, ...]
    num_programs: int
    """Different ones."""
    cycles: int
    """What the compiler expects all of them together to take; loops count as often as it knows that they turn."""
    bytes_accessed: int
    """The same."""
    stopped_at: str
    """Where the function was stopped, since it waited for a value that never comes or could not run there (TPU110); empty if
    it ended."""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        about = f"{self.num_programs} programs, {self.cycles} cycles and {_size(self.bytes_accessed)} accessed, as the compiler estimates"
        if self.stopped_at:
            waits = "waits for a value: nothing is computed, and all that is read is 0"
            refused = any(finding.rule == rules.Refused.id for finding in self)
            about += f"; stopped at {self.stopped_at}, which {'cannot run' if refused else waits}"
        return "\n".join([*map(str, self.findings), f"{rules.count(self.findings)}: {about}"])


def lint(
    function: Callable[..., Any],
    /,
    *args: Any,
    topology: str = "v6e-1",
    kwargs: Mapping[str, Any] | None = None,
    least_share: float = 0.01,
) -> Report:
    """Says what of `function(*args, **kwargs)` does not suit a TPU, by the words of the TPU compiler. Needs no TPU.

    >>> print(torch_tpu.lint(model, tokens, topology="v6e-1"))

    Args:
        function: a module, or a function, which runs once. Modules and tensors among the arguments are replaced by ones on
            the device that has no values; what a function makes itself must be made on the device "tpu".
        topology: which TPU: a generation and a number of chips.
        least_share: what takes a smaller share of the program's cycles, or of its memory, is not reported.

    Raises:
        ValueError: there is no such topology.
        PlatformError: the TPU compiler (the package libtpu) is not installed.
        CompileError: it refused a program; `torch-tpu plan` explains such refusals.
    """
    captured, client = capture.capture(function, args, kwargs or {}, topology)
    seen = [_Seen(program, captured.runs.count(program)) for program in dict.fromkeys(captured.runs)]
    judged = _Judge(seen, least_share, client.topology.generation)
    findings = [*_of_run(captured), *judged.findings()]
    return Report(
        tuple(in_order(findings)),
        len(seen),
        judged.cycles,
        sum(program.bytes_accessed for program in seen),
        f"{captured.stopped_at.file}:{captured.stopped_at.line}" if captured.stopped_at is not None else "",
    )


class _Seen:
    """One program and what the compiler made of it."""

    def __init__(self, program: Planned, times: int):
        self.text = program.text
        self.times = times
        """How often it runs."""
        said = examine(program)
        if said.error or said.memory is None:
            raise errors.compile_failed(program.name, said.error, program.text)
        self.module = hlo_text.parse(said.hlo)
        self.bytes_accessed = int(max(0.0, said.cost.get("bytes accessed", 0.0))) * times
        self.memory = said.memory

    def computations(self) -> Iterator[tuple[Computation, int]]:
        """What it executes, and how often."""
        for computation, times in loops.executed(self.module):
            yield computation, times * self.times


Line = tuple[str, int] | None
"""A file and a line, where they are known: the passes of autograd know no columns."""


@dataclass
class _Moved:
    """Copies at one line."""

    spot: Spot | None = None
    num_bytes: int = 0
    cycles: int = 0
    count: int = 0
    example: str = ""
    operator: str = ""


@dataclass
class _Padded:
    """Shapes of one shape at one line."""

    array: Shape
    spot: Spot | None = None
    waste: int = 0
    count: int = 0


class _Judge:
    """Findings in programs."""

    def __init__(self, programs: list[_Seen], least_share: float, generation: str):
        self.programs = programs
        self.least_share = least_share
        self.generation = generation
        self.cycles = sum(
            (instruction.cycles or 0) * times
            for program in programs
            for computation, times in program.computations()
            for instruction in computation.instructions
        )
        self.bytes_accessed = sum(program.bytes_accessed for program in programs)

    def findings(self) -> Iterator[Finding]:
        yield from self._relayouts()
        yield from self._padding()
        yield from self._emulated()
        modules = [(program.text, program.module, program.times) for program in self.programs]
        for rule, spot, reason, suggestion in products.judge(modules, self.generation, self.cycles, self.least_share):
            yield _finding(rule, spot, reason, suggestion)

    def _share(self, cycles: int) -> float:
        return cycles / self.cycles if self.cycles else 0.0

    def _relayouts(self) -> Iterator[Finding]:
        lines: dict[Line, _Moved] = defaultdict(_Moved)
        for program in self.programs:
            for computation, times in program.computations():
                for instruction in computation.instructions:
                    change = _change_of_layout(program.module, computation, instruction)
                    if not change:
                        continue
                    spot, operator = place(computation, instruction)
                    if _is_algorithm(operator):
                        continue
                    moved = lines[_line(spot)]
                    moved.spot = _better(moved.spot, spot)
                    moved.num_bytes += times * _bytes_touched(computation, instruction)
                    moved.cycles += times * (instruction.cycles or 0)
                    moved.count += times
                    moved.example, moved.operator = moved.example or change, moved.operator or operator
        for moved in lines.values():
            if self._share(moved.cycles) < self.least_share or moved.num_bytes < LEAST_BYTES:
                continue
            share = moved.num_bytes / self.bytes_accessed if self.bytes_accessed else 0.0
            yield _finding(
                rules.Relayout,
                moved.spot,
                f"{moved.count} {'copies' if moved.count > 1 else 'copy'} for another layout at {moved.operator or 'this'}: "
                f"{moved.example}; {_size(moved.num_bytes)} ({share:.1%} of all bytes), {self._share(moved.cycles):.1%} of "
                "the estimated cycles",
                "keep one order of dimensions between products, and split before reshaping",
            )

    def _padding(self) -> Iterator[Finding]:
        total = sum(program.memory.total for program in self.programs)
        lines: dict[tuple[Line, str], _Padded] = {}
        for program in self.programs:
            for computation, _ in program.computations():
                for instruction in computation.instructions:
                    for array in _own_arrays(program.module, computation, instruction):
                        if array.numel < 2 or array.padded_bytes < WASTE * array.nbytes:
                            continue
                        spot, operator = place(computation, instruction)
                        if _is_algorithm(operator):
                            continue
                        padded = lines.setdefault((_line(spot), str(array)), _Padded(array))
                        padded.spot = _better(padded.spot, spot)
                        padded.waste += array.padded_bytes - array.nbytes
                        padded.count += 1
        known = {shown for line, shown in lines if line is not None}  # arguments have no line; what reads them has
        for (line, shown), padded in lines.items():
            if line is None and shown in known:
                continue
            if padded.waste < LEAST_BYTES or padded.waste / total < self.least_share:
                continue
            many = padded.count > 1
            yield _finding(
                rules.Padding,
                padded.spot,
                f"{'arrays' if many else 'an array'} of {shown} in {padded.array.layout}: {_size(padded.array.nbytes)} "
                f"take {_size(padded.array.padded_bytes)}{f', {padded.count} times' if many else ''}",
                "put a large dimension last, or join the small ones",
            )

    def _emulated(self) -> Iterator[Finding]:
        cycles = self._cycles_by_line()
        spots: dict[Line, Spot | None] = {}
        dtypes: dict[Line, dict[str, None]] = defaultdict(dict)
        for program in self.programs:
            for found, dtype in products.wide_operations(program.text):
                spots[_line(found)] = _better(spots.get(_line(found)), found)
                dtypes[_line(found)][dtype] = None
        for line, spot in spots.items():
            taken, here = cycles.get(line, 0), dtypes[line]
            if "int64" in here:
                here.pop("uint64", None)  # lowerings of int64 compute with its bits
            if self._share(taken) >= self.least_share:
                verb = "are" if len(here) > 1 else "is"
                yield _finding(
                    rules.EmulatedDtype,
                    spot,
                    f"{' and '.join(here)} {verb} emulated; this line takes {self._share(taken):.1%} of the estimated cycles",
                    f"use {' and '.join(_INSTEAD[dtype] for dtype in here)}",
                )

    def _cycles_by_line(self) -> dict[Line, int]:
        found: dict[Line, int] = defaultdict(int)
        for program in self.programs:
            for computation, times in program.computations():
                for instruction in computation.instructions:
                    spot, _ = place(computation, instruction)
                    found[_line(spot)] += (instruction.cycles or 0) * times
        return found


def _of_run(captured: Captured) -> Iterator[Finding]:
    """Findings that need no compiler."""
    if captured.refused is not None:
        what, why, do = captured.refused
        yield _finding(rules.Refused, captured.stopped_at, f"{what}: {why}; the function stops here", do)
    for spot, op, reason in captured.fallbacks:
        why = reason.splitlines()[0].removeprefix("UnsupportedOpError: ") if reason else "no lowering"
        yield _finding(rules.Fallback, spot, f"{op} runs on the CPU: {why}", "use another operator; see torch-tpu ops")
    for spot, shown in captured.reads:
        yield _finding(
            rules.ValueRead, spot, f"{shown} is read on the host", "read it after the function, or not at all"
        )
    for (spot, op), sizes in captured.shapes.items():
        if len(sizes) >= MANY:
            yield _finding(
                rules.ManySizes,
                spot,
                f"{op} is called with {len(sizes)} different sizes, and each needs a program",
                "pad to a few sizes, or use torch.compile(dynamic=True)",
            )
    for spot, op in dict.fromkeys(captured.between):
        yield _finding(
            rules.CallsInBetween,
            spot,
            f"{op} splits a compiled graph: no program can do it",
            _UNCHECKED if op == "aten::_linalg_check_errors" else "use another operator, or move the call to an end",
        )


def _change_of_layout(module: Module, computation: Computation, instruction: Instruction) -> str:
    """How an instruction changes a layout, in words, if it does nothing else."""
    if instruction.opcode in ("copy", "transpose", "reshape"):
        (before, *_) = _shapes(computation, instruction.operands[0]) or instruction.shapes
        after = instruction.shapes[0]
        same = before.order == after.order and before.tile == after.tile and before.dims == after.dims
        return "" if same else f"{before}{before.layout} -> {after}{after.layout}"
    if instruction.opcode != "fusion":
        return ""
    inside = {inner.opcode for inner in module.inside(instruction)}
    if not inside <= MOVES or not inside & {"copy", "transpose", "reshape", "slice", "concatenate"}:
        return ""
    names = [name for name in instruction.operands if _shapes(computation, name)]
    before = max((array for name in names for array in _shapes(computation, name)), key=lambda a: a.nbytes)
    after = instruction.shapes[0]
    return f"{before}{before.layout} -> {after}{after.layout}"


def _shapes(computation: Computation, name: str) -> Sequence[Shape]:
    known = computation.by_name.get(name)
    return known.shapes if known is not None else ()


def _bytes_touched(computation: Computation, instruction: Instruction) -> int:
    read = sum(array.padded_bytes for name in instruction.operands for array in _shapes(computation, name))
    return read + sum(array.padded_bytes for array in instruction.shapes)


def _own_arrays(module: Module, computation: Computation, instruction: Instruction) -> Iterable[Shape]:
    """The arrays that an instruction makes, or that the program is given."""
    if instruction.opcode == "parameter" and computation is module.entry:
        return instruction.shapes
    if instruction.opcode in _SHARED or instruction.opcode.endswith(("-start", "-done")):
        return ()
    return instruction.shapes


def place(computation: Computation, instruction: Instruction) -> tuple[Spot | None, str]:
    """The Python line of an instruction and its operator; those of its nearest neighbours where it has none of its own."""
    todo, seen = [instruction], {instruction.name}
    steps: list[Callable[[Instruction], Iterable[Instruction]]] = [
        partial(_producers, computation),
        lambda item: computation.users.get(item.name, ()),
    ]
    for neighbours in steps:
        todo = [instruction]
        for _ in range(4):
            for item in todo:
                if item.spot is not None:
                    return item.spot, item.operator
            following = [near for item in todo for near in neighbours(item) if near.name not in seen]
            seen.update(item.name for item in following)
            todo = following
    return None, ""


def _producers(computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    for name in instruction.operands:
        if name in computation.by_name:
            yield computation.by_name[name]


@cache
def _is_algorithm(operator: str) -> bool:
    """Whether an operator takes many steps of its own."""
    try:
        rule = schema.lowering_of(registry.resolve(operator))
    except ValueError:  # the compiler's own
        return False
    function = None if rule is None else getattr(rule.function, "func", rule.function)
    return function is not None and function.__module__.rpartition(".")[2] in _ALGORITHMS


def _line(spot: Spot | None) -> Line:
    return None if spot is None else (spot.file, spot.line)


def _better(known: Spot | None, other: Spot | None) -> Spot | None:
    """Of two places on a line, the one with a column."""
    return other if known is None or (other is not None and not known.column) else known


def _finding(rule: type[Rule], spot: Spot | None, reason: str, suggestion: str) -> Finding:
    where = spot or Spot("<program>", 0, 0)
    return Finding(rule.id, where.file, where.line, where.column, reason, suggestion, rule.severity)


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
