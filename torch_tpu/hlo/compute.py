"""Operations with regions or contractions: reductions, windows, sorts, loops, dots, convolutions, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tpu import errors
from torch_tpu.hlo import layout
from torch_tpu.hlo.arith import (
    add,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    broadcast_in_dim,
    compare,
    literal,
    maximum,
    minimum,
    multiply,
    scalar,
    select,
)
from torch_tpu.hlo.core import Number, Value, as_list, current, emit, emit_many, region
from torch_tpu.hlo.dims import Dim, as_expr, bound, decided, plain, require_whole
from torch_tpu.hlo.shape import _ints, i64_array
from torch_tpu.hlo.types import tensor_type

Body = Callable[..., Value | Sequence[Value]]


def reduce(
    values: Value | Sequence[Value],
    init: Value | Number | Sequence[Value | Number],
    body: Body,
    dims: Sequence[int],
    keep_dim: bool = False,
) -> Value | list[Value]:
    """Folds dimensions. With one value: body(a, b) -> c. With k values: body(a1..ak, b1..bk) -> k values.

    Returns what it was given: a value for a value, a list for a sequence.
    """
    single = isinstance(values, Value)
    inputs = as_list(values)
    starts = [init] if single else list(init)  # type: ignore[arg-type]
    inits = [
        start if isinstance(start, Value) else scalar(start, value.dtype)  # type: ignore[arg-type]
        for start, value in zip(starts, inputs, strict=True)
    ]
    dropped = sorted({dim % inputs[0].ndim for dim in dims})
    if current().sizes:
        inputs = [layout.masked(x, dropped, start) for x, start in zip(layout.align(inputs), inits, strict=True)]
    shape = [size for dim, size in enumerate(inputs[0].shape) if dim not in dropped]
    elements = [Value("", (), value.dtype) for value in inputs]
    text, _ = region([*elements, *elements], body)
    operands = ", ".join(value.name for value in [*inputs, *inits])
    signature = ", ".join(value.type for value in [*inputs, *inits])
    results = [(shape, value.dtype) for value in inputs]
    result_types = ", ".join(tensor_type(tuple(shape), dtype) for shape, dtype in results)
    outputs = emit_many(
        f'"stablehlo.reduce"({operands}) <{{dimensions = {i64_array(dropped)}}}> ({text}) : '
        f"({signature}) -> ({result_types})",
        results,
    )
    if keep_dim:
        from torch_tpu.hlo.shape import expand_dims

        outputs = [expand_dims(value, dropped) for value in outputs]
    return outputs[0] if single else outputs


def lowest(dtype: torch.dtype) -> Number:
    """The neutral element of maximum."""
    if dtype is torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Number:
    """The neutral element of minimum."""
    if dtype is torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def reduce_sum(x: Value, dims: Sequence[int], keep_dim: bool = False) -> Value:
    return reduce(x, 0, add, dims, keep_dim)  # type: ignore[return-value]


def reduce_prod(x: Value, dims: Sequence[int], keep_dim: bool = False) -> Value:
    return reduce(x, 1, multiply, dims, keep_dim)  # type: ignore[return-value]


def reduce_max(x: Value, dims: Sequence[int], keep_dim: bool = False) -> Value:
    """The largest; NaN where there is one."""
    top = reduce(x, lowest(x.dtype), maximum, dims, keep_dim)
    return _restore_nan(x, top, dims, keep_dim)  # type: ignore[arg-type]


def reduce_min(x: Value, dims: Sequence[int], keep_dim: bool = False) -> Value:
    """The smallest; NaN where there is one."""
    bottom = reduce(x, highest(x.dtype), minimum, dims, keep_dim)
    return _restore_nan(x, bottom, dims, keep_dim)  # type: ignore[arg-type]


def _restore_nan(x: Value, extreme: Value, dims: Sequence[int], keep_dim: bool) -> Value:
    """XLA's CPU compiler gives reductions of 4096 and more elements to YNNPACK, whose maximum drops NaN."""
    if not x.dtype.is_floating_point or x.dtype.itemsize < 4 or bound(x.numel) < 4096:
        return extreme
    found = reduce_sum(select(compare("NE", x, x), x, 0), dims, keep_dim)
    return select(compare("NE", found, found), found, extreme)


def reduce_and(x: Value, dims: Sequence[int], keep_dim: bool = False) -> Value:
    return reduce(x, True, bitwise_and, dims, keep_dim)  # type: ignore[return-value]


def reduce_or(x: Value, dims: Sequence[int], keep_dim: bool = False) -> Value:
    return reduce(x, False, bitwise_or, dims, keep_dim)  # type: ignore[return-value]


