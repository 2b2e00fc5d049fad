"""A comparison as one HTML page without other files: where errors begin, a chart over all layers, every number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from torch_tpu.numerics.measures import Errors
from torch_tpu.numerics.report import MEANINGS, MEASURES, cells_of, snr, tolerance_text
from torch_tpu.numerics.results import LayerResult, PrecisionResult, Report

_TOP = 160.0
"""dB: float32 itself has about 150."""
_WIDTH, _HEIGHT = 900, 340
_LEFT, _RIGHT, _UPPER, _LOWER = 48, 80, 14, 40

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5a6478; --line: #dfe3ea; --paper: #fff; --bad: #b3261e;
  --exact: #1f8a5f; --medium: #c4610f; --high: #2f6fd0; --highest: #8a4fbf }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ee; --soft: #9aa4b8; --line: #303745; --paper: #14181f;
  --bad: #ff8a80; --exact: #4cc596; --medium: #f0954a; --high: #79a8f5; --highest: #c394ee } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin-top: 2rem } p { color: var(--soft) }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { color: var(--soft); font-weight: 500 } td { font-variant-numeric: tabular-nums }
th:first-child, td:first-child, .text { text-align: left } .bad { color: var(--bad); font-weight: 600 }
svg { width: 100% } svg text { font: 12px system-ui, sans-serif; fill: var(--soft) }
summary { cursor: pointer; font-weight: 600; margin-top: 1rem }
"""


def as_html(report: Report) -> str:
    """The page."""
    title = f"{report.model} on {report.device}, compared with the CPU"
    details = "".join(_details(result, len(report.results) == 1) for result in report.results)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1><p>{escape(tolerance_text(report).capitalize())}.</p>{_summary(report)}"
        "<h2>Signal-to-noise ratio of each layer, in dB</h2>"
        "<p>Lines: in the model's run, errors of all layers before it included. Dots: what a layer makes itself, given "
        "the CPU's inputs. 6 dB are one bit; float32 has about 150 dB, bfloat16 about 50.</p>"
        f"{chart(report.results)}{details}</body></html>\n"
    )


def _summary(report: Report) -> str:
    rows = []
    for result in report.results:
        made, out, gradient = result.first_made, result.first_out, result.first_gradient
        cells = [
            f'<td style="color: var(--{result.precision})">{result.precision}</td>',
            f'<td class="text">{MEANINGS[result.precision]}</td>',
            *(f'<td class="text">{escape(str(layer)) if layer else "none"}</td>' for layer in (made, out)),
        ]
        if result.gradients:
            cells.append(f'<td class="text">{escape(gradient.name) if gradient else "none"}</td>')
        last = result.layers[-1].accumulated
        rows.append(f"<tr>{''.join(cells)}<td>{'-' if last is None else snr(last)}</td></tr>")
    heads = ["precision", "", "first error beyond tolerance made in", "first layer out of tolerance"]
    heads += ["first gradient"] * any(result.gradients for result in report.results)
    named = "".join(f'<th class="text">{head}</th>' for head in heads)
    return f'<div class="scroll"><table><tr>{named}<th>result, SNR dB</th></tr>{"".join(rows)}</table></div>'


# ------------------------------------------------------------------------------------------------------- chart


def chart(results: Sequence[PrecisionResult]) -> str:
    """SNR by the number of the call, a line of accumulated and dots of isolated errors for each precision."""
    count = max(len(result.layers) for result in results)
    lines = [_grid(count)]
    ends: list[float] = []
    for result in results:
        color = f"var(--{result.precision})"
        points = [
            (_x(place, count), _y(layer.accumulated)) for place, layer in enumerate(result.layers) if layer.accumulated
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for place, layer in enumerate(result.layers):
            if layer.isolated is not None and layer.isolated.noise:
                lines.append(_dot(_x(place, count), layer, layer.isolated, color, result.precision))
        if points:
            height = _apart(points[-1][1], ends)
            lines.append(f'<text x="{_WIDTH - _RIGHT + 8}" y="{height + 4:.1f}">{result.precision}</text>')
    label = "Signal-to-noise ratio by layer and precision"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(lines)}</svg>'


def _x(place: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place / max(1, count - 1)


def _y(errors: Errors) -> float:
    share = min(_TOP, max(0.0, errors.snr_db)) / _TOP
    return _UPPER + (_HEIGHT - _UPPER - _LOWER) * (1 - share)


def _grid(count: int) -> str:
    lines = []
    for level in range(0, int(_TOP) + 1, 40):
        height = _y(Errors(signal=10 ** (level / 10), noise=1.0))
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#8884"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{level}</text>')
    for place in sorted({round((count - 1) * part / 8) for part in range(9)}):
        lines.append(f'<text x="{_x(place, count):.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{place + 1}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{_HEIGHT - 3}" text-anchor="middle">call, in the order they end</text>')
    return "".join(lines)


def _dot(x: float, layer: LayerResult, errors: Errors, color: str, precision: str) -> str:
    text = f"{layer}, {precision}: {errors.snr_db:.0f} dB made here, at most {errors.max_abs:.1e}"
    return f'<circle cx="{x:.1f}" cy="{_y(errors):.1f}" r="3" fill="{color}"><title>{escape(text)}</title></circle>'


def _apart(height: float, taken: list[float]) -> float:
    """A height for a label, at least one line from those taken."""
    while any(math.fabs(height - other) < 13 for other in taken):
        height += 1
    taken.append(height)
    return height


# ------------------------------------------------------------------------------------------------------ tables


def _details(result: PrecisionResult, opened: bool) -> str:
    rows = []
    for layer in result.layers:
        made = _cells(layer.isolated, layer.sound)
        total = _cells(layer.accumulated, layer.within)
        own = "-" if layer.cpu_error is None or not layer.cpu_error.count else snr(layer.cpu_error)
        name, note = escape(str(layer)), escape(layer.note)
        tail = f'<td>{own}</td><td class="text">{note}</td>'
        rows.append(f"<tr><td>{name}</td><td>{list(layer.shape)}</td>{made}{total}{tail}</tr>")
    heads = "".join(f"<th>{name}</th>" for name in MEASURES)
    span = f'colspan="{len(MEASURES)}"'
    table = (
        f"<table><tr><th></th><th></th><th {span}>made here</th><th {span}>in all</th><th>CPU, float64</th><th></th>"
        f'</tr><tr><th>layer</th><th>shape</th>{heads}{heads}<th>SNR dB</th><th class="text">remarks</th></tr>'
        f"{''.join(rows)}</table>"
    )
    gradients = "".join(
        f"<tr><td>{escape(g.name)}</td><td>{list(g.shape)}</td>{_cells(g.errors, g.within)}</tr>"
        for g in result.gradients
    )
    if gradients:
        gradients = f"<h2>Gradients</h2><table><tr><th>parameter</th><th>shape</th>{heads}</tr>{gradients}</table>"
    state = " open" if opened else ""
    return (
        f"<details{state}><summary>{result.precision}: {MEANINGS[result.precision]}</summary>"
        f'<div class="scroll">{table}{gradients}</div></details>'
    )


def _cells(errors: Errors | None, good: bool) -> str:
    kind = "" if good else ' class="bad"'
    return "".join(f"<td{kind}>{cell}</td>" for cell in cells_of(errors))
