"""The analysis of source files. Imports the standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch_tpu.linter import notebooks, rules
from torch_tpu.linter.checks import Checks
from torch_tpu.linter.flow import Flow
from torch_tpu.linter.rules import Finding, Selection

_NOQA = re.compile(r"#\s*noqa(?P<ids>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?", re.IGNORECASE)
_SKIPPED = frozenset({"__pycache__", "build", "node_modules", "site-packages"})


def check_text(text: str, file: str = "<string>", selection: Selection | None = None) -> list[Finding]:
    """The findings in a file's text, in the order of its lines."""
    wanted = Selection() if selection is None else selection
    lines = text.split("\n")
    findings: list[Finding] = []

    def add(finding: Finding, first: int, last: int) -> None:
        if finding.rule in wanted and not any(_is_excused(lines[i], finding.rule) for i in {first - 1, last - 1}):
            findings.append(finding)

    if "\0" in text:
        return _unreadable(file, 1, 1, "this is not Python: there are null bytes in it", wanted)
    try:
        tree = ast.parse(text, filename=file)
        Flow(tree, Checks(file, tree, add)).run()
    except SyntaxError as error:
        return _unreadable(file, error.lineno or 1, error.offset or 1, f"this is not Python: {error.msg}", wanted)
    except RecursionError:
        return _unreadable(file, 1, 1, "an expression is nested too deeply to be read", wanted)
    return rules.in_order(findings)


def _unreadable(file: str, line: int, column: int, reason: str, wanted: Selection) -> list[Finding]:
    found = Finding(rules.Unreadable.id, file, line, column, reason, "nothing else can be said", "error")
    return [found] if found.rule in wanted else []


def check_paths(paths: Iterable[Path], selection: Selection | None = None) -> tuple[list[Finding], int]:
    """The findings in files, and in the Python files and notebooks of directories; and how many files were read.

    Raises:
        FileNotFoundError: a path is not there, or a directory has no such file.
    """
    findings: list[Finding] = []
    count = 0
    for path in paths:
        before = count
        for file in files(path):
            count += 1
            findings += _check_file(file, selection)
        if count == before:
            raise FileNotFoundError(f"there are no Python files or notebooks in {path}")
    return findings, count


def _check_file(file: Path, selection: Selection | None) -> list[Finding]:
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    if file.suffix != notebooks.SUFFIX:
        return check_text(text, str(file), selection)
    try:
        notebook = notebooks.read(text)
    except ValueError as error:
        return _unreadable(str(file), 1, 1, str(error), Selection() if selection is None else selection)
    return [notebook.place(finding) for finding in check_text(notebook.text, str(file), selection)]


def files(path: Path) -> Iterator[Path]:
    """The file itself, or the Python files and notebooks below a directory, without hidden ones and those of built
    packages."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name.startswith(".") or child.name in _SKIPPED:
                continue
            if child.is_dir() or child.suffix in (".py", notebooks.SUFFIX):
                yield from files(child)
    else:
        raise FileNotFoundError(f"{path} is neither a file nor a directory")


def _is_excused(line: str, rule: str) -> bool:
    """`# noqa` alone, or with this rule."""
    found = _NOQA.search(line)
    if found is None:
        return False
    return found["ids"] is None or rule in re.split(r"[,\s]+", found["ids"].lstrip(": ").upper())
