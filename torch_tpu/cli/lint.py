"""`torch-tpu lint`: what keeps a program from running well on a TPU. Source files are read without importing torch."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

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
    except (OSError, ValueError, ImportError) as error:
        console.print(str(error), markup=False, soft_wrap=True)
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
    """The findings in what a function says to look at.

    Raises:
        ValueError: the name is not of the form module:function, or the function returns something else.
        ImportError: the module cannot be imported.
    """
    made = _load(name)()
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise ValueError(f"{name} must return a function and its arguments: `return step, model, batch`")
    import torch_tpu

    torch_tpu._autoload()  # torch does so by itself, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0
    report = torch_tpu.lint(*made, topology=topology)
    return list(report.findings), f"in {report.num_programs} programs for {topology}"


def _load(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"--program is module:function, such as train:example, and not {name!r}")
    sys.path.insert(0, "")
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    except AttributeError as error:
        raise ValueError(f"{module} has no function {function}") from error
    finally:
        sys.path.remove("")
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().upper() for word in text.split(",") if word.strip())
