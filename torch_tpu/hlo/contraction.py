"""Dots and convolutions, and the precision in which float32 ones are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tpu.hlo import layout
from torch_tpu.hlo.arith import add, convert, imag, is_finite, make_complex, real, reduce_precision, select, subtract
from torch_tpu.hlo.core import Value, current, emit
from torch_tpu.hlo.dims import Dim, decided, require_whole
from torch_tpu.hlo.shape import _ints, reshape
from torch_tpu.hlo.types import tensor_type

PRECISION = "DEFAULT"
"""Of dots and convolutions: DEFAULT, HIGH or HIGHEST. Set by `use_precision`."""
_IMITATE = False

_PARTS = {"DEFAULT": 1, "HIGH": 2, "HIGHEST": 3}
"""Into how many bfloat16 numbers an MXU splits each operand of a product."""
_WIDTH = {torch.float32: 3, torch.float16: 2}
"""How many of them hold a number exactly: more are not made. The dtypes that an MXU splits at all."""


def use_precision(name: str, *, imitate: bool = False) -> None:
    """Sets the precision of the dots and convolutions that are built from now on.

    Args:
        imitate: the platform would compute exactly, and is to round as an MXU does at this precision.
    """
    global PRECISION, _IMITATE
    PRECISION, _IMITATE = name, imitate


def imitating() -> bool:
    """Whether products are built to round as on an MXU, on a platform that has none."""
    return _IMITATE


def _bfloat16_parts(x: Value, count: int) -> list[Value]:
    """float32 as a sum of numbers that bfloat16 holds, largest first, each rounded to nearest even."""
    parts = []
    for _ in range(count):
        part = reduce_precision(x, 8, 7)
        parts.append(part)
        x = subtract(x, part)
    return parts


def in_passes(product: Callable[[Value, Value], Value], x: Value, y: Value, precision: str | None = None) -> Value:
    """product(x, y), formed as on an MXU where the platform imitates one: in passes over bfloat16 numbers.

    Each operand is split into parts x0 + x1 + x2, each at most 2**-8 of the one before. A pass is a product of parts,
    exact but for its accumulation in float32; passes are added up, smallest first. Kept are the x_i y_j with i + j
    below the number of parts: one, three or six. float16 is two parts, so it takes three passes at most, and loses
    three bits in one. Sources: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
    Higher-Precision Computations", 2019; XLA's algorithms BF16_BF16_F32, its X3 and X6 (dot_algorithm_rewriter.cc). The
    TPU compiler's own estimates of time have the same ratios, also for float16 (tests/aot/test_matmul_precision.py).

    Args:
        product: linear in each operand; float32 for float32 operands.
        precision: PRECISION unless given.
    """
    if not _IMITATE or x.dtype is not y.dtype or x.dtype not in _WIDTH:
        return product(x, y)
    count = min(_PARTS[precision or PRECISION], _WIDTH[x.dtype])
    left, right = (_bfloat16_parts(convert(operand, torch.float32), count) for operand in (x, y))
    total: Value | None = None
    for order in reversed(range(1, count)):
        for i in sorted(range(order + 1), key=lambda i: abs(2 * i - order)):
            term = product(left[i], right[order - i])
            total = term if total is None else add(total, term)
    leading = product(left[0], right[0])
    if total is None:
        return leading
    # Of an infinity, or of what bfloat16 rounds to one, the leading product says all; its other parts are no numbers.
    return add(select(is_finite(total), total, 0), leading)


def _sum_dtype(x: Value, dtype: torch.dtype) -> torch.dtype:
    """What a product is accumulated in that is to give dtype: float32 for the passes of an imitated MXU."""
    return torch.float32 if _IMITATE and x.dtype is torch.float32 else dtype


def _complex_in_passes(product: Callable[[Value, Value], Value], x: Value, y: Value) -> Value:
    """A complex product by Gauss's three real ones, as the TPU compiler writes it."""
    a, b, c, d = real(x), imag(x), real(y), imag(y)
    shared = product(add(a, b), c)
    return make_complex(subtract(shared, product(b, add(c, d))), add(shared, product(a, subtract(d, c))))


def dot_general(
    x: Value,
    y: Value,
    *,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: torch.dtype | None = None,
    precision: str | None = None,
) -> Value:
    """Contracts dimensions: the result is batch + free dimensions of x + free dimensions of y, in dtype (x's).

    `precision` is PRECISION unless given.
    """
    dtype, precision = dtype or x.dtype, precision or PRECISION
    if current().sizes:
        x, y = _contractable(x, y, contract, batch)
    elif batch[0] and all(x.shape[dim] == 1 for dim in batch[0]):  # the CPU client cannot run all of these in bfloat16
        return _of_one(x, y, contract, batch, dtype, precision)

    written = "HIGHEST" if _IMITATE else precision  # passes that are written out are exact themselves

    def product(a: Value, b: Value) -> Value:
        return _dot_general(a, b, contract=contract, batch=batch, dtype=_sum_dtype(a, dtype), precision=written)

    if _IMITATE and x.dtype is y.dtype is torch.complex64:
        return _complex_in_passes(lambda a, b: in_passes(product, a, b, precision), x, y)
    return convert(in_passes(product, x, y, precision), dtype)


def _of_one(
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
    dtype: torch.dtype,
    precision: str,
) -> Value:
    """A product whose batch dimensions have size 1, as one without them."""
    kept = [[dim for dim in range(value.ndim) if dim not in batch[side]] for side, value in enumerate((x, y))]
    x, y = (reshape(value, [value.shape[dim] for dim in dims]) for value, dims in zip((x, y), kept, strict=True))
    left, right = ([dims.index(dim) for dim in contract[side]] for side, dims in enumerate(kept))
    made = dot_general(x, y, contract=(left, right), dtype=dtype, precision=precision)
    return reshape(made, [1] * len(batch[0]) + list(made.shape))


