"""The house rules that a tool can hold: import direction, sizes of files and functions, no work at import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_imports_point_downwards():
    done = run(sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert done.returncode == 0, done.stdout + done.stderr


def test_budgets_are_kept():
    done = run(sys.executable, "tools/budget.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_sources_are_ascii():
    wide = [
        str(path.relative_to(ROOT))
        for folder in ("torch_tpu", "tests", "tools", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".h") and not path.read_bytes().isascii()
    ]
    assert not wide


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "torch_tpu").rglob("*.py")
        if not path.read_text().lstrip().startswith('"""')
    ]
    assert not silent


@pytest.mark.parametrize("module", ["torch_tpu.runtime.platform", "torch_tpu.runtime.diskcache", "torch_tpu.errors"])
def test_looking_for_hardware_loads_no_xla(module):
    code = f"import sys, {module}; assert 'jaxlib.xla_client' not in sys.modules"
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
