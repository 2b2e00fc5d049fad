"""Matrix products and emulated dtypes in the StableHLO that the lowerings wrote, with what the compiler says of them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch_tpu.aot import loops
from torch_tpu.aot.hlo_text import Module, Spot
from torch_tpu.linter import rules
from torch_tpu.linter.rules import Rule
from torch_tpu.runtime.chips import CHIPS

LANES = 128
LOW_RATE = 0.5
"""Products that reach less than this part of the peak are looked at."""
SMALL = 256
"""A product that the matrix units could do in so few cycles is small: an operation takes about 2000 cycles to start."""
LEAST_ELEMENTS = 1024
"""Fewer elements in an emulated dtype are not worth a word."""
_PASSES = {"DEFAULT": 1, "HIGH": 3, "HIGHEST": 6}
_LOC = re.compile(r' loc\("([^"]*)"\("([^"]*)":(\d+):(\d+)\)\)$')
_FUNCTION = re.compile(r"func\.func \w+ @(\w+)\(")
_CALL = re.compile(r"func\.call @(\w+)\(")
_DOT = re.compile(
    r"stablehlo\.dot_general .*?(?:batching_dims = \[([\d, ]*)\] x \[[\d, ]*\], )?"
    r"contracting_dims = \[([\d, ]*)\] x \[([\d, ]*)\](?:, precision = \[(\w+), \w+\])?"
    r" : \(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>"
)
_WIDE = {"f64": "float64", "i64": "int64", "ui64": "uint64", "complex<f64": "complex128", "complex<f32": "complex64"}
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(f64|ui64|i64|complex<f64|complex<f32)>")


@dataclass(frozen=True)
class Product:
    """A matrix product: `batch` of [rows, inner] x [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int
    passes: int
    """Of the matrix unit, in bfloat16."""

    @property
    def operations(self) -> int:
        return 2 * self.batch * self.rows * self.inner * self.columns * self.passes

    def is_small(self, peak: int) -> bool:
        """Whether the matrix units would be done with it at once, if each dimension filled its lanes."""
        rows, inner, columns = (-(-size // LANES) * LANES for size in (self.rows, self.inner, self.columns))
        return 2 * self.batch * rows * inner * columns * self.passes < SMALL * peak

    def __str__(self) -> str:
        many = f"{self.batch} x " if self.batch > 1 else ""
        return f"{many}[{self.rows}, {self.inner}] x [{self.inner}, {self.columns}]"

    def unaligned(self) -> list[str]:
        """What of it does not fill the matrix unit, in words."""
        found = []
        if self.inner % LANES:
            found.append(f"{self.inner} elements are contracted" + (", a head" if self.batch > 1 else ""))
        if self.columns % LANES and self.rows % LANES:
            found.append(f"the result is {self.rows} x {self.columns}")
        elif self.columns % LANES and self.columns < LANES:
            found.append(f"the result is {self.columns} wide" + (", a head" if self.batch > 1 else ""))
        return found


def products(text: str) -> Iterator[tuple[Spot, Product, int]]:
    """The products of a StableHLO module, with their places and how often the main function runs each."""
    calls = Counter(_CALL.findall(text))
    times = 1
    for line in text.splitlines():
        function = _FUNCTION.match(line)
        if function is not None:
            times = 1 if function[1] == "main" else calls[function[1]]
        if "dot_general" not in line:
            continue
        found, where = _DOT.search(line), _LOC.search(line)
        if found is None or where is None:
            continue
        left, right = _dims(found[5]), _dims(found[6])
        batch = [left[dim] for dim in _numbers(found[1])]
        inner = [left[dim] for dim in _numbers(found[2])]
        taken = math.prod(batch) * math.prod(inner)
        rows, columns = math.prod(left) // max(1, taken), math.prod(right) // max(1, taken)
        made = Product(math.prod(batch), rows, math.prod(inner), columns, _PASSES.get(found[4] or "DEFAULT", 1))
        yield _spot(where), made, times


def judge(
    programs: Iterable[tuple[str, Module, int]], generation: str, all_cycles: int, least_share: float
) -> Iterator[tuple[type[Rule], Spot, str, str]]:
    """Findings about products, as (rule, place, reason, suggestion).

    Args:
        programs: StableHLO, optimized HLO and how often each runs.
        all_cycles: what all programs take together.
    """
    lines: dict[tuple[str, int], list[tuple[Spot, Product]]] = defaultdict(list)
    cycles: dict[tuple[str, int], int] = defaultdict(int)
    for text, module, times in programs:
        for spot, product, calls in products(text):
            lines[spot.file, spot.line] += [(spot, product)] * (times * calls)
        for key, taken in _cycles_of_products(module):
            cycles[key] += taken * times
    peak = CHIPS[generation].matrix_flops_per_cycle
    for key, here in lines.items():
        taken = cycles[key]
        if not taken or taken / max(1, all_cycles) < least_share:
            continue
        ideal = sum(product.operations for _, product in here) / peak
        spot = max((spot for spot, _ in here), key=lambda spot: spot.column)
        largest = max((product for _, product in here), key=lambda product: product.operations)
        rate, share = ideal / taken, taken / all_cycles
        about = f"{largest}: the compiler expects {rate:.1%} of the matrix units' rate, in {share:.1%} of the cycles"
        if all(product.is_small(peak) for _, product in here):
            if len(here) > 1:
                yield rules.SmallProduct, spot, f"small products, {len(here)} of them: {about}", "join them into one"
        elif rate < LOW_RATE and largest.unaligned():
            reason = f"{' and '.join(largest.unaligned())}, of {LANES} lanes; {about}"
            yield rules.UnalignedProduct, spot, reason, f"choose multiples of {LANES}"


def _cycles_of_products(module: Module) -> Iterator[tuple[tuple[str, int], int]]:
    """The cycles of what contains a product, by the product's line."""
    for computation, times in loops.executed(module):
        for instruction in computation.instructions:
            if not instruction.cycles:
                continue
            places = {
                (inner.spot.file, inner.spot.line)
                for inner in module.inside(instruction)
                if inner.opcode in ("convolution", "dot") and inner.spot is not None
            }
            for key in places:
                yield key, instruction.cycles * times // len(places)


def wide_operations(text: str) -> Iterator[tuple[Spot, str]]:
    """Where 64 bits or complex numbers are computed with, and the dtype."""
    for line in text.splitlines():
        where = _LOC.search(line)
        if where is None or "stablehlo.constant" in line or "stablehlo.iota" in line:
            continue
        for sizes, element in _TENSOR.findall(line):
            if math.prod(_dims(sizes)) >= LEAST_ELEMENTS:
                yield _spot(where), _WIDE[element]


def _spot(found: re.Match[str]) -> Spot:
    return Spot(found[2], int(found[3]), int(found[4]))


def _numbers(text: str | None) -> list[int]:
    return [int(part) for part in (text or "").split(",") if part.strip()]


def _dims(text: str) -> list[int]:
    return [int(part) for part in text.split("x") if part.isdigit()]
