"""Which of PyTorch's decompositions are accepted, and in which order they are tried.

An overload without a lowering is traced through PyTorch's own definition of it, if there is one: the composite kernel,
or an entry of the decomposition table. `REFUSED` lists the ones that are wrong or bad on this device, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, contiguous_format, dtype, ops
from torch._C import DisableTorchFunction, DispatchKey
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from torch_tpu.ops import registry, schema, shapes

REFUSED: dict[str, str] = {
    "aten::index_put": "its decomposition reads the indices on the host",
}
"""Overload -> why PyTorch's decomposition table is not used for it."""


def _zeros_and_scatter(shape: Sequence[int], indices: Sequence[Tensor], values: Tensor) -> Tensor:
    return values.new_zeros(shape).index_put(tuple(indices), values, accumulate=True)


def _restrided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None) -> Tensor:
    """x.as_strided, which meta tensors take beyond the end of their storage."""
    offset = x.storage_offset() if storage_offset is None else storage_offset
    reach = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) + 1
    held = x.untyped_storage().nbytes()
    if 0 not in size and reach * x.itemsize > held:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize {x.itemsize} "
            f"requiring a storage size of {reach * x.itemsize} are out of bounds for storage of size {held}"
        )
    return x.as_strided(size, stride, storage_offset)


def _as_strided_copy(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    return _restrided(x, size, stride, storage_offset).clone(memory_format=contiguous_format)


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """The strides are those of the storage, which is copied with all that x does not show of it."""
    if any(step == 0 and count > 1 for count, step in zip(x.shape, x.stride(), strict=True)):
        copy = x.clone()
    else:
        count = x.untyped_storage().nbytes() // x.itemsize
        copy = x.as_strided((count,), (1,), 0).clone().as_strided(x.shape, x.stride(), x.storage_offset())
    slice = _restrided(copy, size, stride, storage_offset)
    shapes.check_written(source, slice)
    slice.copy_(source)
    return copy


def _convert_element_type(x: Tensor, dtype: dtype) -> Tensor:
    return ops.aten._to_copy.default(x, dtype=dtype)


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "flex_lib::zeros_and_scatter": _zeros_and_scatter,
    "aten::as_strided_copy": _as_strided_copy,
    "aten::as_strided_scatter": _as_strided_scatter,
    "prims::convert_element_type": _convert_element_type,
}
"""Operators in terms of ATen: those that PyTorch has outside of it, which are gradients of what scores of flex_attention
look up and conversions of numbers that vary, and those whose view is one of the storage, which a lowering does not see."""

COMPOSITE_KEYS = (
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeImplicitAutograd,
)


def is_known(op: OpOverload) -> bool:
    """Whether an overload is ATen's, or defined here; what other libraries do inside of theirs is not known."""
    return op.namespace in ("aten", "prims") or registry.overload_name(op) in DEFINITIONS


def candidates(op: OpOverload) -> list[Callable[..., Any]]:
    """Definitions of an overload in terms of others, best first."""
    if (definition := DEFINITIONS.get(registry.overload_name(op))) is not None:
        return [definition]
    found: list[Callable[..., Any]] = []
    if op in decomposition_table and registry.overload_name(op) not in REFUSED:
        found.append(decomposition_table[op])
    for key in COMPOSITE_KEYS:
        if key is DispatchKey.CompositeExplicitAutogradNonFunctional:
            continue  # calls the structured kernel that is being looked for
        if op.has_kernel_for_dispatch_key(key):
            found.append(_composite(op, key))
    return found


def _composite(op: OpOverload, key: DispatchKey) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunction():  # a mode would call the operator itself
            return op._op_dk(key, *args, **kwargs)

    return call


def is_decomposed(op: OpOverload) -> bool:
    """A table entry exists for the overload or for its functional form."""
    functional = schema.form(op).functional
    return any(
        o in decomposition_table and registry.overload_name(o) not in REFUSED for o in (op, functional) if o is not None
    )


def composite_only(op: OpOverload) -> bool:
    """PyTorch's composite kernel is what serves the overload: nothing better is known."""
    return not is_decomposed(op) and any(op.has_kernel_for_dispatch_key(key) for key in COMPOSITE_KEYS)