def reduce_window(
    values: Value | Sequence[Value],
    init: Value | Number | Sequence[Value | Number],
    body: Body,
    *,
    window: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Value | list[Value]:
    """A reduction over sliding windows; every sequence has one entry a dimension. See `reduce` for values and body."""
    single = isinstance(values, Value)
    inputs = as_list(values)
    starts = [init] if single else list(init)  # type: ignore[arg-type]
    inits = [
        start if isinstance(start, Value) else scalar(start, value.dtype)  # type: ignore[arg-type]
        for start, value in zip(starts, inputs, strict=True)
    ]
    rank = inputs[0].ndim
    ones = (1,) * rank
    stride, base, dilation = stride or ones, base_dilation or ones, window_dilation or ones
    padding = padding or ((0, 0),) * rank
    if current().sizes:
        inputs = _masked_windows(inputs, inits, window, stride, padding, base)
    shape = []
    for dim in range(rank):
        size = inputs[0].shape[dim]
        dilated = (size - 1) * base[dim] + 1 if size else 0
        reach = (window[dim] - 1) * dilation[dim] + 1
        if not isinstance(window[dim], Dim):
            require_whole(padding[dim], "padding")
        room = dilated + padding[dim][0] + padding[dim][1] - reach
        shape.append(room // stride[dim] + 1 if isinstance(room, Dim) or room >= 0 else 0)
    if current().sizes:
        shape = [old if old == new else decided(new) for old, new in zip(inputs[0].shape, shape, strict=True)]
    elements = [Value("", (), value.dtype) for value in inputs]
    text, _ = region([*elements, *elements], body)
    operands = ", ".join(value.name for value in [*inputs, *inits])
    signature = ", ".join(value.type for value in [*inputs, *inits])
    results = [(shape, value.dtype) for value in inputs]
    result_types = ", ".join(tensor_type(tuple(shape), dtype) for shape, dtype in results)
    pads = "[" + ", ".join(f"[{low}, {high}]" for low, high in padding) + "]"
    outputs = emit_many(
        f'"stablehlo.reduce_window"({operands}) <{{window_dimensions = {i64_array(window)}, '
        f"window_strides = {i64_array(stride)}, base_dilations = {i64_array(base)}, "
        f"window_dilations = {i64_array(dilation)}, padding = dense<{pads}> : tensor<{rank}x2xi64>}}> "
        f"({text}) : ({signature}) -> ({result_types})",
        results,
    )
    return outputs[0] if single else outputs


def _masked_windows(
    inputs: Sequence[Value],
    inits: Sequence[Value],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int],
) -> list[Value]:
    """Padding becomes neutral. A window as long as a bounded dimension is one that ends at each of its elements."""
    moved = [axis for axis in range(inputs[0].ndim) if (window[axis], stride[axis], base[axis]) != (1, 1, 1)]
    for axis in moved:
        if isinstance(window[axis], Dim) and (stride[axis] != 1 or padding[axis] != (window[axis] - 1, 0)):
            raise errors.BoundedError("a window has a size that varies")
        if not isinstance(window[axis], Dim):
            inputs = [layout.compact(x, [axis]) for x in inputs]
    return [layout.masked(x, moved, start) for x, start in zip(layout.align(inputs), inits, strict=True)]


def select_and_scatter(
    x: Value,
    source: Value,
    init: Value | Number,
    *,
    choose: Callable[[Value, Value], Value],
    combine: Callable[[Value, Value], Value],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Value:
    """The gradient of a pooling: scatters each source element to the place its window chose."""
    require_whole([size for size, width in zip(x.shape, window, strict=True) if width != 1], "a pooling's gradient")
    init = init if isinstance(init, Value) else scalar(init, x.dtype)
    element = Value("", (), x.dtype)
    choosing, _ = region([element, element], choose)
    combining, _ = region([element, element], combine)
    pads = "[" + ", ".join(f"[{low}, {high}]" for low, high in padding) + "]"
    return emit(
        f'"stablehlo.select_and_scatter"({x.name}, {source.name}, {init.name}) <{{'
        f"window_dimensions = {i64_array(window)}, window_strides = {i64_array(stride)}, "
        f"padding = dense<{pads}> : tensor<{x.ndim}x2xi64>}}> ({choosing}, {combining}) : "
        f"({x.type}, {source.type}, {init.type}) -> {x.type}",
        x.shape,
        x.dtype,
    )


def sort(
    values: Sequence[Value], dim: int, before: Callable[..., Value] | None = None, stable: bool = True
) -> list[Value]:
    """Sorts several values together along a dimension.

    `before(a1, b1, a2, b2, ...)` is true where element a goes before element b; ascending by the first if None.
    """
    dim %= values[0].ndim
    if current().sizes and isinstance(values[0].shape[dim], Dim):
        return _sort_real(layout.align(values), dim, before, stable)
    parameters = [Value("", (), value.dtype) for value in values for _ in range(2)]
    text, _ = region(parameters, before or (lambda a, b, *rest: compare("LT", a, b)))
    operands = ", ".join(value.name for value in values)
    signature = ", ".join(value.type for value in values)
    return emit_many(
        f'"stablehlo.sort"({operands}) <{{dimension = {dim} : i64, is_stable = {str(stable).lower()}}}> '
        f"({text}) : ({signature}) -> ({signature})",
        [(value.shape, value.dtype) for value in values],
    )


def _sort_real(values: Sequence[Value], dim: int, before: Callable[..., Value] | None, stable: bool) -> list[Value]:
    """Padding goes behind the real elements, by a further value that is compared first."""
    size = values[0].shape[dim]
    first = before or (lambda a, b, *rest: compare("LT", a, b))
    shape = [bound(length) for length in values[0].shape]
    behind = layout.retag(bitwise_not(layout.real(size)), (bound(size),))
    raw = [broadcast_in_dim(behind, shape, [dim]), *(layout.retag(value, shape) for value in values)]

    def ordered(a: Value, b: Value, *rest: Value) -> Value:
        return select(compare("EQ", a, b), first(*rest), compare("LT", a, b))

    result = list(values[0].shape)
    result[dim] = plain(as_expr(size), bound(size))
    return [layout.retag(value, result) for value in sort(raw, dim, ordered, stable)[1:]]


def top_k(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest of the last dimension, descending, and their int32 indices."""
    require_whole([k], "top_k")
    if current().sizes:
        x = layout.masked(layout.compact(x, [x.ndim - 1]), [x.ndim - 1], lowest(x.dtype))
    shape = (*x.shape[:-1], k)
    values, indices = emit_many(
        f"chlo.top_k({x.name}, k = {k}) : {x.type} -> "
        f"({tensor_type(shape, x.dtype)}, {tensor_type(shape, torch.int32)})",
        [(shape, x.dtype), (shape, torch.int32)],
    )
    return values, indices


def while_loop(
    init: Sequence[Value], condition: Callable[..., Value], body: Callable[..., Sequence[Value]]
) -> list[Value]:
    """Repeats body while the condition (a scalar bool) holds; both take the state, body returns the next one."""
    test, _ = region(init, condition)
    step, results = region(init, body)
    assert [(r.shape, r.dtype) for r in results] == [(v.shape, v.dtype) for v in init], "a loop keeps its types"
    operands = ", ".join(value.name for value in init)
    signature = ", ".join(value.type for value in init)
    return emit_many(
        f'"stablehlo.while"({operands}) ({test}, {step}) : ({signature}) -> ({signature})',
        [(value.shape, value.dtype) for value in init],
    )


def fori_loop(count: Value | int, init: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
    """body(index, *state) -> state, for index (a scalar int32) 0, 1, ... count - 1."""
    limit = count if isinstance(count, Value) else scalar(count, torch.int32)

    def step(index: Value, *state: Value) -> list[Value]:
        return [add(index, 1), *body(index, *state)]

    start = scalar(0, torch.int32)
    return while_loop([start, *init], lambda index, *_: compare("LT", index, limit), step)[1:]


def conditional(predicate: Value, then: Body, otherwise: Body) -> list[Value]:
    """Runs one of two branches (called without arguments, they use outer values) by a scalar bool."""
    yes, results = region([], then)
    no, others = region([], otherwise)
    assert [(r.shape, r.dtype) for r in results] == [(r.shape, r.dtype) for r in others], "branches differ in type"
    return emit_many(
        f'"stablehlo.if"({predicate.name}) ({yes}, {no}) : ({predicate.type}) -> '
        f"({', '.join(value.type for value in results)})",
        [(value.shape, value.dtype) for value in results],
    )


def fft(x: Value, kind: str, lengths: Sequence[int]) -> Value:
    """kind is FFT, IFFT, RFFT or IRFFT over the last len(lengths) dimensions; inverse ones are normalized by XLA."""
    require_whole([*x.shape[x.ndim - len(lengths) :], *lengths], "a Fourier transform")
    shape, dtype = list(x.shape), x.dtype
    if kind == "RFFT":
        shape[-1], dtype = lengths[-1] // 2 + 1, torch.complex64 if dtype is torch.float32 else torch.complex128
    elif kind == "IRFFT":
        shape[-1], dtype = lengths[-1], torch.float32 if dtype is torch.complex64 else torch.float64
    return emit(
        f"stablehlo.fft {x.name}, type = {kind}, length = [{_ints(lengths)}] : "
        f"({x.type}) -> {tensor_type(tuple(shape), dtype)}",
        shape,
        dtype,
    )


def cholesky(x: Value, lower: bool = True) -> Value:
    require_whole(x.shape[-2:], "a Cholesky factorization")
    return emit(f"stablehlo.cholesky {x.name}, lower = {str(lower).lower()} : {x.type}", x.shape, x.dtype)


def triangular_solve(
    a: Value, b: Value, *, left: bool = True, lower: bool = True, unit: bool = False, transpose: str = "NO_TRANSPOSE"
) -> Value:
    """Solves op(a) x = b, or x op(a) = b; transpose is NO_TRANSPOSE, TRANSPOSE or ADJOINT."""
    require_whole(a.shape[-2:], "a triangular system")
    return emit(
        f'"stablehlo.triangular_solve"({a.name}, {b.name}) <{{left_side = {str(left).lower()}, '
        f"lower = {str(lower).lower()}, unit_diagonal = {str(unit).lower()}, "
        f"transpose_a = #stablehlo<transpose {transpose}>}}> : ({a.type}, {b.type}) -> {b.type}",
        b.shape,
        b.dtype,
    )


def custom_call(
    target: str,
    operands: Sequence[Value],
    results: Sequence[tuple[Sequence[int], torch.dtype]],
    *,
    config: str = "",
    api_version: int = 4,
    operand_layouts: Sequence[Sequence[int]] | None = None,
    result_layouts: Sequence[Sequence[int]] | None = None,
    output_operand_aliases: Sequence[tuple[int, int]] = (),
) -> list[Value]:
    """A call of a registered function. `config` is MLIR text: a dictionary (`{a = 1 : i8}`) for api_version 4.

    Layouts are minor-to-major dimension lists. `output_operand_aliases` pairs (result, operand) share memory.
    """
    for value in operands:
        require_whole(value.shape, target)
    fields = [f'call_target_name = "{target}"', f"api_version = {api_version} : i32"]
    if not results:
        fields.append("has_side_effect = true")
    if config:
        fields.append(f"backend_config = {config}")
    for name, layouts in (("operand_layouts", operand_layouts), ("result_layouts", result_layouts)):
        if layouts is not None:
            parts = [
                f"dense<[{_ints(order)}]> : tensor<{len(order)}xindex>" if order else "dense<> : tensor<0xindex>"
                for order in layouts
            ]
            fields.append(f"{name} = [{', '.join(parts)}]")
    if output_operand_aliases:
        place = "" if len(results) == 1 else "{}"
        aliases = ", ".join(
            f"#stablehlo.output_operand_alias<output_tuple_indices = [{place and result}], "
            f"operand_index = {operand}, operand_tuple_indices = []>"
            for result, operand in output_operand_aliases
        )
        fields.append(f"output_operand_aliases = [{aliases}]")
    names = ", ".join(value.name for value in operands)
    signature = ", ".join(value.type for value in operands)
    result_types = ", ".join(tensor_type(tuple(shape), dtype) for shape, dtype in results)
    return emit_many(
        f'"stablehlo.custom_call"({names}) <{{{", ".join(fields)}}}> : ({signature}) -> ({result_types})', results
    )


FAIL = "xla_ffi_python_cpu_callback"
"""The function that `fail_if` calls: jaxlib's for host callbacks; the runtime gives it the one that raises."""


def fail_if(predicate: Value, message: str, numbers: Sequence[Value] = (), error: str = "RuntimeError") -> None:
    """The program fails where a 0-d bool is true. For the CPU only.

    Args:
        message: its braces `{}` are filled with the numbers. The operator's inputs are added, by shape and dtype.
        numbers: 0-d int64.
        error: "RuntimeError"; "IndexError" where an index is out of range, "LinAlgError" where LAPACK gives up.
    """

    def fail() -> list[Value]:
        inputs = [value for value in current().inputs if value is not None]
        text = literal(list(errors.message(f"{error}: {message}", inputs=inputs).encode()), torch.uint8)
        return custom_call(FAIL, [text, *numbers], [], config="{index = 0 : ui64}")

    conditional(predicate, fail, list)


def optimization_barrier(values: Sequence[Value]) -> list[Value]:
    """Identity that nothing is fused or moved across."""
    names = ", ".join(value.name for value in values)
    text = f"stablehlo.optimization_barrier {names} : {', '.join(value.type for value in values)}"
    if len(values) == 1:
        return [emit(text, values[0].shape, values[0].dtype)]
    return emit_many(text, [(value.shape, value.dtype) for value in values])
