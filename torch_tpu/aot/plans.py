"""Plans: reports of a workload for several topologies, batches and lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_tpu.aot import models, report
from torch_tpu.aot.compiled import Compiled
from torch_tpu.aot.models import Workload
from torch_tpu.aot.prices import price_of
from torch_tpu.aot.report import Report
from torch_tpu.runtime.topology import Topology

SWEPT = ("batch", "seq")


def plan(
    workload: Workload,
    topologies: Sequence[str],
    *,
    sweep: Mapping[str, Sequence[int]] | None = None,
    prices: Sequence[str] = (),
    told: Callable[[str], None] = lambda text: None,
) -> list[Report]:
    """One report for each topology and each combination of what is swept.

    Args:
        topologies: such as ["v5e-8", "v6e-8"].
        sweep: values of "batch" and "seq" to try.
        prices: as `prices.price_of`.
        told: called with what is being done.

    Raises:
        ValueError: a topology, a price or what is swept is unknown, or there is no topology; or the model, see `models.trace`.
        OSError, ImportError, NoValueError, FallbackError: as `models.trace`.
        PlatformError: the TPU compiler is not installed.
    """
    if not topologies:
        raise ValueError("no topology is given: name a generation and a number of chips, such as v6e-8")
    places = [Topology.parse(name) for name in topologies]
    sizes = models.sizes_of(workload)
    fixed = sorted(set(sweep or {}) & set(SWEPT) - sizes)
    if fixed:
        raise ValueError(f"{fixed[0]!r} cannot be swept: {workload.model} takes no such parameter")
    known = {place.generation: price_of(place.generation, prices) for place in places}
    reports = []
    for load in _combinations(workload, sweep or {}):
        traced: Compiled | None = None
        for place in places:
            size = f"batch {load.batch}" + (f" x {load.seq}" if "seq" in sizes else "")
            what = f"{load.mode}, {size}, for {place.name}"
            if traced is None or load.data_parallel:  # collectives are of the topology's devices
                told(f"tracing {what}")
                traced = models.trace(load, place.name)
            told(f"compiling {what}")
            reports.append(report.make(traced.retarget(place), known[place.generation], load))
    return reports


def _combinations(workload: Workload, sweep: Mapping[str, Sequence[int]]) -> Iterable[Workload]:
    unknown = sorted(set(sweep) - set(SWEPT))
    if unknown:
        raise ValueError(f"{unknown[0]!r} cannot be swept; {' and '.join(SWEPT)} can")
    for values in itertools.product(*sweep.values()):
        chosen: dict[str, Any] = dict(zip(sweep, values, strict=True))
        yield replace(workload, **chosen)


def parse_sweep(text: str) -> dict[str, list[int]]:
    """From "batch=1,2,4 seq=2048,4096" to lists of values.

    Raises:
        ValueError: it is not written like that.
    """
    found: dict[str, list[int]] = {}
    for part in text.split():
        name, equals, values = part.partition("=")
        numbers = values.split(",")
        if not equals or not all(number.isdecimal() for number in numbers):
            raise ValueError(f"{part!r} is no sweep: write a name and numbers, such as batch=1,2,4")
        found[name] = [int(number) for number in numbers]
    return found
