"""Parsing StableHLO text into the modules that PJRT compiles."""

from __future__ import annotations

from functools import cache
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, stablehlo


@cache
def context() -> Any:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    result = ir.Context()
    result.append_dialect_registry(registry)
    result.load_all_available_dialects()
    stablehlo.register_dialect(result)
    chlo.register_dialect(result)
    return result


def parse(text: str) -> Any:
    """Parses and verifies a module.

    Raises:
        ValueError: the text is no legal StableHLO; the message has the parser's reason.
    """
    try:
        return ir.Module.parse(text, context())
    except ir.MLIRError as error:
        raise ValueError(f"not legal StableHLO: {error}\n{text}") from error
