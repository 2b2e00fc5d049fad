"""Many cases: in processes of their own, since an operator may crash or hang; resumable and sharded."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from torch_tpu.conformance import catalog
from torch_tpu.conformance.catalog import Case
from torch_tpu.conformance.runner import Result


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run and how."""

    device: str = "tpu"
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "int64", "bool")
    phases: tuple[str, ...] = catalog.PHASES
    limit: int = 0
    """At most so many samples of each case; 0: all."""
    shard: tuple[int, int] = (0, 1)
    workers: int = 1
    timeout: float = 120.0
    """Seconds a case may take."""
    output: Path | None = None
    """A file of JSON lines: what was run (first line), then one result a line. An existing one is continued."""

    def header(self) -> dict[str, Any]:
        """What results must have in common to be in one file."""
        return {"device": self.device, "torch": torch.__version__, "limit": self.limit}


def parse_shard(text: str) -> tuple[int, int]:
    """(1, 4) for "1/4".

    Raises:
        ValueError: it is no shard.
    """
    index, slash, count = text.partition("/")
    if not slash or not index.isdigit() or not count.isdigit() or int(index) >= int(count):
        raise ValueError(f"a shard is I/N with I from 0 to N-1, not {text!r}")
    return int(index), int(count)


def cases(plan: Plan) -> list[Case]:
    """The plan's cases, in a fixed order."""
    return catalog.cases(plan.ops, plan.dtypes, plan.phases, plan.shard)


def run(plan: Plan, chosen: Sequence[Case], progress: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Runs cases in worker processes and returns their results in the cases' order.

    Raises:
        ValueError: the output file is of another device, PyTorch or limit.
    """
    done = _read(plan)
    wanted = set(chosen)
    for case, result in done.items():
        if case in wanted:
            progress(result)
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in chosen:
        if case not in done:
            waiting.put(case)
    lock = threading.Lock()
    with _open(plan) as file:

        def record(result: Result) -> None:
            with lock:
                done[result.case] = result
                file.write(json.dumps(result.to_json()) + "\n")
                file.flush()
                progress(result)

        workers = [_Worker(plan, waiting, record) for _ in range(max(1, plan.workers))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            if worker.error is not None:
                raise worker.error
    return [done[case] for case in chosen]


def _open(plan: Plan) -> IO[str]:
    if plan.output is None:
        return open(os.devnull, "w", encoding="utf-8")
    fresh = not plan.output.exists()
    file = plan.output.open("a", encoding="utf-8")
    if fresh:
        file.write(json.dumps(plan.header()) + "\n")
    return file


def _read(plan: Plan) -> dict[Case, Result]:
    if plan.output is None or not plan.output.exists():
        return {}
    first, *rest = plan.output.read_text(encoding="utf-8").splitlines() or ["{}"]
    if json.loads(first) != plan.header():
        raise ValueError(f"{plan.output} is of another run: {first}; this one is {json.dumps(plan.header())}")
    found = {}
    for line in rest:
        try:
            result = Result.from_json(json.loads(line))
        except json.JSONDecodeError:
            continue  # the process was ended while it wrote this line
        found[result.case] = result
    return found


class _Worker(threading.Thread):
    """Feeds one process, and starts another where it crashes or hangs."""

    def __init__(self, plan: Plan, waiting: queue.SimpleQueue[Case], record: Callable[[Result], None]):
        super().__init__(daemon=True)
        self.plan, self.waiting, self.record = plan, waiting, record
        self.context = multiprocessing.get_context("spawn")
        self.error: RuntimeError | None = None
        self.process: Any = None
        self.connection: Any = None

    def run(self) -> None:
        try:
            while True:
                self.record(self._one(self.waiting.get_nowait()))
        except queue.Empty:
            self._stop()
        except RuntimeError as error:
            self.error = error

    def _one(self, case: Case) -> Result:
        if self.process is None:
            self._start()
        try:
            self.connection.send(case)
            if not self.connection.poll(self.plan.timeout):
                self._stop(kill=True)
                return Result(case, "timeout", reason=f"took more than {self.plan.timeout:g} s")
            answer: Result = self.connection.recv()
            return answer
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self._stop()
            return Result(case, "crashed", reason=f"the process ended with {code}")

    def _start(self) -> None:
        self.connection, theirs = self.context.Pipe()
        self.process = self.context.Process(target=serve, args=(theirs, self.plan.device, self.plan.limit), daemon=True)
        self.process.start()
        theirs.close()
        try:
            if not self.connection.poll(300):
                raise RuntimeError("a worker process did not start within 300 s")
            self.connection.recv()
        except EOFError:
            raise RuntimeError("a worker process did not start; its error is above") from None

    def _stop(self, *, kill: bool = False) -> None:
        if self.process is None:
            return
        if kill:
            self.process.kill()
        self.connection.close()
        self.process.join()
        self.process = self.connection = None


def serve(connection: Any, device: str, limit: int) -> None:
    """The worker process: receives cases, sends results, until the other end closes."""
    import warnings

    import torch_tpu
    from torch_tpu.conformance import runner

    warnings.simplefilter("ignore")
    if device.partition(":")[0] == "tpu":
        torch_tpu._autoload()
        torch_tpu.settings.fallback = "count"
    infos = catalog.by_name()
    connection.send("ready")
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(runner.run_case(infos[case.op], case, device, limit))
