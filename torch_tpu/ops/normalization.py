"""Softmax, layer, group and RMS norm, and weight norm, forward and backward. Batch norm has its own file.

Computed in float32 for bfloat16 and float16. Variances are means of squared differences from the
mean (two passes), which loses no digits where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Context, lowering, number


def wide(x: Value) -> Value:
    """x in the dtype that arithmetic is done in."""
    return hlo.convert(x, hlo.compute_dtype(x.dtype))


def wide_as(x: Value | None, like: Value) -> Value | None:
    return None if x is None else hlo.convert(x, like.dtype)


def _axis(x: Value, dim: int) -> tuple[Value, int]:
    """x with at least one dimension, and dim counted from its front."""
    x = hlo.reshape(x, (1,)) if x.ndim == 0 else x
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"dimension {dim} is out of range for {x.ndim} dimensions")
    return x, dim % x.ndim


# Softmax


def softmax_parts(x: Value, dim: int) -> tuple[Value, Value, Value]:
    """(x - max), exp(x - max) and its sum along dim, which is kept."""
    shifted = x - hlo.reduce_max(x, [dim], keep_dim=True)
    exponentials = hlo.exponential(shifted)
    return shifted, exponentials, hlo.reduce_sum(exponentials, [dim], keep_dim=True)


@lowering("_softmax")
def softmax(ctx: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    shape = x.shape
    x, dim = _axis(wide(x), dim)
    _, exponentials, total = softmax_parts(x, dim)
    return hlo.reshape(hlo.divide(exponentials, total), shape)


@lowering("_log_softmax")
def log_softmax(ctx: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    shape = x.shape
    x, dim = _axis(wide(x), dim)
    shifted, _, total = softmax_parts(x, dim)
    return hlo.reshape(shifted - hlo.log(total), shape)


@lowering("_softmax_backward_data")
def softmax_backward(ctx: Context, grad: Value, out: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """out (grad - sum(grad out))."""
    shape = out.shape
    grad, _ = _axis(wide(grad), dim)
    out, dim = _axis(hlo.convert(out, grad.dtype), dim)
    return hlo.reshape(out * (grad - hlo.reduce_sum(grad * out, [dim], keep_dim=True)), shape)


@lowering("_log_softmax_backward_data")
def log_softmax_backward(ctx: Context, grad: Value, out: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """grad - exp(out) sum(grad)."""
    shape = out.shape
    grad, _ = _axis(wide(grad), dim)
    out, dim = _axis(hlo.convert(out, grad.dtype), dim)
    return hlo.reshape(grad - hlo.exponential(out) * hlo.reduce_sum(grad, [dim], keep_dim=True), shape)


def safe_softmax_parts(x: Value, dim: int) -> tuple[Value, Value, Value]:
    """The maximum (0 for rows of -inf), exp(x - max) and its sum along dim, 0 for such rows; both
    are kept.
    """
    top = hlo.reduce_max(x, [dim], keep_dim=True)
    top = hlo.select(hlo.equal(top, float("-inf")), 0, top)
    exponentials = hlo.exponential(x - top)
    return top, exponentials, hlo.reduce_sum(exponentials, [dim], keep_dim=True)


@lowering("_safe_softmax")
def safe_softmax(ctx: Context, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Softmax that gives 0 for rows of -inf."""
    shape = x.shape
    if dtype is not None:
        x = hlo.convert(x, dtype)
    x, dim = _axis(wide(x), dim)
    _, exponentials, total = safe_softmax_parts(x, dim)
    return hlo.reshape(hlo.divide(exponentials, hlo.select(hlo.equal(total, 0), 1, total)), shape)


def _mask_for(mask: Value, x: Value, mask_type: int | None) -> Value:
    """A softmax mask in x's shape [B, H, L, L]: [L, L] (type 0), [B, L] (type 1), or as x (type 2)."""
    if mask.dtype is not torch.bool:
        mask = hlo.convert(mask, torch.bool)
    if mask.shape == x.shape or mask_type not in (0, 1) or mask.ndim != 2:
        return hlo.broadcast_to(mask, x.shape)
    places = (x.ndim - 2, x.ndim - 1) if mask_type == 0 else (0, x.ndim - 1)
    return hlo.broadcast_in_dim(mask, x.shape, places)


