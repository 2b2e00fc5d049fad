"""`torch-tpu conformance`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import torch_tpu

if TYPE_CHECKING:
    from torch_tpu.conformance import suite

_BATCH = 1500
"""A process ends after so many cases, which bounds its memory."""
console = Console(highlight=False)
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@dataclass(frozen=True)
class Chosen:
    """What to run, as it is written on the command line; lists are separated by commas, and empty for the default."""

    ops: str
    dtypes: str
    phases: str
    modes: str
    places: str
    matrix: bool
    missing: bool
    device: str
    limit: int | None
    shard: str
    workers: int
    timeout: float

    def plan(self, output: Path | None) -> suite.Plan:
        """What is left at its default depends on whether it is for the matrix.

        Raises:
            ValueError: the shard is none.
        """
        from torch_tpu.conformance import catalog, suite

        plain = (("float32", "bfloat16", "int64", "bool"), catalog.PHASES, ("strict",), (catalog.HERE,), 0)
        whole = (catalog.DTYPES, catalog.MATRIX_PHASES, catalog.MODES, catalog.PLACES, 2)
        dtypes, phases, modes, places, limit = whole if self.matrix else plain
        return suite.Plan(
            device=self.device,
            ops=_words(self.ops),
            dtypes=_words(self.dtypes) or dtypes,
            phases=_words(self.phases) or phases,
            modes=_words(self.modes) or modes,
            places=_words(self.places) or places,
            limit=limit if self.limit is None else self.limit,
            shard=suite.parse_shard(self.shard),
            workers=self.workers,
            timeout=self.timeout,
            batch=_BATCH,
            missing=self.missing,
            output=output,
        )


def run(chosen: Chosen, output: Path | None, gaps: Path | None, write_gaps: Path | None) -> int:
    """Runs the suite; the exit status is 0 if exactly the declared gaps fail."""
    torch_tpu._autoload()
    from torch_tpu.conformance import report, suite
    from torch_tpu.conformance.gaps import Gaps

    try:
        plan = chosen.plan(output)
        cases = suite.cases(plan)
        declared = Gaps.load(gaps)
    except (ValueError, ImportError) as error:
        console.print(str(error), markup=False)
        return 2
    with Progress(*_COLUMNS, console=console) as progress:
        task = progress.add_task("conformance", total=len(cases))
        results = suite.run(plan, cases, lambda result: progress.update(task, advance=1, description=result.case.op))
    judgement = declared.judge(results, complete=plan.limit == 0)
    if write_gaps is not None:
        write_gaps.write_text(report.as_toml(judgement.failed), encoding="utf-8")
    report.show(console, results, judgement)
    return 0 if judgement.holds else 1


def show_matrix(results: list[Path], file: Path | None, html: Path | None) -> int:
    """Puts results into the matrix if there are any, and shows it; the exit status is 1 if a cell is wrong."""
    torch_tpu._autoload()
    from torch_tpu import ops
    from torch_tpu.conformance import matrix, report, support_page
    from torch_tpu.conformance.gaps import Gaps
    from torch_tpu.ops import registry

    path = file or matrix.FILE
    try:
        found = matrix.load(path)
        if results:
            ops.load()
            read = [result for name in results for result in matrix.read_results(name)]
            found = matrix.merge(found, read, Gaps.load(), registry.LOWERINGS)
            matrix.store(found, path)
    except (OSError, ValueError, ImportError) as error:
        console.print(str(error), markup=False)
        return 2
    if html is not None:
        html.write_text(support_page.as_html(found), encoding="utf-8")
    report.show_matrix(console, found)
    return 1 if any("W" in row.cells for row in found.rows) else 0


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
    if html is not None:
        html.write_text(report.as_html(results), encoding="utf-8")
    report.show(console, results)
    return 1 if any(result.fails for result in results) else 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
