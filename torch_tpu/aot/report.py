"""What a plan says about a program: whether it compiles, memory, work, time, utilization, throughput and cost.

A figure that is an estimate is named in `Report.estimates`. All but prices and per-chip figures are of one device.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_tpu.aot import buffers, cost, explain, hlo_text, stablehlo
from torch_tpu.aot.buffers import Assignment, Buffers
from torch_tpu.aot.cost import Cost
from torch_tpu.aot.explain import Failure
from torch_tpu.aot.locate import Places
from torch_tpu.aot.prices import Price
from torch_tpu.aot.utilization import ModelFlops, utilization
from torch_tpu.runtime.chips import CHIPS, Chip
from torch_tpu.runtime.compile_only import Planned
from torch_tpu.runtime.examine import Examination, examine

if TYPE_CHECKING:
    from torch_tpu.aot.compiled import Compiled
    from torch_tpu.aot.models import Workload

ESTIMATES = (
    "work.hbm_bytes",
    "time",
    "intensity",
    "utilization",
    "throughput",
    "cost",
)
"""Parts of a report that are reckoned and not measured."""
_SHORT = 1e-4
"""Seconds. What starting a program takes is of this order, and is in no figure of the compiler's."""


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of one device's HBM, as the compiler assigned them: exact for this compiler."""

    arguments: int
    outputs: int
    """Without those in the memory of donated arguments."""
    temporaries: int
    code: int
    usable: int
    """What the compiler lets programs have of `hbm`."""
    hbm: int
    largest: tuple[Buffers, ...]
    """Of the program that takes most."""

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.code


@dataclass(frozen=True)
class WorkReport:
    """Of one step."""

    flops: float
    """Of products and convolutions in what the compiler made."""
    requested_flops: float
    """The same in the StableHLO that it was given, by the usual formulas: products with padding count, and a complex product
    is four real ones. The compiler leaves some out, and computes others twice."""
    flops_by_kind: Mapping[str, float]
    """By the operands on the matrix units ("bf16", "int8", "fp8"), and "vector" for those on the vector unit."""
    hbm_bytes: float
    overlapped_bytes: float
    """Those among them that are copied beside the computation."""
    compiler_flops: float
    """XLA's own count, in which loop bodies count once; with element-wise operations."""


@dataclass(frozen=True)
class TimeReport:
    """Seconds of one step."""

    estimate: float
    least: float
    """No program that does this work is faster."""
    cycles: float
    """With the compiler's estimates for everything, which are high for element-wise fusions."""
    bounds: Mapping[str, float]
    """The estimate by what decides: "matrix" units, "vector" units, or "memory" (HBM)."""
    compiler: float | None
    """XLA's `optimal_seconds`, in which loop bodies count once; None where it says nothing."""
    missing: Mapping[str, int]
    """What runs and counts by its bytes of HBM only, and how often: collectives and custom calls."""
    unknown_loops: int
    """Loops that count once since their number of steps is data."""
    loops: Mapping[str, int]
    """Loops that count by their number of steps."""


@dataclass(frozen=True)
class Part:
    """Work that takes much of the time."""

    what: str
    seconds: float
    times: int
    bound: str
    """"matrix", "vector" or "memory"; nothing for several parts together."""


@dataclass(frozen=True)
class Rates:
    """What the time means."""

    intensity: float
    """FLOPs a byte of HBM."""
    ridge: float
    """The intensity above which the chip is bound by compute."""
    bound: str
    """"compute" (matrix or vector units) or "memory" (HBM): which of them decides for longer. Not always as `intensity` says:
    operands that stay in VMEM take no time of HBM, and small products do not fill the units."""
    hardware_utilization: float
    """The FLOPs that are executed against the peak in bfloat16."""
    mfu: float | None
    """Model-FLOPs utilization with attention in full (TorchTitan); None where the model's FLOPs are not known."""
    mfu_causal: float | None
    """The same with causal attention halved (MaxText)."""
    tokens_per_second_per_chip: float | None
    """None where it is not known how many tokens a step handles."""
    usd_per_million_tokens: float | None
    samples_per_second_per_chip: float | None
    """None where it is not known how many samples a step handles."""
    usd_per_million_samples: float | None
    usd_per_step: float | None
    """Of all chips of the topology."""


