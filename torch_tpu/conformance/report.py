"""What a run found, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torch_tpu.conformance.catalog import HERE, MODES, PHASES, PLACES
from torch_tpu.conformance.gaps import Judgement
from torch_tpu.conformance.matrix import COLUMNS, COUNTED, PASSES, STATUSES, Matrix, name_of
from torch_tpu.conformance.runner import Result

_COLUMNS = ("passed", "failed", "fallback", "crashed", "timeout", "skipped")


def show(console: Console, results: Sequence[Result], judgement: Judgement) -> None:
    """Prints counts by phase, then what must be done."""
    table = Table("phase", "mode", "place", *_COLUMNS, "rate")
    for phase in PHASES:
        for mode in MODES:
            for place in PLACES:
                key = (phase, mode, place)
                counts = Counter(r.status for r in results if (r.case.phase, r.case.mode, r.case.place) == key)
                num_run = sum(counts.values()) - counts["skipped"]
                if counts:
                    share = f"{100 * counts['passed'] / num_run:.1f}%" if num_run else "-"
                    table.add_row(*key, *(str(counts[name]) for name in _COLUMNS), share)
    console.print(table)
    for result in judgement.failed:
        console.print(f"[red]{result.status}[/] {result.case}: {escape(result.reason)}", soft_wrap=True)
    for gap in judgement.closed:
        console.print(f"[red]passes, delete its entry[/] {escape(str(gap))}", soft_wrap=True)
    said = (
        f"{len(judgement.declared)} declared gaps fail as expected, {len(judgement.failed)} failures are not declared"
    )
    console.print(f"{said}, {len(judgement.closed)} declared gaps pass")


def show_matrix(console: Console, matrix: Matrix) -> None:
    """Prints a matrix's counts by column, and what is wrong."""
    table = Table("column", "pass", "decomp.", "fallback", "gap", "wrong", "n/a", "not run", "rate")
    for column in COLUMNS:
        counts = matrix.counts(column)
        num_run = sum(counts[letter] for letter in COUNTED)
        good = sum(counts[letter] for letter in PASSES)
        share = f"{100 * good / num_run:.1f}%" if num_run else "-"
        table.add_row(name_of(column), *(str(counts[letter]) for letter in STATUSES), share)
    console.print(table)
    for row in matrix.rows:
        for column in COLUMNS:
            if row.cell(column) == "W":
                name = name_of(column)
                console.print(f"[red]wrong[/] {row.op} {row.dtype} {name}: {escape(row.reasons[name])}", soft_wrap=True)
    for mode in MODES:
        told = matrix.compiled_everywhere(mode)
        console.print(f"{mode}: items that pass here and compile for all TPU generations: {told}")
    num_used = sum(bool(ops) for ops in matrix.lowerings.values())
    console.print(f"{num_used} of {len(matrix.lowerings)} lowerings are reached")


def as_toml(results: Sequence[Result]) -> str:
    """Failures as entries for gaps.toml; the reasons are to be written by someone who knows them."""
    rows = []
    for result in results:
        reason = result.reason.replace("\\", "\\\\").replace('"', "'")
        rows.append(
            f'[[gap]]\nop = "{result.case.op}"\ndtype = "{result.case.dtype}"\nphase = "{result.case.phase}"\n'
            f'reason = "{reason}"\n'
            + (f'mode = "{result.case.mode}"\n' if result.case.mode != "strict" else "")
            + (f'place = "{result.case.place}"\n' if result.case.place != HERE else "")
        )
    return "\n".join(rows)
