"""Settings that change programs or the hot path, brought to where they act."""

from __future__ import annotations

from typing import Any

from torch_tpu import _plug, hlo, settings
from torch_tpu.device import patches
from torch_tpu.runtime import client, platform

PROGRAM_SETTINGS = (
    "matmul_precision",
    "emulate_matmul_rounding",
    "allow_excess_precision",
    "xla_effort",
    "xla_options",
)
"""The settings that programs depend on."""
_XLA_PRECISION = {"medium": "DEFAULT", "high": "HIGH", "highest": "HIGHEST"}
_epochs: dict[tuple[Any, ...], int] = {}
_configured = False


def configure() -> None:
    """Applies the settings and follows their changes; called when the first operator is prepared."""
    global _configured
    if _configured:
        return
    _configured = True
    patches.meta_kernels_do_not_import_dynamo()
    for name in PROGRAM_SETTINGS:
        settings.watch(name, lambda _: programs_change())
    settings.watch("donation_threshold", _plug.set_donation_threshold)
    _plug.set_donation_threshold(settings.donation_threshold)
    platform.client()  # starts it
    platform.when_changed.append(programs_change)
    client.when_crowded.append(_forget_programs)
    programs_change()


def _forget_programs() -> None:
    """Lets go of every program that nothing but a table of calls holds; calls find them on disk, or compile them again."""
    _plug.clear_table()
    _plug.clear_fused()


def programs_change() -> None:
    """Programs built under other settings are kept, and found again when those come back."""
    if not platform.is_started():
        return  # what stood in for it is gone: this is called again when it starts
    on_cpu = platform.client().platform == "cpu"
    wanted = "medium" if settings.matmul_precision == "default" else settings.matmul_precision
    imitate = on_cpu and settings.emulate_matmul_rounding
    precision = "HIGHEST" if on_cpu and not imitate else _XLA_PRECISION[wanted]
    hlo.use_precision(precision, imitate=imitate)
    state = (
        platform.client(),
        precision,
        imitate,
        settings.allow_excess_precision,
        settings.xla_effort,
        settings.xla_options,
    )
    _plug.set_epoch(_epochs.setdefault(state, len(_epochs)))
