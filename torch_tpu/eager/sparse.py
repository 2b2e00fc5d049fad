"""Sparse COO tensors: the operators that PyTorch does not compose of others itself, by dense ones of their parts.

csrc/sparse.cpp calls `call_sparse` for them, and for what sparse tensors cannot do at all. An element is looked up by its
*place*, the number that its indices are in row-major order. Sizes that depend on data are read on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torch_tpu import errors
from torch_tpu.ops import registry

OPERATORS: dict[str, Callable[..., Any]] = {}
operator = registry.adding_to(OPERATORS)

aten = torch.ops.aten


def call_sparse(op: OpOverload, args: list[Any]) -> Any:
    """Serves a call with sparse tensors that csrc/sparse.cpp has no kernel for.

    Raises:
        UnsupportedOpError: if nothing does.
    """
    name = registry.overload_name(op)
    if name not in OPERATORS:
        raise errors.UnsupportedOpError(
            errors.message(
                f"{name} takes no sparse tensors on the device",
                inputs=args,
                do="make them dense by to_dense(), or keep them on the CPU",
                see=errors.page(errors.UnsupportedOpError),
            )
        )
    pairs = list(zip(op._schema.arguments, args, strict=True))
    devices = {arg.device for arg in args if isinstance(arg, Tensor) and (arg.dim() or arg.device.type != "cpu")}
    if len(devices) > 1:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found {', '.join(sorted(map(str, devices)))}"
        )
    return OPERATORS[name](
        *(value for argument, value in pairs if not argument.kwarg_only),
        **{argument.name: value for argument, value in pairs if argument.kwarg_only},
    )


# ----------------------------------------------------------------------------------------------------- places


def make(indices: Tensor, values: Tensor, size: Sequence[int], *, coalesced: bool = False) -> Tensor:
    """A sparse tensor of these parts."""
    return torch.sparse_coo_tensor(indices, values, tuple(size), check_invariants=False, is_coalesced=coalesced)


def flatten(indices: Iterable[Tensor], sizes: Sequence[int], like: Tensor) -> Tensor:
    """The places of elements with these indices, one row a dimension; `like` is any tensor with one column for each."""
    places = like.new_zeros(like.shape[-1], dtype=torch.int64)
    for size, row in zip(sizes, indices, strict=True):
        places = places * size + row
    return places


def places_of(x: Tensor) -> Tensor:
    indices = x._indices()
    return flatten(indices, x.shape[: x.sparse_dim()], indices)


def unflatten(places: Tensor, sizes: Sequence[int]) -> Tensor:
    """The indices of places, one row a dimension."""
    rows = []
    for size in reversed(sizes):
        rows.append(places % size)
        places = places // size
    return torch.stack(rows[::-1]) if rows else places.new_empty(0, places.numel())


def add_up(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Sums of the values with the same place, of which there are `count`."""
    if values.dtype is torch.bool:
        return add_up(values.int(), places, count) > 0
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, places, values)


def wide(row: Tensor, values: Tensor) -> Tensor:
    """One number for each value, with the values' number of dimensions."""
    return row.reshape(-1, *[1] * (values.dim() - 1))


def find(places: Tensor, sorted_places: Tensor) -> tuple[Tensor, Tensor]:
    """Where places are among others, which are in order and not empty, and which of them are there."""
    position = torch.searchsorted(sorted_places, places).clamp_(max=sorted_places.numel() - 1)
    return position, sorted_places[position] == places