@dataclass(frozen=True)
class Report:
    """Of one step on one topology."""

    name: str
    """Of the model or function."""
    workload: Workload | None
    """What was planned; None for a module or function that was compiled by itself."""
    tokens: int | None
    """That a step handles on each device."""
    samples: int | None
    """The same."""
    topology: str
    chips: int
    devices: int
    chip: str
    programs: int
    """That a step runs; the figures are sums over them, memory is that of the largest."""
    model: ModelFlops | None
    compiled: bool
    failure: Failure | None
    memory: MemoryReport | None
    """None where the compiler refused a program before it placed anything."""
    work: WorkReport | None
    time: TimeReport | None
    rates: Rates | None
    heaviest: tuple[Part, ...]
    price: Price | None
    compile_seconds: float
    notes: tuple[str, ...]
    estimates: tuple[str, ...] = ESTIMATES

    def to_json(self) -> str:
        """Everything, as JSON."""
        return json.dumps(_plain(self), indent=2) + "\n"

    def __str__(self) -> str:
        from torch_tpu.aot import render

        return render.text([self])


def _plain(value: Any) -> Any:
    """A dataclass as dictionaries, with the properties that people look for."""
    made = asdict(value)
    if value.memory is not None:
        made["memory"]["total"] = value.memory.total
    if value.failure is not None:
        made["failure"]["exceeds_by"] = value.failure.exceeds_by
    if value.model is not None:
        made["model"] |= {"flops_per_token": value.model.full, "flops_per_token_causal": value.model.causal}
    return made


def make(compiled: Compiled, price: Price | None, workload: Workload | None = None) -> Report:
    """Asks the compiler about a step's programs, and puts together what it says.

    Args:
        price: of an hour of a chip.
        workload: what the programs were made of, where it was planned.

    Raises:
        CompileError: a program wants more devices than the topology has.
    """
    chip = CHIPS[compiled.topology.generation]
    programs = [_Program(program, times, chip) for program, times in Counter(compiled.runs).items()]
    failed = next((program for program in programs if program.said.error), None)
    failure = None
    if failed is not None:
        backward = any(program.places.has_backward for program in programs)
        failure = explain.explain(failed.said.error, failed.planned.text, failed.assignment, backward=backward)
    work = None if failure else _work(programs)
    time = None if failure else _time(programs)
    rates = _rates(work, time, compiled, chip, price) if work and time else None
    return Report(
        name=compiled.name,
        workload=workload,
        tokens=compiled.tokens,
        samples=compiled.samples,
        topology=compiled.topology.name,
        chips=compiled.topology.chips,
        devices=compiled.topology.devices,
        chip=chip.name,
        programs=len(compiled.runs),
        model=compiled.model,
        compiled=failure is None,
        failure=failure,
        memory=_largest_memory(programs, failed, chip),
        work=work,
        time=time,
        rates=rates,
        heaviest=_heaviest(programs),
        price=price,
        compile_seconds=sum(program.said.seconds for program in programs),
        notes=tuple(_notes(programs, compiled, time, price)),
    )


class _Program:
    """One of a step's programs with what is known of it."""

    def __init__(self, planned: Planned, times: int, chip: Chip):
        self.planned, self.times = planned, times
        self.said = examine(planned)
        self.places = Places(planned.text)
        module = hlo_text.parse(self.said.hlo) if self.said.hlo else None
        self.assignment = buffers.parse(self.said.assignment, self.said.live_ranges, module)
        self.memory = _memory(self.said, self.assignment, self.places, chip)
        self.cost = None if self.said.error else _cost(self.said, chip)


