"""`torch-tpu cache`: the compiled programs on disk."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torch_tpu import settings
from torch_tpu.runtime.diskcache import DiskCache

console = Console(highlight=False, markup=False)


def info() -> int:
    """Prints the directory, its size and its problem, if any; the exit status is 1 if there is one."""
    disk = _disk()
    if disk is None:
        console.print("The cache is switched off (TORCH_TPU_CACHE=0).")
        return 1
    usage = disk.usage()
    table = Table(show_header=False)
    table.add_row("directory", str(disk.directory))
    table.add_row("files", f"{usage.entries}: programs, and what compilers said of some")
    table.add_row("size", f"{usage.num_bytes / 2**20:.1f} MiB of {settings.cache_limit / 2**20:.0f} MiB")
    table.add_row("problem", disk.problem or "none")
    console.print(table)
    return 1 if disk.problem else 0


def list_programs(limit: int) -> int:
    """Prints name, size and last use of the programs used last, and what is wrong with those of no use here."""
    from torch_tpu import cache

    if not _usable():
        return info()
    listed = cache.entries(limit or None)
    table = Table("program", "name", "KiB", "last used", "of no use here")
    for entry in listed:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        table.add_row(entry.key[:12], entry.name, f"{entry.num_bytes / 1024:.1f}", used, entry.unfit)
    console.print(table)
    if limit and len(listed) == limit:
        console.print("--limit 0 shows all")
    return 0


def verify() -> int:
    """Checks every program; the exit status is 1 if one was damaged."""
    from torch_tpu import cache

    if not _usable():
        return info()
    found = cache.verify()
    console.print(f"{found.sound} programs are sound, {found.damaged} were damaged and are deleted")
    _print_reasons(found.unfit)
    return 1 if found.damaged else 0


def export_to(file: Path) -> int:
    """Writes all programs into one file."""
    from torch_tpu import cache

    if not _usable():
        return info()
    try:
        count = cache.export_to(file)
    except OSError as error:
        console.print(f"cannot write {file}: {error.strerror}", soft_wrap=True)
        return 1
    console.print(f"{count} programs, {file.stat().st_size / 2**20:.1f} MiB in {file}", soft_wrap=True)
    return 0


def import_from(file: Path) -> int:
    """Takes over what fits; the exit status is 1 if the file was damaged or nothing in it fits."""
    from torch_tpu import cache

    if not _usable():
        return info()
    try:
        found = cache.import_from(file)
    except OSError as error:
        console.print(f"cannot read {file}: {error.strerror}", soft_wrap=True)
        return 1
    except ValueError as error:
        console.print(str(error), soft_wrap=True)
        return 1
    console.print(f"{found.added} programs added, {found.present} were here already")
    _print_reasons(found.rejected)
    if found.damaged:
        console.print(f"{found.damaged} were damaged")
    if not found.complete:
        console.print(f"{file} ends early; what was whole of it is taken", soft_wrap=True)
    useless = bool(found.rejected) and not found.added + found.present
    return 1 if found.damaged or not found.complete or useless else 0


def clear() -> int:
    """Deletes all programs."""
    from torch_tpu import cache

    if not _usable():
        return info()
    where = cache.directory()
    console.print(f"{cache.clear()} programs deleted from {where}", soft_wrap=True)
    return 0


def _disk() -> DiskCache | None:
    from torch_tpu.runtime import cache

    return cache.disk()


def _usable() -> bool:
    disk = _disk()
    return disk is not None and not disk.problem


def _print_reasons(reasons: dict[str, int]) -> None:
    for reason, count in reasons.items():
        console.print(f"{count} are of no use here: {reason}", soft_wrap=True)
