"""What is known of each TPU generation without asking a TPU: names and memory."""

from __future__ import annotations

from torch_tpu.runtime import platform

GIB = 2**30

HBM_BYTES: dict[str, int] = {
    "TPU v2": 8 * GIB,
    "TPU v3": 16 * GIB,
    "TPU v4": 32 * GIB,
    "TPU v5e": 16 * GIB,
    "TPU v5p": 95 * GIB,
    "TPU v6e": 32 * GIB,
    "TPU v7x": 96 * GIB,
}
"""HBM of one device. Source: Cloud TPU's system architecture pages; a v7x chip has two devices of 96 GiB."""

KINDS: dict[str, str] = {
    "TPU v5 lite": "TPU v5e",
    "TPU v5": "TPU v5p",
    "TPU v6 lite": "TPU v6e",
    "TPU7x": "TPU v7x",
}
"""PJRT's device kind -> the name people use."""


def name() -> str:
    """The name of this process's device; before it is started, of the platform it will have."""
    chosen = platform.choose()
    if chosen == "cpu":
        return "XLA CPU"
    if not platform.is_started():
        return {"tpu": "TPU", "cuda": "CUDA GPU through XLA"}[chosen]
    kind = platform.client().device_kind
    return KINDS.get(kind, kind)


def memory_bytes() -> int | None:
    """The device's memory where it is known from its name."""
    return HBM_BYTES.get(name())
