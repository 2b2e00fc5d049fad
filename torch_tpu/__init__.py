"""PyTorch on TPUs as a native device: `import torch` is enough, `device="tpu"` is the rest.

Everything public is here; the modules below it may change. Importing this package loads neither torch nor XLA: where
torch is loaded already it makes `tpu` a device of it, and otherwise `import torch` does so through the entry point.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from torch_tpu import errors as errors
from torch_tpu import settings as settings
from torch_tpu.recompiles import Recompiles as Recompiles
from torch_tpu.recompiles import explain_recompiles as explain_recompiles
from torch_tpu.stats import reset as reset_stats
from torch_tpu.stats import stats as stats

if TYPE_CHECKING:
    from torch_tpu import aot as aot
    from torch_tpu import cache as cache
    from torch_tpu import numerics as numerics
    from torch_tpu.explanation import Explanation as Explanation
    from torch_tpu.explanation import explain as explain
    from torch_tpu.explanation import fallback_reasons as fallback_reasons
    from torch_tpu.linter.program import lint as lint

    __version__: str

__all__ = [
    "Explanation",
    "Recompiles",
    "__version__",
    "aot",
    "cache",
    "errors",
    "explain",
    "explain_recompiles",
    "export",
    "fallback_reasons",
    "lint",
    "numerics",
    "reset_stats",
    "settings",
    "stats",
]

_LAZY = {
    "Explanation": "torch_tpu.explanation",
    "explain": "torch_tpu.explanation",
    "fallback_reasons": "torch_tpu.explanation",
    "lint": "torch_tpu.linter.program",
}
"""Names whose modules need torch."""


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch_tpu")
    except PackageNotFoundError:
        return "0+source"


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    elif name in ("aot", "cache", "export", "numerics"):
        value = importlib.import_module(f"torch_tpu.{name}")
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module 'torch_tpu' has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def _autoload() -> None:
    """The `torch.backends` entry point: called by `import torch`; later calls do nothing."""
    import torch  # noqa: F401 - where it is not imported yet, this calls us again before the next line

    from torch_tpu.device import register

    register.register()


if "torch" in sys.modules:
    _autoload()
