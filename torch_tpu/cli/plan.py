"""`torch-tpu plan`: what a model would do on TPUs that are not here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import torch_tpu
from torch_tpu.cli import outputs

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

    try:
        outputs.check(json_file, html_file)
        with console.status("") as status:
            reports = plans.plan(
                models.Workload(**workload),
                [name for name in topology.split(",") if name],
                sweep=plans.parse_sweep(" ".join(sweep)),
                prices=price,
                told=status.update,
            )
    except Exception as error:  # noqa: BLE001 - `explain` raises what is not the user's
        console.print(f"cannot plan: {outputs.explain(error)}", soft_wrap=True)
        return 2
    if json_file is not None:
        written = [json.loads(report.to_json()) for report in reports]
        content = json.dumps(written[0] if len(written) == 1 else written, indent=2) + "\n"
        json_file.write_text(content, encoding="utf-8")
    if html_file is not None:
        html_file.write_text(render.page(reports), encoding="utf-8")
    render.show(reports, console)  # after the files: whoever reads it may stop
    return 0 if any(report.compiled for report in reports) else 1
