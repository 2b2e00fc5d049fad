"""`torch.backends.tpu`: the switches that PyTorch's other devices keep in `torch.backends`."""

from __future__ import annotations

import sys
import types

import torch

from torch_tpu import settings
from torch_tpu.runtime import platform


class _Backend(types.ModuleType):
    """The class of `torch.backends.tpu`."""

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in vars(_Backend) if not name.startswith("_"))]

    @staticmethod
    def is_available() -> bool:
        """Whether the device can be expected to work."""
        return platform.is_available()

    @staticmethod
    def is_built() -> bool:
        return True

    @staticmethod
    def version() -> str:
        """The version of jaxlib, which carries XLA."""
        from importlib.metadata import version

        return version("jaxlib")

    @property
    def allow_excess_precision(self) -> bool:
        """Whether XLA may leave out roundings between fused operators."""
        return settings.allow_excess_precision

    @allow_excess_precision.setter
    def allow_excess_precision(self, allow: bool) -> None:
        settings.allow_excess_precision = bool(allow)

    @property
    def matmul_precision(self) -> str:
        """default, medium, high or highest: see `torch.set_float32_matmul_precision`."""
        return settings.matmul_precision

    @matmul_precision.setter
    def matmul_precision(self, precision: settings.Precision) -> None:
        settings.matmul_precision = precision


def register() -> None:
    module = _Backend("torch.backends.tpu", __doc__)
    sys.modules["torch.backends.tpu"] = module
    torch.backends.tpu = module
