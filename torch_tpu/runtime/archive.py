"""A disk cache as one file: written by `export_to`, read by `import_from` on the machine that is to start warm.

The file is magic, then for each entry its length and its bytes (`entry.py`), then a length of zero. Each entry brings
its own checksum; a file that was cut short gives what is whole of it. Entries hold machine code: import only files from
people whose programs you would run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torch_tpu.runtime import cache, entry
from torch_tpu.runtime.diskcache import DiskCache

MAGIC = b"TORCHTPU-PROGRAMS1\n"
_LENGTH = 8
_KEY_LENGTH = 64


@dataclass
class Imported:
    """What became of the entries of a file."""

    added: int = 0
    present: int = 0
    """Those that the cache had already, which stayed as they were."""
    damaged: int = 0
    """Those whose checksum was wrong."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Why entries do not fit this machine, and how many each."""
    complete: bool = True
    """Whether the file has its end."""


def export_to(path: str | os.PathLike[str], disk: DiskCache) -> int:
    """Writes all sound programs into one file, readable by this user only, and says how many there were.

    Raises:
        OSError: the file cannot be written; one that was there stays as it was.
    """
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    count = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(MAGIC)
            for key in sorted(item.key for item in disk.stored()):
                found = disk.read(key)
                if found is not None and cache.is_program(found.about):
                    content = entry.pack(found.about, found.payload)
                    file.write(len(content).to_bytes(_LENGTH, "little") + content)
                    count += 1
            file.write(bytes(_LENGTH))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return count


def import_from(path: str | os.PathLike[str], disk: DiskCache, unfit: Callable[[Mapping[str, str]], str]) -> Imported:
    """Takes over the entries of an exported file that fit this machine and are not there yet.

    Args:
        unfit: says of an entry's description why this machine cannot use it, or nothing.

    Raises:
        ValueError: the file is not an exported cache.
        OSError: it cannot be read.
    """
    result = Imported()
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{os.fspath(path)} was not written by `torch-tpu cache export` of this version")
        for content in _contents(file, result):
            found = entry.unpack(content)
            if found is None or not _is_key(found.about["key"]):
                result.damaged += 1
                continue
            reason = unfit(found.about)
            if reason:
                result.rejected[reason] = result.rejected.get(reason, 0) + 1
            elif disk.read(found.about["key"]) is not None:
                result.present += 1
            else:
                disk.put(found.about["key"], found.payload, found.about)
                result.added += 1
    return result


def _contents(file: BinaryIO, result: Imported) -> Iterator[bytes]:
    size = os.fstat(file.fileno()).st_size
    while True:
        length = file.read(_LENGTH)
        num_bytes = int.from_bytes(length, "little")
        if len(length) < _LENGTH or num_bytes > size - file.tell():
            result.complete = False
            return
        if not num_bytes:
            return
        yield file.read(num_bytes)


def _is_key(text: str) -> bool:
    return len(text) == _KEY_LENGTH and set(text) <= set("0123456789abcdef")
