"""The time of a compiled program, estimated from its optimized HLO.

Three figures, each a sum over the instructions that the TensorCore runs, loop bodies as often as they run:

- `least`: the largest of what the matrix units, the vector unit and HBM need at their peaks. No program is faster.
- `estimate`: the same, but with the compiler's own estimate for fusions with matrix products. It is within a few per cent
  of the cycles that the compiler's schedule of a large product takes.
- `cycles`: the compiler's estimates for everything. Those of element-wise fusions are there to compare tilings: for a
  float addition on v6e it says 18 times the cycles that its own schedule takes, and so this is a pessimist's figure.

Asynchronous copies and work of the SparseCores overlap with all of this: they count by their bytes, and no figure is less
than all bytes together take. What the compiler gives no figures for is named in `missing`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from torch_tpu.aot import loops
from torch_tpu.aot.hlo_text import Computation, Instruction, Module, names, parse
from torch_tpu.aot.hlo_work import FREE, Work, work_of
from torch_tpu.runtime.chips import Chip

VECTOR_OPS_PER_CYCLE = 4 * 8 * 128
"""Of a TensorCore: four vector units of 8 x 128 lanes; one of transcendental functions. Source: bundle capacities in libtpu's
dumps of v6e."""
TRANSCENDENTALS_PER_CYCLE = 8 * 128

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
)
_BOOKKEEPING = names(
    "AllocateBuffer AssumeGatherIndicesInBound ConcatBitcast GatherScatterIndicesBitpacked Sharding "
    "SPMDFullToShardShape SPMDShardToFullShape X64Combine X64SplitHigh X64SplitLow"
)
"""Targets of custom calls that the compiler makes itself and that take next to no time."""


@dataclass(frozen=True)
class Heavy:
    """An instruction that takes much of the time."""

    name: str
    opcode: str
    source: str
    """Where it comes from: a line of the Python program where that is known, else of the StableHLO module."""
    times: int
    seconds: float
    """All executions together."""
    bound: str
    """What decides: "memory" (HBM), "matrix" or "vector" units."""


@dataclass(frozen=True)
class Loop:
    """A while loop."""

    name: str
    trips: int | None
    """None where they are not a constant: the body then counts once."""


@dataclass
class Cost:
    """Of one execution of a program on one device."""

    estimate: float = 0.0
    """Seconds."""
    least: float = 0.0
    cycles: float = 0.0
    bounds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of `estimate` by what decides: "matrix" units, "vector" units, or "memory" (HBM)."""
    matrix: Counter[str] = field(default_factory=Counter)
    """FLOPs of matrix products and convolutions by the kind of operands: "bf16", "int8", "fp8"."""
    vector: float = 0.0
    vector_products: int = 0
    """FLOPs among them of products with a vector."""
    transcendental: float = 0.0
    nbytes: float = 0.0
    """To and from HBM."""
    overlapped: float = 0.0
    """Bytes among them of copies and calls that run beside the TensorCore."""
    missing: Counter[str] = field(default_factory=Counter)
    """What is in the estimate by its bytes of HBM only, and how often it runs: collectives, custom calls."""
    loops: list[Loop] = field(default_factory=list)
    heaviest: list[Heavy] = field(default_factory=list)
    """All that takes time, the longest first."""
    estimated_cycles_found: bool = False
    """Whether the text has the compiler's estimates at all."""

    @property
    def matrix_flops(self) -> float:
        return float(sum(self.matrix.values()))


def analyze(text: str, chip: Chip) -> Cost:
    """What a program costs on a chip's device.

    Args:
        text: optimized HLO, as the TPU compiler dumps it after code generation.

    Raises:
        ValueError: the text is no HLO module.
    """
    module = parse(text)
    analysis = _Analysis(module, chip)
    analysis.visit(module.entry, 1)
    cost = analysis.cost
    cost.heaviest = sorted(analysis.heavy.values(), key=lambda item: -item.seconds)
    floor = cost.nbytes / chip.hbm_bytes_per_second
    cost.bounds["memory"] += max(0.0, floor - cost.estimate)
    cost.estimate, cost.least, cost.cycles = (max(s, floor) for s in (cost.estimate, cost.least, cost.cycles))
    return cost


