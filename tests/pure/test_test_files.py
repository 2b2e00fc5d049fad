"""Every family of operators has its tests."""

from __future__ import annotations

from pathlib import Path

from torch_tpu import ops

FOLDER = Path(__file__).resolve().parents[1] / "cpu"


def test_every_family_has_a_file():
    missing = [family for family in ops.FAMILIES if not (FOLDER / f"test_ops_{family}.py").exists()]
    assert not missing
