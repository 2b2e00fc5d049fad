"""The compiled programs on disk: look at them, check them, and take them to another machine as one file.

    torch_tpu.cache.export_to("programs.bin")       # here, after a run
    torch_tpu.cache.import_from("programs.bin")     # there: its first run compiles nothing

`torch-tpu cache` does the same from the command line.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torch_tpu.runtime import archive, cache, platform
from torch_tpu.runtime.archive import Imported as Imported
from torch_tpu.runtime.diskcache import DiskCache

__all__ = ["Imported", "Listed", "Verified", "clear", "directory", "entries", "export_to", "import_from", "verify"]


class Listed(NamedTuple):
    """A program on disk."""

    key: str
    name: str
    """Of its operator or function."""
    num_bytes: int
    used: float
    """Time of the last use, in seconds since the epoch."""
    unfit: str
    """Why this machine and these versions have no use for it, or nothing."""


class Verified(NamedTuple):
    """What `verify` found."""

    sound: int
    damaged: int
    """Entries that were deleted; they are compiled again when they are needed."""
    unfit: dict[str, int]
    """Why some of the sound ones are of no use here, and how many each; they go when room is needed."""


def directory() -> str:
    """Where the programs are."""
    return str(_disk().directory)


def entries(limit: int | None = None) -> list[Listed]:
    """The programs, those used last first, at most so many. What compilers said of programs is kept too, and not listed."""
    return list(itertools.islice((entry for entry in _read() if entry is not None), limit))


def _read() -> Iterator[Listed | None]:
    """Each program on disk; None for what is damaged."""
    disk, here = _disk(), platform.client().environment
    for stored in disk.stored():
        entry = disk.read(stored.key)
        if entry is None:
            yield None
        elif cache.is_program(entry.about):
            name, unfit = entry.about.get("name", ""), cache.unfit(entry.about, here)
            yield Listed(stored.key, name, stored.num_bytes, stored.used, unfit)


def verify() -> Verified:
    """Reads every program, compares it with its checksum and deletes what is damaged."""
    found = list(_read())
    sound = [entry for entry in found if entry is not None]
    unfit = Counter(entry.unfit for entry in sound if entry.unfit)
    return Verified(len(sound), len(found) - len(sound), dict(unfit))


def export_to(path: str | os.PathLike[str]) -> int:
    """Writes all programs into one file, which only this user can read, and says how many they were.

    Raises:
        OSError: the file cannot be written.
        RuntimeError: there is no cache to export; see `import_from`.
    """
    return archive.export_to(path, _disk())


def import_from(path: str | os.PathLike[str]) -> Imported:
    """Takes over the programs of an exported file. Those that are here already stay as they are.

    A program made with another jaxlib, for another device or for a processor with other instructions is not taken; the
    result says how many and why. The file holds machine code: import only what comes from people you trust.

    Raises:
        ValueError: the file was not written by `export_to`.
        OSError: it cannot be read.
        RuntimeError: the cache is switched off, or its directory cannot be used.
    """
    here = platform.client().environment
    return archive.import_from(path, _disk(), lambda about: cache.unfit(about, here))


def clear() -> int:
    """Deletes all programs and says how many they were."""
    return _disk().clear()


def _disk() -> DiskCache:
    disk = cache.disk()
    if disk is None:
        raise RuntimeError("the cache of programs is switched off; set torch_tpu.settings.cache = True")
    if disk.problem:
        raise RuntimeError(f"the cache of programs cannot be used: {disk.problem}")
    return disk
