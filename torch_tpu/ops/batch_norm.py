"""Batch norm: the native family, its functional forms, and the pieces that SyncBatchNorm is made of.

The running statistics' new values follow the declared results: PyTorch's `native_batch_norm`
updates them without saying so in its schema. In evaluation nothing is saved: two empty results, as on the
CPU; PyTorch's meta kernels say otherwise, hence `inferred`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.normalization import inverse, moments, wide
from torch_tpu.ops.registry import Context, lowering, number


def _other_dims(x: Value) -> list[int]:
    """All dimensions but the channels'."""
    return [dim for dim in range(x.ndim) if dim != 1]


def _count(x: Value) -> int:
    count = 1
    for dim in _other_dims(x):
        count *= x.shape[dim]
    return count


def _per_channel(value: Value, x: Value) -> Value:
    """[C] as [1, C, 1, ...] in x's dtype."""
    return hlo.reshape(hlo.convert(value, x.dtype), [size if dim == 1 else 1 for dim, size in enumerate(x.shape)])


def _affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = x * _per_channel(weight, x)
    return x if bias is None else x + _per_channel(bias, x)


def _blend(running: Value, new: Value, momentum: Value | float) -> Value:
    """(1 - momentum) running + momentum new, in the running statistic's dtype."""
    old = wide(running)
    new = hlo.convert(new, old.dtype)
    return hlo.convert(old + number(momentum, old.dtype) * (new - old), running.dtype)


def _unbiased(variance: Value, count: int) -> Value:
    if isinstance(count, hlo.Dim):
        return variance * (hlo.scalar(count, variance.dtype) * inverse(count - 1, variance.dtype))
    return variance * (count / (count - 1)) if count > 1 else variance * float("nan")


class Normalized:
    """The outcome of a batch norm: values, statistics and the new running statistics."""

    def __init__(
        self,
        x: Value,
        weight: Value | None,
        bias: Value | None,
        running_mean: Value | None,
        running_var: Value | None,
        training: bool,
        momentum: Value | float,
        eps: Value | float,
    ):
        narrow, x = x.dtype, wide(x)
        channels = (x.shape[1],)
        if training:
            mean, variance, centered = moments(x, _other_dims(x))
            rstd = hlo.rsqrt(variance + number(eps, x.dtype))
            flat_mean, flat_variance = hlo.reshape(mean, channels), hlo.reshape(variance, channels)
            self.saved = [flat_mean, hlo.reshape(rstd, channels)]
            unbiased = _unbiased(flat_variance, _count(x))
            self.running = [
                None if old is None else _blend(old, new, momentum)
                for old, new in ((running_mean, flat_mean), (running_var, unbiased))
            ]
        else:
            assert running_mean is not None and running_var is not None, "evaluation needs running statistics"
            centered = x - _per_channel(running_mean, x)
            rstd = hlo.rsqrt(_per_channel(running_var, x) + number(eps, x.dtype))
            self.saved = [hlo.full((0,), 0, x.dtype)] * 2
            self.running = [running_mean, running_var]
        self.out = hlo.convert(_affine(centered * rstd, weight, bias), narrow)
        self.written = [value for value in self.running if value is not None] if training else []


@lowering(
    "native_batch_norm",
    data=("momentum", "eps"),
    writes=("running_mean", "running_var"),
    inferred=True,
    format_of=("input",),
)
def native_batch_norm(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: Value | float,
    eps: Value | float,
) -> list[Value | None]:
    made = Normalized(x, weight, bias, running_mean, running_var, training, momentum, eps)
    given = [old for old in (running_mean, running_var) if old is not None]
    return [made.out, *made.saved, *(made.written if training else [None] * len(given))]


