"""Collectives of device tensors in a group of the backend gloo, which knows host memory only: there and back.

It waits for the result, unlike `tpu_dist`, and copies: for programs that ask for gloo by name and for small tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.eager import transfer


def run(op: Any, args: tuple[Any, ...]) -> Any:
    """A c10d operator with device tensors: of all that end in `_` the first argument is written."""
    staged = transfer.to_cpu(list(args))
    answer = op(*staged)
    work = answer[-1] if isinstance(answer, tuple) else answer
    torch.distributed.Work.unbox(work).wait()
    if not isinstance(answer, tuple):
        return answer
    with torch.no_grad():
        for tensor, host in zip(_flat(args[0]), _flat(staged[0]), strict=True):
            tensor.copy_(host)
    return args[0], work


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)]
