"""The counted CPU fallback: an operator that no program serves runs on the CPU, visibly."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tpu import errors, settings
from torch_tpu.eager import transfer
from torch_tpu.ops import registry, schema
from torch_tpu.stats import counters

reasons: dict[str, str] = {}
"""Operator -> why its last fallback happened."""

INDEXING = frozenset({
    "aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index.Tensor",
    "aten::index.Tensor_out",
})  # fmt: skip
"""Operators that take index tensors on the CPU."""
HOST_SCALARS = frozenset({
    "aten::_foreach_addcmul.Tensor", "aten::_foreach_addcmul_.Tensor", "aten::_foreach_addcdiv.Tensor",
    "aten::_foreach_addcdiv_.Tensor",
})  # fmt: skip
"""Operators that take a tensor of scalars on the CPU."""


def run(op: OpOverload, args: list[Any], reason: str, *, valid: bool = False) -> Any:
    """Runs a call on the CPU, writes back what it writes, and counts it.

    Args:
        valid: nothing is wrong with the call itself.
    """
    name = registry.overload_name(op)
    if valid and settings.fallback == "error":
        reasons[name] = reason
        counters.fallback(name)
        raise errors.fallback_refused(name, args, why=reason)
    try:
        host_args = [None if isinstance(arg, torch.Generator) else transfer.to_cpu(arg) for arg in args]
    except errors.NoValueError:
        raise _without_values(op, args, reason) from None
    try:
        answer = _call(op, host_args)
    except Exception as error:  # what the CPU raises for a call that is wrong
        if settings.eager_mode != "debug":  # which knows the line too
            error.add_note(errors.message(f"raised by {name}", inputs=[arg for arg in args if arg is not None]))
        raise
    reasons[name] = reason
    first = counters.fallback(name)
    if settings.fallback == "error":
        raise errors.fallback_refused(name, args, why=reason)
    if settings.fallback == "warn" and first:
        warnings.warn(
            f"{name} falls back to the CPU: {reason.splitlines()[0] if reason else 'no lowering'}", stacklevel=2
        )
    return _write_back(op, args, host_args, answer)


def _call(op: OpOverload, args: list[Any]) -> Any:
    """Calls an operator with its arguments in the schema's order."""
    pairs = list(zip(op._schema.arguments, args, strict=True))
    named = {argument.name: value for argument, value in pairs if argument.kwarg_only}
    return op(*(value for argument, value in pairs if not argument.kwarg_only), **named)


def _without_values(op: OpOverload, args: list[Any], reason: str) -> errors.FallbackError:
    """The error for a call that only the CPU could serve, where there are no values to give it.

    Raises:
        RuntimeError or another: what is wrong with the call, if that is why no program serves it.
    """

    def on_meta(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return type(arg)(map(on_meta, arg))
        if isinstance(arg, torch.Tensor):
            return torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype, device="meta")
        return (
            torch.device("meta") if isinstance(arg, torch.device) else None if isinstance(arg, torch.Generator) else arg
        )

    with contextlib.suppress(NotImplementedError):
        _call(op, [on_meta(arg) for arg in args])
    return errors.FallbackError(
        errors.message(
            f"{registry.overload_name(op)} would run on the CPU, and has no values there",
            inputs=args,
            why=reason,
            do="use another operator, or take this part out of what is compiled",
            see=errors.page(errors.FallbackError),
        )
    )


def _write_back(op: OpOverload, args: list[Any], host_args: list[Any], answer: Any) -> Any:
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for place in schema.form(op).written:
        device, host = args[place], host_args[place]
        if isinstance(device, torch.Tensor):
            pairs.append((device, host))
        elif isinstance(device, (list, tuple)):
            pairs += list(zip(device, host, strict=True))
    for device, host in pairs:
        if device.shape != host.shape:
            device.resize_(host.shape)
        device.copy_(host)
    back = {id(host): device for device, host in pairs}

    def one(item: Any) -> Any:
        if isinstance(item, torch.Tensor) and (
            item.layout not in (torch.strided, torch.sparse_coo) or item.is_quantized
        ):
            kind = "quantized" if item.is_quantized else str(item.layout).removeprefix("torch.")
            raise errors.UnsupportedOpError(
                errors.message(
                    f"{registry.overload_name(op)} makes a {kind} tensor",
                    inputs=args,
                    why="the device has dense and sparse COO tensors only",
                    do="move its input to the CPU by .cpu(), and what is made of it back",
                )
            )
        if isinstance(item, (list, tuple)):
            return type(item)(one(part) for part in item) if not hasattr(item, "_fields") else tuple(map(one, item))
        return back[id(item)] if id(item) in back else transfer.to_tpu(item)

    return one(answer)


def _tensors(args: Iterable[Any]) -> list[torch.Tensor]:
    return [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, torch.Tensor)]


def uncacheable(op: OpOverload, args: list[Any]) -> Any:
    """A call with tensors that no program takes: on the host with dimensions, sparse, or of another kind."""
    name = registry.overload_name(op)
    tensors = _tensors(args)
    if any(t.layout != torch.strided for t in tensors):
        return run(op, args, "sparse layouts have no XLA form")
    declared = zip(op._schema.arguments, args, strict=True)
    written = _tensors(given for argument, given in declared if argument.alias_info and argument.alias_info.is_write)
    hosts = [t for t in tensors if t.device.type == "cpu" and (t.dim() or any(t is other for other in written))]
    if name in INDEXING and args[0].device.type == "cpu":
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor (cpu) ({name}: "
            f"{', '.join(errors.describe(t) for t in tensors)}; move the indices with .cpu())"
        )
    if name in HOST_SCALARS:
        overload = op.overloadpacket.ScalarList
        return overload(*args[:-1], args[-1].tolist())
    if any(isinstance(a, torch.Generator) for a in args) and not any(t.device.type == "tpu" for t in tensors):
        raise RuntimeError("Expected a 'cpu' device type for generator but found 'tpu'")
    if (
        hosts
        and name in INDEXING
        and all(t.dtype in (torch.int64, torch.int32, torch.bool, torch.uint8) for t in hosts)
    ):
        moved = [[transfer.to_tpu(t) for t in a] if isinstance(a, (list, tuple)) else a for a in args]
        return op(*moved)
    if name == "aten::fill_.Tensor" and hosts and hosts[0] is args[0]:
        return op(args[0], args[1].cpu())  # PyTorch lets the value be anywhere
    if hosts:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, tpu:0 and cpu! ({name}: "
            f"{', '.join(errors.describe(t) for t in tensors)}; move the CPU tensors with .to('tpu'))"
        )
    return run(op, args, "an argument that no program takes")
