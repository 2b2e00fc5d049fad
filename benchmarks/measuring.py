"""Timing for the benchmarks: medians of wall and CPU time, threads fixed, peak memory. Imports neither torch nor jax."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

THREADS = 2


class Timing(NamedTuple):
    """Seconds of one call."""

    median: float
    least: float
    cpu: float
    """User and system time of the process, all threads together: what other work on the machine disturbs least."""
    repeats: int


def fix_threads() -> None:
    """Two threads for everyone; to be called before torch or jax is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning would count as work where the cores are shared
    if hasattr(os, "sched_setaffinity"):  # XLA sizes its pools by the cores that the process may use
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:THREADS]))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """A function's result and its seconds."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def measure(function: Callable[[], Any], *, repeats: int, budget: float, warmup: int = 1) -> Timing:
    """Times a function that returns when its work is done.

    Args:
        budget: seconds after which no further repeat is begun, once there are three.
    """
    for _ in range(warmup):
        function()
    gc.collect()
    gc.disable()
    wall, cpu = [], []
    begin = time.perf_counter()
    try:
        while len(wall) < repeats and (len(wall) < 3 or time.perf_counter() - begin < budget):
            before = cpu_seconds()
            _, seconds = timed(function)
            wall.append(seconds)
            cpu.append(cpu_seconds() - before)
    finally:
        gc.enable()
    return Timing(statistics.median(wall), min(wall), statistics.median(cpu), len(wall))
