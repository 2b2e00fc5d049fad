"""What a sweep over models found: for the terminal, as a page, as rows of data and as a section of the documentation."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table

from torch_tpu.conformance.models.judge import MODES, ModelResult

STATUSES = ("passed", "failed", "fallback", "crashed", "timeout", "n/a")
KINDS = (
    # (why a model is not run, a pattern of its reason); the first that matches counts
    (
        "it has no code, or is a part of another model",
        r"no modeling code: .*'transformers\.|a part of another|is given the",
    ),
    ("PyTorch does not compile it for the CPU either", r"PyTorch does not compile"),
    ("it needs a package that is not installed", r"requires the .* library|No module named|is not installed"),
    ("it is driven by an object, not by tensors", r"'inference_session'|retriever"),
    ("the rules do not make it small", r"do not make (it )?small|TimeoutError"),
    ("no class of it runs with inputs that are made here", r""),
)
RESULTS = Path(__file__).parents[1] / "results" / "models.json"


def counts(results: Iterable[ModelResult]) -> dict[tuple[str, str], Counter[str]]:
    """How many have each status, by mode and by library and family; what the CPU cannot run has no family."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        kind = f"{result.case.library}, {result.family}" if result.family else result.case.library
        found.setdefault((result.case.mode, kind), Counter())[result.status] += 1
    return dict(sorted(found.items(), key=lambda item: (MODES.index(item[0][0]), item[0][1])))


def rate(count: Counter[str]) -> str:
    """The share that passes of what the CPU can run."""
    run = sum(count.values()) - count["n/a"]
    return f"{100 * count['passed'] / run:.1f}%" if run else "-"


def show(console: Console, results: Sequence[ModelResult]) -> None:
    """Prints counts, then what fails."""
    table = Table("mode", "models", *STATUSES, "rate")
    for (mode, kind), count in counts(results).items():
        table.add_row(mode, kind, *(str(count[name]) for name in STATUSES), rate(count))
    console.print(table)
    for result in results:
        if result.fails:
            console.print(f"[red]{result.status}[/] {result.case}: {markup.escape(result.reason)}", soft_wrap=True)


def load(path: Path = RESULTS) -> list[ModelResult]:
    """Stored results."""
    return [ModelResult.from_json(row) for row in json.loads(path.read_text(encoding="utf-8"))]


def store(results: Iterable[ModelResult], path: Path = RESULTS) -> None:
    """Writes results, one a line, in order; a newer one of the same model and mode replaces the older."""
    newest = {result.case: result for result in results}
    rows = ",\n".join(json.dumps(_compact(newest[case])) for case in sorted(newest))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def _compact(result: ModelResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_json().items() if value not in ("", {}, 0, 0.0)}


def as_markdown(results: Sequence[ModelResult]) -> str:
    """Tables by mode and family, then what fails and what the CPU does not run."""
    lines = [f"| mode | models | {' | '.join(STATUSES)} | rate |", "|---" * (len(STATUSES) + 3) + "|"]
    for (mode, kind), count in counts(results).items():
        lines.append(f"| {mode} | {kind} | {' | '.join(str(count[name]) for name in STATUSES)} | {rate(count)} |")
    for mode in MODES:
        total = Counter(result.status for result in results if result.case.mode == mode)
        if total:
            lines.append(
                f"| **{mode}** | **all** | {' | '.join(str(total[s]) for s in STATUSES)} | **{rate(total)}** |"
            )
    failing = [f"- `{result.case}`: {result.status}, {_cell(result.reason)}" for result in results if result.fails]
    lines += ["", "## What fails", "", *(failing or ["Nothing."])]
    absent = {result.case.name: result.reason for result in results if result.status == "n/a"}
    lines += ["", "## What the CPU does not run here", ""]
    lines += ["As it is built here: a row in `exceptions.toml` may help; some needs a package."]
    kinds = {name: next(kind for kind, pattern in KINDS if re.search(pattern, why)) for name, why in absent.items()}
    for kind, number in Counter(kinds.values()).most_common():
        lines += ["", f"### Because {kind}: {number}", ""]
        lines += [f"- `{name}`: {_cell(absent[name])}" for name in sorted(absent) if kinds[name] == kind]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "&lt;")[:160]


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Models</title><style>
body {{ font: 14px system-ui; margin: 2em }} table {{ border-collapse: collapse }}
td, th {{ border: 1px solid #ccc; padding: 2px 8px; text-align: left }}
.passed {{ background: #dfd }} .failed, .crashed, .timeout {{ background: #fdd }} .fallback {{ background: #ffd }}
</style><h1>Models on the device, compared with the CPU</h1>
<table><tr><th>mode<th>models{heads}<th>rate</tr>{summary}</table>
<h2>Each model</h2><table><tr><th>library<th>model<th>class<th>family<th>mode<th>status<th>loss<th>output<th>gradient
<th>step<th>generate<th>programs<th>seconds<th>remarks</tr>{rows}</table></html>
"""
_PHASES = ("loss", "output", "gradient", "step", "generate")


def as_html(results: Sequence[ModelResult]) -> str:
    """One page without other files: counts, then a row for each model and mode with its relative errors."""
    summary = "".join(
        f"<tr><td>{mode}<td>{escape(kind)}{''.join(f'<td>{count[name]}' for name in STATUSES)}<td>{rate(count)}</tr>"
        for (mode, kind), count in counts(results).items()
    )
    rows = []
    for result in results:
        case = result.case
        cells = [case.library, case.name, result.architecture, result.family, case.mode]
        errors = [f"{result.phases[name]:.1e}" if name in result.phases else "" for name in _PHASES]
        tail = [*errors, result.compiles, result.seconds, result.reason or result.notes]
        rows.append(
            f"<tr>{''.join(f'<td>{escape(str(cell))}' for cell in cells)}<td class='{escape(result.status)}'>"
            f"{escape(result.status)}{''.join(f'<td>{escape(str(cell))}' for cell in tail)}</tr>"
        )
    return _PAGE.format(heads="".join(f"<th>{name}" for name in STATUSES), summary=summary, rows="\n".join(rows))