def masked_softmax_of(x: Value, mask: Value | None, dim: int, mask_type: int | None) -> Value:
    """Softmax of x without the elements where the mask is true; NaN for rows that have no other."""
    if mask is not None:
        x = hlo.select(_mask_for(mask, x, mask_type), float("-inf"), x)
    _, exponentials, total = softmax_parts(x, dim)
    return hlo.divide(exponentials, total)


@lowering("_masked_softmax")
def masked_softmax(ctx: Context, x: Value, mask: Value, dim: int | None = None, mask_type: int | None = None) -> Value:
    dim = x.ndim - 1 if dim is None else dim % x.ndim
    return hlo.convert(masked_softmax_of(wide(x), mask, dim, mask_type), x.dtype)


@lowering("_masked_softmax_backward")
def masked_softmax_backward(ctx: Context, grad: Value, out: Value, mask: Value, dim: int | None = None) -> Value:
    keep = hlo.bitwise_not(hlo.convert(mask, torch.bool))
    dim = grad.ndim - 1 if dim is None else dim % grad.ndim
    wide_grad, wide_out = wide(grad), wide(out)
    total = hlo.reduce_sum(hlo.select(keep, wide_grad * wide_out, 0), [dim], keep_dim=True)
    return hlo.convert(hlo.select(keep, wide_out * (wide_grad - total), 0), grad.dtype)


# Layer norm and RMS norm


def inverse(count: int, dtype: torch.dtype) -> Value | float:
    """1 / count as an operand."""
    if isinstance(count, hlo.Dim):
        return 1.0 / hlo.scalar(count, dtype)
    return 1.0 / count if count else float("nan")


def moments(x: Value, dims: Sequence[int]) -> tuple[Value, Value, Value]:
    """Mean and (biased) variance over dims, which are kept, and x - mean."""
    count = 1
    for dim in dims:
        count *= x.shape[dim]
    scale = inverse(count, x.dtype)
    mean = hlo.reduce_sum(x, dims, keep_dim=True) * scale
    centered = x - mean
    return mean, hlo.reduce_sum(centered * centered, dims, keep_dim=True) * scale, centered


def _last_dims(x: Value, normalized_shape: Sequence[int]) -> list[int]:
    return list(range(x.ndim - len(normalized_shape), x.ndim))


@lowering("native_layer_norm", data=("eps",))
def layer_norm(
    ctx: Context,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: Value | float,
) -> list[Value]:
    """The normalized values, the mean and 1 / sqrt(variance + eps)."""
    x = wide(x)
    mean, variance, centered = moments(x, _last_dims(x, normalized_shape))
    rstd = hlo.rsqrt(variance + number(eps, x.dtype))
    out = centered * rstd
    if weight is not None:
        out = out * hlo.convert(weight, x.dtype)
    if bias is not None:
        out = out + hlo.convert(bias, x.dtype)
    return [out, mean, rstd]


@lowering("native_layer_norm_backward")
def layer_norm_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    """With h = (x - mean) rstd and g = grad weight: rstd (g - mean(g) - h mean(g h)), sum(grad h)
    and sum(grad).
    """
    dims, kind = _last_dims(x, normalized_shape), x.dtype
    x, grad = wide(x), wide(grad)
    mean, rstd = hlo.convert(mean, x.dtype), hlo.convert(rstd, x.dtype)
    normal = (x - mean) * rstd
    outer = list(range(dims[0])) if dims else list(range(x.ndim))
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        inner = grad if weight is None else grad * hlo.convert(weight, x.dtype)
        results[0] = hlo.convert(_centered_gradient(inner, normal, rstd, dims), kind)
    if output_mask[1] and weight is not None:
        results[1] = hlo.convert(hlo.reduce_sum(grad * normal, outer), weight.dtype)
    if output_mask[2]:
        results[2] = hlo.convert(hlo.reduce_sum(grad, outer), bias.dtype if bias is not None else kind)
    return results


