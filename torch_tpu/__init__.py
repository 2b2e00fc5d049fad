"""PyTorch on TPUs as a native device: `import torch` is enough, `device="tpu"` is the rest.

Everything public is here; the modules below it may change. Importing this package loads neither torch nor XLA: where
torch is loaded already it makes `tpu` a device of it, and otherwise `import torch` does so through the entry point.
"""

from __future__ import annotations

import sys

from torch_tpu import errors as errors
from torch_tpu import settings as settings
from torch_tpu.explain import Explanation as Explanation
from torch_tpu.explain import explain as explain
from torch_tpu.stats import reset as reset_stats
from torch_tpu.stats import stats as stats

__all__ = [
    "Explanation",
    "__version__",
    "errors",
    "explain",
    "fallback_reasons",
    "reset_stats",
    "settings",
    "stats",
]


def fallback_reasons() -> dict[str, str]:
    """Why each operator that ran on the CPU instead did so, the last time it did."""
    from torch_tpu.eager import fallback

    return dict(fallback.reasons)


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'torch_tpu' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch_tpu")
    except PackageNotFoundError:
        return "0+source"


def _autoload() -> None:
    """The `torch.backends` entry point: called by `import torch`; later calls do nothing."""
    from torch_tpu.device import register

    register.register()


if "torch" in sys.modules:
    _autoload()
