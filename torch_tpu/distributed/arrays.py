"""The arrays of tensors, as collectives take and give them: all of a tensor's values in row-major order."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import _plug
from torch_tpu.eager.program import aval_id, num_bytes, spec_of
from torch_tpu.ops.registry import Spec
from torch_tpu.tensor import views


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of real numbers, in the same memory; any other as it is."""
    tensor = tensor.detach()
    if not tensor.is_complex():
        return tensor
    if tensor.is_conj():
        raise ValueError("collectives take no conjugate views; call resolve_conj() on the tensor first")
    return torch.view_as_real(tensor)


def read(tensor: torch.Tensor) -> tuple[Any, Spec]:
    """A tensor's array, of the tensor's shape, so that every process runs the same program; of a view a copy."""
    if tensor.is_contiguous() and views.is_whole(tensor):
        array = _plug.get_value(tensor)
        if array is not None and spec_of(_plug.get_aval(tensor)) == spec(tensor):
            return array, spec(tensor)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return _plug.get_value(copy), spec(tensor)


def write(tensor: torch.Tensor, array: Any) -> None:
    """Makes an array of a tensor's shape and dtype its value; through a view it is copied."""
    if tensor.is_contiguous() and views.is_whole(tensor):
        shape = tuple(tensor.shape)
        _plug.set_value(tensor, array, aval_id(shape, tensor.dtype), num_bytes(shape, tensor.dtype))
        _plug.bump_version(tensor)
        return
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    write(whole, array)
    tensor.copy_(whole)


def spec(tensor: torch.Tensor) -> Spec:
    return Spec(tuple(tensor.shape), tensor.dtype)
