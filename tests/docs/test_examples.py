"""The examples run and reach what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_classify_learns_the_spirals(capsys, counters):
    assert runpy.run_path(str(EXAMPLES / "classify.py"))["main"]() > 0.95
    assert "CPU fallbacks: none" in capsys.readouterr().out
