"""What all tests share: settings are restored and counters start at zero; a test that hangs is ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TORCH_TPU_PLATFORM", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Programs stay between runs, but not among the user's own.
os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "programs"))
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "graphs")
)

from torch_tpu import settings
from torch_tpu.stats import counters as the_counters


@pytest.fixture(autouse=True)
def _same_settings_afterwards():
    before = settings.current()
    yield
    for name, value in before.items():
        if getattr(settings, name) != value:
            setattr(settings, name, value)


@pytest.fixture
def counters():
    """The counters of `torch_tpu.stats`, at zero."""
    the_counters.reset()
    return the_counters


@pytest.fixture
def empty_cache(tmp_path):
    """A disk cache of the test's own, empty at first; returns its directory."""
    directory = tmp_path / "cache"
    with settings.override(cache=True, cache_dir=str(directory)):
        yield directory / "programs"
