"""The public surface, and that importing it is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import torch_tpu

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = [
    "Explanation",
    "Recompiles",
    "__version__",
    "aot",
    "cache",
    "errors",
    "explain",
    "explain_recompiles",
    "export",
    "fallback_reasons",
    "lint",
    "numerics",
    "reset_stats",
    "settings",
    "stats",
]


def test_public_names():
    assert sorted(torch_tpu.__all__) == sorted(PUBLIC)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match=r"no attribute 'explian'; it has .*explain"):
        torch_tpu.explian  # noqa: B018


def test_version_is_text():
    assert isinstance(torch_tpu.__version__, str) and torch_tpu.__version__


@pytest.mark.parametrize("module", ["torch_tpu", "torch_tpu.cli.__main__"])
def test_importing_loads_neither_torch_nor_xla(module):
    code = f"import sys, {module}; assert not {{'torch', 'jaxlib', 'numpy'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_stats_is_the_function_whatever_was_imported():
    import torch_tpu.settings
    import torch_tpu.stats

    assert callable(torch_tpu.stats)
    assert torch_tpu.stats()["compiles"] >= 0


def test_the_device_registers_whichever_package_is_imported_first():
    for code in ("import torch_tpu, torch", "import torch, torch_tpu", "import torch_tpu; torch_tpu._autoload()"):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; import torch; print(torch.ones(2, device='tpu').sum().item())"],
            capture_output=True,
            text=True,
        )
        assert done.stdout == "2.0\n", done.stderr
