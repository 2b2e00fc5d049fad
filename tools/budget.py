"""Holds the budgets that keep the code readable: lines a file, lines a function, lines a folder.

    python tools/budget.py            # fails with a list of what is over
    python tools/budget.py --table    # prints the lines of each folder

A file has at most 700 lines and a function at most 60; a module-level table counts for the file only. The lines of a
folder (without blank lines, comments and docstrings) are limited by the table below: a change of it is a decision.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 700
FUNCTION_LINES = 60
FOLDERS = {
    "torch_tpu": 1020,
    "torch_tpu/runtime": 2200,
    "torch_tpu/hlo": 2140,
    "torch_tpu/ops": 9950,
    "torch_tpu/tensor": 1800,
    "torch_tpu/device": 1500,
    "torch_tpu/eager": 2550,
    "torch_tpu/compile": 3200,
    "torch_tpu/aot": 2300,
    "torch_tpu/distributed": 1800,
    "torch_tpu/kernels": 2000,
    "torch_tpu/optim": 700,
    "torch_tpu/profiler": 800,
    "torch_tpu/conformance": 3150,
    "torch_tpu/numerics": 850,
    "torch_tpu/linter": 2600,
    "torch_tpu/migrate": 800,
    "torch_tpu/demo": 500,
    "torch_tpu/cli": 1000,
}
_SKIPPED = {".venv", "build", ".git"}


def sources() -> Iterator[Path]:
    """All files that the file limit applies to."""
    for pattern in ("*.py", "*.cpp", "*.h"):
        for path in sorted(ROOT.rglob(pattern)):
            if not _SKIPPED.intersection(path.relative_to(ROOT).parts):
                yield path


def code_lines(path: Path) -> int:
    """Lines with code: neither blank, nor comments, nor docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    fresh = True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.STRING and fresh:
            continue  # a string that is a statement: a docstring
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
        fresh = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT} or (
            fresh and token.type in {tokenize.COMMENT, tokenize.NL}
        )
    return len(lines)


def long_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Functions over the limit, without their docstrings and decorators."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (first.end_lineno if documented else first.lineno - 1) or node.lineno
            length = (node.end_lineno or start) - start
            if length > FUNCTION_LINES:
                yield node.name, length


def folders() -> dict[str, int]:
    """Lines of code of each folder of the package."""
    found: dict[str, int] = {}
    for path in sources():
        parts = path.relative_to(ROOT).parts
        if path.suffix == ".py" and parts[0] == "torch_tpu":
            name = "/".join(parts[:2]) if len(parts) > 2 else "torch_tpu"
            found[name] = found.get(name, 0) + code_lines(path)
    return found


def violations() -> list[str]:
    """One line of text for each budget that is exceeded."""
    found = []
    for path in sources():
        name = path.relative_to(ROOT)
        num_lines = path.read_text(encoding="utf-8").count("\n")
        if num_lines > FILE_LINES:
            found.append(f"{name}: {num_lines} lines, at most {FILE_LINES}; split it by sub-family")
        if path.suffix == ".py":
            for function, length in long_functions(path):
                found.append(f"{name}: {function} has {length} lines, at most {FUNCTION_LINES}")
    for folder, num_lines in folders().items():
        limit = FOLDERS.get(folder)
        if limit is None:
            found.append(f"{folder}: has no budget in tools/budget.py")
        elif num_lines > limit:
            found.append(f"{folder}: {num_lines} lines of code, at most {limit}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the lines of each folder")
    if parser.parse_args().table:
        for folder, num_lines in sorted(folders().items()):
            print(f"{folder:<24} {num_lines:>6} of {FOLDERS.get(folder, 0)}")
        return 0
    found = violations()
    print("\n".join(found) or "budgets: kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
