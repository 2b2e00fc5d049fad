"""`torch-tpu cache`: the compiled programs on disk."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from torch_tpu import settings
from torch_tpu.runtime.diskcache import DiskCache

console = Console(highlight=False)


def _disk() -> DiskCache | None:
    from torch_tpu.runtime import cache

    return cache.disk()


def info() -> int:
    """Prints the directory, its size and its problem, if any; the exit status is 1 if there is one."""
    disk = _disk()
    if disk is None:
        console.print("The cache is switched off (TORCH_TPU_CACHE=0).")
        return 1
    usage = disk.usage()
    table = Table(show_header=False)
    table.add_row("directory", str(disk.directory))
    table.add_row("programs", str(usage.entries))
    table.add_row("size", f"{usage.num_bytes / 2**20:.1f} MiB of {settings.cache_limit / 2**20:.0f} MiB")
    table.add_row("problem", disk.problem or "none")
    console.print(table)
    return 1 if disk.problem else 0


def list_programs(limit: int) -> int:
    """Prints key, size and last use of the programs used last."""
    disk = _disk()
    if disk is None:
        return info()
    entries = disk.entries()
    table = Table("program", "KiB", "last used")
    for key, num_bytes, used in entries[: limit or None]:
        table.add_row(key, f"{num_bytes / 1024:.1f}", time.strftime("%Y-%m-%d %H:%M", time.localtime(used)))
    console.print(table)
    if limit and len(entries) > limit:
        console.print(f"{len(entries) - limit} more; --limit 0 shows all")
    return 0


def clear() -> int:
    """Deletes all programs."""
    disk = _disk()
    if disk is None:
        return info()
    console.print(f"{disk.clear()} programs deleted from {disk.directory}")
    return 0
