"""What is known of each TPU generation without asking a TPU: names, memory and speeds.

Sources: Cloud TPU's pages on v5e, v5p, v6e and TPU7x (docs.cloud.google.com/tpu/docs). What is marked as libtpu's was
found with libtpu 0.0.52: the compiler says how much memory it has in its message when a program does not fit, and its
estimates for large matrix products approach so many operations a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_tpu.runtime import platform

GIB = 2**30

HBM_BYTES: dict[str, int] = {
    "TPU v2": 8 * GIB,
    "TPU v3": 16 * GIB,
    "TPU v4": 32 * GIB,
    "TPU v5e": 16 * GIB,
    "TPU v5p": 96 * GIB,
    "TPU v6e": 32 * GIB,
    "TPU v7x": 96 * GIB,
}
"""HBM of one device; a v7x chip has two devices of 96 GiB. v5p is published as 95, of which libtpu lets programs have 95.73."""

KINDS: dict[str, str] = {
    "TPU v5 lite": "TPU v5e",
    "TPU v5": "TPU v5p",
    "TPU v6 lite": "TPU v6e",
    "TPU7x": "TPU v7x",
}
"""PJRT's device kind -> the name people use."""


@dataclass(frozen=True)
class Chip:
    """Facts of one generation. All figures are of one device; a v7x chip has two."""

    name: str
    usable_hbm: int
    """Bytes that libtpu lets a program have."""
    peaks: Mapping[str, float]
    """Operations a second of the matrix units, for operands in "bf16", "int8" and "fp8"."""
    hbm_bytes_per_second: float
    matrix_flops_per_cycle: int
    """In bfloat16, by libtpu's estimates: the number of matrix units times twice their area."""
    vector_units: int = 1
    """TensorCores that share a program: libtpu splits operations over the two of a v5p."""

    @property
    def hbm(self) -> int:
        """Bytes."""
        return HBM_BYTES[self.name]

    @property
    def cycles_per_second(self) -> float:
        """The clock at which the matrix units reach the published peak: what turns libtpu's cycles into seconds."""
        return self.peaks["bf16"] / self.matrix_flops_per_cycle


CHIPS: dict[str, Chip] = {
    "v5e": Chip(
        "TPU v5e",
        usable_hbm=int(15.75 * GIB),
        peaks={"bf16": 197e12, "int8": 393e12, "fp8": 197e12},
        hbm_bytes_per_second=819e9,
        matrix_flops_per_cycle=4 * 2 * 128**2,
    ),
    "v5p": Chip(
        "TPU v5p",
        usable_hbm=int(95.73 * GIB),
        peaks={"bf16": 459e12, "int8": 918e12, "fp8": 459e12},
        hbm_bytes_per_second=2765e9,
        matrix_flops_per_cycle=8 * 2 * 128**2,
        vector_units=2,
    ),
    "v6e": Chip(
        "TPU v6e",
        usable_hbm=int(31.24 * GIB),
        peaks={"bf16": 918e12, "int8": 1836e12, "fp8": 918e12},
        hbm_bytes_per_second=1638e9,
        matrix_flops_per_cycle=4 * 2 * 256**2,
    ),
    # int8 of v7x is not published; libtpu's estimates are those of bfloat16.
    "v7x": Chip(
        "TPU v7x",
        usable_hbm=int(94.74 * GIB),
        peaks={"bf16": 2307e12 / 2, "int8": 2307e12 / 2, "fp8": 4614e12 / 2},
        hbm_bytes_per_second=7380e9 / 2,
        matrix_flops_per_cycle=4 * 2 * 256**2,
    ),
}
"""By the names of `Topology.generation`."""


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
