"""Operators that the host answers, in Python: they need a value, a size that depends on data, or no device at all.

`OPERATORS` are served here always; `SPECIAL` look at a call with a new signature first and may return NotImplemented.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial, wraps
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload
from torch._prims_common.wrappers import _resize_output_check

from torch_tpu import _plug, errors, hlo
from torch_tpu.eager import transfer
from torch_tpu.eager.program import Program, aval_id, num_bytes, spec_of
from torch_tpu.eager.trace import without_alerts
from torch_tpu.ops import registry, schema
from torch_tpu.ops.registry import Lowering, Spec
from torch_tpu.runtime import platform
from torch_tpu.tensor import views

OPERATORS: dict[str, Callable[..., Any]] = {}
SPECIAL: dict[str, Callable[..., Any]] = {}
operator, special = registry.adding_to(OPERATORS), registry.adding_to(SPECIAL)

aten = torch.ops.aten


# ------------------------------------------------------------------------------------------------ reading values


@operator("_local_scalar_dense")
def local_scalar_dense(tensor: torch.Tensor) -> Any:
    return transfer.item(tensor)


@operator("equal")
def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.device != y.device:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {x.device} and {y.device}")
    return x.shape == y.shape and bool((x == y).all().item())


@operator("is_set_to")
def is_set_to(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (
        x.untyped_storage()._cdata == y.untyped_storage()._cdata
        and x.storage_offset() == y.storage_offset()
        and x.shape == y.shape
        and x.stride() == y.stride()
    )


@operator("is_same_size")
def is_same_size(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape


def _checked(op: OpOverload, *args: Any) -> Any:
    """A factorization that is asked to raise where it fails."""
    named = dict(zip((argument.name for argument in op._schema.arguments), args, strict=True))
    if not named["check_errors"]:
        return NotImplemented
    answer = op(**named | {"check_errors": False})
    name = op._schema.name.removeprefix("aten::").removeprefix("_").replace("_", ".", 1)
    aten._linalg_check_errors(answer[-1], name, is_matrix=args[0].dim() == 2)
    return answer


SPECIAL |= {
    f"aten::{name}": partial(_checked, getattr(aten, name).default)
    for name in (
        "linalg_cholesky_ex",
        "linalg_inv_ex",
        "linalg_ldl_factor_ex",
        "linalg_lu_factor_ex",
        "_linalg_solve_ex",
    )
}


def _unless_nothing_runs(check: Callable[..., None]) -> Callable[..., None]:
    """A check of values, which passes on a device that only compiles: nothing was computed, and so nothing is wrong."""

    @wraps(check)
    def checked(*args: Any, **kwargs: Any) -> None:
        with suppress(errors.NoValueError):
            check(*args, **kwargs)

    return checked


@operator("_linalg_check_errors")
@_unless_nothing_runs
def linalg_check_errors(info: torch.Tensor, api_name: str, is_matrix: bool) -> None:
    aten._linalg_check_errors(transfer.to_cpu(info), api_name, is_matrix=is_matrix)


@operator("_assert_async", "_assert_async.msg")
@_unless_nothing_runs
def assert_async(condition: torch.Tensor, message: str = "Expected Tensor to be true") -> None:
    if not transfer.item(condition):
        raise RuntimeError(message)


@operator("record_stream")
def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """PJRT keeps a buffer until the programs that read it are done."""


# ------------------------------------------------------------------------------------------- data-dependent sizes


def cut_rows(
    op: OpOverload,
    rule: Lowering,
    args: Sequence[Any],
    specs: Sequence[tuple[tuple[int, ...], torch.dtype]],
    arrays: list[Any],
) -> Any:
    """The results of a dynamic lowering: its padded arrays, cut to the number of rows that its last result says."""
    count = int(platform.client().get(arrays[-1], specs[-1][1]).item())
    names = [argument.name for argument in op._schema.arguments]
    along = args[names.index(rule.padded_along)] if rule.padded_along is not None else 0
    tensors = []
    for index, ((shape, dtype), array) in enumerate(zip(specs[:-1], arrays, strict=False)):
        whole = torch.empty(shape, dtype=dtype, device="tpu")
        _plug.set_value(whole, array, aval_id(shape, dtype), num_bytes(shape, dtype))
        dim = (along or 0) if len(shape) > 1 else 0
        if (rule.padded is None or index in rule.padded) and shape[dim] > count:
            whole = whole.narrow(dim, 0, count)
            if not rule.column_major:
                whole = whole.clone(memory_format=torch.contiguous_format)
        tensors.append(whole.t().contiguous().t() if rule.column_major else whole)
    return tensors[0] if len(op._schema.returns) == 1 else tuple(tensors)


@cache
def _base_overload(op: OpOverload) -> OpOverload | None:
    """For an `out=` overload that no program serves as such: the overload of its packet that returns new tensors."""
    arguments = op._schema.arguments
    if not any(argument.is_out for argument in arguments):
        return None
    rule = schema.lowering_of(op)
    if rule is not None and not rule.dynamic and not rule.inferred:
        return None
    wanted = [(a.name, str(a.type)) for a in arguments if not a.is_out]
    packet = op.overloadpacket
    for name in packet.overloads():
        base = getattr(packet, name)
        if [(a.name, str(a.type)) for a in base._schema.arguments] == wanted:
            return base
    return schema.form(op).functional


def _refuse_target(op: OpOverload, target: torch.Tensor, result: torch.Tensor, *, exact: bool) -> None:
    """Raises where a result may not be written into an out= tensor: of another device, or of a dtype that does not fit."""
    name = op._schema.name.removeprefix("aten::")
    if target.device != result.device:
        raise RuntimeError(
            f"{name}: out= is expected to be on the same device as the input, {result.device}, not {target.device}"
        )
    if result.dtype != target.dtype and (exact or not torch.can_cast(result.dtype, target.dtype)):
        wanted, given = (str(dtype).removeprefix("torch.") for dtype in (result.dtype, target.dtype))
        wanted = "scalar type Long" if result.dtype is torch.int64 else wanted
        raise RuntimeError(f"{name}: out= is expected to have {wanted}, not {given}, to which it can't be cast")


def write_out(op: OpOverload, args: Sequence[Any]) -> Any:
    """Serves an `out=` overload by the one without it and a copy, where the results' sizes depend on data or are
    not what PyTorch's meta kernel says, or other arguments are written as well; NotImplemented for any other."""
    base = _base_overload(op)
    if base is None:
        return NotImplemented
    pairs = list(zip(op._schema.arguments, args, strict=True))
    answer = base(**{argument.name: value for argument, value in pairs if not argument.is_out})
    results = [answer] if isinstance(answer, torch.Tensor) else list(answer)
    targets = [value for argument, value in pairs if argument.is_out]
    for target, result in zip(targets, results, strict=True):
        _refuse_target(op, target, result, exact=not schema.casts_out(op))
        if _resize_output_check(target, result.shape):  # and warns
            target.resize_(result.shape)
        target.copy_(result)
    return targets[0] if len(targets) == 1 else tuple(targets)


