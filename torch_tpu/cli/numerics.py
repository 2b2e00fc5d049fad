"""`torch-tpu numerics`."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

import torch_tpu
from torch_tpu.cli import outputs

console = Console(highlight=False)


def run(
    model: str,
    device: str,
    precisions: str,
    rtol: float | None,
    atol: float | None,
    backward: bool,
    train: bool,
    tiny: bool,
    everything: bool,
    json: Path | None,
    html: Path | None,
) -> int:
    """Compares and prints; the exit status is 0 if some precision keeps the whole model within tolerance."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # configurations are at hand, and weights are not wanted
    torch_tpu._autoload()
    from torch_tpu import numerics
    from torch_tpu.numerics import models, page, report

    try:
        outputs.check(json, html)
        with console.status("the model") as status:
            found = models.find(model, tiny=tiny)
            result = numerics.compare(
                found.model,
                found.inputs,
                device=device,
                precisions=tuple(word.strip() for word in precisions.split(",") if word.strip()),
                rtol=rtol,
                atol=atol,
                backward=backward,
                train=train,
                name=found.name,
                progress=status.update,
            )
    except Exception as error:  # noqa: BLE001 - `explain` raises what is not the user's
        console.print(outputs.explain(error), markup=False, soft_wrap=True)
        return 2
    if json is not None:
        json.write_text(report.as_json(result), encoding="utf-8")
    if html is not None:
        html.write_text(page.as_html(result), encoding="utf-8")
    report.show(console, result, everything=everything)  # after the files: whoever reads it may stop
    return 0 if result.holds else 1