def _cost(said: Examination, chip: Chip) -> Cost:
    """From the optimized HLO, or else from XLA's own analysis."""
    if said.hlo:
        return cost.analyze(said.hlo, chip)
    seconds = max(0.0, said.cost.get("optimal_seconds", 0.0))
    return Cost(
        estimate=seconds,
        least=seconds,
        cycles=seconds,
        matrix=Counter({"bf16": said.cost.get("flops", 0.0)}),
        nbytes=said.cost.get("bytes accessed", 0.0),
    )


def _largest_memory(programs: Sequence[_Program], failed: _Program | None, chip: Chip) -> MemoryReport | None:
    """That of the program that takes most, or that does not compile."""
    if failed is not None:
        return failed.memory
    found = [program.memory for program in programs if program.memory is not None]
    nothing = MemoryReport(0, 0, 0, 0, chip.usable_hbm, chip.hbm, ())
    return max(found, key=lambda memory: memory.total, default=nothing)


def _memory(said: Examination, assignment: Assignment | None, places: Places, chip: Chip) -> MemoryReport | None:
    found = () if assignment is None else assignment.largest
    largest = tuple(replace(group, source=places.describe(group.source)) for group in found)
    if said.memory is not None:
        taken = said.memory
        sizes = taken.arguments, taken.outputs - taken.aliased, taken.temporaries, taken.code
    elif assignment is not None:
        sizes = assignment.arguments, assignment.outputs, assignment.temporaries, 0
    else:
        return None
    return MemoryReport(*sizes, usable=chip.usable_hbm, hbm=chip.hbm, largest=largest)


def _work(programs: Sequence[_Program]) -> WorkReport:
    kinds: Counter[str] = Counter()
    nbytes = overlapped = requested = said = 0.0
    for program in programs:
        found, times = program.cost, program.times
        assert found is not None, "programs that do not compile have no work"
        for kind, flops in found.matrix.items():
            kinds[kind] += flops * times
        if found.vector_products:
            kinds["vector"] += found.vector_products * times
        nbytes += found.nbytes * times
        overlapped += found.overlapped * times
        requested += stablehlo.count(program.planned.text).total * times
        said += program.said.cost.get("flops", 0.0) * times
    return WorkReport(sum(kinds.values()), requested, dict(kinds), nbytes, overlapped, said)


def _time(programs: Sequence[_Program]) -> TimeReport:
    missing: Counter[str] = Counter()
    known: dict[str, int] = {}
    sums = dict.fromkeys(("estimate", "least", "cycles"), 0.0)
    bounds: defaultdict[str, float] = defaultdict(float)
    compiler: float | None = 0.0
    unknown = 0
    for program in programs:
        found, times = program.cost, program.times
        assert found is not None, "programs that do not compile take no time"
        for name in sums:
            sums[name] += getattr(found, name) * times
        for name, seconds in found.bounds.items():
            bounds[name] += seconds * times
        for name, count in found.missing.items():
            missing[name] += count * times
        known |= {loop.name: loop.trips for loop in found.loops if loop.trips is not None}
        unknown += sum(loop.trips is None for loop in found.loops)
        said = program.said.cost.get("optimal_seconds", -1.0)
        compiler = None if compiler is None or said < 0 else compiler + said * times
    return TimeReport(
        **sums, bounds=dict(bounds), compiler=compiler, missing=dict(missing), unknown_loops=unknown, loops=known
    )


