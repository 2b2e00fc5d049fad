"""From a line of a StableHLO module, which is what the compiler names, to the operator and the line of the Python program."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass

from torch_tpu.eager import origins
from torch_tpu.eager.origins import Body

_FUNCTION = re.compile(r"^func\.func \w+ @(\w+)\(")
_CALL = re.compile(r"func\.call @(\w+)\(")
_VALUE = re.compile(r"\s*%(\d+)")
_OPERATION = re.compile(r'"?((?:stablehlo|chlo|func)\.\w+)')


@dataclass(frozen=True)
class Place:
    """What is at a line."""

    operation: str
    """Such as "stablehlo.dot_general"."""
    operator: str
    """The one that it belongs to, such as "aten_mm"; or nothing."""
    line: str
    """The user's line that first called it; or nothing."""
    calls: int
    """How often the module calls that program."""

    def __str__(self) -> str:
        what = self.operator or self.operation
        times = f", {self.calls} calls" if self.calls > 1 else ""
        return f"{what} ({_short(self.line)}{times})" if self.line else f"{what}{times}"


def _short(line: str) -> str:
    """A line without the directory where packages are installed, or the current one."""
    _, found, rest = line.rpartition(f"site-packages{os.sep}")
    return rest if found else line.removeprefix(os.getcwd() + os.sep)


class Places:
    """Of one module."""

    def __init__(self, text: str):
        self._lines = text.splitlines()
        self._functions: list[tuple[int, str, Body | None]] = []
        """Line number and name of each function, and what is recorded of it."""
        self._calls: Counter[str] = Counter(_CALL.findall(text))
        for number, line in enumerate(self._lines):
            match = _FUNCTION.match(line)
            if match is not None:
                self._functions.append((number, match[1], origins.find(self._body(number + 1))))

    @property
    def has_backward(self) -> bool:
        """Whether any of it is known to be of a backward pass."""
        bodies = [body for _, _, body in self._functions if body is not None]
        return any(found.is_backward for body in bodies for found in (body.origin, *body.values.values()))

    def _body(self, start: int) -> list[str]:
        end = start
        while end < len(self._lines) and not self._lines[end].startswith("return"):
            end += 1
        return self._lines[start:end]

    def find(self, source: str) -> Place | None:
        """What is at a place as the compiler writes it: "-:727" or "-:727:8"; None for others."""
        match = re.match(r"-:(\d+)", source)
        number = int(match[1]) - 1 if match else -1
        if not 0 <= number < len(self._lines):
            return None
        operation = _OPERATION.search(self._lines[number])
        name, body = next(((f[1], f[2]) for f in reversed(self._functions) if f[0] <= number), ("", None))
        value = _VALUE.match(self._lines[number])
        origin = body and (body.values.get(int(value[1]), body.origin) if value else body.origin)
        return Place(
            operation[1] if operation else "",
            origin.operator if origin else "",
            origin.line if origin else "",
            self._calls[name],
        )

    def describe(self, source: str) -> str:
        """A place in words, or the source itself where it is no place in this module."""
        place = self.find(source)
        return source if place is None else str(place)
