"""What a compiled program is on disk and in an exported file: magic, SHA-256 of all that follows, what it is, bytes.

What an entry is (its key, the program's name, and everything its machine code depends on) is text by name, as JSON.
Nothing is ever unpickled, and bytes whose checksum is wrong are never looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

MAGIC = b"TORCHTPU2\n"
_START = len(MAGIC) + hashlib.sha256().digest_size
OVERHEAD = _START + 4
"""Bytes of an entry besides its payload and what it says about itself."""


class Entry(NamedTuple):
    """A compiled program."""

    about: dict[str, str]
    """What it is; "key" is always there."""
    payload: bytes


def pack(about: Mapping[str, str], payload: bytes) -> bytes:
    """An entry as bytes."""
    described = json.dumps(dict(about), sort_keys=True).encode()
    body = len(described).to_bytes(4, "little") + described + payload
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(content: bytes) -> Entry | None:
    """The entry that bytes hold, or None if anything about them is wrong."""
    if len(content) < OVERHEAD or not content.startswith(MAGIC):
        return None
    body = memoryview(content)[_START:]
    if hashlib.sha256(body).digest() != content[len(MAGIC) : _START]:
        return None
    end = 4 + int.from_bytes(body[:4], "little")
    if end > len(body):
        return None
    try:
        about = json.loads(bytes(body[4:end]))
    except ValueError:
        return None
    if not isinstance(about, dict) or not isinstance(about.get("key"), str):
        return None
    if not all(isinstance(value, str) for value in about.values()):
        return None
    return Entry(about, bytes(body[end:]))
