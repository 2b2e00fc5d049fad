"""The support matrix: one row an operator and a dtype, one cell a phase and a mode or TPU generation.

It is stored as data of the package, results/support.jsonl: a line that says of which versions it is, then the rows, then
the registry's lowerings with the operators that use them. A run of `torch-tpu conformance --matrix`
makes results, `merge` puts them into the matrix; what was not run stays as it was.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from torch_tpu.conformance import pool
from torch_tpu.conformance.catalog import HERE, MATRIX_PHASES, MODES, PLACES, Case
from torch_tpu.conformance.gaps import Gaps
from torch_tpu.conformance.runner import Result

FILE = Path(__file__).with_name("results") / "support.jsonl"
STATUSES: dict[str, str] = {
    "P": "passes",
    "D": "passes by decomposition",
    "F": "fallback to the CPU",
    "G": "declared gap",
    "W": "wrong",
    "-": "not applicable",
    ".": "not run",
}
"""What the letter in a cell means. Not applicable: PyTorch's CPU has no such call, or there is nothing to run."""
PASSES = "PD"
COUNTED = "PDFGW"

Column = tuple[str, str, str]
"""Mode, place and phase."""
COLUMNS: tuple[Column, ...] = tuple(itertools.product(MODES, PLACES, MATRIX_PHASES))
_INDEX = {column: index for index, column in enumerate(COLUMNS)}
_PACKAGES = ("torch", "jaxlib", "libtpu", "torch_tpu")


def name_of(column: Column) -> str:
    """Such as "fused backward" or "strict v5e forward"."""
    mode, place, phase = column
    return f"{mode} {phase}" if place == HERE else f"{mode} {place} {phase}"


@dataclass(frozen=True)
class Row:
    """An operator of the catalog with a dtype."""

    op: str
    dtype: str
    cells: str
    """A letter of `STATUSES` for each of `COLUMNS`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why, by the column's name."""

    def cell(self, column: Column) -> str:
        return self.cells[_INDEX[column]]


class Compiled(NamedTuple):
    """How many items compile."""

    good: int
    """For all generations."""
    tried: int
    """For all of them too."""
    untried: int

    def __str__(self) -> str:
        total = self.tried + self.untried  # what was not tried counts as if it did not compile
        share = f"{100 * self.good / total:.2f}% of {total}" if self.tried else "none was tried"
        return f"{share} ({self.good} of the {self.tried} tried)" if self.untried and self.tried else share


@dataclass(frozen=True)
class Matrix:
    """All rows, in order, with what they are of."""

    versions: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    lowerings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Entry of the registry -> the operators whose programs it wrote here, in any mode."""

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], Row]:
        """The rows by operator and dtype."""
        return {(row.op, row.dtype): row for row in self.rows}

    def counts(self, column: Column) -> Counter[str]:
        """How many rows have which letter."""
        return Counter(row.cell(column) for row in self.rows)

    def items(self, mode: str) -> Iterator[tuple[Row, str]]:
        """Rows and phases that pass here in a mode: what should compile everywhere."""
        for row in self.rows:
            for phase in MATRIX_PHASES:
                if row.cell((mode, HERE, phase)) in PASSES:
                    yield row, phase

    def compiled_everywhere(self, mode: str) -> Compiled:
        """Which of the items compile for all TPU generations."""
        places = [place for place in PLACES if place != HERE]
        cells = [[row.cell((mode, place, phase)) for place in places] for row, phase in self.items(mode)]
        known = [letters for letters in cells if "." not in letters]
        good = sum(all(letter in PASSES for letter in letters) for letters in known)
        return Compiled(good, len(known), len(cells) - len(known))


def installed() -> dict[str, str]:
    """The versions that results depend on."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def merge(matrix: Matrix, results: Iterable[Result], gaps: Gaps, registry: Iterable[str]) -> Matrix:
    """The matrix with results put in; a later one of the same case replaces an earlier one.

    Args:
        registry: the names of all lowerings.
    """
    rows = dict(matrix.by_key)
    uses = {name: set(matrix.lowerings.get(name, ())) for name in registry}
    for result in results:
        case = result.case
        column = (case.mode, case.place, case.phase)
        if column not in _INDEX:
            continue
        key = (case.op, case.dtype)
        rows[key] = _with(rows.get(key) or _empty(case), column, *_judged(result, gaps))
        if case.place == HERE:
            for name in result.lowerings:
                uses.setdefault(name, set()).add(case.op)
    done = tuple(_inherit(rows[key]) for key in sorted(rows))
    return Matrix(installed(), done, {name: tuple(sorted(uses[name])) for name in sorted(uses)})


