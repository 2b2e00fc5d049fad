"""How XLA compiles: one place for every option that the backend sets, with what it was found to cost.

Efforts on XLA's CPU client, CPU milliseconds to compile / microseconds to run, one machine (2 cores, AVX-512):

    program                         normal          low             least
    8x8 add                         33 / 6          16 / 6          10 / 7
    256x256 matrix product           7 / 200         7 / 200         7 / 300
    20 functions over 512x512       48 / 5500       38 / 5500       22 / 70000
    softmax of 256x1000             46 / 160        36 / 160        15 / 650
    sort of 4096                    13 / 680        12 / 680        11 / 800
    3x3 convolution, 8x16x32x32    150 / 850        61 / 1100       17 / 2100

Numerics are the same for all: no fast math, no excess precision, NaN kept by minimum and maximum. XLA's CPU client
sets its threads to flush denormals to zero, as TPUs do, and has no option for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxlib import xla_client

from torch_tpu import settings

Effort = Literal["least", "low", "normal", "narrow"]
"""normal: XLA's own level. narrow: that, with vectors of at most 128 bits. low: the older emitter of CPU code, which LLVM
gets through twice as fast, for single operators. least: no optimization by LLVM, for programs on a few thousand
elements."""

SMALL = 4096
"""Up to this many elements, in all results together, `choose` takes the least effort."""

_SLOW_UNOPTIMIZED = (
    "while",
    "dot_general",
    "convolution",
    "sort",
    "fft",
    "cholesky",
    "custom_call",
    "triangular_solve",
)


MANY_NUMBERS = 400
"""In a loop that reads more than 512 single numbers, LLVM (jaxlib 0.10.2) takes memory without bounds on CPUs with
512-bit vectors, where XLA makes it use half of them. Programs that take more numbers than this, as arguments or out of
arrays, get narrow vectors."""

_NUMBER_ARGUMENT = re.compile(r"tensor<[a-z]")
_NUMBER_OF_ARRAY = re.compile(r"stablehlo\.slice .* -> tensor<1x[a-z]")


REPEATED = 4
"""The newer emitter makes equal kernels of a program once, the older one each by itself: with this many results of a
shape it is the faster one. 8 products of 64x73: 83 ms by the older one, 54 by the newer; 64 of 64x129: 486 and 105."""


def choose(asked: Effort, results: Sequence[tuple[tuple[int, ...], Any]], text: str) -> Effort:
    """The effort for a program, after `settings.xla_effort` and its size.

    Args:
        asked: what the caller would take for a large program.
        results: shapes and dtypes.
    """
    effort = asked if settings.xla_effort == "auto" else settings.xla_effort
    if effort == "low" and settings.xla_effort == "auto":
        num_elements = sum(math.prod(shape) for shape, _ in results)
        if num_elements <= SMALL and not any(f"stablehlo.{op}" in text for op in _SLOW_UNOPTIMIZED):
            return "least"
        if len(results) >= max(2, len(set(results))) * REPEATED:
            effort = "normal"
    if effort == "normal" and _count_numbers(text) > MANY_NUMBERS:
        return "narrow"
    return effort


def _count_numbers(text: str) -> int:
    return len(_NUMBER_ARGUMENT.findall(text.partition(" -> ")[0])) + len(_NUMBER_OF_ARRAY.findall(text))


def overrides(effort: Effort, platform: str) -> tuple[tuple[str, Any], ...]:
    """XLA options by name, in a fixed order: they are part of a program's key in the disk cache."""
    chosen: dict[str, Any] = {"xla_allow_excess_precision": settings.allow_excess_precision}
    if platform == "cpu":
        chosen["xla_cpu_enable_fast_math"] = False
        if effort == "narrow":
            chosen["xla_cpu_prefer_vector_width"] = 128
        if effort in ("low", "least"):
            chosen["xla_cpu_use_fusion_emitters"] = False
        if effort == "least":
            chosen["xla_backend_optimization_level"] = 0
    for item in settings.xla_options:
        name, _, value = item.partition("=")
        chosen[name.strip().lstrip("-")] = _value(value.strip())
    return tuple(sorted(chosen.items()))


def options(effort: Effort = "normal", platform: str = "cpu", devices: Sequence[int] = (0,)) -> Any:
    """What `compile_and_load` takes: compile options for one device, or for several that are replicas of each other.

    Args:
        effort: how hard XLA optimizes; see the table above.
        platform: "cpu", "tpu" or "cuda".
        devices: ids of the devices. In a job they differ from process to process, so they are always said.
    """
    result = xla_client.CompileOptions()
    result.num_replicas = len(devices)
    result.device_assignment = xla_client.DeviceAssignment.create(np.array(devices, dtype=np.int32).reshape(-1, 1))
    result.env_option_overrides = list(overrides(effort, platform))
    return result


def _value(text: str) -> bool | int | float | str:
    """An option's value as XLA wants it: typed by how it is written."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
