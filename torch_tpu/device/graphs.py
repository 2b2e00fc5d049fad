"""The Python side of `torch.accelerator.Graph` (csrc/graph.cpp): the mode while one is captured, and its text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torch_tpu import settings

_capture = contextlib.ExitStack()


def begin_capture() -> None:
    """Calls are recorded, and not compiled one by one; optimizers that count steps on the host are refused."""
    _capture.enter_context(settings.override(eager_mode="fused"))
    _capture.callback(register_optimizer_step_pre_hook(_refuse_host_steps).remove)


def end_capture() -> None:
    _capture.close()


def _refuse_host_steps(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raises where an optimizer's step would be the same number in each replay."""
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        name = type(optimizer).__name__
        raise RuntimeError(
            f"a graph with a step of {name} cannot be captured, because it counts its steps on the host: "
            f"make it by {name}(..., capturable=True)"
        )


def dump_graph(program: Callable[..., Any] | None, path: str) -> None:
    """Writes the StableHLO of a captured graph to a file."""
    text = "" if program is None else program.__self__.text
    Path(path).write_text(text, encoding="utf-8")
