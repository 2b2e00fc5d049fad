"""The demo's report: one HTML file with everything in it, the loss curve as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Row = tuple[str, str]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1d2433 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td { padding: .3rem .6rem; border-bottom: 1px solid #dfe3ea }
td:last-child { text-align: right; font-variant-numeric: tabular-nums }
blockquote { margin: .5rem 0 1rem; padding: .4rem 1rem; border-left: 3px solid #3b6fd4; background: #f4f7fc }
svg text { font: 12px system-ui, sans-serif; fill: #5a6478 }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #e3e7ee } td { border-color: #303745 } blockquote { background: #1b2230 }
}
"""


def curve(losses: Sequence[float], width: int = 700, height: int = 260) -> str:
    """A line chart of the loss by step, as SVG."""
    left, right, top, bottom = 48, 12, 12, 32
    low, high = min(losses), max(losses)
    low, high = low - 0.05 * (high - low or 1.0), high + 0.05 * (high - low or 1.0)

    def x(step: int) -> float:
        return left + (width - left - right) * step / max(1, len(losses) - 1)

    def y(loss: float) -> float:
        return top + (height - top - bottom) * (high - loss) / (high - low)

    lines = []
    for part in range(5):
        loss = low + (high - low) * part / 4
        lines.append(f'<line x1="{left}" x2="{width - right}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#8884"/>')
        lines.append(f'<text x="{left - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
    for step in sorted({round((len(losses) - 1) * part / 4) for part in range(5)}):
        lines.append(f'<text x="{x(step):.1f}" y="{height - 12}" text-anchor="middle">{step + 1}</text>')
    points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in enumerate(losses))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#3b6fd4" stroke-width="2"/>')
    label = f"Loss by step, from {losses[0]:.3f} to {losses[-1]:.3f}"
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(lines)}</svg>'


def table(rows: Sequence[Row]) -> str:
    """Two columns: what, how much."""
    return "<table>" + "".join(f"<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>" for a, b in rows) + "</table>"


def page(title: str, answers: Sequence[Row], losses: Sequence[float], sections: Sequence[tuple[str, list[Row]]]) -> str:
    """The whole document.

    Args:
        answers: questions and what the model said.
        sections: headings and their tables.
    """
    said = "".join(f"<p>{escape(question)}</p><blockquote>{escape(text)}</blockquote>" for question, text in answers)
    tables = "".join(f"<h2>{escape(heading)}</h2>{table(rows)}" for heading, rows in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1><h2>Answers</h2>{said}<h2>Fine-tuning</h2>{curve(losses)}{tables}</body></html>\n"
    )