class _Analysis:
    """A walk over all that runs."""

    def __init__(self, module: Module, chip: Chip):
        self.module, self.chip = module, chip
        self.cost = Cost()
        self.heavy: dict[str, Heavy] = {}

    def visit(self, computation: Computation, times: int) -> None:
        """Adds a computation that runs so many times."""
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode == "while":
                trips = loops.trip_count(self.module, computation, instruction)
                self.cost.loops.append(Loop(instruction.name, trips))
                for name in instruction.called:
                    self.visit(self.module.computations[name], times * (1 if trips is None else trips))
            elif opcode == "conditional":
                self._branches(instruction, times)
            elif opcode == "call":
                self.visit(self.module.computations[instruction.called[0]], times)
            elif opcode not in FREE:
                self._add(computation, instruction, times)

    def _branches(self, instruction: Instruction, times: int) -> None:
        """Adds the branch that takes longest."""
        parts = []
        for name in instruction.called:
            part = _Analysis(self.module, self.chip)
            part.visit(self.module.computations[name], times)
            parts.append(part)
        longest = max(parts, key=lambda part: part.cost.estimate, default=None)
        if longest is not None:
            self._merge(longest)

    def _merge(self, other: _Analysis) -> None:
        mine, more = self.cost, other.cost
        for name in (
            "estimate",
            "least",
            "cycles",
            "vector",
            "vector_products",
            "transcendental",
            "nbytes",
            "overlapped",
        ):
            setattr(mine, name, getattr(mine, name) + getattr(more, name))
        for bound, seconds in more.bounds.items():
            mine.bounds[bound] += seconds
        mine.matrix.update(more.matrix)
        mine.missing.update(more.missing)
        mine.loops += more.loops
        mine.estimated_cycles_found |= more.estimated_cycles_found
        self.heavy |= other.heavy

    def _add(self, computation: Computation, instruction: Instruction, times: int) -> None:
        cost, opcode = self.cost, instruction.opcode
        kind = opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            cost.missing[kind] += times
        elif opcode == "custom-call":
            target = instruction.attribute("custom_call_target") or "?"
            if target not in _BOOKKEEPING:
                cost.missing[f"custom call {target}"] += times
        work = work_of(self.module, computation, instruction)
        for (name, _), flops in work.matrix.items():
            cost.matrix[name] += flops * times
        cost.vector += work.vector * times
        cost.vector_products += work.vector_products * times
        cost.transcendental += work.transcendental * times
        cost.nbytes += work.nbytes * times
        if kind != opcode:  # started here, and waited for later
            cost.overlapped += work.nbytes * times
        else:
            self._add_time(instruction, work, times)

    def _add_time(self, instruction: Instruction, work: Work, times: int) -> None:
        cost, clock = self.cost, self.chip.cycles_per_second
        needs = {
            "memory": work.nbytes / self.chip.hbm_bytes_per_second,
            "matrix": sum(flops * passes / self.chip.peaks[kind] for (kind, passes), flops in work.matrix.items()),
            "vector": max(work.vector / VECTOR_OPS_PER_CYCLE, work.transcendental / TRANSCENDENTALS_PER_CYCLE)
            / (clock * self.chip.vector_units),
        }
        least = max(needs.values())
        said = instruction.cycles / clock if instruction.cycles is not None else None
        cost.estimated_cycles_found |= said is not None
        cost.least += least * times
        cost.cycles += (least if said is None else max(least, said)) * times
        bound, seconds = max(needs.items(), key=lambda need: need[1])
        if said is not None and work.matrix and said > seconds:
            # The schedule waits for HBM as well. Where that accounts for little of it, the units are not filled.
            bound = bound if 2 * seconds > said else "matrix"
            seconds = said
        seconds *= times
        cost.estimate += seconds
        cost.bounds[bound] += seconds
        if seconds:
            self.heavy[instruction.name] = Heavy(
                instruction.name, instruction.opcode, instruction.source, times, seconds, bound
            )
