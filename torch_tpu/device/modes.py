"""Eager modes and matmul precision, as `torch.tpu` names them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

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


class set_eager_mode:
    """Sets the eager mode, for all threads: from here on, or for a `with` block, or for the calls of a function that it
    decorates. As `torch.set_grad_enabled`.

    Raises:
        ValueError: it is no `EagerMode`.
        RuntimeError: inside torch.compile.
    """

    def __init__(self, mode: EagerMode):
        if torch.compiler.is_compiling():
            raise RuntimeError("the eager mode cannot be changed inside torch.compile")
        self._mode = EagerMode(mode)
        self._before = settings.eager_mode
        settings.eager_mode = self._mode.setting

    def __enter__(self) -> None:
        """It is set already."""

    def __exit__(self, *exc: object) -> None:
        settings.eager_mode = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        settings.eager_mode = self._before

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with set_eager_mode(self._mode):
                return function(*args, **kwargs)

        return call


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
