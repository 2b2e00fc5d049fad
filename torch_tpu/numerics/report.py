"""A comparison for the terminal, and as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table

from torch_tpu.numerics.measures import Errors
from torch_tpu.numerics.results import LayerResult, PrecisionResult, Report

MEANINGS = {"exact": "float32", "medium": "1 pass", "high": "3 passes", "highest": "6 passes"}
MEASURES = ("max abs", "max rel", "SNR dB", "ulps")


def show(console: Console, report: Report, *, everything: bool = False, limit: int = 8) -> None:
    """Prints where errors begin at each precision, then layers: all, or the first ones that are out of tolerance."""
    console.print(f"{report.model} on {report.device} against the CPU; {tolerance_text(report)}", markup=False)
    summary = _table("precision", "error made first by", "out of tolerance first", "SNR dB")
    for result in report.results:
        last = result.layers[-1].accumulated
        precision = f"{result.precision}, {MEANINGS[result.precision]}"
        summary.add_row(
            precision, named(result.first_made), named(result.first_out), "-" if last is None else snr(last)
        )
    console.print(summary)
    for result in report.results:
        _show_layers(console, result, everything, limit)
        _show_gradients(console, result, everything, limit)


def _show_layers(console: Console, result: PrecisionResult, everything: bool, limit: int) -> None:
    chosen = [layer for layer in result.layers if everything or not (layer.within and layer.sound)]
    if not chosen:
        console.print(f"{result.precision}: all {len(result.layers)} calls of layers are within tolerance")
        return
    shown = chosen if everything else chosen[:limit]
    table = _table("layer", "error", *MEASURES)
    table.title = f"{result.precision}: {len(shown)} of {len(result.layers)} calls of layers"
    for layer in shown:
        name, kind = markup.escape(layer.name or "the model"), markup.escape(layer.kind)
        table.add_row(name, "made", *_row(layer.isolated, layer.sound))
        remarks = f"{kind}\n{markup.escape(layer.note)}" if layer.note else kind
        table.add_row(f"  {remarks}", "in all", *_row(layer.accumulated, layer.within), end_section=True)
    console.print(table)
    if len(shown) < len(chosen):
        console.print(f"{len(chosen) - len(shown)} more are out of tolerance; --all shows all layers")


def _show_gradients(console: Console, result: PrecisionResult, everything: bool, limit: int) -> None:
    chosen = [gradient for gradient in result.gradients if everything or not gradient.within]
    if result.gradients and not chosen:
        console.print(f"{result.precision}: all {len(result.gradients)} gradients are within tolerance")
    if not chosen:
        return
    shown = chosen if everything else chosen[:limit]
    table = _table("gradient of", *MEASURES)
    table.title = f"{result.precision}: {len(shown)} of {len(result.gradients)} gradients, the last layer's first"
    for gradient in shown:
        table.add_row(markup.escape(gradient.name), *_row(gradient.errors, gradient.within))
    console.print(table)


def _table(*heads: str) -> Table:
    """With long names in several lines instead of cut."""
    table = Table()
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def cells_of(errors: Errors | None) -> list[str]:
    """The text of each of `MEASURES`."""
    if errors is None or not errors.count:
        return ["-"] * len(MEASURES)
    numbers = [f"{x:.1e}" if x else "0" for x in (errors.max_abs, errors.max_rel)]
    return [*numbers, snr(errors), f"{errors.ulps:.0f}" if errors.ulps < 1000 else f"{errors.ulps:.0e}"]


def snr(errors: Errors) -> str:
    """The signal-to-noise ratio in dB; "exact" where both sides are equal."""
    return "exact" if errors.snr_db == math.inf else f"{errors.snr_db:.0f}"


def named(layer: LayerResult | None) -> str:
    return "none" if layer is None else markup.escape(str(layer))


def tolerance_text(report: Report) -> str:
    """The tolerance in words."""
    if report.tolerance == (None, None):
        return "tolerances of torch.testing.assert_close"
    given = [f"{name} {value:g}" for name, value in report.tolerance._asdict().items() if value is not None]
    return f"tolerance {', '.join(given)}"


def _row(errors: Errors | None, good: bool) -> list[str]:
    return [cell if good else f"[red]{cell}[/]" for cell in cells_of(errors)]


def as_json(report: Report) -> str:
    """The whole report; infinities and NaNs as text, since JSON has none."""
    return json.dumps(_finite(report.to_json()), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
