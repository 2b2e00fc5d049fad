"""`torch-tpu lint`: what keeps a program from running well on a TPU. Source files are read without importing torch."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from torch_tpu import _named
from torch_tpu.cli import outputs
from torch_tpu.linter import rules, source
from torch_tpu.linter.rules import Finding, Selection

console = Console(highlight=False)
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def run(paths: Sequence[Path], select: str, ignore: str, as_json: bool, program: str, topology: str) -> int:
    """Prints findings; the exit status is 1 if there are any, and 2 if something cannot be read."""
    try:
        selection = Selection(_words(select), _words(ignore))
        findings, num_files = source.check_paths(paths, selection)
        about = f"in {num_files} file{'' if num_files == 1 else 's'}" if num_files else ""
        if program:
            found, about_program = _check_program(program, topology)
            findings += [finding for finding in found if finding.rule in selection]
            about = ", ".join(filter(None, (about, about_program)))
        elif not paths:
            raise ValueError("name files or directories, or a function by --program")
    except Exception as error:  # noqa: BLE001 - `explain` raises what is not the user's
        console.print(outputs.explain(error), markup=False, soft_wrap=True)
        return 2
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        _print(findings, about)
    return 1 if findings else 0


def _print(findings: Sequence[Finding], about: str) -> None:
    for finding in findings:
        where = f"{finding.file}:{finding.line}:{finding.column}"
        color = _COLORS[finding.severity]
        console.print(
            f"[bold]{escape(where)}[/bold] [{color}]{finding.rule}[/{color}] {escape(finding.reason)}", soft_wrap=True
        )
        console.print(f"    {escape(finding.suggestion)}", soft_wrap=True)
    console.print(f"{rules.count(findings)} {about}", markup=False, soft_wrap=True)


def _check_program(name: str, topology: str) -> tuple[list[Finding], str]:
    """The findings in what a function says to look at: it returns a function or module, and its arguments one by one, in a
    tuple, or by name in a dictionary.

    Raises:
        ValueError: the name is not of the form module:function, or the function returns something else.
        ImportError: the module cannot be imported.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what the program prints is no finding
        made = _named.function(name)()
        if not isinstance(made, tuple) or not made or not callable(made[0]):
            raise ValueError(f"{name} must return a function and its arguments: `return step, model, batch`")
        function, *args = made
        alone = args[0] if len(args) == 1 else None
        args = [] if isinstance(alone, dict) else list(alone) if isinstance(alone, (tuple, list)) else args
        kwargs = alone if isinstance(alone, dict) else {}
        import torch_tpu

        torch_tpu._autoload()  # torch does so by itself, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0
        report = torch_tpu.lint(function, *args, topology=topology, kwargs=kwargs)
    count = report.num_programs
    return list(report.findings), f"in {count} program{'' if count == 1 else 's'} for {topology}"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().upper() for word in text.split(",") if word.strip())
