"""Compiled programs on disk: bytes by key, safe for several processes, checked at reading, limited in size.

One file an entry (`entry.py`). A file is written under another name and renamed, so a reader sees all of it or
nothing; what is damaged all the same is deleted and reported as missing, so that it is compiled again. Reading an entry
sets its time, and the entries read longest ago are deleted first.

A compiled program is machine code. The directory must belong to this user, and is closed to all others; an entry must
be a plain file of this user that nobody else can write, and symbolic links are not followed. Knows no XLA; `cache.py`
says what the keys are.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch_tpu.runtime import entry
from torch_tpu.runtime.entry import Entry
from torch_tpu.stats import counters

_SUFFIX = ".program"
_UNFINISHED = ".part"
_EVICT_TO = 0.9
"""How full, of its limit, an eviction leaves the directory."""
_RESCAN = 512
"""After how many writes the directory is measured again, for what other processes have written."""
_ABANDONED = 3600.0
"""Seconds after which a file that was not finished belongs to a process that has died."""


class Usage(NamedTuple):
    """How much a cache directory holds."""

    entries: int
    num_bytes: int


class Stored(NamedTuple):
    """One entry of a directory, as the file system knows it."""

    key: str
    num_bytes: int
    used: float
    """Time of the last use, in seconds since the epoch."""


class DiskCache:
    """A directory of entries. Whatever goes wrong with the disk counts as a miss and never raises."""

    def __init__(self, directory: str | os.PathLike[str], limit: int):
        """
        Args:
            limit: the largest size in bytes of all entries together.
        """
        self.directory = Path(directory)
        self.limit = limit
        self._lock = threading.Lock()
        self._size: int | None = None
        self._writes = 0
        self.problem = self._prepare()
        """Why nothing is written, if so; nor is anything read, if the directory is not trusted."""
        self._trusted = not self.problem

    def _prepare(self) -> str:
        """Makes the directory; returns why it must not be used, or nothing."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _distrust(self.directory)
        except OSError as error:
            return f"{self.directory} cannot be made: {error}"

    def get(self, key: str) -> bytes | None:
        """The program of that key, or None where there is none or it is damaged."""
        found = self.read(key)
        if found is None:
            return None
        with suppress(OSError):  # deleted by another process meanwhile: the content is good all the same
            os.utime(self._path(key), follow_symlinks=False)
        return found.payload

    def read(self, key: str) -> Entry | None:
        """The entry of that key, which does not count as a use; a damaged one is deleted and counted."""
        if not self._trusted:
            return None
        try:
            content = _read_private(self._path(key))
        except FileNotFoundError:
            return None
        except OSError:  # a link, a folder, or a file of someone else
            content = b""
        found = entry.unpack(content)
        if found is None or found.about["key"] != key:
            counters.disk_errors += 1
            self.delete(key)
            return None
        return found

    def put(self, key: str, payload: bytes, about: Mapping[str, str]) -> None:
        """Stores a program, replacing the one of that key; may delete old ones.

        Args:
            about: what it depends on and what it is called, for `read` and for exported files.
        """
        content = entry.pack({**about, "key": key}, payload)
        if self.problem or len(content) > self.limit or sys.is_finalizing():  # then Python opens no files any more
            return
        path = self._path(key)
        temporary = ""
        try:
            if not self.directory.is_dir():  # someone has deleted it
                self.problem = self._prepare()
                self._trusted = not self.problem
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=_UNFINISHED)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError as error:
            if temporary:
                with suppress(OSError):
                    os.unlink(temporary)
            self.problem = f"{self.directory} cannot be written: {error}"
            return
        self._account(len(content))

    def delete(self, key: str) -> None:
        """Removes an entry if it is there, or the folder that is in its place."""
        path = self._path(key)
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            self.problem = f"{self.directory} cannot be written: {error}"

    def clear(self) -> int:
        """Removes all entries and says how many there were."""
        stored = self.stored()
        for item in stored:
            self.delete(item.key)
        self._size = 0
        return len(stored)

    def usage(self) -> Usage:
        """Number and size of the entries."""
        stored = self.stored()
        return Usage(len(stored), sum(item.num_bytes for item in stored))

    def stored(self) -> list[Stored]:
        """The entries, the one used last first."""
        found = []
        for path in self.directory.glob(f"??/*{_SUFFIX}"):
            try:
                status = path.lstat()
            except OSError:
                continue  # deleted by another process meanwhile
            found.append(Stored(path.name.removesuffix(_SUFFIX), status.st_size, status.st_mtime))
        return sorted(found, key=lambda item: -item.used)

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / (key + _SUFFIX)

    def _account(self, num_bytes: int) -> None:
        with self._lock:
            self._writes += 1
            if self._size is None or self._writes % _RESCAN == 0:
                self._sweep()
                self._size = self.usage().num_bytes
            else:
                self._size += num_bytes
            if self._size > self.limit:
                self._evict()

    def _evict(self) -> None:
        stored = self.stored()
        size = sum(item.num_bytes for item in stored)
        while stored and size > self.limit * _EVICT_TO and not self.problem:
            oldest = stored.pop()
            self.delete(oldest.key)
            size -= oldest.num_bytes
        self._size = size

    def _sweep(self) -> None:
        """Deletes what processes that were killed have left unfinished."""
        for path in self.directory.glob(f"??/*{_UNFINISHED}"):
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime > _ABANDONED:
                    path.unlink()


def _read_private(path: Path) -> bytes:
    """A file's content, if it is a plain file of this user that nobody else may write.

    Raises:
        OSError: it is something else, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or _foreign(status) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} is not a private file of this user")
        return file.read()


def _foreign(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and status.st_uid != os.geteuid()


def _distrust(directory: Path) -> str:
    """Why a directory must not be loaded from, or nothing. Closes our own where it is open to others."""
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{directory} is a symbolic link; set TORCH_TPU_CACHE_DIR to where it should be"
    if _foreign(status):
        return f"{directory} belongs to another user"
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        directory.chmod(0o700)
    return ""
