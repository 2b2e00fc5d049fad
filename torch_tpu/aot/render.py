"""Reports for people: on the terminal, and as one HTML page that needs nothing else."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape

from rich import box
from rich.console import Console
from rich.table import Table

from torch_tpu.aot import tables
from torch_tpu.aot.report import MemoryReport, Report

_PARTS = (("arguments", "#3b6fd4"), ("outputs", "#2f9e77"), ("temporaries", "#d9822b"), ("code", "#8a63d2"))
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1d2433 }
h1 { font-size: 1.4rem } h2 { font-size: 1.2rem; margin-top: 2.5rem } h3 { font-size: 1rem; margin: 1.5rem 0 .3rem }
table { border-collapse: collapse; width: 100% } th { text-align: left; font-weight: 600 }
td, th { padding: .25rem .6rem; border-bottom: 1px solid #dfe3ea; vertical-align: top }
td.value { white-space: nowrap; font-variant-numeric: tabular-nums } td.remark { color: #5a6478 }
pre { overflow-x: auto; background: #f4f7fc; padding: .6rem } .no { color: #b3261e; font-weight: 600 }
svg text { font: 12px system-ui, sans-serif; fill: #5a6478 }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #e3e7ee } td, th { border-color: #303745 } pre { background: #1b2230 }
  td.remark, svg text { color: #9aa4b5; fill: #9aa4b5 } .no { color: #ff897d }
}
"""


def show(reports: Sequence[Report], console: Console) -> None:
    """Prints one report in full, or several side by side with the best of them."""
    if len(reports) == 1:
        _show_one(reports[0], console)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)  # 80 columns are enough
    for name in tables.columns(reports):
        table.add_column(name, overflow="fold")
    for row in tables.comparison(reports):
        table.add_row(*row)
    console.print(table)
    for what, value, remark in tables.best(reports):
        console.print(f"{what}: {value} ({remark})" if remark else f"{what}: {value}")
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        console.print(f"note: {note}")
    console.print(tables.DISCLAIMER)


def text(reports: Sequence[Report], width: int = 120) -> str:
    """What `show` prints, without colors."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        show(reports, console)
    return capture.get()


def _show_one(report: Report, console: Console) -> None:
    console.rule(tables.title(report), align="left")
    for section in tables.sections(report):
        table = Table(show_header=False, box=None, title=section.title, title_justify="left", title_style="bold")
        table.add_column(overflow="fold", max_width=64)
        table.add_column(justify="right", no_wrap=max(len(row.value) for row in section.rows) < 24)
        table.add_column(style="dim", overflow="fold")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    for note in report.notes:
        console.print(f"note: {note}")
    console.print(tables.DISCLAIMER)


def page(reports: Sequence[Report]) -> str:
    """An HTML document with all reports."""
    title = tables.title(reports[0]) if len(reports) == 1 else f"{reports[0].name}: {len(reports)} plans"
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(reports) > 1:
        parts.append(_comparison(reports))
    for report in reports:
        if len(reports) > 1:
            parts.append(f"<h2>{escape(tables.title(report))}</h2>")
        if report.memory is not None:
            parts.append(_bar(report.memory))
        parts += [_table(section) for section in tables.sections(report)]
        if report.failure is not None:
            parts.append(f"<h3>What the compiler said</h3><pre>{escape(report.failure.message)}</pre>")
        parts.append("<h3>Notes</h3><ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"{''.join(parts)}<p>{tables.DISCLAIMER}</p></body></html>\n"
    )


def _comparison(reports: Sequence[Report]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in tables.columns(reports))
    rows = ("".join(f'<td class="value">{escape(cell)}</td>' for cell in row) for row in tables.comparison(reports))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    chosen = "".join(
        f"<li>{escape(f'{what}: {value} ({remark})')}</li>" for what, value, remark in tables.best(reports)
    )
    return f"<table><tr>{head}</tr>{body}</table><ul>{chosen}</ul>"


def _table(section: tables.Section) -> str:
    rows = "".join(
        f'<tr><td>{escape(row.what)}</td><td class="value{" no" if row.value == "no" else ""}">{escape(row.value)}</td>'
        f'<td class="remark">{escape(row.remark)}</td></tr>'
        for row in section.rows
    )
    return f"<h3>{escape(section.title)}</h3><table>{rows}</table>"


def _bar(memory: MemoryReport, width: int = 700) -> str:
    """HBM by what it is for, against what programs can have, as SVG."""
    scale = width / max(memory.total, memory.usable, 1)
    shapes, texts, left = [], [], 0.0
    for name, color in _PARTS:
        size = getattr(memory, name) * scale
        shapes.append(f'<rect x="{left:.1f}" y="4" width="{size:.1f}" height="22" fill="{color}"/>')
        texts.append(f'<tspan fill="{color}">&#9632;</tspan> {name} {escape(tables.gib(getattr(memory, name)))} ')
        left += size
    limit = memory.usable * scale
    shapes.append(f'<path d="M{limit:.1f} 0V30" stroke="#b3261e" stroke-width="2"/>')
    label = f"HBM: {tables.gib(memory.total)} of {tables.gib(memory.usable)}"
    return (
        f'<svg viewBox="0 0 {width + 4} 52" role="img" aria-label="{label}">{"".join(shapes)}'
        f'<text x="0" y="46">{"".join(texts)}</text></svg>'
    )
