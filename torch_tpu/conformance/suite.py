"""The operators' cases, run by `pool.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torch_tpu.conformance import catalog, matrix, pool
from torch_tpu.conformance.catalog import Case
from torch_tpu.conformance.pool import parse_shard as parse_shard
from torch_tpu.conformance.runner import Result


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run and how."""

    device: str = "tpu"
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "int64", "bool")
    phases: tuple[str, ...] = catalog.PHASES
    modes: tuple[str, ...] = ("strict",)
    places: tuple[str, ...] = (catalog.HERE,)
    limit: int = 0
    """At most so many samples of each case; 0: all."""
    shard: tuple[int, int] = (0, 1)
    workers: int = 1
    timeout: float = 120.0
    """Seconds a case may take."""
    batch: int = 0
    """A process ends after so many cases, which bounds its memory; 0: never."""
    missing: bool = False
    """Only what the stored matrix does not know; of what it does, no program is compiled again."""
    output: Path | None = None
    """A file of JSON lines: what was run (first line), then one result a line. An existing one is continued."""

    def header(self) -> dict[str, Any]:
        """What results must have in common to be in one file."""
        return {"device": self.device, "torch": torch.__version__, "limit": self.limit}


def cases(plan: Plan) -> list[Case]:
    """The plan's cases, in a fixed order."""
    found = catalog.cases(plan.ops, plan.dtypes, plan.phases, plan.shard, plan.modes, plan.places)
    return matrix.missing(matrix.load(), found) if plan.missing else found


def run(plan: Plan, chosen: Sequence[Case], progress: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Runs cases in worker processes and returns their results in the cases' order.

    Raises:
        ValueError: the output file is of another device, PyTorch or limit.
    """
    how = pool.Pool(
        serve=serve,
        arguments=(plan.device, plan.limit, plan.phases, plan.modes, plan.missing),
        failure=lambda case, status, reason: Result(case, status, reason=reason),
        parse=Result.from_json,
        header=plan.header(),
        workers=plan.workers,
        timeout=plan.timeout,
        batch=plan.batch,
        output=plan.output,
    )
    return pool.run(how, chosen, progress)


def serve(connection: Any, device: str, limit: int, phases: Sequence[str], modes: Sequence[str], missing: bool) -> None:
    """The worker process: receives cases, sends results, until the other end closes."""
    import warnings

    import torch_tpu
    from torch_tpu.conformance import runner

    warnings.simplefilter("ignore")
    if device.partition(":")[0] == "tpu":
        torch_tpu._autoload()
        torch_tpu.settings.fallback = "count"
    infos = catalog.by_name()
    stored = matrix.load() if missing else matrix.Matrix()
    connection.send("ready")
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        info = infos[case.op]
        others = [
            replace(case, phase=phase, mode=mode)
            for phase in catalog.phases_of(info, catalog.dtype_of(case.dtype))
            for mode in modes
            if phase in phases and phase in catalog.MATRIX_PHASES
        ]
        connection.send(runner.run_case(info, case, device, limit, others, matrix.passing(stored, case)))
