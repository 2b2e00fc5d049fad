"""Where the user's program called what became a program, by the text of the program's body.

Recorded while something is captured ahead of time, on the miss path only: a call that is found in the cache runs no Python, so
that the line is the first one that made such a call. Kept beside the text, which must be the same as on a TPU. For a compiled
graph, each value of the body has an origin of its own, that of the graph's node.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_tpu import _frames
from torch_tpu.hlo.core import current

_BACKWARD, _OF_BACKWARD = "backward, ", ", backward"
"""How the line of something in a gradient begins, or ends."""


class Origin(NamedTuple):
    """What a program was made for."""

    operator: str
    """The program's name, such as "aten_mm"."""
    line: str
    """The user's line, "model.py:12 in forward", or which part of the gradient: "backward, AddmmBackward0"."""

    @property
    def is_backward(self) -> bool:
        """Whether it is part of a gradient."""
        return self.line.startswith(_BACKWARD) or self.line.endswith(_OF_BACKWARD)


class Body(NamedTuple):
    """Of a program."""

    origin: Origin
    values: Mapping[int, Origin]
    """Those of single values, by the number in their name."""


recording = False
_bodies: dict[bytes, Body] = {}


def note(name: str, lines: Sequence[str], values: Mapping[int, Origin]) -> None:
    """Called where a program's body is finished."""
    if recording:
        node = torch._C._current_autograd_node()
        line = _frames.caller() if node is None else f"{_BACKWARD}{node.name()}"
        _bodies.setdefault(_digest(lines), Body(Origin(name, line), values))


@contextlib.contextmanager
def of_node(node: Any) -> Iterator[None]:
    """What is written meanwhile comes from a node of a compiled graph; nodes within it, as in a loop's body, come first."""
    if not recording:
        yield
        return
    function = current()
    before = function.num_values
    yield
    line = _frames.innermost(str(node.meta.get("stack_trace") or ""))
    if line:
        schema = getattr(node.target, "_schema", None)
        name = node.target.__name__ if schema is None else schema.name.replace("::", "_")
        backward = node.meta.get("partitioner_tag") == "is_backward"
        found = Origin(name, f"{line}{_OF_BACKWARD}" if backward else line)
        for number in range(before + 1, function.num_values + 1):
            function.sources.setdefault(number, found)


def find(lines: Sequence[str]) -> Body | None:
    """What was recorded of a body."""
    return _bodies.get(_digest(lines))


def _digest(lines: Sequence[str]) -> bytes:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()
