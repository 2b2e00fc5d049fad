"""A registry refuses duplicates and unknown names, and says what exists."""

from __future__ import annotations

import pytest

from torch_tpu._registry import Registry


@pytest.fixture
def modes():
    registry: Registry[str, int] = Registry("eager mode")
    registry["strict"] = 1
    registry["debug"] = 2
    return registry


def test_keeps_what_is_registered(modes):
    assert modes["strict"] == 1 and modes.get("debug") == 2 and modes.get("fused") is None
    assert list(modes) == ["strict", "debug"] and len(modes) == 2 and "debug" in modes
    assert dict(modes.items()) == {"strict": 1, "debug": 2}


def test_refuses_a_duplicate(modes):
    with pytest.raises(ValueError, match="eager mode 'strict' is registered already"):
        modes["strict"] = 3
    assert modes["strict"] == 1


def test_an_unknown_name_lists_what_exists(modes):
    with pytest.raises(KeyError, match="unknown eager mode 'fused'; there are: debug, strict"):
        modes["fused"]