def _centered_gradient(grad: Value, normal: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """rstd (grad - mean(grad) - normal mean(grad normal)): the gradient of (x - mean) rstd."""
    count = 1
    for dim in dims:
        count *= grad.shape[dim]
    scale = inverse(max(count, 1), grad.dtype)
    first = hlo.reduce_sum(grad, dims, keep_dim=True) * scale
    second = hlo.reduce_sum(grad * normal, dims, keep_dim=True) * scale
    return rstd * (grad - first - normal * second)


# Group norm


def _by_group(x: Value, num_samples: int, num_channels: int, size: int, groups: int) -> Value:
    return hlo.reshape(x, (num_samples, groups, num_channels // groups, size))


def _channels(weight: Value, like: Value) -> Value:
    """[C] as [1, G, C / G, 1]."""
    return hlo.reshape(hlo.convert(weight, like.dtype), (1, like.shape[1], like.shape[2], 1))


@lowering("native_group_norm", data=("eps",))
def group_norm(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Value | float,
) -> list[Value]:
    shape = x.shape
    x = _by_group(wide(x), N, C, HxW, group)
    mean, variance, centered = moments(x, [2, 3])
    rstd = hlo.rsqrt(variance + number(eps, x.dtype))
    out = centered * rstd
    if weight is not None:
        out = out * _channels(weight, x)
    if bias is not None:
        out = out + _channels(bias, x)
    return [hlo.reshape(out, shape), hlo.reshape(mean, (N, group)), hlo.reshape(rstd, (N, group))]


@lowering("native_group_norm_backward")
def group_norm_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    """As layer norm's, over each group; the weight's gradients are over samples and places."""
    shape, kind = x.shape, x.dtype
    x, grad = _by_group(wide(x), N, C, HxW, group), _by_group(wide(grad), N, C, HxW, group)
    mean, rstd = (hlo.reshape(hlo.convert(value, x.dtype), (N, group, 1, 1)) for value in (mean, rstd))
    normal = (x - mean) * rstd
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        inner = grad if weight is None else grad * _channels(weight, x)
        results[0] = hlo.convert(hlo.reshape(_centered_gradient(inner, normal, rstd, [2, 3]), shape), kind)
    parameter = kind if weight is None else weight.dtype
    if output_mask[1]:
        results[1] = hlo.convert(hlo.flatten(hlo.reduce_sum(grad * normal, [0, 3])), parameter)
    if output_mask[2]:
        results[2] = hlo.convert(hlo.flatten(hlo.reduce_sum(grad, [0, 3])), parameter)
    return results


# Weight norm


@lowering("_weight_norm_interface", inferred=True)  # meta has the norms of float16 in float16, the CPU does not
def weight_norm(ctx: Context, v: Value, g: Value, dim: int = 0) -> list[Value]:
    """v g / |v|, and |v|, the 2-norm over all dimensions but the first or last."""
    kept = dim % v.ndim
    x = wide(v)
    norm = hlo.sqrt(hlo.reduce_sum(x * x, [d for d in range(v.ndim) if d != kept], keep_dim=True))
    return [hlo.convert(x * (hlo.convert(g, x.dtype) / norm), v.dtype), norm]


@lowering("_weight_norm_interface_backward")
def weight_norm_backward(ctx: Context, grad: Value, v: Value, g: Value, norms: Value, dim: int) -> list[Value]:
    """With s = sum(grad v): g / |v| (grad - v s / |v|^2), and s / |v|."""
    kept = dim % v.ndim
    x, grad = wide(v), wide(grad)
    scale, norm = hlo.convert(g, x.dtype), hlo.convert(norms, x.dtype)
    total = hlo.reduce_sum(grad * x, [d for d in range(v.ndim) if d != kept], keep_dim=True)
    grad_v = scale / norm * (grad - x * (total / (norm * norm)))
    return [hlo.convert(grad_v, v.dtype), hlo.convert(total / norm, g.dtype)]