def _rates(
    work: WorkReport,
    time: TimeReport,
    compiled: Compiled,
    chip: Chip,
    price: Price | None,
) -> Rates:
    peak, seconds = chip.peaks["bf16"], time.estimate
    topology, model, tokens = compiled.topology, compiled.model, compiled.tokens
    usd_per_second = None if price is None else price.usd_per_chip_hour / 3600

    def per_second(count: int | None) -> float | None:
        return count * topology.devices / topology.chips / seconds if count is not None and seconds else None

    def usd_per_million(count: int | None) -> float | None:
        speed = per_second(count)
        return usd_per_second / speed * 1e6 if usd_per_second is not None and speed else None

    return Rates(
        intensity=work.flops / work.hbm_bytes if work.hbm_bytes else 0.0,
        ridge=peak / chip.hbm_bytes_per_second,
        bound="memory" if time.bounds.get("memory", 0.0) * 2 > seconds else "compute",
        hardware_utilization=utilization(work.flops, seconds, peak),
        mfu=None if model is None or tokens is None else utilization(model.full * tokens, seconds, peak),
        mfu_causal=None if model is None or tokens is None else utilization(model.causal * tokens, seconds, peak),
        tokens_per_second_per_chip=per_second(tokens),
        usd_per_million_tokens=usd_per_million(tokens),
        samples_per_second_per_chip=per_second(compiled.samples),
        usd_per_million_samples=usd_per_million(compiled.samples),
        usd_per_step=usd_per_second * topology.chips * seconds if usd_per_second is not None else None,
    )


def _heaviest(programs: Sequence[_Program], kept: int = 10) -> tuple[Part, ...]:
    """Where the time goes, by operator and line; the lighter ones together."""
    groups: dict[tuple[str, str], list[float]] = {}
    for program in programs:
        for item in program.cost.heaviest if program.cost is not None else ():
            what = program.places.describe(item.source) or re.sub(r"(\.(clone|remat|\d+))+$", "", item.name)
            group = groups.setdefault((what, item.bound), [0.0, 0])
            group[0] += item.seconds * program.times
            group[1] += item.times * program.times
    parts = [Part(what, seconds, int(times), bound) for (what, bound), (seconds, times) in groups.items()]
    parts.sort(key=lambda part: -part.seconds)
    lighter = parts[kept:]
    if lighter:
        seconds, times = sum(part.seconds for part in lighter), sum(part.times for part in lighter)
        parts[kept:] = [Part(f"{len(lighter)} others", seconds, times, "")]
    return tuple(parts)


def _notes(
    programs: Sequence[_Program],
    compiled: Compiled,
    time: TimeReport | None,
    price: Price | None,
) -> Iterator[str]:
    """What a reader has to know to make sense of the figures."""
    yield from compiled.notes
    if not programs:
        yield "nothing runs on the device: what was called has no operator on a tensor there, and made none"
    if time is not None:
        if time.missing:
            listed = ", ".join(f"{count} x {name}" for name, count in sorted(time.missing.items()))
            yield f"in the time by their bytes of HBM only, since the compiler has no estimate of them: {listed}"
        if time.unknown_loops:
            yield f"{time.unknown_loops} loops have a number of steps that is data; their bodies count once"
        costs = [program.cost for program in programs if program.cost is not None]
        if not all(found.estimated_cycles_found for found in costs):
            yield "the compiler gave no estimates for a program's instructions: its time is that at peak speeds"
        if programs and time.estimate < _SHORT:
            yield (
                f"a step of less than {_SHORT * 1e6:.0f} us: what starting a program and each of its operations takes is not in "
                "the estimate, and decides how long so short a step is; throughput and cost are the best that could be"
            )
    if compiled.topology.devices > 1 and not any(program.planned.processes for program in programs):
        yield (
            f"each of the {compiled.topology.devices} devices runs the program by itself on a batch of its own; it has no "
            "communication between them, which data-parallel training needs"
        )
    if len(programs) > 1:
        yield "a step is several programs: memory is that of the largest, and what the others keep for later comes on top"
    if compiled.model is None and time is not None:
        yield "the FLOPs of the model by its definition are not known, so there is no model-FLOPs utilization"
    if price is not None:
        yield f"{price.usd_per_chip_hour:.2f} USD for a chip-hour of {compiled.topology.generation}: {price.source}"
