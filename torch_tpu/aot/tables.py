"""A report as rows of text, for the terminal and for HTML alike; figures that are estimates say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch_tpu.aot.explain import gib
from torch_tpu.aot.report import MemoryReport, Rates, Report, TimeReport, WorkReport


class Row(NamedTuple):
    """What, how much, and what to know about it."""

    what: str
    value: str
    remark: str = ""


class Section(NamedTuple):
    title: str
    rows: tuple[Row, ...]


DISCLAIMER = "Figures marked as estimates come from the TPU compiler and published speeds; nothing was run."


_DECIDES = {"matrix": "matrix units", "vector": "vector units", "memory": "HBM"}


def title(report: Report) -> str:
    load = report.workload
    if load is None:
        return f"{report.name} on {report.topology}"
    return f"{report.name}: {load.mode}, {_size(report)}, on {report.topology}"


def sections(report: Report) -> Iterator[Section]:
    """Everything that a report says, in reading order."""
    yield Section("Program", tuple(_program(report)))
    if report.memory is not None:
        yield Section("HBM of a device", tuple(_memory(report.memory)))
    if report.work is not None and report.time is not None and report.rates is not None:
        yield Section("Work of a step, on a device", tuple(_work(report.work, report.rates)))
        yield Section("Time of a step", tuple(_time(report.time)))
        yield Section("What that means", tuple(_rates(report, report.rates)))
    if report.heaviest:
        parts = ((part, f"{part.bound}, " if part.bound else "") for part in report.heaviest)
        rows = (Row(part.what, seconds(part.seconds), f"{bound}{part.times} times") for part, bound in parts)
        yield Section("Where the time goes", tuple(rows))
    if report.memory is not None and report.memory.largest:
        groups = report.memory.largest
        rows = (Row(f"{g.count} x {g.shape}", gib(g.nbytes), f"{g.kind} {g.source}".strip()) for g in groups)
        yield Section("Largest buffers when most memory is in use", tuple(rows))


def _program(report: Report) -> Iterator[Row]:
    if report.failure is None:
        yield Row("compiles", "yes", f"{report.compile_seconds:.0f} s by the TPU compiler")
    else:
        yield Row("compiles", "no", report.failure.headline)
        if report.failure.operator:
            yield Row("at", "", report.failure.operator)
        yield Row("what to do", "", report.failure.do)
    yield Row("chips", f"{report.chips} x {report.chip}", f"{report.devices} device{'s' * (report.devices > 1)}")
    if report.programs != 1:
        yield Row("programs in a step", str(report.programs))
    if report.model is not None:
        active = report.model.active
        yield Row("parameters", count(report.model.parameters), f"{count(active)} take part in a token's products")


def _memory(memory: MemoryReport) -> Iterator[Row]:
    for name in ("arguments", "outputs", "temporaries", "code"):
        remark = {"outputs": "besides those in the memory of arguments"}.get(name, "")
        yield Row(name, gib(getattr(memory, name)), remark)
    share = memory.total / memory.usable
    yield Row(
        "all", gib(memory.total), f"{share:.0%} of the {gib(memory.usable)} that programs can have of {gib(memory.hbm)}"
    )


def _work(work: WorkReport, rates: Rates) -> Iterator[Row]:
    kinds = ", ".join(f"{count(flops)} {kind}" for kind, flops in work.flops_by_kind.items() if flops)
    yield Row("FLOPs", count(work.flops), f"products: {kinds}" if kinds else "no products")
    yield Row("FLOPs asked for", count(work.requested_flops), "in the StableHLO")
    yield Row("HBM bytes", f"{count(work.hbm_bytes)}B", "estimate")
    yield Row("intensity", f"{rates.intensity:.0f} FLOPs/B", f"the chip turns at {rates.ridge:.0f}")


def _time(time: TimeReport) -> Iterator[Row]:
    shares = {what: part / time.estimate for what, part in time.bounds.items()} if time.estimate else {}
    deciding = [f"{share:.0%} {_DECIDES[what]}" for what, share in shares.items() if share >= 0.005]
    yield Row("estimate", seconds(time.estimate), f"bound by {', '.join(deciding)}" if deciding else "")
    yield Row("at least", seconds(time.least), "at peak speeds")
    yield Row("by the compiler's cycles", seconds(time.cycles), "which are high for element-wise operations")
    for name, times in time.missing.items():
        yield Row("by its bytes of HBM only", f"{times} x {name}")
    if time.loops:
        yield Row("loops", ", ".join(f"{trips} steps" for trips in time.loops.values()))
    if time.unknown_loops:
        yield Row("loops of unknown length", str(time.unknown_loops), "counted once")


def _rates(report: Report, rates: Rates) -> Iterator[Row]:
    differs = (rates.intensity < rates.ridge) != (rates.bound == "memory")
    why = ", by what decides for longer above; the intensity alone says otherwise" if differs else ""
    yield Row("bound by", rates.bound, f"estimate{why}")
    if rates.mfu is not None and rates.mfu_causal is not None:
        yield Row("MFU, attention in full", f"{rates.mfu:.1%}", "estimate; as TorchTitan counts")
        yield Row("MFU, causal attention halved", f"{rates.mfu_causal:.1%}", "estimate; as MaxText counts")
    yield Row("executed FLOPs of the peak", f"{rates.hardware_utilization:.1%}", "estimate")
    unit = _unit([report])
    speed, usd = _speed(rates, unit), _usd(rates, unit)
    if speed is not None:
        yield Row(f"{unit}/s/chip", f"{speed:,.0f}", "estimate")
    if rates.usd_per_step is not None and report.price is not None:
        source = f"estimate; {report.price.usd_per_chip_hour:.2f} USD a chip-hour, {report.price.source}"
        if usd is not None:
            yield Row(f"USD per million {unit}", money(usd), source)
        yield Row(
            "USD per step", money(rates.usd_per_step), f"{source}; {report.chips} chip{'s' * (report.chips != 1)}"
        )


def _unit(reports: Sequence[Report]) -> str:
    """What throughput and cost are counted in: samples, where nobody knows of tokens."""
    return "samples" if all(report.tokens is None for report in reports) else "tokens"


def _speed(rates: Rates, unit: str) -> float | None:
    return rates.tokens_per_second_per_chip if unit == "tokens" else rates.samples_per_second_per_chip


def _usd(rates: Rates, unit: str) -> float | None:
    return rates.usd_per_million_tokens if unit == "tokens" else rates.usd_per_million_samples


def columns(reports: Sequence[Report]) -> tuple[str, ...]:
    """The heads of `comparison`."""
    unit = _unit(reports)
    speed = f"{unit}/s a chip", f"{unit}/s in all"
    return "topology", "batch", "seq", "HBM", "step", *speed, "MFU full/ causal", f"USD per million {unit}", "bound"


def comparison(reports: Sequence[Report]) -> Iterator[tuple[str, ...]]:
    """A row for each report, under `columns`."""
    unit = _unit(reports)
    for report in reports:
        load, rates = report.workload, report.rates
        memory = "" if report.memory is None else f"{report.memory.total / report.memory.usable:.0%}"
        batch, seq = ("", "") if load is None else (str(load.batch), "-" if report.tokens is None else str(load.seq))
        start = (report.topology, batch, seq, memory)
        if rates is None or report.time is None:
            reason = "does not fit" if report.failure and report.failure.needed is not None else "does not compile"
            yield (*start, reason, "", "", "", "", "")
            continue
        mfu = "" if rates.mfu is None or rates.mfu_causal is None else f"{rates.mfu * 100:.1f}/{rates.mfu_causal:.1%}"
        speed, usd = _speed(rates, unit), _usd(rates, unit)
        yield (
            *start,
            seconds(report.time.estimate),
            "" if speed is None else count(speed),
            "" if speed is None else count(speed * report.chips),
            mfu,
            "" if usd is None else money(usd),
            rates.bound,
        )


def best(reports: Sequence[Report]) -> Iterator[Row]:
    """The best of several reports by throughput and by cost."""
    running = [(report, report.rates) for report in reports if report.rates is not None]
    if not running:
        yield Row("best", "none compiles")
        return
    unit = _unit(reports)
    rated = [(r, speed * r.chips) for r, rates in running if (speed := _speed(rates, unit)) is not None]
    if rated:
        report, total = max(rated, key=lambda pair: pair[1])
        yield Row("best by throughput", _choice(report), f"{total:,.0f} {unit}/s in all, an estimate")
    else:
        yield Row("best", "not known", "nor is how many tokens or samples a step handles")
    priced = [(r, usd) for r, rates in running if (usd := _usd(rates, unit)) is not None]
    if priced:
        report, usd = min(priced, key=lambda pair: pair[1])
        yield Row("best by cost", _choice(report), f"{money(usd)} USD per million {unit}, an estimate")


def _choice(report: Report) -> str:
    return report.topology if report.workload is None else f"{report.topology}, {_size(report)}"


def _size(report: Report) -> str:
    """Of a planned step, as in "batch 4 x 2048"."""
    load = report.workload
    assert load is not None
    return f"batch {load.batch}" + ("" if report.tokens is None else f" x {load.seq}")


def seconds(value: float) -> str:
    """A time to read."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def count(value: float) -> str:
    """A large number to read: 8.03 G."""
    for unit, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:.0f} "


def money(usd: float) -> str:
    """USD with three figures."""
    return f"{usd:,.2f}" if usd >= 1 else f"{usd:.3g}"
