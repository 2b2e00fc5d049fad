"""FLOPs of the matrix products and convolutions in a StableHLO module: what was asked for, before any compiler's changes.

Functions count each time they are called, loop bodies as often as they run where that is a constant. The compiler's count of
the same program can differ: it leaves out what is not needed, computes some things twice, and may unroll a product with a
vector into other operations.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch_tpu.aot import loops
from torch_tpu.runtime import mlir


@dataclass
class Flops:
    """Of one execution of a function."""

    products: Counter[str] = field(default_factory=Counter)
    """By the element type of the left operand, such as "bf16"."""
    unknown_loops: int = 0
    """Loops whose number of steps is data: their bodies count once."""

    @property
    def total(self) -> float:
        return float(sum(self.products.values()))

    def add(self, other: Flops, times: int = 1) -> None:
        for name, flops in other.products.items():
            self.products[name] += flops * times
        self.unknown_loops += other.unknown_loops


def count(text: str) -> Flops:
    """The FLOPs of a module's main function.

    Raises:
        ValueError: the text is no legal StableHLO.
    """
    module = mlir.parse(text)
    functions = {operation.sym_name.value: operation for operation in module.body.operations}
    known: dict[str, Flops] = {}

    def of_function(name: str) -> Flops:
        if name not in known:
            known[name] = of_block(functions[name].regions[0].blocks[0])
        return known[name]

    def of_block(block: Any) -> Flops:
        found = Flops()
        for operation in block.operations:
            name = operation.operation.name
            if name == "stablehlo.dot_general":
                element = _element(operation.operands[0])
                found.products[element] += _dot(operation) * (_REAL_PRODUCTS if "complex" in element else 1)
            elif name == "stablehlo.convolution":
                found.products[_element(operation.operands[0])] += _convolution(operation)
            elif name == "func.call":
                found.add(of_function(operation.attributes["callee"].value))
            elif name == "stablehlo.while":
                steps = _steps(operation.operation)
                body = of_block(operation.regions[1].blocks[0])
                body.unknown_loops += steps is None
                found.add(body, 1 if steps is None else steps)
            elif name in ("stablehlo.case", "stablehlo.if"):
                branches = [of_block(region.blocks[0]) for region in operation.regions]
                found.add(max(branches, key=lambda branch: branch.total))
        return found

    return of_function("main")


_REAL_PRODUCTS = 4
"""In a complex product."""


def _element(value: Any) -> str:
    return str(value.type.element_type)


def _dot(operation: Any) -> int:
    numbers = mlir.dot_numbers(operation)
    sizes = operation.operands[0].type.shape
    depth = math.prod(sizes[dim] for dim in numbers.lhs_contracting_dimensions)
    return 2 * math.prod(operation.results[0].type.shape) * depth


def _convolution(operation: Any) -> int:
    """Padding counts, as in the usual formula for convolutions: outputs x kernel elements x input features."""
    numbers = mlir.convolution_numbers(operation)
    kernel = operation.operands[1].type.shape
    depth = kernel[numbers.kernel_input_feature_dimension]
    window = math.prod(kernel[dim] for dim in numbers.kernel_spatial_dimensions)
    return 2 * math.prod(operation.results[0].type.shape) * depth * window


def _steps(loop: Any) -> int | None:
    """How often a loop's body runs, where it counts from a constant to a constant by a constant."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = _maker(_returned(condition)[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    direction = str(compare.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]
    left, right = compare.operands
    index, limit = _place(left, condition), _number(right)
    if index is None:  # the counter is on the other side
        index, limit, direction = _place(right, condition), _number(left), loops.mirrored(direction)
    if index is None or limit is None:
        return None
    start, step = _number(loop.operands[index]), _increment(body, index)
    return loops.count(direction, start, limit, step) if start is not None and step else None


def _increment(body: Any, index: int) -> int | None:
    """What a loop's body adds to one of its arguments."""
    new = _maker(_returned(body)[index])
    if new is None or new.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = new.operands
    if _place(left, body) == index:
        step = _number(right)
        return -step if step is not None and new.name == "stablehlo.subtract" else step
    return _number(left) if _place(right, body) == index and new.name == "stablehlo.add" else None


def _returned(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operands


def _maker(value: Any) -> Any | None:
    """The operation that makes a value; None for arguments of blocks."""
    owner = value.owner
    return owner if hasattr(owner, "name") and hasattr(owner, "operands") else None


def _source(value: Any) -> Any:
    """What a value is in another dtype."""
    while (maker := _maker(value)) is not None and maker.name == "stablehlo.convert":
        value = maker.operands[0]
    return value


def _place(value: Any, block: Any) -> int | None:
    """Which argument of the block a value is."""
    source = _source(value)
    return next((place for place, argument in enumerate(block.arguments) if argument == source), None)


def _number(value: Any) -> int | None:
    maker = _maker(_source(value))
    if maker is None or maker.name != "stablehlo.constant":
        return None
    constant = maker.attributes["value"]
    return int(constant.get_splat_value().value) if constant.is_splat else None
