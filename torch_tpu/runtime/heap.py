"""The process's own heap. XLA's compiler leaves hundreds of MiB of it free in small pieces, and so do arrays of the CPU
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