@lowering("_native_batch_norm_legit_functional", data=("momentum", "eps"), inferred=True, format_of=("input",))
def legit_functional(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: Value | float,
    eps: Value | float,
) -> list[Value | None]:
    made = Normalized(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return [made.out, *made.saved, *made.running]


@lowering("_native_batch_norm_legit.no_stats", data=("momentum", "eps"))
def legit_no_stats(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: Value | float,
    eps: Value | float,
) -> list[Value]:
    made = Normalized(x, weight, bias, None, None, True, momentum, eps)
    return [made.out, *made.saved]


@lowering("_native_batch_norm_legit_no_training", data=("momentum", "eps"), inferred=True, format_of=("input",))
def legit_no_training(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Value | float,
    eps: Value | float,
) -> list[Value]:
    made = Normalized(x, weight, bias, running_mean, running_var, False, momentum, eps)
    return [made.out, *made.saved]


@lowering("_batch_norm_with_update_functional", data=("momentum", "eps"), format_of=("input",))
def with_update_functional(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Value | float,
    eps: Value | float,
) -> list[Value | None]:
    """The fourth result is cuDNN's reserved space: empty."""
    made = Normalized(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return [made.out, *made.saved, hlo.full((0,), 0, torch.uint8), *made.running]


@lowering("_batch_norm_no_update", data=("momentum", "eps"), inferred=True)
def no_update(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Value | float,
    eps: Value | float,
) -> list[Value]:
    made = Normalized(x, weight, bias, running_mean, running_var, False, momentum, eps)
    return [made.out, *made.saved, hlo.full((0,), 0, torch.uint8)]


@lowering("native_batch_norm_backward", data=("eps",))
def native_batch_norm_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: Value | float,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    """With h = (x - mean) rstd: weight rstd (grad - mean(grad) - h mean(grad h)); in evaluation
    weight rstd grad.
    """
    kind, narrow = x.dtype, grad.dtype
    x, grad = wide(x), wide(grad)
    if train:
        assert save_mean is not None and save_invstd is not None, "training saves its statistics"
        mean, rstd = _per_channel(save_mean, x), _per_channel(save_invstd, x)
    else:
        assert running_mean is not None and running_var is not None, "evaluation needs running statistics"
        mean, rstd = _per_channel(running_mean, x), hlo.rsqrt(_per_channel(running_var, x) + number(eps, x.dtype))
    normal = (x - mean) * rstd
    dims, parameter = _other_dims(x), kind if weight is None else weight.dtype
    grad_sum, grad_dot = hlo.reduce_sum(grad, dims), hlo.reduce_sum(grad * normal, dims)
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        scale = rstd if weight is None else rstd * _per_channel(weight, x)
        inner = grad
        if train:
            share = inverse(max(_count(x), 1), grad.dtype)
            inner = grad - _per_channel(grad_sum * share, x) - normal * _per_channel(grad_dot * share, x)
        results[0] = hlo.convert(inner * scale, narrow)
    if output_mask[1]:
        results[1] = hlo.convert(grad_dot, parameter)
    if output_mask[2]:
        results[2] = hlo.convert(grad_sum, parameter)
    return results


@lowering("batch_norm_backward", data=("eps",))
def batch_norm_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_var: Value | None,
    update: bool,
    eps: Value | float,
    output_mask: Sequence[bool],
    reserve: Value,
) -> list[Value | None]:
    return native_batch_norm_backward(
        ctx, grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


# SyncBatchNorm: statistics of each process, gathered ones, and the gradient in the same two steps.
# Statistics are in float32 for narrower inputs. PyTorch has no meta kernels for these, so dtypes
# are set here.


@lowering("batch_norm_stats", data=("eps",))
def stats(ctx: Context, x: Value, eps: Value | float) -> list[Value]:
    x = wide(x)
    mean, variance, _ = moments(x, _other_dims(x))
    return [hlo.flatten(mean), hlo.flatten(hlo.rsqrt(variance + number(eps, x.dtype)))]


@lowering("batch_norm_update_stats", data=("momentum",), writes=("running_mean", "running_var"))
def update_stats(
    ctx: Context, x: Value, running_mean: Value | None, running_var: Value | None, momentum: Value | float
) -> list[Value | None]:
    """Mean and variance, and the running ones moved towards them."""
    kind, x = x.dtype, wide(x)
    mean, variance, _ = moments(x, _other_dims(x))
    mean, variance = hlo.flatten(mean), hlo.flatten(variance)
    news = ((running_mean, mean), (running_var, _unbiased(variance, _count(x))))
    updated = [_blend(old, new, momentum) for old, new in news if old is not None]
    return [hlo.convert(mean, kind), hlo.convert(variance, kind), *updated]


@lowering("batch_norm_elemt")
def elemt(
    ctx: Context, x: Value, weight: Value | None, bias: Value | None, mean: Value, invstd: Value, eps: Value | float
) -> Value:
    kind, x = x.dtype, wide(x)
    normal = (x - _per_channel(mean, x)) * _per_channel(invstd, x)
    return hlo.convert(_affine(normal, weight, bias), kind)


def _gathered(
    mean: Value,
    invstd: Value,
    counts: Value,
    running: Sequence[Value | None],
    momentum: Value | float,
    eps: Value | float,
) -> list[Value | None]:
    """Joins [world, C] statistics, with `counts` [world] elements each, into ones of all elements."""
    mean, invstd = wide(mean), wide(invstd)
    share = hlo.expand_dims(hlo.convert(counts, mean.dtype), [1])
    total = hlo.reduce_sum(share, [0])
    average = hlo.reduce_sum(mean * share, [0]) / hlo.broadcast_to(total, mean.shape[1:])
    variance = hlo.divide(1, invstd * invstd) - number(eps, mean.dtype)
    shift = mean - hlo.expand_dims(average, [0])
    squares = hlo.reduce_sum((variance + shift * shift) * share, [0])
    rstd = hlo.rsqrt(squares / hlo.broadcast_to(total, squares.shape) + number(eps, mean.dtype))
    unbiased = squares / hlo.broadcast_to(total - 1, squares.shape)
    news = zip(running, (average, unbiased), strict=True)
    return [average, rstd, *[_blend(old, new, momentum) for old, new in news if old is not None]]


@lowering("batch_norm_gather_stats_with_counts", data=("momentum", "eps"), writes=("running_mean", "running_var"))
def gather_stats_with_counts(
    ctx: Context,
    x: Value,
    mean: Value,
    invstd: Value,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Value | float,
    eps: Value | float,
    counts: Value,
) -> list[Value | None]:
    return _gathered(mean, invstd, counts, [running_mean, running_var], momentum, eps)


@lowering("batch_norm_gather_stats", data=("momentum", "eps"), writes=("running_mean", "running_var"))
def gather_stats(
    ctx: Context,
    x: Value,
    mean: Value,
    invstd: Value,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Value | float,
    eps: Value | float,
    count: int,
) -> list[Value | None]:
    counts = hlo.full((mean.shape[0],), count, hlo.compute_dtype(mean.dtype))
    return _gathered(mean, invstd, counts, [running_mean, running_var], momentum, eps)


@lowering("batch_norm_backward_reduce")
def backward_reduce(
    ctx: Context,
    grad: Value,
    x: Value,
    mean: Value,
    invstd: Value,
    weight: Value | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> list[Value | None]:
    """sum(grad), sum(grad (x - mean)), and the gradients of weight and bias; those that are asked for."""
    kind = x.dtype if weight is None else weight.dtype
    x, grad = wide(x), wide(grad)
    grad_sum = hlo.reduce_sum(grad, _other_dims(x))
    moment = hlo.reduce_sum(grad * (x - _per_channel(mean, x)), _other_dims(x))
    return [
        grad_sum if input_g else None,
        moment if input_g else None,
        hlo.convert(moment * hlo.convert(invstd, moment.dtype), kind) if weight_g else None,
        hlo.convert(grad_sum, kind) if bias_g else None,
    ]


@lowering("batch_norm_backward_elemt")
def backward_elemt(
    ctx: Context,
    grad: Value,
    x: Value,
    mean: Value,
    invstd: Value,
    weight: Value | None,
    sum_dy: Value,
    sum_dy_xmu: Value,
    count: Value,
) -> Value:
    """weight rstd (grad - sum_dy / n - (x - mean) rstd^2 sum_dy_xmu / n), n being the sum of the counts."""
    kind, x, grad = x.dtype, wide(x), wide(grad)
    total = hlo.convert(hlo.reduce_sum(count, range(count.ndim)) if count.ndim else count, x.dtype)
    rstd = _per_channel(invstd, x)
    first, second = _per_channel(sum_dy, x) / total, _per_channel(sum_dy_xmu, x) / total
    inner = grad - first - (x - _per_channel(mean, x)) * (rstd * rstd * second)
    scale = rstd if weight is None else rstd * _per_channel(weight, x)
    return hlo.convert(inner * scale, kind)
