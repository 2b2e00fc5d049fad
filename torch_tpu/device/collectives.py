"""Makes the c10d backend `tpu_dist` known. Runs at `import torch`; what it needs is imported when a group is made."""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed as dist

NAMES = ("tpu_dist", "tpu")


def register() -> None:
    """Registers the backend, which is then also the default for the device."""
    if not dist.is_available():
        return
    for name in NAMES:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])


def _create(options: Any, backend_options: Any) -> Any:
    return importlib.import_module("torch_tpu.distributed.bring_up").create(options, backend_options)
