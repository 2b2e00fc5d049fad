"""What a run found, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torch_tpu.conformance.catalog import PHASES
from torch_tpu.conformance.gaps import Judgement
from torch_tpu.conformance.runner import Result

_COLUMNS = ("passed", "failed", "fallback", "crashed", "timeout", "skipped")


def show(console: Console, results: Sequence[Result], judgement: Judgement) -> None:
    """Prints counts by phase, then what must be done."""
    table = Table("phase", *_COLUMNS, "rate")
    for phase in PHASES:
        counts = Counter(result.status for result in results if result.case.phase == phase)
        num_run = sum(counts.values()) - counts["skipped"]
        if counts:
            share = f"{100 * counts['passed'] / num_run:.1f}%" if num_run else "-"
            table.add_row(phase, *(str(counts[name]) for name in _COLUMNS), share)
    console.print(table)
    for result in judgement.failed:
        console.print(f"[red]{result.status}[/] {result.case}: {escape(result.reason)}", soft_wrap=True)
    for gap in judgement.closed:
        console.print(f"[red]passes, delete its entry[/] {escape(str(gap))}", soft_wrap=True)
    said = (
        f"{len(judgement.declared)} declared gaps fail as expected, {len(judgement.failed)} failures are not declared"
    )
    console.print(f"{said}, {len(judgement.closed)} declared gaps pass")


def as_toml(results: Sequence[Result]) -> str:
    """Failures as entries for gaps.toml; the reasons are to be written by someone who knows them."""
    rows = []
    for result in results:
        reason = result.reason.replace("\\", "\\\\").replace('"', "'")
        rows.append(
            f'[[gap]]\nop = "{result.case.op}"\ndtype = "{result.case.dtype}"\nphase = "{result.case.phase}"\n'
            f'reason = "{reason}"\n'
        )
    return "\n".join(rows)
