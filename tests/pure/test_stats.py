"""Counters: snapshots stand still, and every counter is described."""

from __future__ import annotations

import pytest

from torch_tpu.stats import DESCRIPTIONS, Counters, fallback_counts, reset, stats


def test_a_snapshot_does_not_change(counters):
    counters.compiles += 2
    assert counters.fallback("aten::x") and not counters.fallback("aten::x")
    snapshot = stats()
    counters.compiles += 1
    counters.fallback("aten::y")
    assert snapshot["compiles"] == 2 and dict(snapshot["fallbacks"]) == {"aten::x": 2}
    assert fallback_counts() == {"aten::x": 2, "aten::y": 1}
    with pytest.raises(TypeError):
        snapshot["compiles"] = 0


def test_reset(counters):
    counters.executions += 1
    counters.fallback("aten::x")
    reset()
    assert not any(stats().values())


def test_every_counter_is_described():
    assert list(DESCRIPTIONS) == list(Counters.__slots__) == list(stats())