def join(left: Tensor, sorted_right: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of equal elements, as their positions in both, in the order of the left ones."""
    start = torch.searchsorted(sorted_right, left)
    counts = torch.searchsorted(sorted_right, left, right=True) - start
    of_left = torch.repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[of_left]
    return of_left, start[of_left] + torch.arange(of_left.numel(), device=left.device) - before


# ------------------------------------------------------------------------------------------------ one operand


@operator("_coalesce")
def coalesce(x: Tensor) -> Tensor:
    if x._nnz() < 2:
        return x.clone()._coalesced_(True)
    size = x.shape[: x.sparse_dim()]
    places, group = torch.unique(places_of(x), return_inverse=True)
    return make(unflatten(places, size), add_up(x._values(), group, places.numel()), x.shape, coalesced=True)


@operator("index_select")
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    dim = torch._prims_common.canonicalize_dim(x.dim(), dim)
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        raise IndexError("index_select() argument index must be 1-D, of int32 or int64")
    size = [*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]]
    if dim >= x.sparse_dim():
        values = x._values().index_select(dim - x.sparse_dim() + 1, index)
        return make(x._indices(), values, size, coalesced=x.is_coalesced())
    index = index.long()
    index = torch.where(index < 0, index + x.shape[dim], index)
    if bool(((index < 0) | (index >= x.shape[dim])).any()):
        raise IndexError(f"index_select(): index out of range for dimension {dim} of size {x.shape[dim]}")
    row, order = x._indices()[dim].sort(stable=True)
    target, position = join(index, row)
    position = order[position]
    indices = x._indices()[:, position]
    indices[dim] = target
    return make(indices, x._values()[position], size)


@operator("_sparse_sum_backward")
def sum_backward(grad: Tensor, x: Tensor, dims: Sequence[int]) -> Tensor:
    x = x.coalesce()
    dims = [dim % x.dim() for dim in dims]
    sparse = [dim for dim in range(x.sparse_dim()) if dim not in dims]
    picked = grad
    if sparse:
        size = [x.shape[dim] for dim in sparse]
        picked = pick(grad, flatten([x._indices()[dim] for dim in sparse], size, x._indices()))
    else:
        picked = picked.unsqueeze(0)
    for dim in sorted(dim for dim in dims if dim >= x.sparse_dim()):
        picked = picked.unsqueeze(dim - x.sparse_dim() + 1)
    values = picked.expand(x._values().shape).contiguous()
    return make(x._indices(), values, x.shape, coalesced=x.is_coalesced())


def pick(x: Tensor, places: Tensor) -> Tensor:
    """The values of a sparse tensor at these places; zero where it has none."""
    x = x.coalesce()
    if not x._nnz():
        return x._values().new_zeros(places.numel(), *x._values().shape[1:])
    position, found = find(places, places_of(x))
    values = x._values()[position]
    return torch.where(wide(found, values), values, values.new_zeros(()))


@operator("sparse_mask")
def sparse_mask(x: Tensor, mask: Tensor) -> Tensor:
    if x.shape != mask.shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(x.shape)} but mask has size "
            f"{list(mask.shape)}"
        )
    if not mask.is_sparse:
        raise errors.UnsupportedOpError("sparse_mask takes a sparse COO mask on the device")
    if x.is_sparse:
        values = pick(x, places_of(mask))
    elif mask.sparse_dim():
        values = x[tuple(mask._indices())]
    else:
        values = x.expand(mask._values().shape).clone()
    return make(mask._indices().clone(), values, x.shape, coalesced=mask.is_coalesced())


@operator("_sparse_mask_projection")
def sparse_mask_projection(x: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """The elements of a sparse tensor, zero where the mask has none, or as often as the mask has them."""
    places, ordered = places_of(x), places_of(mask).sort().values
    counts = torch.searchsorted(ordered, places, right=True) - torch.searchsorted(ordered, places)
    values = x._values() * wide(counts.to(x.dtype), x._values()) if accumulate_matches else x._values()
    values = torch.where(wide(counts > 0, values), values, values.new_zeros(()))
    return make(x._indices().clone(), values, x.shape, coalesced=x.is_coalesced())


# ---------------------------------------------------------------------------------------------------- softmax


class Slices:
    """The values of a tensor by the slices along one of its sparse dimensions: those that are equal but for it."""

    def __init__(self, x: Tensor, dim: int):
        others = [other for other in range(x.sparse_dim()) if other != dim]
        indices = x._indices()
        places = flatten((indices[other] for other in others), [x.shape[other] for other in others], indices)
        kinds, self.group = torch.unique(places, return_inverse=True)
        self.count = kinds.numel()

    def sum(self, values: Tensor) -> Tensor:
        """Of the slice of each value."""
        return add_up(values, self.group, self.count)[self.group]

    def max(self, values: Tensor) -> Tensor:
        least = values.new_full((self.count, *values.shape[1:]), -torch.inf)
        return least.index_reduce_(0, self.group, values, "amax")[self.group]


def _softmax(name: str, x: Tensor, dim: int, of_dense: Callable[..., Tensor], logarithm: bool) -> Tensor:
    """Over the elements that a slice has: others count as minus infinity."""
    dim = torch._prims_common.canonicalize_dim(x.dim(), dim)
    if not x.is_floating_point():
        raise NotImplementedError(f"{name} is not implemented for {x.dtype}")
    x = x.coalesce()
    values = x._values()
    if dim >= x.sparse_dim():
        values = of_dense(values, dim - x.sparse_dim() + 1, False)
    elif values.numel():
        slices = Slices(x, dim)
        shifted = values - slices.max(values)
        total = slices.sum(shifted.exp())
        values = shifted - total.log() if logarithm else shifted.exp() / total
    return make(x._indices(), values, x.shape, coalesced=True)


@operator("_sparse_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _softmax("softmax", x, dim, aten._softmax, logarithm=False)


@operator("_sparse_log_softmax")
def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _softmax("log_softmax", x, dim, aten._log_softmax, logarithm=True)


def _softmax_backward(grad: Tensor, out: Tensor, dim: int, of_dense: Callable[..., Tensor], logarithm: bool) -> Tensor:
    """A gradient is zero where it has no element."""
    dim = torch._prims_common.canonicalize_dim(out.dim(), dim)
    out = out.coalesce()
    values, given = out._values(), pick(grad, places_of(out))
    if dim >= out.sparse_dim():
        values = of_dense(given, values, dim - out.sparse_dim() + 1, values.dtype)
    elif values.numel():
        slices = Slices(out, dim)
        values = (
            given - values.exp() * slices.sum(given) if logarithm else values * (given - slices.sum(given * values))
        )
    return make(out._indices(), values, out.shape, coalesced=True)


@operator("_sparse_softmax_backward_data")
def softmax_backward(grad: Tensor, out: Tensor, dim: int, x: Tensor) -> Tensor:
    return _softmax_backward(grad, out, dim, aten._softmax_backward_data, logarithm=False)


@operator("_sparse_log_softmax_backward_data")
def log_softmax_backward(grad: Tensor, out: Tensor, dim: int, x: Tensor) -> Tensor:
    return _softmax_backward(grad, out, dim, aten._log_softmax_backward_data, logarithm=True)


# ----------------------------------------------------------------------------------------------- element-wise


def require_equal_sizes(name: str, x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape:
        raise RuntimeError(
            f"{name}: expected 'self' and 'other' to have same size, but self has size {list(x.shape)} while other has "
            f"size {list(y.shape)}"
        )


def require_equal_densities(name: str, x: Tensor, y: Tensor) -> None:
    if x.dense_dim() != y.dense_dim():
        raise RuntimeError(
            f"{name}: expected 'self' and 'other' to have same density, but 'self' has {x.sparse_dim()} sparse dimensions "
            f"while 'other' has {y.sparse_dim()} sparse dimensions"
        )


def write(name: str, out: Tensor, result: Tensor, dtype: torch.dtype) -> Tensor:
    if not torch.can_cast(dtype, out.dtype):
        raise RuntimeError(f"{name}: result type {dtype} can't be cast to the desired output type {out.dtype}")
    if out.is_sparse:
        return aten.copy_sparse_to_sparse_(out, result)
    return out.resize_(result.shape).copy_(result)


@operator("add.out")
def add_out(x: Tensor, y: Tensor, *, alpha: Any = 1, out: Tensor) -> Tensor:
    if not is_sparse(y):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    require_equal_sizes("add", x, y)
    dtype = torch.result_type(x, y)
    values = y._values().to(dtype)
    values = values if alpha == 1 else values * alpha
    if not x.is_sparse:
        return write("add", out, add_to_dense(x.to(dtype), y, values), dtype)
    if not y._nnz():
        return write("add", out, x, dtype)
    if not x._nnz():
        return write("add", out, make(y._indices(), values, y.shape, coalesced=y.is_coalesced()), dtype)
    require_equal_densities("add", x, y)
    indices = torch.cat([x._indices(), y._indices()], 1)
    both = make(indices, torch.cat([x._values().to(dtype), values]), x.shape)
    return write("add", out, both.coalesce() if x.is_coalesced() and y.is_coalesced() else both, dtype)


def add_to_dense(x: Tensor, y: Tensor, values: Tensor) -> Tensor:
    """A dense tensor with the values added at the places of a sparse one."""
    count = y.sparse_dim()
    rows = x.reshape(x.shape[:count].numel(), *x.shape[count:])
    if values.dtype is torch.bool:
        return (rows | add_up(values, places_of(y), rows.shape[0])).reshape(x.shape)
    return rows.index_add(0, places_of(y), values).reshape(x.shape)


@operator("mul.out")
def mul_out(x: Any, y: Any, *, out: Tensor) -> Tensor:
    dtype = torch.result_type(x, y)
    if is_sparse(x) and is_sparse(y):
        if x.dim() and y.dim():
            return write("mul", out, multiply(x, y, dtype), dtype)
        x, y = (x, y.to_dense()) if not y.dim() else (y, x.to_dense())
    sparse, other = (x, y) if is_sparse(x) else (y, x)
    if isinstance(other, Tensor) and other.dim():
        size = torch.broadcast_shapes(sparse.shape, other.shape)
        sparse = broadcast(sparse, size)
        other = sparse_mask(other.expand(size), sparse)._values().to(dtype)
    values = sparse._values().to(dtype) * other
    return write("mul", out, make(sparse._indices(), values, sparse.shape, coalesced=sparse.is_coalesced()), dtype)


def is_sparse(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_sparse


def broadcast(x: Tensor, size: Sequence[int]) -> Tensor:
    return x if x.shape == size else aten._sparse_broadcast_to(x, size)


def multiply(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of two sparse tensors: the elements that both have."""
    size = torch.broadcast_shapes(x.shape, y.shape)
    x, y = broadcast(x, size).coalesce(), broadcast(y, size).coalesce()
    require_equal_densities("mul", x, y)
    if not x._nnz() or not y._nnz():
        return make(x._indices()[:, :0], x._values()[:0].to(dtype), size, coalesced=True)
    position, found = find(places_of(x), places_of(y))
    kept = found.nonzero().squeeze(1)
    values = x._values()[kept].to(dtype) * y._values()[position[kept]].to(dtype)
    return make(x._indices()[:, kept], values, size, coalesced=True)


# --------------------------------------------------------------------------------------------------- products


def misfit(left: Tensor, right: Tensor) -> str:
    shapes = " and ".join("x".join(map(str, given.shape)) for given in (left, right))
    return f"mat1 and mat2 shapes cannot be multiplied ({shapes})"


@operator("addmm")
def addmm(x: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if not left.is_sparse or right.is_sparse or x.is_sparse:
        raise errors.UnsupportedOpError("addmm takes dense, sparse and dense tensors, in this order, on the device")
    if left.dim() != 2 or right.dim() != 2 or left.dense_dim():
        raise RuntimeError("addmm: matrices expected, and scalars as the values of the sparse one")
    if left.shape[1] != right.shape[0]:
        raise RuntimeError(misfit(left, right))
    size = (left.shape[0], right.shape[1])
    if len({x.dtype, left.dtype, right.dtype}) > 1:
        raise RuntimeError(f"addmm: expected one dtype, but found {x.dtype}, {left.dtype} and {right.dtype}")
    rows, columns = left._indices()
    product = add_up(left._values()[:, None] * right[columns], rows, size[0])
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (x if beta == 1 else x * beta).expand(size)


@operator("addmm.out")
def addmm_out(x: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor) -> Tensor:
    return write("addmm", out, addmm(x, left, right, beta=beta, alpha=alpha), x.dtype)


@operator("addmm_")
def addmm_(x: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return x.copy_(addmm(x, left, right, beta=beta, alpha=alpha))


@operator("bmm")
def bmm(left: Tensor, right: Tensor) -> Tensor:
    if not left.is_sparse or right.is_sparse or left.dense_dim():
        raise errors.UnsupportedOpError("bmm takes a sparse tensor and a dense one, in this order, on the device")
    if left.dim() != 3 or right.dim() != 3 or left.shape[0] != right.shape[0] or left.shape[2] != right.shape[1]:
        raise RuntimeError(f"bmm: {list(left.shape)} and {list(right.shape)} cannot be multiplied")
    batch, rows, columns = left._indices()
    size = (left.shape[0], left.shape[1], right.shape[2])
    products = left._values()[:, None] * right[batch, columns]
    return add_up(products, batch * size[1] + rows, size[0] * size[1]).reshape(size)


@operator("bmm.out")
def bmm_out(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
    return write("bmm", out, bmm(left, right), left.dtype)


@operator("hspmm")
def hspmm(left: Tensor, right: Tensor) -> Tensor:
    """Sparse by dense, with the rows of the product that are not zero as values."""
    if left.shape[1] != right.shape[0]:
        raise RuntimeError(misfit(left, right))
    (rows, columns), size = left._indices(), (left.shape[0], right.shape[1])
    rows, group = torch.unique(rows, return_inverse=True)
    return make(rows[None], add_up(left._values()[:, None] * right[columns], group, rows.numel()), size, coalesced=True)


@operator("_sparse_sparse_matmul")
def matmul(left: Tensor, right: Tensor) -> Tensor:
    if left.dim() != 2 or right.dim() != 2 or left.dense_dim() or right.dense_dim():
        raise RuntimeError("sparse matmul: matrices with scalars as values expected")
    if left.shape[1] != right.shape[0]:
        raise RuntimeError(misfit(left, right))
    if left.dtype != right.dtype:
        raise RuntimeError(f"mat1 dtype {left.dtype} does not match mat2 dtype {right.dtype}")
    right = right.coalesce()
    rows, columns = left._indices()
    of_left, of_right = join(columns, right._indices()[0])
    indices = torch.stack([rows[of_left], right._indices()[1][of_right]])
    values = left._values()[of_left] * right._values()[of_right]
    return make(indices, values, (left.shape[0], right.shape[1])).coalesce()


__all__ = ["OPERATORS", "call_sparse"]