@operator("bincount")
def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    whole_numbers = not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool)
    if x.dim() != 1 or (x.numel() and not whole_numbers):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    if x.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    low, high = torch.stack([x.min().long(), x.max().long()]).tolist()
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    counts = torch.zeros(max(high + 1, minlength), dtype=dtype, device=x.device)
    ones = torch.ones(x.shape, dtype=dtype, device=x.device) if weights is None else weights.to(dtype)
    return counts.index_add_(0, x.long(), ones)


@operator("repeat_interleave.Tensor")
def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if repeats.dim() != 1 or repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeat_interleave only accepts 1D int32 or int64 vectors as repeat")
    ends = repeats.cumsum(0, dtype=torch.int64)
    if repeats.numel() and bool((repeats < 0).any().item()):
        raise RuntimeError("repeats can not be negative")
    size = output_size if output_size is not None else int(ends[-1].item()) if repeats.numel() else 0
    places = torch.arange(size, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _warn_of_bytes(indices: Sequence[torch.Tensor | None]) -> None:
    for index in indices:
        if index is not None and index.dtype is torch.uint8:
            warnings.warn(
                "indexing with dtype torch.uint8 is deprecated: use torch.bool for masks, or another integer dtype",
                stacklevel=2,
            )


def expand_masks(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks as the integer indices of their true elements, as PyTorch does; their number is read on the host."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            expanded.append(index)
            continue
        for dim in range(index.dim()):
            place = len(expanded)
            if place + 0 >= x.dim() or index.shape[dim] != x.shape[place]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {dim} does not match the shape of the "
                    f"indexed tensor {list(x.shape)} at index {place}"
                )
            expanded.append(None)
        mask = index if index.device == x.device else index.to(x.device)
        rows = mask.nonzero()
        for dim in range(index.dim()):
            expanded[len(expanded) - index.dim() + dim] = rows[:, dim]
    return expanded


@special("index.Tensor")
def index_tensor(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    if not _has_mask(indices):
        return NotImplemented
    _warn_of_bytes(indices)
    return aten.index.Tensor(x, expand_masks(x, indices))


@special("index_put", "_unsafe_index_put")
def index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    return index_put_(x.clone(), indices, values, accumulate) if _has_mask(indices) else NotImplemented


@special("index_put_", "_index_put_impl_")
def index_put_(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Any:
    if not _has_mask(indices):
        return NotImplemented
    _warn_of_bytes(indices)
    mask = indices[0]
    single = len(indices) == 1 and mask is not None and mask.shape == x.shape[: mask.dim()]
    if single and values.numel() == 1 and not accumulate and x.dtype is values.dtype:
        assert mask is not None
        wide = mask.to(x.device, torch.bool).reshape(mask.shape + (1,) * (x.dim() - mask.dim()))
        return x.copy_(torch.where(wide, values.to(x.device).reshape(()), x))
    return aten.index_put_(x, expand_masks(x, indices), values, accumulate)


@special("_embedding_bag_backward")
def embedding_bag_backward(grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any) -> Any:
    """With `sparse=True` the gradient is a sparse tensor, which PyTorch composes."""
    _, bag_size, _, num_weights, by_freq, mode, sparse, weights, padding = rest
    if not sparse:
        return NotImplemented
    bags = torch.searchsorted(offsets, torch.arange(indices.numel(), device=indices.device), right=True) - 1
    return aten._embedding_bag_sparse_backward(
        grad, indices, offsets, bags, bag_size, num_weights, by_freq, mode, weights, padding
    )


@special("copy_")
def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    return target if _is_same_memory(target, source) else NotImplemented


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same elements, seen in the same way."""
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata and views.View.of(one) == views.View.of(other)


@special("copy")
def copy(target: torch.Tensor, source: Any, non_blocking: bool = False) -> Any:
    """What graphs have instead of copy_."""
    if isinstance(source, torch.Tensor) and target.device == source.device:
        return NotImplemented
    return torch.empty_like(target).copy_(source)


# ------------------------------------------------------------------------------------------------ before a trace


def retype_arguments(args: Sequence[Any]) -> bool:
    """Gives arrays that were stored as bytes (by torch.load, say) the dtype and shape of the tensor that is all of
    the storage, once, so that programs need not reinterpret them. Says whether it changed anything."""
    changed = False
    for arg in args:
        for tensor in arg if isinstance(arg, (list, tuple)) else (arg,):
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "tpu" or tensor.layout != torch.strided:
                continue
            aval = _plug.get_aval(tensor)
            if aval == 0 or spec_of(aval).dtype is tensor.dtype or tensor.dtype is torch.uint8:
                continue
            spec = spec_of(aval)
            if spec.dtype is not torch.uint8 or len(spec.shape) != 1 or not views.is_whole(tensor):
                continue
            if spec.shape[0] != tensor.numel() * tensor.dtype.itemsize or tensor.numel() == 0:
                continue
            with hlo.Function("retype") as function:
                order = views.physical_order(tuple(tensor.shape), tensor.stride())
                assert order is not None
                shape = tuple(tensor.shape[dim] for dim in order)
                value = hlo.reshape(views.retype(function.argument(*spec), tensor.dtype), shape)
                program = Program("retype", function, [value])
            (array,) = program.run([_plug.get_value(tensor)], None)
            _plug.set_value(tensor, array, aval_id(shape, tensor.dtype), num_bytes(shape, tensor.dtype))
            changed = True
    return changed


def _widen_classes(op: OpOverload, *args: Any) -> Any:
    """Classes may be bytes, which PyTorch's meta kernels do not take."""
    wide = [arg.long() if isinstance(arg, torch.Tensor) and arg.dtype is torch.uint8 else arg for arg in args]
    return op(*wide) if any(new is not old for new, old in zip(wide, args, strict=True)) else NotImplemented


SPECIAL |= {
    f"aten::{packet.__name__}": partial(_widen_classes, packet.default)
    for packet in (aten.nll_loss_forward, aten.nll_loss_backward)
}


def _fill_range(op: OpOverload, *args: Any) -> torch.Tensor:
    """An out= of the right number of elements keeps its shape."""
    *numbers, out = args
    made = op(*numbers, dtype=out.dtype, device=out.device)
    if made.numel() != out.numel():
        out.resize_(made.shape)
    return out.copy_(made.view(out.shape))


SPECIAL |= {
    f"aten::{name}": partial(_fill_range, op)
    for name, op in {
        "arange.out": aten.arange.default,
        "arange.start_out": aten.arange.start_step,
        "range.out": aten.range.step,
        "range.out_": aten.range.default,
        **{
            f"{packet.__name__}.{name}".replace(".default_", "."): getattr(packet, name.removesuffix("_out"))
            for packet in (aten.linspace, aten.logspace)
            for name in ("default_out", "Tensor_Tensor_out", "Tensor_Scalar_out", "Scalar_Tensor_out")
        },
    }.items()
}


def resize_outputs(op: OpOverload, args: Sequence[Any]) -> bool:
    """Resizes `out=` tensors to what PyTorch's meta kernel says. Says whether it changed anything."""
    form = schema.form(op)
    if not form.is_out:
        return False
    metas = [_meta(arg) for arg in args]
    wanted = _wanted_sizes(op, form, metas)
    if wanted is None:
        return False
    changed = False
    for place in form.written:
        given = args[place]
        for tensor in given if isinstance(given, (list, tuple)) else [given]:
            meta = wanted.pop(0)
            if isinstance(tensor, torch.Tensor) and meta is not None and tensor.shape != meta.shape:
                if torch.Tag.pointwise in op.tags and any(arg is tensor for arg in args[: form.written[0]]):
                    raise views.OverlapError(
                        f"output with shape {list(tensor.shape)} doesn't match the broadcast shape {list(meta.shape)}"
                    )
                _resize_output_check(tensor, meta.shape)  # warns
                tensor.resize_(meta.shape)
                if tensor.stride() != meta.stride():
                    tensor.as_strided_(meta.shape, meta.stride())
                changed = True
    return changed


@without_alerts()
def _wanted_sizes(op: OpOverload, form: schema.Form, metas: Sequence[Any]) -> list[torch.Tensor | None] | None:
    """The `out=` arguments as PyTorch's meta kernel of the overload, or of its functional form, would leave them.

    Elementwise operators lay out what they resize as they lay out a new result.
    """
    pairs = list(zip(op._schema.arguments, metas, strict=True))

    def called() -> list[Any]:
        op(
            *(value for argument, value in pairs if not argument.kwarg_only),
            **{argument.name: value for argument, value in pairs if argument.kwarg_only},
        )
        return [metas[place] for place in form.written]

    def functional() -> list[Any]:
        if form.functional is None:
            raise NotImplementedError
        names = {argument.name for argument in form.functional._schema.arguments}
        answer = form.functional(**{argument.name: value for argument, value in pairs if argument.name in names})
        return [answer] if isinstance(answer, torch.Tensor) else list(answer)

    for attempt in (functional, called) if torch.Tag.pointwise in op.tags else (called, functional):
        try:
            found = attempt()
        except NotImplementedError:
            continue
        return [part for item in found for part in (item if isinstance(item, (list, tuple)) else [item])]
    return None


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        made = torch.empty(0, dtype=value.dtype, device="meta")
        base = torch.empty(value.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
        return made.set_(base.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    if isinstance(value, (list, tuple)):
        return [_meta(item) for item in value]
    return value


__all__ = ["OPERATORS", "SPECIAL", "Spec", "cut_rows", "registry", "resize_outputs", "retype_arguments"]


# ------------------------------------------------------------------------------------------------ nested tensors


@special("_padded_dense_to_jagged_forward")
def padded_to_jagged(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total: int | None = None) -> Any:
    """How many rows there are is read where it is not given."""
    if total is not None:
        return NotImplemented
    return aten._padded_dense_to_jagged_forward(dense, offsets, int(offsets[0][-1]))


@operator("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Transformer modules ask it whether to make their input a nested tensor: it stays padded."""
    return False


@operator(
    "_nested_tensor_from_tensor_list", "_nested_view_from_buffer", "_nested_tensor_from_mask", "_nested_from_padded"
)
def refuse_nested_tensor(*args: Any, **kwargs: Any) -> NoReturn:
    """A strided nested tensor on a device without kernels for it ends the process where autograd looks at it."""
    raise errors.UnsupportedOpError(
        errors.message(
            "the device has no strided nested tensors",
            do="use layout=torch.jagged, or padded tensors with a mask",
        )
    )
