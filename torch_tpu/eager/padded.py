"""Arrays that are larger than the tensor they belong to: what compiled graphs with bounded dimensions give.

To PyTorch such a tensor is like any other, with sizes and strides of its own. Its storage holds a `Padded`, which a
bounded graph takes as it is; for everything else the plug asks it for an array of the tensor's size, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import _plug, errors, hlo
from torch_tpu.eager import transfer
from torch_tpu.eager.program import Program, aval_id, num_bytes
from torch_tpu.runtime import platform
from torch_tpu.tensor import views

Shape = tuple[int, ...]
_resizers: dict[tuple[Shape, Shape, torch.dtype], Program] = {}


class Padded:
    """An array whose first elements along each dimension are a tensor's; both shapes are in the array's order."""

    __slots__ = ("_exact", "array", "dtype", "real", "shape")

    def __init__(self, array: Any, shape: Shape, real: Shape, dtype: torch.dtype):
        self.array = array
        self.shape = shape
        self.real = real
        self.dtype = dtype
        self._exact: Any = None

    def __call__(self) -> Any:
        """The array without its padding."""
        if self._exact is None:
            self._exact = resize(self.array, self.shape, self.real, self.dtype)
        return self._exact


_plug.defer(Padded)


def resize(array: Any, shape: Shape, target: Shape, dtype: torch.dtype) -> Any:
    """An array cut, or padded with zeros, behind its elements; where the host can do it, without a program."""
    if shape == target:
        return array
    client = platform.client()
    common = tuple(slice(min(pair)) for pair in zip(shape, target, strict=True))
    if client.platform == "cpu" or num_bytes(shape, dtype) + num_bytes(target, dtype) <= transfer.SMALL:
        try:
            host = client.get(array, dtype)
        except errors.NoValueError:
            return client.blank(target, dtype)
        made = torch.zeros(target, dtype=host.dtype)
        made[common] = host[common]
        return client.put(made, owned=True)
    key = (shape, target, dtype)
    if key not in _resizers:
        with hlo.Function("resize") as function:
            value = hlo.slice(function.argument(shape, dtype), [0] * len(shape), [one.stop for one in common])
            value = hlo.pad(value, [0] * len(shape), [t - s for t, s in zip(target, value.shape, strict=True)])
            _resizers[key] = Program("resize", function, [value])
    return _resizers[key].run([array], None)[0]


def padded_tensor(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A tensor of a larger shape, dense and row-major, that begins with this one's elements along each dimension."""
    size = tuple(tensor.shape)
    if tensor.is_contiguous() and views.is_whole(tensor):
        value = _plug.get_value(tensor, settled=False)
        if isinstance(value, Padded) and value.real == size and value.dtype is tensor.dtype:
            return _holding(resize(value.array, value.shape, shape, tensor.dtype), shape, tensor.dtype)
        if size == shape:
            return tensor
    client = platform.client()
    if client.platform == "cpu" or num_bytes(shape, tensor.dtype) <= transfer.SMALL:
        try:
            host = transfer.to_host(tensor)
        except errors.NoValueError:
            return _holding(client.blank(shape, tensor.dtype), shape, tensor.dtype)
        whole = torch.zeros(shape, dtype=hlo.types.held_dtype(tensor.dtype))
        whole[tuple(slice(n) for n in size)] = host
        return _holding(client.put(whole, owned=True), shape, tensor.dtype)
    dense = tensor.contiguous()
    dense = dense if views.is_whole(dense) else dense.clone()
    return _holding(resize(_plug.get_value(dense), size, shape, tensor.dtype), shape, tensor.dtype)


def _holding(array: Any, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    made: torch.Tensor = _plug.new_tensor(shape, views.contiguous_strides(shape), dtype)
    _plug.set_value(made, array, aval_id(shape, dtype), num_bytes(shape, dtype))
    return made


def real_tensor(whole: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The tensor of a smaller size that a dense one begins with; the order of its dimensions in memory is kept."""
    shape, size = tuple(whole.shape), tuple(size)
    if shape == size:
        return whole
    order = views.physical_order(shape, whole.stride())
    assert order is not None, "a program's result is dense"
    inner = views.contiguous_strides([size[dim] for dim in order])
    made: torch.Tensor = _plug.new_tensor(size, [inner[order.index(dim)] for dim in range(len(order))], whole.dtype)
    set_real(made, _plug.get_value(whole), [shape[dim] for dim in order], [size[dim] for dim in order])
    return made


def set_real(tensor: torch.Tensor, array: Any, shape: Sequence[int], real: Sequence[int]) -> None:
    """Makes a padded array the value of a tensor's storage, of which the tensor is all."""
    value = Padded(array, tuple(shape), tuple(real), tensor.dtype)
    _plug.set_value(tensor, value, aval_id(value.real, tensor.dtype), num_bytes(value.shape, tensor.dtype))
