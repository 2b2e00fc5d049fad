"""A case where no device is: the programs that it would run on a TPU go through that TPU's compiler, and nothing runs.

A case's programs are compiled together, and one by one where that fails. What a case captures is the same for all generations, since lowerings know the platform and no generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_tpu import _plug, aot, errors, settings
from torch_tpu.conformance import modes, runner
from torch_tpu.conformance.catalog import HERE, Case
from torch_tpu.conformance.joined import join
from torch_tpu.conformance.modes import Seen
from torch_tpu.runtime import compile_only
from torch_tpu.runtime.compile_only import CompileOnlyClient, Planned
from torch_tpu.runtime.topology import GENERATIONS, Topology

NEEDS_VALUES = "it needs values before it makes a program"


@dataclass(frozen=True)
class Captured:
    """What the samples of a case would run on a TPU."""

    programs: tuple[Planned, ...]
    num_samples: int
    seen: Seen
    reason: str = ""
    """Why there is nothing to judge, or what went wrong."""
    status: str = ""
    """What came of it, where nothing is to be compiled."""


def run_case(info: Any, case: Case, limit: int) -> runner.Result:
    """Compiles a case's programs for its place."""
    found = _captured(info, replace(case, place=HERE), limit)
    if found.status:
        return runner.Result(case, found.status, found.num_samples, found.reason)
    if found.seen.fallbacks:
        return runner.Result(case, "fallback", found.num_samples, ", ".join(found.seen.fallbacks))
    if not found.num_samples:
        return runner.Result(case, "skipped", 0, found.reason)
    refused = _refused(compile_only.client(Topology.parse(case.place)), found.programs)
    if refused:
        return runner.Result(case, "failed", found.num_samples, refused)
    by = "decomposition" if found.seen.decomposed else "lowering"
    return runner.Result(case, "passed", found.num_samples, by=by)


_compiled: set[tuple[str, str]] = set()
"""The topologies and the programs, without their names, that this process compiled: modes often run the same one."""


def _refused(client: CompileOnlyClient, programs: Sequence[Planned]) -> str:
    """What the compiler says against one of the programs, or nothing."""
    place = client.topology.name
    bodies = {program: program.text.partition("\n")[2] for program in programs}
    fresh = [program for program, body in bodies.items() if (place, body) not in _compiled]
    if not fresh:
        return ""
    with settings.override(cache=False):  # these executables are for nobody
        try:
            client.build(Planned(client, join([program.text for program in fresh]), (), (), "low", ()))
        except errors.CompileError:
            for program in fresh:  # which one, and whether it is refused by itself
                try:
                    client.build(client.adopt(program))
                except errors.CompileError as error:
                    return runner.short(error)
    _compiled.update((place, bodies[program]) for program in fresh)
    return ""


_last: dict[tuple[int, Case, int], Captured] = {}


def _captured(info: Any, case: Case, limit: int) -> Captured:
    """What a case captures, kept for the next place."""
    key = (id(info), case, limit)
    if key not in _last:
        _last.clear()
        _last[key] = _capture(info, case, limit)
    return _last[key]


def _capture(info: Any, case: Case, limit: int) -> Captured:
    count, reason, programs = 0, "", []
    with aot.device(next(iter(GENERATIONS))) as client, modes.entered(case.mode) as seen:
        operator = modes.operator(info, case.mode)
        try:
            for sample in runner.samples(info, case, "tpu", limit):
                _plug.flush()
                client.started.clear()
                try:
                    answer = _run(info, operator, case, sample)
                    _plug.flush()  # with the answer alive: it is what the last program returns
                    del answer
                except runner.Skip as skip:
                    reason = str(skip)
                    continue
                except Exception as error:
                    if not _needs_values(error):
                        raise
                    if not client.started:
                        reason = NEEDS_VALUES
                        continue
                count += 1
                programs += client.started
        except errors.FallbackError as error:
            return Captured((), count, seen, runner.short(error), "fallback")
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
            told = f"sample {count}: {type(error).__name__}: {runner.short(error)}"
            return Captured((), count, seen, told, "failed")
    if count and case.mode == "compiled" and not seen.num_graphs:
        count, reason = 0, modes.NO_GRAPH
    return Captured(tuple(dict.fromkeys(programs)), count, seen, reason)


def _needs_values(error: BaseException) -> bool:
    """Whether it was sizes that depend on data, say: what ran until then is compiled. Dynamo wraps errors in its own."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, errors.NoValueError):
        found = found.__cause__ or found.__context__
    return found is not None


def _run(info: Any, operator: Callable[..., Any], case: Case, sample: Any) -> Any:
    """Calls an operator on the device that is not there, after seeing that PyTorch's CPU takes the sample.

    Args:
        operator: as the device calls it.

    Raises:
        Skip: it does not, or there is nothing to differentiate.
    """

    def call(place: str) -> Any:
        args, kwargs = runner.arguments(sample, place)
        called = info if place == "cpu" else operator
        if case.phase == "backward":
            return runner.gradients(called, sample, args, kwargs, place)
        return called(*args, **kwargs)

    runner.reference(info, lambda: call("cpu"))
    return call("tpu")
