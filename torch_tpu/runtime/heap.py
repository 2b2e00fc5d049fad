"""The process's own memory. XLA's compiler leaves hundreds of MiB of it free in small pieces, and so do arrays of the CPU
client that were freed among others; the C library keeps them, and large arrays that are made later do not fit in."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

LONG_COMPILE = 0.1
"""Seconds after which a compilation has used so much memory that giving it back is worth the few milliseconds."""


@cache
def _trim() -> Any | None:
    """glibc's `malloc_trim`; other C libraries have none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def give_back() -> None:
    """Returns free memory to the operating system, where the C library can."""
    trim = _trim()
    if trim is not None:
        trim(ctypes.c_size_t(0))


CROWDED = 0.8
"""The part of the memory mappings that a process may have, from which on programs must go: XLA's CPU client takes up to
ten for each, and where it gets no more the process ends."""


@cache
def _max_mappings() -> int:
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def is_crowded() -> bool:
    """Whether the process is about to run out of memory mappings. Takes milliseconds where there are many."""
    limit = _max_mappings()
    if not limit:
        return False
    with open("/proc/self/maps", "rb") as file:
        return sum(1 for _ in file) > CROWDED * limit


def machine_memory() -> tuple[int, int]:
    """Free and total bytes of the machine's memory."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return free, total_memory()


@cache
def total_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