def _contractable(
    x: Value, y: Value, contract: tuple[Sequence[int], Sequence[int]], batch: tuple[Sequence[int], Sequence[int]]
) -> tuple[Value, Value]:
    """Operands with zeros for padding along contracted dimensions, and the same layouts on both sides."""
    x, y = layout.paired(x, y, list(zip([*contract[0], *batch[0]], [*contract[1], *batch[1]], strict=True)))
    return layout.masked(x, contract[0], 0), layout.masked(y, contract[1], 0)


def _dot_general(
    x: Value,
    y: Value,
    *,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
    dtype: torch.dtype,
    precision: str,
) -> Value:
    taken = [{*contract[side], *batch[side]} for side in (0, 1)]
    shape = [x.shape[dim] for dim in batch[0]]
    shape += [size for dim, size in enumerate(x.shape) if dim not in taken[0]]
    shape += [size for dim, size in enumerate(y.shape) if dim not in taken[1]]
    batching = f"batching_dims = [{_ints(batch[0])}] x [{_ints(batch[1])}], " if batch[0] else ""
    return emit(
        f"stablehlo.dot_general {x.name}, {y.name}, {batching}"
        f"contracting_dims = [{_ints(contract[0])}] x [{_ints(contract[1])}], "
        f"precision = [{precision}, {precision}] : "
        f"({x.type}, {y.type}) -> {tensor_type(tuple(shape), dtype)}",
        shape,
        dtype,
    )


def convolution(
    x: Value,
    kernel: Value,
    *,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
    batch_groups: int = 1,
    lhs_spec: str | None = None,
    rhs_spec: str | None = None,
    out_spec: str | None = None,
    reverse: Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
) -> Value:
    """A convolution. Specs are StableHLO's dimension labels, by default "bf01", "oi01", "bf01" (NCHW, OIHW, NCHW)."""
    dtype = dtype or x.dtype
    written = "HIGHEST" if _IMITATE else PRECISION

    def product(a: Value, b: Value) -> Value:
        return _convolution(
            a, b, stride=stride, padding=padding, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation,
            groups=groups, batch_groups=batch_groups, lhs_spec=lhs_spec, rhs_spec=rhs_spec, out_spec=out_spec,
            reverse=reverse, dtype=_sum_dtype(a, dtype), precision=written,
        )  # fmt: skip

    return convert(in_passes(product, x, kernel), dtype)


def _convolution(
    x: Value,
    kernel: Value,
    *,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    groups: int,
    batch_groups: int,
    lhs_spec: str | None,
    rhs_spec: str | None,
    out_spec: str | None,
    reverse: Sequence[bool] | None,
    dtype: torch.dtype,
    precision: str,
) -> Value:
    rank = x.ndim - 2
    spatial = "".join(map(str, range(rank)))
    lhs_spec, rhs_spec = lhs_spec or f"bf{spatial}", rhs_spec or f"oi{spatial}"
    if current().sizes:
        summed = [rhs_spec.index(label) for label in ("i", *spatial)]
        places = [lhs_spec.index(label) for label in ("f", *spatial)]
        channels = x.shape[places[0]]  # groups of them that vary would begin at places that vary
        require_whole([channels if groups > 1 else channels - kernel.shape[summed[0]]], "a convolution over channels")
        kernel = layout.masked(layout.compact(kernel, summed), summed, 0)
        x = layout.masked(layout.compact(x, places), places, 0)
    out_spec = out_spec or f"bf{spatial}"
    left, right = tuple(lhs_dilation or (1,) * rank), tuple(rhs_dilation or (1,) * rank)
    sizes: dict[str, int] = {}
    sizes["b"] = x.shape[lhs_spec.index("b")] // batch_groups
    sizes["f"] = kernel.shape[rhs_spec.index("o")]
    for dim in range(rank):
        size, width = x.shape[lhs_spec.index(str(dim))], kernel.shape[rhs_spec.index(str(dim))]
        dilated = (size - 1) * left[dim] + 1 if size else 0
        reach = (width - 1) * right[dim] + 1 if width else 0
        require_whole(padding[dim], "padding")
        room = dilated + sum(padding[dim]) - reach
        if isinstance(width, Dim):  # as in a gradient
            require_whole([decided(room)], "a convolution with a kernel, giving a result")
        sizes[str(dim)] = room // stride[dim] + 1 if isinstance(room, Dim) or room >= 0 else 0
    shape = tuple(decided(sizes[label]) for label in out_spec)

    def labels(spec: str) -> str:
        return "[" + ", ".join(spec) + "]"

    pads = "[" + ", ".join(f"[{low}, {high}]" for low, high in padding) + "]"
    flips = "[" + ", ".join(str(flip).lower() for flip in reverse or (False,) * rank) + "]"
    return emit(
        f"stablehlo.convolution({x.name}, {kernel.name}) dim_numbers = "
        f"{labels(lhs_spec)}x{labels(rhs_spec)}->{labels(out_spec)}, "
        f"window = {{stride = [{_ints(stride)}], pad = {pads}, lhs_dilate = [{_ints(left)}], "
        f"rhs_dilate = [{_ints(right)}], reverse = {flips}}} "
        f"{{batch_group_count = {batch_groups} : i64, feature_group_count = {groups} : i64, "
        f"precision_config = [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]}} : "
        f"({x.type}, {kernel.type}) -> {tensor_type(shape, dtype)}",
        shape,
        dtype,
    )
