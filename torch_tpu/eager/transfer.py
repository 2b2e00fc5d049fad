"""Copies between host and device, and what is read on the host."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import _plug, hlo
from torch_tpu.eager.program import Program, aval_id, num_bytes, spec_of
from torch_tpu.eager.trace import scalar_dtype
from torch_tpu.runtime import platform
from torch_tpu.tensor import views
from torch_tpu.tensor.views import View

_readers: dict[tuple[int, View], Program] = {}


def store(tensor: torch.Tensor, host: torch.Tensor, *, owned: bool = False) -> None:
    """Makes a CPU tensor's values the value of a device tensor's storage: the tensor must be all of it."""
    if host.dtype is torch.complex32:
        host = torch.view_as_real(host)
    array = platform.client().put(host, owned=owned)
    count = num_bytes(tuple(host.shape), host.dtype)
    _plug.set_value(tensor, array, aval_id(tuple(host.shape), host.dtype), count)


def to_device(target: torch.Tensor, source: torch.Tensor) -> None:
    """target.copy_(source) for a CPU source."""
    if target.numel() == 0:
        return
    source = source.detach()
    if views.is_whole(target):
        alike = target.dtype is source.dtype and target.shape == source.shape
        if alike and target.is_contiguous() and source.is_contiguous():
            return store(target, source)
        order = views.physical_order(tuple(target.shape), target.stride())
        assert order is not None
        host = source.to(target.dtype).expand(target.shape).resolve_conj().resolve_neg()
        if order != tuple(range(len(order))) or not host.is_contiguous():
            host = host.permute(order).contiguous()
        store(target, host, owned=host.data_ptr() != source.data_ptr())
        return
    staged = torch.empty(source.shape, dtype=target.dtype, device=target.device)
    store(staged, source.to(target.dtype).resolve_conj().resolve_neg().contiguous())
    target.copy_(staged)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a device tensor, after waiting for them. The result may share device memory: do not write to it."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if tensor.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    array = _plug.get_value(tensor)
    if array is None:
        return torch.zeros(shape, dtype=dtype)
    aval = _plug.get_aval(tensor)
    spec = spec_of(aval)
    client = platform.client()
    if spec == (shape, dtype) and tensor.is_contiguous() and not _selects(tensor):  # as most are, and the rest is slow
        return client.get(array, dtype)
    if views.is_whole(tensor) and num_bytes(*spec) == tensor.numel() * dtype.itemsize:
        host = client.get(array, spec.dtype)
        if spec.dtype is not dtype:
            host = _reinterpret(host, dtype)
        order = views.physical_order(shape, tensor.stride())
        assert order is not None
        host = host.reshape([shape[dim] for dim in order])
        return host.permute([order.index(dim) for dim in range(len(order))])
    if client.platform == "cpu" or num_bytes(*spec) <= SMALL:
        seen = _view_of(client.get(array, spec.dtype), tensor)
        if seen is not None:
            return seen
    view = View.of(tensor)
    key = (aval, view)
    program = _readers.get(key)
    if program is None:
        with hlo.Function("read") as function:
            value = views.read(function.argument(*spec), view)
            program = _readers[key] = Program("read", function, [value])
    return client.get(program.run([array], None)[0], hlo.types.held_dtype(dtype)).to(dtype)


def _selects(tensor: torch.Tensor) -> bool:
    """Whether a contiguous tensor is other than what its storage begins with."""
    return bool(tensor.storage_offset()) or tensor.is_conj() or tensor.is_neg()


SMALL = 1 << 14
"""Bytes: a view of a smaller array is taken on the host, where it needs no program."""


def _view_of(array: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor | None:
    """A device tensor's view of its storage's array, which is on the host; None if it reaches beyond the array."""
    if array.nbytes % tensor.dtype.itemsize:
        return None
    flat = array.reshape(-1) if array.dtype is tensor.dtype else _reinterpret(array, tensor.dtype)
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    if last >= flat.numel():
        return None
    seen = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    seen = torch.conj(seen) if tensor.is_conj() else seen
    return torch._neg_view(seen) if tensor.is_neg() else seen


def _reinterpret(host: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    flat = host.contiguous().reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    if dtype.is_complex:
        return torch.view_as_complex(flat.view(hlo.real_dtype(dtype)).reshape(-1, 2))
    return flat.view(torch.uint8).view(dtype)


def to_cpu(value: Any) -> Any:
    """Device tensors of an argument as CPU tensors with the same sizes and strides, which may be written to."""
    if isinstance(value, torch.Tensor) and value.device.type == "tpu":
        host = to_host(value)
        copy = torch.empty_strided(value.shape, _dense_strides(value), dtype=value.dtype)
        copy.copy_(host)
        return copy
    if isinstance(value, (list, tuple)):
        return type(value)(to_cpu(item) for item in value)
    if isinstance(value, torch.device) and value.type == "tpu":
        return torch.device("cpu")
    return value


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if views.physical_order(tuple(tensor.shape), tensor.stride()) is not None:
        return tensor.stride()
    return views.contiguous_strides(tensor.shape)


def to_tpu(value: Any) -> Any:
    """CPU tensors of a result as device tensors."""
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.to("tpu")
    if isinstance(value, (list, tuple)):
        return type(value)(to_tpu(item) for item in value)
    return value


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without a subclass: an uninitialized parameter, for one, has no `shape`."""
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return tensor if known else torch.Tensor._make_subclass(torch.Tensor, tensor)


def copy_across(target: torch.Tensor, source: torch.Tensor | complex) -> torch.Tensor:
    """aten::copy_ where one side is on the host, or a number. Called by the plug (csrc/dispatch.cpp)."""
    if not isinstance(source, torch.Tensor):
        source = torch.tensor(source, dtype=scalar_dtype(source, wide=True))
    given, target, source = target, _plain(target), _plain(source)
    if target.shape != source.shape and torch.broadcast_shapes(target.shape, source.shape) != target.shape:
        raise RuntimeError(
            f"The size of tensor a {tuple(target.shape)} must match the size of tensor b {tuple(source.shape)}"
        )
    if target.device.type == "tpu":
        to_device(target, source)
    else:
        target.copy_(to_host(source))
    return given


def address_of(array: Any, num_bytes: int) -> int:
    """Where the host finds an array's values, after waiting for them; 0 where it does not. Called by the plug."""
    return platform.client().address_of(array, num_bytes)


def item(tensor: torch.Tensor) -> bool | int | float | complex:
    """The Python number of a one-element tensor."""
    return to_host(tensor).item()
