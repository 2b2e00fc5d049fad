"""Many cases in processes of their own, since a case may crash or hang; results are kept in a file and continued."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from threading import Event
from typing import IO, Any, Protocol, TypeVar

Case = TypeVar("Case", bound=Hashable)


class Outcome(Protocol):
    """What is known of a case afterwards."""

    @property
    def case(self) -> Any: ...

    def to_json(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=Outcome)
Serve = Callable[..., None]
"""The worker process, importable by name: serve(connection, *arguments) sends "ready", then a result for each case."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How cases are run."""

    serve: Serve
    arguments: tuple[Any, ...] = ()
    failure: Callable[[Any, str, str], Any]
    """Makes the result of a case whose process crashed or hung: (case, status, reason)."""
    parse: Callable[[dict[str, Any]], Any]
    """Reads a result from a line of the file."""
    header: dict[str, Any] = field(default_factory=dict)
    """What results must have in common to be in one file."""
    workers: int = 1
    timeout: float = 120.0
    """Seconds a case may take."""
    batch: int = 0
    """A process ends after so many cases, which bounds its memory; 0: never."""
    output: Path | None = None
    """A file of JSON lines: the header, then one result a line. An existing one is continued."""


def parse_shard(text: str) -> tuple[int, int]:
    """(1, 4) for "1/4".

    Raises:
        ValueError: it is no shard.
    """
    index, slash, count = text.partition("/")
    if not slash or not index.isdigit() or not count.isdigit() or int(index) >= int(count):
        raise ValueError(f"a shard is I/N with I from 0 to N-1, not {text!r}")
    return int(index), int(count)


def run(pool: Pool, chosen: Sequence[Case], progress: Callable[[Any], None] = lambda result: None) -> list[Any]:
    """Runs cases in worker processes and returns their results in the cases' order.

    An interrupt ends the processes, and nothing is recorded of the cases under way.

    Raises:
        ValueError: the output file is of another run.
    """
    done = _read(pool)
    wanted = set(chosen)
    for case, result in done.items():
        if case in wanted:
            progress(result)
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in chosen:
        if case not in done:
            waiting.put(case)
    lock, stopped = threading.Lock(), Event()
    with _open(pool) as file:

        def record(result: Outcome) -> None:
            with lock:
                if stopped.is_set():
                    return
                done[result.case] = result
                file.write(json.dumps(result.to_json()) + "\n")
                file.flush()
                progress(result)

        workers = [_Worker(pool, waiting, record, stopped) for _ in range(max(1, pool.workers))]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.finished.wait()
                if worker.error is not None:
                    raise worker.error
        finally:
            stopped.set()
            for worker in workers:
                worker.end()
    return [done[case] for case in chosen]


def _open(pool: Pool) -> IO[str]:
    if pool.output is None:
        return open(os.devnull, "w", encoding="utf-8")
    fresh = not pool.output.exists()
    file = pool.output.open("a", encoding="utf-8")
    if fresh:
        file.write(json.dumps(pool.header) + "\n")
    return file


def _read(pool: Pool) -> dict[Any, Any]:
    if pool.output is None or not pool.output.exists():
        return {}
    first, *rest = pool.output.read_text(encoding="utf-8").splitlines() or ["{}"]
    if json.loads(first) != pool.header:
        raise ValueError(f"{pool.output} is of another run: {first}; this one is {json.dumps(pool.header)}")
    return results_in(rest, pool.parse)


def results_in(lines: Iterable[str], parse: Callable[[dict[str, Any]], Any]) -> dict[Any, Any]:
    """The last result of each case in the lines of an output file, without its header."""
    found = {}
    for line in lines:
        try:
            result = parse(json.loads(line))
        except json.JSONDecodeError:
            continue  # the process was ended while it wrote this line
        found[result.case] = result
    return found


class _Worker(threading.Thread):
    """Feeds one process, and starts another where it crashes, hangs or has done its batch."""

    def __init__(self, pool: Pool, waiting: queue.SimpleQueue[Any], record: Callable[[Any], None], stopped: Event):
        super().__init__(daemon=True)
        self.pool, self.waiting, self.record, self.stopped = pool, waiting, record, stopped
        self.context = multiprocessing.get_context("spawn")
        self.error: RuntimeError | None = None
        self.finished = Event()
        """Python 3.11 takes a thread for ended if an interrupt came while it was joined."""
        self.process: Any = None
        self.connection: Any = None
        self.served = 0

    def run(self) -> None:
        resource_tracker.ensure_running()  # which would unblock the signal when it starts
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit it: a terminal interrupts all
        try:
            while not self.stopped.is_set():
                self.record(self._one(self.waiting.get_nowait()))
        except queue.Empty:
            self._close()
        except RuntimeError as error:
            self.error = error
        finally:
            self._close(kill=True)
            self.finished.set()

    def end(self) -> None:
        """Kills the process, whatever it does; for the main thread, after `stopped` is set."""
        while self.ident is not None and not self.finished.wait(0.1):
            process = self.process
            if process is not None and process.pid is not None:
                process.kill()

    def _one(self, case: Any) -> Any:
        if self.process is not None and self.pool.batch and self.served >= self.pool.batch:
            self._close()
        if self.process is None:
            self._open()
        try:
            self.connection.send(case)
            if not self.connection.poll(self.pool.timeout):
                self._close(kill=True)
                return self.pool.failure(case, "timeout", f"took more than {self.pool.timeout:g} s")
            self.served += 1
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self._close()
            return self.pool.failure(case, "crashed", f"the process ended with {code}")

    def _open(self) -> None:
        self.connection, theirs = self.context.Pipe()
        arguments = (theirs, *self.pool.arguments)
        self.process = self.context.Process(target=self.pool.serve, args=arguments, daemon=True)
        self.process.start()
        self.served = 0
        theirs.close()
        try:
            if not self.connection.poll(300):
                raise RuntimeError("a worker process did not start within 300 s")
            self.connection.recv()
        except EOFError:
            raise RuntimeError("a worker process did not start; its error is above") from None

    def _close(self, *, kill: bool = False) -> None:
        if self.process is None:
            return
        if kill:
            self.process.kill()
        self.connection.close()
        self.process.join()
        self.process = self.connection = None
