"""Loss functions and their gradients; CTC is in `ctc.py`.

`reduction` is PyTorch's number: 0 keeps the elements, 1 takes their mean, 2 their sum. What PyTorch composes of
other operations (kl_div, l1_loss, cross_entropy_loss) needs no lowering.
"""

from __future__ import annotations

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.registry import POSITIVE, RESULT, Context, lowering

ELEMENTS, MEAN = 0, 1


def reduced(loss: Value, reduction: int) -> Value:
    """The mean of no elements is NaN."""
    if reduction == ELEMENTS:
        return loss
    total = hlo.reduce_sum(loss, range(loss.ndim))
    return total / loss.numel if reduction == MEAN else total


def spread(grad: Value, slope: Value, reduction: int) -> Value:
    """The gradient of `reduced` with respect to elements whose own derivative is the slope."""
    scaled = slope * grad
    return scaled / max(slope.numel, 1) if reduction == MEAN else scaled


@lowering("mse_loss", promote=RESULT)
def mse_loss(ctx: Context, x: Value, target: Value, reduction: int = MEAN) -> Value:
    return reduced(hlo.square(x - target), reduction)


@lowering("mse_loss_backward", promote=RESULT)
def mse_loss_backward(ctx: Context, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    return spread(grad, (x - target) * 2, reduction)


@lowering("smooth_l1_loss", promote=RESULT, varying={"beta": POSITIVE})
def smooth_l1_loss(ctx: Context, x: Value, target: Value, reduction: int = MEAN, beta: float | Value = 1.0) -> Value:
    """Quadratic below beta, linear above it."""
    gap = hlo.abs(x - target)
    if isinstance(beta, (int, float)) and beta == 0:
        return reduced(gap, reduction)
    return reduced(hlo.select(hlo.less(gap, beta), gap * gap * 0.5 / beta, gap - 0.5 * beta), reduction)


@lowering("smooth_l1_loss_backward", promote=RESULT, varying={"beta": POSITIVE})
def smooth_l1_loss_backward(
    ctx: Context, grad: Value, x: Value, target: Value, reduction: int, beta: float | Value
) -> Value:
    return spread(grad, _bounded(x - target, beta, 1.0), reduction)


def _bounded(gap: Value, limit: float | Value, bound: float | Value) -> Value:
    """gap bound / limit inside (-limit, limit), else bound with the gap's sign; 0 counts as below a zero limit."""
    middle = gap if isinstance(limit, (int, float)) and limit == 0 else gap * (bound / limit)
    above = hlo.select(hlo.greater_equal(gap, limit), bound, middle)
    return hlo.select(hlo.less_equal(gap, -limit), -bound, above)


@lowering("huber_loss", promote=RESULT, varying={"delta": POSITIVE})
def huber_loss(ctx: Context, x: Value, target: Value, reduction: int = MEAN, delta: float | Value = 1.0) -> Value:
    """Quadratic up to delta, linear with slope delta above it."""
    gap = hlo.abs(x - target)
    return reduced(hlo.select(hlo.less_equal(gap, delta), gap * gap * 0.5, (gap - 0.5 * delta) * delta), reduction)


@lowering("huber_loss_backward", promote=RESULT, varying={"delta": POSITIVE})
def huber_loss_backward(
    ctx: Context, grad: Value, x: Value, target: Value, reduction: int, delta: float | Value
) -> Value:
    return spread(grad, _bounded(x - target, delta, delta), reduction)


@lowering("binary_cross_entropy", promote=RESULT)
def binary_cross_entropy(
    ctx: Context, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """The logarithms are kept above -100, as PyTorch documents."""
    inside = hlo.greater_equal(x, 0) & hlo.less_equal(x, 1)
    require_all(ctx.platform, inside, "aten::binary_cross_entropy: all elements of input should be between 0 and 1")
    positive = hlo.maximum(hlo.log(x), -100.0)
    negative = hlo.maximum(hlo.log1p(-x), -100.0)
    loss = (target - 1) * negative - target * positive
    return reduced(loss if weight is None else loss * weight, reduction)


@lowering("binary_cross_entropy_backward", promote=RESULT)
def binary_cross_entropy_backward(
    ctx: Context, grad: Value, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    slope = (x - target) / hlo.maximum((1 - x) * x, 1e-12)
    return spread(grad, slope if weight is None else slope * weight, reduction)


@lowering("binary_cross_entropy_with_logits", promote=RESULT)
def binary_cross_entropy_with_logits(
    ctx: Context,
    x: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """(1 - t) x - (1 + (p - 1) t) log sigmoid(x), with log sigmoid(x) = min(x, 0) - log(1 + e^-|x|)."""
    log_sigmoid = hlo.minimum(x, 0) - hlo.log1p(hlo.exponential(-hlo.abs(x)))
    scaled = log_sigmoid if pos_weight is None else log_sigmoid * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * x - scaled
    return reduced(loss if weight is None else loss * weight, reduction)


@lowering("soft_margin_loss", promote=RESULT)
def soft_margin_loss(ctx: Context, x: Value, target: Value, reduction: int = MEAN) -> Value:
    return reduced(hlo.log1p(hlo.exponential(-x * target)), reduction)


@lowering("soft_margin_loss_backward", promote=RESULT)
def soft_margin_loss_backward(ctx: Context, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    return spread(grad, -target * hlo.logistic(-x * target), reduction)


# Negative log likelihood: scores are (C,), (N, C) or (N, C, H, W); targets have the shape without C.


def _classes_last(x: Value) -> Value:
    return x if x.ndim <= 2 else hlo.move_dim(x, 1, -1)


def _is_class(target: Value, num_classes: int) -> Value:
    """One-hot targets, with the classes as a last dimension."""
    shape = (*target.shape, num_classes)
    return hlo.equal(hlo.expand_dims(target, [-1]), hlo.iota(shape, len(shape) - 1, target.dtype))


def _class_weights(target: Value, weight: Value | None, ignore_index: int, dtype: torch.dtype) -> Value:
    """The weight of each target's class; 0 for targets to ignore."""
    counted = hlo.not_equal(target, ignore_index)
    if weight is None:
        return hlo.convert(counted, dtype)
    return hlo.select(counted, hlo.take(hlo.convert(weight, dtype), hlo.select(counted, target, 0)), 0)


@lowering("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    ctx: Context, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> list[Value]:
    """-w[t] x[t], and the sum of the weights, by which the mean divides."""
    dtype = hlo.compute_dtype(x.dtype)
    scores, target = _classes_last(x), hlo.convert(target, torch.int64)
    weights = _class_weights(target, weight, ignore_index, dtype)
    chosen = hlo.select(_is_class(target, scores.shape[-1]), scores, 0)
    chosen = hlo.convert(hlo.reduce_sum(chosen, [-1]), dtype)
    loss = hlo.select(hlo.not_equal(target, ignore_index), -chosen * weights, 0)
    if reduction == ELEMENTS and loss.ndim:
        return [loss, hlo.scalar(0, dtype)]
    total_weight = hlo.reduce_sum(weights, range(weights.ndim))
    total = hlo.reduce_sum(loss, range(loss.ndim))
    return [total / total_weight if reduction == MEAN else total, total_weight]


@lowering("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    dtype = hlo.compute_dtype(x.dtype)
    target, grad = hlo.convert(target, torch.int64), hlo.convert(grad, dtype)
    slope = -_class_weights(target, weight, ignore_index, dtype) * grad
    if reduction == MEAN:
        slope = slope / hlo.convert(total_weight, dtype)
    counted = hlo.not_equal(target, ignore_index)
    num_classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    hit = _is_class(target, num_classes) & hlo.expand_dims(counted, [-1])
    result = hlo.select(hit, hlo.expand_dims(slope, [-1]), 0)
    return result if x.ndim <= 2 else hlo.move_dim(result, -1, 1)


# Margins: scores are (C,) or (N, C).


def _as_batch(x: Value, rank: int) -> Value:
    """With a batch dimension in front if there is none."""
    return x if x.ndim == rank else hlo.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def _margins(x: Value, target: Value, margin: Value | int, weight: Value | None) -> tuple[Value, Value, Value]:
    """margin - x[t] + x for each class, one-hot targets, and weights / number of classes."""
    scores = _as_batch(x, 2)
    hit = _is_class(_as_batch(hlo.convert(target, torch.int64), 1), scores.shape[1])
    chosen = hlo.reduce_sum(hlo.select(hit, scores, 0), [1], keep_dim=True)
    scale = hlo.full((scores.shape[0], 1), 1 / max(scores.shape[1], 1), x.dtype)
    if weight is not None:
        taken = hlo.select(hit, hlo.broadcast_to(hlo.convert(weight, x.dtype), hit.shape), 0)
        scale = scale * hlo.reduce_sum(taken, [1], keep_dim=True)
    return scores - chosen + margin, hit, scale


@lowering("multi_margin_loss", static=("p",))
def multi_margin_loss(
    ctx: Context,
    x: Value,
    target: Value,
    p: int = 1,
    margin: Value | int = 1,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """The mean over classes other than the target of w[t] max(0, margin - x[t] + x)^p."""
    scores, margin = _computed(x), _margin(margin, x)
    gap, hit, scale = _margins(scores, target, margin, weight)
    gap = hlo.maximum(gap, 0)
    loss = hlo.select(hit, 0, (gap if p == 1 else gap * gap) * scale)
    return hlo.reshape(reduced(hlo.reduce_sum(loss, [1]), reduction), ctx.out.shape)


@lowering("multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    target: Value,
    p: int,
    margin: Value | int,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    scores, margin = _computed(x), _margin(margin, x)
    gap, hit, scale = _margins(scores, target, margin, weight)
    slope = hlo.select(hlo.greater(gap, 0) & ~hit, scale if p == 1 else gap * scale * 2, 0)
    slope = hlo.select(hit, -hlo.reduce_sum(slope, [1], keep_dim=True), slope)
    grad = _grad_of_rows(hlo.convert(grad, scores.dtype), slope.shape[0], reduction)
    return hlo.reshape(slope * grad, x.shape)


def _computed(x: Value) -> Value:
    return hlo.convert(x, hlo.compute_dtype(x.dtype))


def _margin(margin: Value | int, x: Value) -> Value | int:
    return hlo.convert(margin, hlo.compute_dtype(x.dtype)) if isinstance(margin, Value) else margin


def _grad_of_rows(grad: Value, num_rows: int, reduction: int) -> Value:
    """The gradient of each row's loss, as a column."""
    if reduction == MEAN:
        grad = grad / max(num_rows, 1)
    return hlo.reshape(grad, (num_rows if grad.numel == num_rows else 1, 1))


def _listed(target: Value) -> Value:
    """Which entries of the target lists stand before the first -1."""
    ended = hlo.convert(hlo.less(target, 0), torch.int32)
    window = target.shape[1]
    seen = hlo.reduce_window(ended, 0, hlo.maximum, window=(1, window), padding=((0, 0), (window - 1, 0)))
    assert isinstance(seen, Value)
    return hlo.equal(seen, 0)


@lowering("multilabel_margin_loss_forward", inferred=True)  # meta keeps a dimension of a vector's loss
def multilabel_margin_loss(ctx: Context, x: Value, target: Value, reduction: int) -> list[Value]:
    """The mean over classes of max(0, 1 - x[t] + x[i]), summed over targets t and classes i that are none."""
    if x.ndim > 2 or (x.ndim and not x.shape[-1]):
        raise RuntimeError(f"expected a non-empty vector or matrix, got {x.shape}")
    scores = _as_batch(_computed(x), 2)
    target = hlo.reshape(hlo.convert(target, torch.int64), scores.shape)
    shape = (x.shape[0],) if reduction == 0 and x.ndim == 2 else ()
    if 0 in scores.shape:
        loss = hlo.full((scores.shape[0],), 0, x.dtype)
        return [hlo.reshape(reduced(loss, reduction), shape), hlo.full(x.shape, 0, x.dtype)]
    used = _listed(target)
    hit = _is_class(target, scores.shape[1]) & hlo.expand_dims(used, [2])  # rows, targets, classes
    is_target = hlo.reduce_or(hit, [1])
    gap = _gaps(scores, target)
    counted = hlo.expand_dims(used, [2]) & ~hlo.expand_dims(is_target, [1])
    loss = hlo.reduce_sum(hlo.select(counted, hlo.maximum(gap, 0), 0), [1, 2]) / scores.shape[1]
    return [
        hlo.convert(hlo.reshape(reduced(loss, reduction), shape), x.dtype),
        hlo.reshape(hlo.convert(is_target, x.dtype), x.shape),
    ]


def _gaps(scores: Value, target: Value) -> Value:
    """1 - x[t] + x[i] for rows, targets and classes."""
    hit = _is_class(target, scores.shape[1])
    chosen = hlo.reduce_sum(hlo.select(hit, hlo.expand_dims(scores, [1]), 0), [2], keep_dim=True)
    return hlo.expand_dims(scores, [1]) - chosen + 1


@lowering("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    ctx: Context, grad: Value, x: Value, target: Value, reduction: int, is_target: Value
) -> Value:
    scores = _as_batch(_computed(x), 2)
    if 0 in scores.shape:
        return hlo.zeros_like(x)
    target = hlo.reshape(hlo.convert(target, torch.int64), scores.shape)
    used = hlo.expand_dims(_listed(target), [2])
    other = hlo.equal(hlo.reshape(is_target, scores.shape), hlo.scalar(0, is_target.dtype))
    active = used & hlo.expand_dims(other, [1]) & hlo.greater(_gaps(scores, target), 0)
    counts = hlo.convert(active, scores.dtype)
    pushed = hlo.reduce_sum(counts, [2], keep_dim=True)  # how often each target was too low
    hit = _is_class(target, scores.shape[1]) & used
    pulled = hlo.reduce_sum(hlo.select(hit, pushed, 0), [1])
    slope = (hlo.reduce_sum(counts, [1]) - pulled) / scores.shape[1]
    grad = _grad_of_rows(hlo.convert(grad, scores.dtype), scores.shape[0], reduction)
    return hlo.reshape(slope * grad, x.shape)
