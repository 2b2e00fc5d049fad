"""Many models, run by `../pool.py`."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_tpu.conformance import pool
from torch_tpu.conformance.models.judge import MODES, ModelCase, ModelResult

LIBRARIES = ("transformers", "timm", "weights")
WEIGHTS = ("smollm2-135m", "all-minilm-l6-v2")
"""Models whose real weights come as Python packages."""


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """What to run and how."""

    device: str = "tpu"
    names: tuple[str, ...] = ()
    """Patterns of names, such as "llama" or "qwen*"; empty: all."""
    libraries: tuple[str, ...] = LIBRARIES
    modes: tuple[str, ...] = ("strict",)
    shard: tuple[int, int] = (0, 1)
    workers: int = 1
    timeout: float = 300.0
    batch: int = 40
    output: Path | None = None

    def header(self) -> dict[str, Any]:
        """What results must have in common to be in one file."""
        return {"device": self.device, "torch": torch.__version__}


def names(library: str) -> list[str]:
    """All names of a library; none where it is not installed.

    Raises:
        ValueError: there is no such library.
    """
    if library == "weights":
        return list(WEIGHTS)
    try:
        if library == "transformers":
            from transformers import CONFIG_MAPPING

            return sorted(CONFIG_MAPPING.keys())
        if library == "timm":
            from torch_tpu.conformance.models.others import import_timm

            return sorted(import_timm().list_modules())
    except ImportError:
        return []
    raise ValueError(f"there is no library {library!r}; there are: {', '.join(LIBRARIES)}")


def cases(plan: ModelPlan) -> list[ModelCase]:
    """The plan's cases, in a fixed order.

    Raises:
        ValueError: a library or mode does not exist, or a pattern matches nothing.
    """
    for mode in plan.modes:
        if mode not in MODES:
            raise ValueError(f"there is no mode {mode!r}; there are: {', '.join(MODES)}")
    known = [(library, name) for library in plan.libraries for name in names(library)]
    for pattern in plan.names:
        if not fnmatch.filter([name for _, name in known], pattern):
            raise ValueError(f"no model is called {pattern!r}")
    chosen = [
        pair for pair in known if not plan.names or any(fnmatch.fnmatchcase(pair[1], text) for text in plan.names)
    ]
    index, count = plan.shard
    return [ModelCase(library, name, mode) for library, name in chosen[index::count] for mode in plan.modes]


def run(
    plan: ModelPlan, chosen: Sequence[ModelCase], progress: Callable[[ModelResult], None] = lambda result: None
) -> list[ModelResult]:
    """Runs models in worker processes and returns their results in the cases' order.

    Raises:
        ValueError: the output file is of another device or PyTorch.
    """
    how = pool.Pool(
        serve=serve,
        arguments=(plan.device,),
        failure=lambda case, status, reason: ModelResult(case, status, reason),
        parse=ModelResult.from_json,
        header=plan.header(),
        workers=plan.workers,
        timeout=plan.timeout,
        batch=plan.batch,
        output=plan.output,
    )
    return pool.run(how, chosen, progress)


def serve(connection: Any, device: str) -> None:
    """The worker process: receives cases, sends results, until the other end closes."""
    import os
    import warnings

    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import torch_tpu
    from torch_tpu.conformance.models import judge

    if device.partition(":")[0] == "tpu":
        torch_tpu._autoload()
        torch_tpu.settings.fallback = "count"
    _quiet()
    connection.send("ready")
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(judge.judge(case, device))


def _quiet() -> None:
    """Transformers warns of much that is meant here, such as token ids beyond a small vocabulary."""
    import logging

    try:
        from transformers.utils import logging as theirs
    except ImportError:
        return
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