def _empty(case: Case) -> Row:
    """A row of which nothing was run. Phases that do not exist for it are not applicable from the start."""
    from torch_tpu.conformance import catalog

    info = catalog.by_name().get(case.op)
    phases = MATRIX_PHASES if info is None else catalog.phases_of(info, catalog.dtype_of(case.dtype))
    return Row(case.op, case.dtype, "".join("." if phase in phases else "-" for _, _, phase in COLUMNS))


def _with(row: Row, column: Column, letter: str, reason: str) -> Row:
    index, name = _INDEX[column], name_of(column)
    reasons = {key: text for key, text in row.reasons.items() if key != name} | ({name: reason} if reason else {})
    return replace(row, cells=row.cells[:index] + letter + row.cells[index + 1 :], reasons=reasons)


def _judged(result: Result, gaps: Gaps) -> tuple[str, str]:
    """A result's letter, and why."""
    if result.status == "passed":
        return ("D" if result.by == "decomposition" else "P"), ""
    if result.status == "skipped":
        return "-", result.reason
    gap = gaps.declared(result.case)
    if gap is not None:
        return "G", gap.reason
    if result.status == "fallback":
        return "F", result.reason
    return "W", result.reason if result.status == "failed" else f"{result.status}: {result.reason}"


def _inherit(row: Row) -> Row:
    """Where no program can be captured without values, a cell is what the same call is here, if that does not pass."""
    for column in COLUMNS:
        mode, place, phase = column
        here = row.cell((mode, HERE, phase))
        if place != HERE and row.cell(column) == "-" and here in "FG":
            row = _with(row, column, here, row.reasons.get(name_of((mode, HERE, phase)), ""))
    return row


def load(path: Path = FILE) -> Matrix:
    """A stored matrix; an empty one if there is no such file.

    Raises:
        ValueError: it is of other columns than these.
    """
    if not path.exists():
        return Matrix()
    first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    if first["columns"] != [name_of(column) for column in COLUMNS]:
        raise ValueError(f"{path} is of an older format; run the matrix again")
    rows = tuple(
        Row(line["op"], line["dtype"], line["cells"], _by_column(line.get("reasons", {})))
        for line in lines
        if "op" in line
    )
    uses = {line["lowering"]: tuple(line["by"]) for line in lines if "by" in line}
    return Matrix(first["versions"], rows, uses)


def store(matrix: Matrix, path: Path = FILE) -> None:
    """Writes a matrix, one line a row."""
    lines: list[dict[str, Any]] = [
        {"versions": dict(matrix.versions), "columns": [name_of(column) for column in COLUMNS]}
    ]
    for row in matrix.rows:
        line = {"op": row.op, "dtype": row.dtype, "cells": row.cells}
        lines.append(line | ({"reasons": _by_reason(row.reasons)} if row.reasons else {}))
    lines += [{"lowering": name, "by": list(ops)} for name, ops in matrix.lowerings.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Most columns of a row have the same reason, which is written once."""
    found: dict[str, list[str]] = {}
    for column in map(name_of, COLUMNS):
        if column in reasons:
            found.setdefault(reasons[column], []).append(column)
    return found


def _by_column(reasons: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {column: text for text, columns in reasons.items() for column in columns}


def read_results(path: Path) -> list[Result]:
    """The results in a file that a run wrote, the last one of each case."""
    _, *lines = path.read_text(encoding="utf-8").splitlines()
    return list(pool.results_in(lines, Result.from_json).values())


def missing(matrix: Matrix, cases: Iterable[Case]) -> list[Case]:
    """The cases of which the matrix knows nothing yet."""
    found = []
    for case in cases:
        row, column = matrix.by_key.get((case.op, case.dtype)), (case.mode, case.place, case.phase)
        if row is None or column not in _INDEX or row.cell(column) == ".":
            found.append(case)
    return found


def passing(matrix: Matrix, like: Case) -> list[Case]:
    """The cases of an operator, dtype and place of which the matrix says that they pass."""
    row = matrix.by_key.get((like.op, like.dtype))
    if row is None:
        return []
    columns = [column for column in COLUMNS if column[1] == like.place and row.cell(column) in PASSES]
    return [replace(like, mode=mode, phase=phase) for mode, _, phase in columns]
