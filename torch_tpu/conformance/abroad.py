"""A case where no device is: the programs that it would run on a TPU go through that TPU's compiler, and nothing runs.

What a case captures is the same for all generations, since lowerings know the platform and no generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch_tpu import aot, errors
from torch_tpu.conformance import modes, runner
from torch_tpu.conformance.catalog import Case
from torch_tpu.conformance.modes import Seen
from torch_tpu.runtime import compile_only
from torch_tpu.runtime.compile_only import Planned
from torch_tpu.runtime.topology import GENERATIONS, Topology

NEEDS_VALUES = "it needs values before it makes a program"


@dataclass(frozen=True)
class Captured:
    """What the samples of a case would run on a TPU."""

    programs: tuple[Planned, ...]
    num_samples: int
    seen: Seen
    reason: str = ""
    """Why there is nothing to judge, or what failed."""
    failed: bool = False


def run_case(info: Any, case: Case, limit: int) -> runner.Result:
    """Compiles a case's programs for its place."""
    found = _capture(info, Case(case.op, case.dtype, case.phase), limit)
    if found.failed:
        return runner.Result(case, "failed", found.num_samples, found.reason)
    if found.seen.fallbacks:
        return runner.Result(case, "fallback", found.num_samples, ", ".join(found.seen.fallbacks))
    if not found.num_samples:
        return runner.Result(case, "skipped", 0, found.reason)
    client = compile_only.client(Topology.parse(case.place))
    for program in found.programs:
        try:
            client.adopt(program).built  # noqa: B018 - compiles it
        except errors.CompileError as error:
            return runner.Result(case, "failed", found.num_samples, runner.short(error))
    by = "decomposition" if found.seen.decomposed else "lowering"
    return runner.Result(case, "passed", found.num_samples, by=by)


@lru_cache(maxsize=1)
def _capture_once(info: _ByName, case: Case, limit: int) -> Captured:
    count, reason, programs = 0, "", []
    with aot.device(next(iter(GENERATIONS))) as client, modes.entered("strict") as seen:
        try:
            for sample in runner.samples(info.info, case, "tpu", limit):
                client.started.clear()
                try:
                    _run(info.info, case, sample)
                except runner.Skip as skip:
                    reason = str(skip)
                    continue
                except errors.NoValueError:  # sizes that depend on data, say: what ran until then is compiled
                    if not client.started:
                        reason = NEEDS_VALUES
                        continue
                count += 1
                programs += client.started
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
            return Captured((), count, seen, f"sample {count}: {type(error).__name__}: {runner.short(error)}", True)
    return Captured(tuple(dict.fromkeys(programs)), count, seen, reason)


@dataclass(frozen=True)
class _ByName:
    """An operator of the database as a key: two of a name are the same."""

    name: str
    info: Any

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByName) and other.info is self.info


def _capture(info: Any, case: Case, limit: int) -> Captured:
    return _capture_once(_ByName(case.op, info), case, limit)


def _run(info: Any, case: Case, sample: Any) -> None:
    """Calls an operator on the device that is not there, after seeing that PyTorch's CPU takes the sample.

    Raises:
        Skip: it does not, or there is nothing to differentiate.
    """

    def call(place: str) -> Any:
        args, kwargs = runner.arguments(sample, place)
        if case.phase == "backward":
            return runner.gradients(info, sample, args, kwargs, place)
        return info(*args, **kwargs)

    runner.reference(info, lambda: call("cpu"))
    call("tpu")


_ = Callable
