"""Which device is meant: a process drives one."""

from __future__ import annotations

from typing import Any

import torch


def index(device: Any) -> int:
    """The index of a device that is given as `torch.tpu` takes it: None, a number, a string or a `torch.device`.

    Raises:
        ValueError: it is not the one that this process drives.
    """
    if device is None:
        return 0
    if isinstance(device, int):
        number = device
    else:
        device = torch.device(device)
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}")
        number = device.index or 0
    if number not in (-1, 0):
        raise ValueError(f"this process drives tpu:0 only; there is no tpu:{number}. Use one process for each device")
    return 0
