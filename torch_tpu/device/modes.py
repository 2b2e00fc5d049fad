"""Eager modes and matmul precision, as `torch.tpu` names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum

import torch

from torch_tpu import settings


class EagerMode(Enum):
    """How operators run outside compiled functions."""

    DEFER_NEVER = "strict"
    """Each operator is its own program, started at once (the default)."""
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"
    """As DEFER_NEVER, waiting for each operator, with checks; errors name the Python line."""
    DEFER_AND_FUSE = "fused"
    """Operators are recorded and run together as larger programs."""

    @staticmethod
    def of(setting: str) -> EagerMode:
        return EagerMode(setting)

    @property
    def setting(self) -> settings.EagerMode:
        return self.value


@contextlib.contextmanager
def set_eager_mode(mode: EagerMode) -> Iterator[None]:
    """Runs a block in another eager mode."""
    if torch.compiler.is_compiling():
        raise RuntimeError("the eager mode cannot be changed inside torch.compile")
    with settings.override(eager_mode=EagerMode(mode).setting):
        yield


class Precision(Enum):
    """Precision of float32 matrix products on the MXU: 1, 3 or 6 passes of bfloat16."""

    DEFAULT = "medium"
    HIGH = "high"
    HIGHEST = "highest"


@contextlib.contextmanager
def precision(mode: Precision | str) -> Iterator[None]:
    """Runs a block at another matmul precision; overrides `torch.set_float32_matmul_precision`."""
    chosen = Precision[mode] if isinstance(mode, str) and mode in Precision.__members__ else Precision(mode)
    with settings.override(matmul_precision=chosen.value):
        yield
