"""Dots and convolutions, and the precision in which float32 ones are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from torch_tpu.hlo import layout
from torch_tpu.hlo.arith import add, reduce_precision, subtract
from torch_tpu.hlo.core import Value, current, emit
from torch_tpu.hlo.dims import Dim, decided, require_whole
from torch_tpu.hlo.shape import _ints
from torch_tpu.hlo.types import tensor_type

PRECISION = "DEFAULT"
"""Of dots and convolutions: DEFAULT, HIGH or HIGHEST. Set by `use_precision`."""
PASSES = 0
"""Where the platform would compute exactly: how many bfloat16 passes of an MXU to imitate (1, 3 or 6), or 0."""

_TERMS = {1: [(0, 0)], 3: [(0, 0), (0, 1), (1, 0)], 6: [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)]}


def use_precision(name: str, passes: int = 0) -> None:
    """Sets the precision of the dots and convolutions that are built from now on."""
    global PRECISION, PASSES
    PRECISION, PASSES = name, passes


def _bfloat16_parts(x: Value, count: int) -> list[Value]:
    """float32 as a sum of numbers that bfloat16 holds, largest first."""
    parts = []
    for _ in range(count):
        part = reduce_precision(x, 8, 7)
        parts.append(part)
        x = subtract(x, part)
    return parts


def _imitated(x: Value, y: Value) -> bool:
    return bool(PASSES) and x.dtype is torch.float32 and y.dtype is torch.float32


def _in_passes(product: Callable[[Value, Value], Value], x: Value, y: Value) -> Value:
    """A float32 product as an MXU forms it: products of bfloat16 parts, accumulated in float32.

    One pass keeps the leading parts, three and six also the cross terms with the second and third ones. Source:
    Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
    Computations", 2019.
    """
    count = {1: 1, 3: 2, 6: 3}[PASSES]
    left, right = _bfloat16_parts(x, count), _bfloat16_parts(y, count)
    total: Value | None = None
    for i, j in reversed(_TERMS[PASSES]):  # small terms first
        term = product(left[i], right[j])
        total = term if total is None else add(total, term)
    assert total is not None
    return total


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
    if _imitated(x, y):
        return _in_passes(partial(_dot_general, contract=contract, batch=batch, dtype=dtype, precision=precision), x, y)
    return _dot_general(x, y, contract=contract, batch=batch, dtype=dtype, precision=precision)


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
    if _imitated(x, kernel):
        same = partial(
            _convolution, stride=stride, padding=padding, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation,
            groups=groups, batch_groups=batch_groups, lhs_spec=lhs_spec, rhs_spec=rhs_spec, out_spec=out_spec,
            reverse=reverse, dtype=dtype,
        )  # fmt: skip
        return _in_passes(same, x, kernel)
    return _convolution(
        x, kernel, stride=stride, padding=padding, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation,
        groups=groups, batch_groups=batch_groups, lhs_spec=lhs_spec, rhs_spec=rhs_spec, out_spec=out_spec,
        reverse=reverse, dtype=dtype,
    )  # fmt: skip


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
    dtype: torch.dtype | None,
) -> Value:
    rank = x.ndim - 2
    spatial = "".join(map(str, range(rank)))
    lhs_spec, rhs_spec = lhs_spec or f"bf{spatial}", rhs_spec or f"oi{spatial}"
    if current().sizes:
        require_whole([x.shape[lhs_spec.index("f")], *kernel.shape], "a convolution over channels or with a kernel")
        places = [lhs_spec.index(label) for label in spatial]
        x = layout.masked(layout.compact(x, places), places, 0)
    out_spec, dtype = out_spec or f"bf{spatial}", dtype or x.dtype
    left, right = tuple(lhs_dilation or (1,) * rank), tuple(rhs_dilation or (1,) * rank)
    sizes: dict[str, int] = {}
    sizes["b"] = x.shape[lhs_spec.index("b")] // batch_groups
    sizes["f"] = kernel.shape[rhs_spec.index("o")]
    for dim in range(rank):
        size, width = x.shape[lhs_spec.index(str(dim))], kernel.shape[rhs_spec.index(str(dim))]
        dilated = (size - 1) * left[dim] + 1 if size else 0
        reach = (width - 1) * right[dim] + 1 if width else 0
        room = dilated + sum(padding[dim]) - reach
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
        f"precision_config = [#stablehlo<precision {PRECISION}>, #stablehlo<precision {PRECISION}>]}} : "
        f"({x.type}, {kernel.type}) -> {tensor_type(shape, dtype)}",
        shape,
        dtype,
    )
