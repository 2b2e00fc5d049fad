"""Makes the c10d backend `tpu_dist` known, and lets `gloo` take device tensors. Runs at `import torch`; what it needs is
imported when a group is made or used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

NAMES = ("tpu_dist", "tpu")
STAGED = (
    "allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_", "allreduce_",
    "allreduce_coalesced_", "alltoall_", "alltoall_base_", "barrier", "broadcast_", "gather_", "reduce_",
    "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "scatter_",
)  # fmt: skip
"""The operators of c10d that go through host memory in groups of other backends than `tpu_dist`, whose groups never
come to them."""

_library: torch.library.Library | None = None


def register() -> None:
    """Registers the backend, which is then also the default for the device."""
    global _library
    if not dist.is_available():
        return
    for name in NAMES:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])
    _library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name in STAGED:
            _library.impl(name, _stage(name), "PrivateUse1", allow_override=True)


def _create(options: Any, backend_options: Any) -> Any:
    return importlib.import_module("torch_tpu.distributed.bring_up").create(options, backend_options)


def _stage(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        op = getattr(torch.ops.c10d, name).default
        return importlib.import_module("torch_tpu.distributed.staging").run(op, args)

    return call
