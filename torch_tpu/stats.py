"""The only counters: what was compiled, run, copied and not supported. Read by tests, the profiler, `doctor`, the demo.

The counters are plain attributes of one object, `counters`, so that counting costs a few nanoseconds:

    from torch_tpu.stats import counters
    counters.executions += 1

Counting takes no lock: with several threads on the device at once a count may be short by a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch_tpu import recompiles


class Counters:
    """One attribute a counter; `DESCRIPTIONS` says what each one counts."""

    __slots__ = (
        "compiles",
        "compile_seconds",
        "memory_hits",
        "disk_hits",
        "disk_misses",
        "disk_errors",
        "crowded",
        "executions",
        "host_to_device",
        "host_to_device_bytes",
        "device_to_host",
        "device_to_host_bytes",
        "decompositions",
        "calls_in_between",
        "specialized",
        "fallbacks",
    )

    compiles: int
    compile_seconds: float
    memory_hits: int
    disk_hits: int
    disk_misses: int
    disk_errors: int
    crowded: int
    executions: int
    host_to_device: int
    host_to_device_bytes: int
    device_to_host: int
    device_to_host_bytes: int
    decompositions: int
    calls_in_between: int
    specialized: int
    fallbacks: dict[str, int]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Sets every counter to zero."""
        for name in self.__slots__:
            setattr(self, name, 0)
        self.compile_seconds = 0.0
        self.fallbacks = {}

    def fallback(self, op: str) -> bool:
        """Counts an operator that ran on the CPU instead, and says whether it is the first time."""
        first = op not in self.fallbacks
        self.fallbacks[op] = self.fallbacks.get(op, 0) + 1
        return first


DESCRIPTIONS: dict[str, str] = {
    "compiles": "programs that XLA compiled",
    "compile_seconds": "time that took",
    "memory_hits": "programs found in this process's table by their key",
    "disk_hits": "programs loaded from the disk cache instead of compiled",
    "disk_misses": "programs looked for in the disk cache and not found",
    "disk_errors": "entries of the disk cache that were damaged and deleted",
    "crowded": "times that all programs were dropped, since the process could not have had many more",
    "executions": "programs run",
    "host_to_device": "copies of host data to the device",
    "host_to_device_bytes": "their bytes",
    "device_to_host": "copies of device data to the host",
    "device_to_host_bytes": "their bytes",
    "decompositions": "operators traced through one of PyTorch's decompositions",
    "calls_in_between": "calls in compiled graphs that no program can do, and that ran between their programs",
    "specialized": "compiled graphs with sizes that vary which need a program for each set of sizes",
    "fallbacks": "operators that ran on the CPU instead, and how often",
}

counters = Counters()


def stats() -> Mapping[str, Any]:
    """A snapshot of all counters, which later work does not change."""
    snapshot = {name: getattr(counters, name) for name in Counters.__slots__}
    snapshot["fallbacks"] = MappingProxyType(dict(counters.fallbacks))
    return MappingProxyType(snapshot)


def reset() -> None:
    """Sets every counter to zero, and forgets which programs were made."""
    counters.reset()
    recompiles.reset()


def num_compiles() -> int:
    """Programs made so far: compiled by XLA, or loaded from the disk cache in its place."""
    return counters.compiles + counters.disk_hits


def fallback_counts() -> dict[str, int]:
    """How often each operator ran on the CPU instead since the last `reset`."""
    return dict(counters.fallbacks)
