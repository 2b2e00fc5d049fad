"""Where the user's program called what became a program, by the text of the program's body.

Recorded while something is captured ahead of time, on the miss path only: a call that is found in the cache runs no Python, so
that the line is the first one that made such a call. Kept beside the text, which must be the same as on a TPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_tpu.eager import debug


class Origin(NamedTuple):
    """What a program was made for."""

    operator: str
    """The program's name, such as "aten_mm"."""
    line: str
    """The user's line, "model.py:12 in forward", or which part of the gradient: "backward, AddmmBackward0"."""


recording = False
_origins: dict[bytes, Origin] = {}


def note(name: str, lines: Sequence[str]) -> None:
    """Called where a program's body is finished."""
    if recording:
        node = torch._C._current_autograd_node()
        line = debug.caller() if node is None else f"backward, {node.name()}"
        _origins.setdefault(_digest(lines), Origin(name, line))


def find(lines: Sequence[str]) -> Origin | None:
    """The origin of a body, if it was recorded."""
    return _origins.get(_digest(lines))


def _digest(lines: Sequence[str]) -> bytes:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()
