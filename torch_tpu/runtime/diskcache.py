"""Compiled programs on disk: bytes by key, safe for several processes, checked at reading, limited in size.

One file an entry: magic, length, SHA-256 of the payload, payload. A file is written under another name and renamed,
so a reader sees all of it or nothing; what is damaged all the same is deleted and reported as missing, so that it is
compiled again. Reading an entry sets its time, and the entries read longest ago are deleted first.

A compiled program is machine code, so the directory must belong to this user and be writable by nobody else; it is
refused otherwise. Nothing here is ever unpickled. Knows no XLA; `cache.py` says what the keys are.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch_tpu.stats import counters

MAGIC = b"TORCHTPU1\n"
_HEADER = len(MAGIC) + 8 + 32
_SUFFIX = ".program"
_EVICT_TO = 0.9
"""How full, of its limit, an eviction leaves the directory."""
_RESCAN = 512
"""After how many writes the directory is measured again, for what other processes have written."""


class Usage(NamedTuple):
    """How much a cache directory holds."""

    entries: int
    num_bytes: int


class DiskCache:
    """A directory of entries. Whatever goes wrong with the disk counts as a miss and never raises."""

    def __init__(self, directory: str | os.PathLike[str], limit: int):
        """
        Args:
            limit: the largest size in bytes of all entries together.
        """
        self.directory = Path(directory)
        self.limit = limit
        self.problem = ""
        """Why nothing is read or written, if so."""
        self._lock = threading.Lock()
        self._size: int | None = None
        self._writes = 0
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.problem = _distrust(self.directory)
        except OSError as error:
            self.problem = f"{self.directory} cannot be made: {error}"

    def get(self, key: str) -> bytes | None:
        """The entry, or None where there is none or it is damaged."""
        if self.problem:
            return None
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        payload = _payload(content)
        if payload is None:
            counters.disk_errors += 1
            self.delete(key)
            return None
        with suppress(OSError):  # deleted by another process meanwhile: the content is good all the same
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Stores an entry, replacing the one of that key; may delete old ones."""
        if self.problem or _HEADER + len(payload) > self.limit:
            return
        content = MAGIC + len(payload).to_bytes(8, "little") + hashlib.sha256(payload).digest() + payload
        path = self._path(key)
        temporary = ""
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError as error:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            self.problem = f"{self.directory} cannot be written: {error}"
            return
        self._account(len(content))

    def delete(self, key: str) -> None:
        """Removes an entry if it is there."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            self.problem = f"{self.directory} cannot be written: {error}"

    def clear(self) -> int:
        """Removes all entries and says how many there were."""
        entries = self._scan()
        for path, _, _ in entries:
            path.unlink(missing_ok=True)
        self._size = 0
        return len(entries)

    def usage(self) -> Usage:
        """Number and size of the entries."""
        entries = self._scan()
        return Usage(len(entries), sum(size for _, size, _ in entries))

    def entries(self) -> list[tuple[str, int, float]]:
        """Key, size in bytes and time of the last use of each entry, the one used last first."""
        found = [(path.name.removesuffix(_SUFFIX), size, used) for path, size, used in self._scan()]
        return sorted(found, key=lambda entry: -entry[2])

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / (key + _SUFFIX)

    def _account(self, num_bytes: int) -> None:
        with self._lock:
            self._writes += 1
            if self._size is None or self._writes % _RESCAN == 0:
                self._size = self.usage().num_bytes
            else:
                self._size += num_bytes
            if self._size > self.limit:
                self._evict()

    def _evict(self) -> None:
        entries = sorted(self._scan(), key=lambda entry: entry[2])
        size = sum(num_bytes for _, num_bytes, _ in entries)
        for path, num_bytes, _ in entries:
            if size <= self.limit * _EVICT_TO:
                break
            try:
                path.unlink(missing_ok=True)
            except OSError:
                break
            size -= num_bytes
        self._size = size

    def _scan(self) -> list[tuple[Path, int, float]]:
        """Path, size and time of each entry."""
        found = []
        for path in self.directory.glob(f"??/*{_SUFFIX}"):
            try:
                status = path.stat()
            except OSError:
                continue  # deleted by another process meanwhile
            found.append((path, status.st_size, status.st_mtime))
        return found


def _payload(content: bytes) -> bytes | None:
    """The payload of a file's content, or None if anything about it is wrong."""
    if len(content) < _HEADER or not content.startswith(MAGIC):
        return None
    start = len(MAGIC)
    length = int.from_bytes(content[start : start + 8], "little")
    payload = content[_HEADER:]
    if len(payload) != length or hashlib.sha256(payload).digest() != content[start + 8 : _HEADER]:
        return None
    return payload


def _distrust(directory: Path) -> str:
    """Why a directory must not be loaded from, or nothing. Closes our own where it is open to others."""
    status = directory.stat()
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid != os.geteuid():
        return f"{directory} belongs to another user"
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        directory.chmod(0o700)
    return ""
