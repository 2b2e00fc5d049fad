"""`torch-tpu conformance`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import torch_tpu

console = Console(highlight=False)
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def run(
    ops: str,
    dtypes: str,
    phases: str,
    device: str,
    limit: int,
    shard: str,
    workers: int,
    timeout: float,
    output: Path | None,
    gaps: Path | None,
    write_gaps: Path | None,
) -> int:
    """Runs the suite; the exit status is 0 if exactly the declared gaps fail."""
    torch_tpu._autoload()
    from torch_tpu.conformance import catalog, report, suite
    from torch_tpu.conformance.gaps import Gaps

    try:
        plan = suite.Plan(
            device=device,
            ops=_words(ops),
            dtypes=_words(dtypes),
            phases=_words(phases) or catalog.PHASES,
            limit=limit,
            shard=suite.parse_shard(shard),
            workers=workers,
            timeout=timeout,
            output=output,
        )
        cases = suite.cases(plan)
        declared = Gaps.load(gaps)
    except (ValueError, ImportError) as error:
        console.print(str(error), markup=False)
        return 2
    with Progress(*_COLUMNS, console=console) as progress:
        task = progress.add_task("conformance", total=len(cases))
        results = suite.run(plan, cases, lambda result: progress.update(task, advance=1, description=result.case.op))
    judgement = declared.judge(results, complete=limit == 0)
    report.show(console, results, judgement)
    if write_gaps is not None:
        write_gaps.write_text(report.as_toml(judgement.failed), encoding="utf-8")
    return 0 if judgement.holds else 1


def run_models(
    names: str,
    libraries: str,
    modes: str,
    device: str,
    shard: str,
    workers: int,
    timeout: float,
    output: Path | None,
    html: Path | None,
) -> int:
    """Runs the models; the exit status is 0 if all that run on the CPU pass."""
    from torch_tpu.conformance.models import report, sweep
    from torch_tpu.conformance.pool import parse_shard

    try:
        plan = sweep.ModelPlan(
            device=device,
            names=_words(names),
            libraries=_words(libraries),
            modes=_words(modes),
            shard=parse_shard(shard),
            workers=workers,
            timeout=timeout,
            output=output,
        )
        cases = sweep.cases(plan)
    except (ValueError, ImportError) as error:
        console.print(str(error), markup=False)
        return 2
    with Progress(*_COLUMNS, console=console) as progress:
        task = progress.add_task("models", total=len(cases))
        results = sweep.run(plan, cases, lambda result: progress.update(task, advance=1, description=result.case.name))
    report.show(console, results)
    if html is not None:
        html.write_text(report.as_html(results), encoding="utf-8")
    return 1 if any(result.fails for result in results) else 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
