"""A case where no device is: the programs that it would run on a TPU go through that TPU's compiler, and nothing runs.

What a case captures is the same for all generations, since lowerings know the platform and no generation. Programs are
compiled together, those of other modes and phases with them, since half of a small one's time goes into starting; where
that fails, those of the case by themselves, and then one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_tpu import _plug, aot, errors, settings
from torch_tpu.conformance import modes, runner
from torch_tpu.conformance.catalog import HERE, Case
from torch_tpu.conformance.joined import body, join
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


def run_case(
    info: Any, case: Case, limit: int, others: Sequence[Case] = (), known: Sequence[Case] = ()
) -> runner.Result:
    """Compiles a case's programs for its place.

    Args:
        others: cases of the same operator, dtype and place, this one and those that will follow: their small programs
            are compiled with its own.
        known: such cases that are known to pass, with one sample at least: its programs are not compiled again.
    """
    found = _captured(info, case, limit)
    if found.status:
        return runner.Result(case, found.status, found.num_samples, found.reason)
    if found.seen.fallbacks:
        return runner.Result(case, "fallback", found.num_samples, ", ".join(found.seen.fallbacks))
    if not found.num_samples:
        return runner.Result(case, "skipped", 0, found.reason)
    client = compile_only.client(Topology.parse(case.place))
    for other in known:
        _compiled.update(_fresh(client, _captured(info, other, 1).programs))
    if others and _fresh(client, found.programs):
        beside = [program for other in others for program in _captured(info, other, limit).programs]
        _compile_together(client, [program for program in beside if len(program.text) < _SMALL])
    refused = _refused(client, found.programs)
    if refused:
        return runner.Result(case, "failed", found.num_samples, refused)
    by = "decomposition" if found.seen.decomposed else "lowering"
    return runner.Result(case, "passed", found.num_samples, by=by)


_SMALL = 1 << 14
"""Characters of a program that is compiled with others: a large one takes its time, and may take that of others."""
_compiled: set[tuple[str, str]] = set()
"""The topologies and the programs, as `body` has them, that are known to compile: modes often run the same one."""


def _fresh(client: CompileOnlyClient, programs: Sequence[Planned]) -> dict[tuple[str, str], Planned]:
    """Those that are not known to compile yet, by their names in `_compiled`."""
    named = {(client.topology.name, body(program.text)): program for program in programs}
    return {name: program for name, program in named.items() if name not in _compiled}


def _compile_together(client: CompileOnlyClient, programs: Sequence[Planned]) -> bool:
    """Compiles those that were not yet; whether the compiler takes them."""
    fresh = _fresh(client, programs)
    if fresh:
        try:
            with settings.override(cache=False):  # the executable is for nobody
                client.build(Planned(client, join([program.text for program in fresh.values()]), (), (), "low", ()))
        except errors.CompileError:
            return False
    _compiled.update(fresh)
    return True


def _refused(client: CompileOnlyClient, programs: Sequence[Planned]) -> str:
    """What the compiler says against one of the programs by itself, or nothing."""
    if _compile_together(client, programs):
        return ""
    fresh = _fresh(client, programs)
    with settings.override(cache=False):
        for program in fresh.values():
            try:
                client.build(client.adopt(program))
            except errors.CompileError as error:
                return runner.short(error)
    _compiled.update(fresh)
    return ""


_last: dict[tuple[int, Case, int], Captured] = {}


def _captured(info: Any, case: Case, limit: int) -> Captured:
    """What a case captures, kept for its other places, and while the operator and the dtype stay the same."""
    key = (id(info), replace(case, place=HERE), limit)
    if key not in _last:
        if any((other.op, other.dtype) != (case.op, case.dtype) for _, other, _ in _last):
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
                    _plug.flush()
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
