"""ATen -> StableHLO, one file per operator family. Pure: knows no tensors and no runtime.

`registry.py` says what a lowering is; read it first, then `elementwise.py` for the table style. `load()` imports all
families; it is called at the first use of the device, not at import.
"""

from __future__ import annotations

import importlib
from functools import cache

FAMILIES: tuple[str, ...] = (
    "elementwise",
    "arithmetic",
    "compare",
    "activation",
    "loss",
    "quantize",
    "ctc",
    "special",
    "gamma",
    "bessel",
    "polynomials",
    "complex",
    "creation",
    "random",
    "sampling",
    "movement",
    "indexing",
    "scatter",
    "embedding",
    "reduction",
    "distance",
    "histogram",
    "segment",
    "jagged",
    "scan",
    "sorting",
    "matmul",
    "convolution",
    "pooling",
    "resize",
    "grid_sample",
    "normalization",
    "batch_norm",
    "recurrent",
    "attention",
    "linalg",
    "decompositions",
    "solve",
    "fft",
    "foreach",
    "optimizer",
)


@cache
def load() -> None:
    """Registers every lowering, once: an operator that a `__del__` calls while Python shuts down can import nothing."""
    for family in FAMILIES:
        importlib.import_module(f"torch_tpu.ops.{family}")
