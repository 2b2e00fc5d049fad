"""Parsing StableHLO text into the modules that PJRT compiles."""

from __future__ import annotations

import re
from functools import cache
from io import BytesIO
from typing import Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _chlo, _jax_mlir_ext, _stablehlo


@cache
def context() -> Any:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    result = ir.Context()
    result.append_dialect_registry(registry)
    result.load_all_available_dialects()
    _stablehlo.register_dialect(result)
    _chlo.register_dialect(result)
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


def bytecode(text: str) -> bytes:
    """A module as MLIR's bytecode, for this version of StableHLO."""
    file = BytesIO()
    parse(text).operation.write_bytecode(file=file)
    return file.getvalue()


def portable_artifact(text: str, version: str | None = None) -> bytes:
    """A module in the form that StableHLO keeps compatible.

    What is of its dialect CHLO (`erf`, `top_k`), which it does not keep so, is written out in StableHLO's operations.

    Args:
        version: the oldest StableHLO that is to read it; this one if None.
    """
    module = parse(text)
    _legalization().run(module.operation)
    return bytes(_stablehlo.serialize_portable_artifact_str(str(module), version or _stablehlo.get_current_version()))


@cache
def _legalization() -> Any:
    _stablehlo.register_stablehlo_passes()
    return passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))", context())


def from_portable_artifact(artifact: bytes) -> str:
    """The text of a portable artifact."""
    return str(ir.Module.parse(_stablehlo.deserialize_portable_artifact_str(artifact), context()))


def dot_numbers(operation: Any) -> Any:
    """The dimension numbers of a `stablehlo.dot_general`."""
    return _stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])


def convolution_numbers(operation: Any) -> Any:
    """The dimension numbers of a `stablehlo.convolution`."""
    return _stablehlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])


_ELEMENT = re.compile(r"tensor<(?:[^<>]*x)?(complex<f\d+>|[a-z]+\d+[A-Z0-9]*)>")
_WORDS = {"i1": "bool", "bf16": "bfloat16", "complex<f32>": "complex64", "complex<f64>": "complex128"}
_KINDS = {"i": "int", "si": "int", "ui": "uint", "f": "float"}


def element_types(program: str) -> list[str]:
    """The dtypes of what a StableHLO program takes and returns, as PyTorch calls them.

    >>> element_types("func.func public @main(%arg0: tensor<2xi64>) -> (tensor<bf16>) {")
    ['int64', 'bfloat16']
    """
    _, _, signature = program.partition("@main(")
    found = []
    for element in _ELEMENT.findall(signature.partition("\n")[0]):
        letters = element.rstrip("0123456789")
        found.append(_WORDS.get(element) or _KINDS.get(letters, letters) + element[len(letters) :])
    return list(dict.fromkeys(found))
