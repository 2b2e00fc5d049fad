"""From a program's text to its executable: this process's table, then the disk, then XLA.

A key is the SHA-256 of everything that can change the machine code: the text, the options, the platform and kind of
device, the versions of jaxlib and of this package, XLA's flags, and on the CPU the processor's features, since code
for AVX-512 must not be loaded on a processor without it.
"""

from __future__ import annotations

import hashlib
import os
import platform as host
import threading
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import jaxlib

from torch_tpu import settings
from torch_tpu.runtime.diskcache import DiskCache

V = TypeVar("V")

FORMAT = "1"
"""Changes when what is stored under a key changes its meaning."""


class Recent(Generic[V]):
    """A dictionary that forgets what was not used lately, where a hit costs one dictionary lookup.

    Two generations: a hit in the old one moves the entry to the young one; when the young one is full it becomes the
    old one. Between `capacity` / 2 and `capacity` entries are kept.
    """

    def __init__(self, capacity: int):
        self._half = max(1, capacity // 2)
        self.young: dict[Any, V] = {}
        self._old: dict[Any, V] = {}

    def get(self, key: Any) -> V | None:
        value = self.young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Any, value: V) -> None:
        if len(self.young) >= self._half:
            self._old, self.young = self.young, {}
        self.young[key] = value

    def clear(self) -> None:
        self.young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)


def default_directory() -> Path:
    """Where programs are kept unless `settings.cache_dir` says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torch_tpu"


_lock = threading.Lock()
_disk: dict[tuple[str, int], DiskCache] = {}


def disk() -> DiskCache | None:
    """The disk cache that the settings ask for, or None where they ask for none."""
    if not settings.cache:
        return None
    wanted = (settings.cache_dir, settings.cache_limit)
    found = _disk.get(wanted)
    if found is None:
        directory = Path(settings.cache_dir) if settings.cache_dir else default_directory()
        with _lock:
            found = _disk.setdefault(wanted, DiskCache(directory / "programs", settings.cache_limit))
    return found


@cache
def processor() -> str:
    """The host's instruction set: its architecture and, where the system lists them, its features."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return f"{host.machine()} {' '.join(sorted(value.split()))}"
    except OSError:
        pass  # no such file on this system: its name is all there is
    return f"{host.machine()} {host.processor()}"


@cache
def environment(platform: str, device_kind: str) -> str:
    """What a program's machine code depends on besides its text and options."""
    parts = [FORMAT, platform, device_kind, jaxlib.__version__, _version()]
    parts += [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    if platform == "cpu":
        parts.append(processor())
    return "\n".join(parts)


def key(text: str, options: tuple[tuple[str, Any], ...], platform: str, device_kind: str) -> str:
    """The name of a program in every cache: 64 hexadecimal digits."""
    digest = hashlib.sha256(environment(platform, device_kind).encode())
    digest.update(repr(options).encode())
    digest.update(text.encode())
    return digest.hexdigest()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch_tpu")
    except PackageNotFoundError:
        return "source"
