"""Jupyter notebooks as one program: their code cells in order, without what only IPython understands."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_tpu.linter.rules import Finding

SUFFIX = ".ipynb"


@dataclass(frozen=True)
class Notebook:
    """A notebook's program, and where its cells are in it."""

    text: str
    starts: Sequence[int]
    """The first line of each code cell in the text, counted from 0."""
    numbers: Sequence[int]
    """Of each code cell among all cells, counted from 1."""

    def place(self, finding: Finding) -> Finding:
        """A finding in the text as one in its cell: "notebook.ipynb[cell 3]", and the line in that cell."""
        cell = bisect_right(self.starts, finding.line - 1) - 1
        return replace(
            finding, file=f"{finding.file}[cell {self.numbers[cell]}]", line=finding.line - self.starts[cell]
        )


def read(text: str) -> Notebook:
    """Reads a notebook. Magic and shell commands do nothing, and cells in other languages are empty.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"this is no notebook: {type(error).__name__}: {error}") from None
    lines: list[str] = [""]
    starts, numbers = [0], [1]
    for number, (kind, source) in enumerate(cells, 1):
        if kind == "code":
            starts.append(len(lines))
            numbers.append(number)
            lines += _python(source)
    return Notebook("\n".join(lines), starts, numbers)


_COMMAND = re.compile(r"^(\s*)(?:[%!?].*|.*\?\s*)$")
"""A line that only IPython understands."""
_ASSIGNED = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*$")


def _python(source: str) -> list[str]:
    lines = source.split("\n")
    if source.lstrip().startswith("%%"):
        return [""] * len(lines)
    return [_ASSIGNED.sub(r"\1None", _COMMAND.sub(r"\1pass", line)) for line in lines]
