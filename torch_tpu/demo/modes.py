"""The three ways of running operators, which the demo shows side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, get_args

import torch

Mode = Literal["strict", "fused", "compiled"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""strict: each operator is a program. fused: operators are recorded and run together. compiled: torch.compile."""


@contextlib.contextmanager
def running(mode: Mode) -> Iterator[None]:
    """Runs a block with operators outside compiled functions in a mode; on other devices nothing changes."""
    chosen = torch.tpu.EagerMode.DEFER_AND_FUSE if mode == "fused" else torch.tpu.EagerMode.DEFER_NEVER
    with torch.tpu.set_eager_mode(chosen):
        yield
