"""`torch-tpu plan`: what a model would do on TPUs that are not here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import torch_tpu
from torch_tpu.errors import TpuError

console = Console(highlight=False, markup=False)


def run(
    workload: Mapping[str, Any],
    topology: str,
    sweep: list[str],
    price: list[str],
    json_file: Path | None,
    html_file: Path | None,
) -> int:
    """Prints the report of a `Workload` and writes it; the exit status is 1 if nothing compiles, and 2 where the question is wrong."""
    torch_tpu._autoload()
    from torch_tpu.aot import models, plans, render
    from torch_tpu.eager import debug

    try:
        with console.status("") as status:
            reports = plans.plan(
                models.Workload(**workload),
                [name for name in topology.split(",") if name],
                sweep=plans.parse_sweep(" ".join(sweep)),
                prices=price,
                told=status.update,
            )
    except Exception as error:
        line = debug.raised_at(error)
        if not line and not isinstance(error, (ValueError, OSError, ImportError, TpuError)):
            raise  # neither the question nor the model is wrong
        kind = "" if isinstance(error, (ValueError, TpuError)) else f"{type(error).__name__}: "
        console.print(f"cannot plan: {kind}{error}" + (f"\n  at {line}" if line else ""), soft_wrap=True)
        return 2
    render.show(reports, console)
    if json_file is not None:
        written = [json.loads(report.to_json()) for report in reports]
        json_file.write_text(
            json.dumps(written[0] if len(written) == 1 else written, indent=2) + "\n", encoding="utf-8"
        )
    if html_file is not None:
        html_file.write_text(render.page(reports), encoding="utf-8")
    return 0 if any(report.compiled for report in reports) else 1
