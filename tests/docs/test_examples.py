"""The examples run and reach what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch_tpu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

torch_tpu._autoload()


def test_classify_learns_the_spirals(capsys, counters):
    assert runpy.run_path(str(EXAMPLES / "classify.py"))["main"]() > 0.95
    assert "CPU fallbacks: none" in capsys.readouterr().out
